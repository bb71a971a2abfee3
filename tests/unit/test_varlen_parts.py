"""The parts of packed documents that a cp rank holds, against the mask over all pairs of tokens."""

from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cuda import SDPAParams

from mimo_launch.layers import varlen_attention
from mimo_launch.layers.sequence_contexts import Documents, sequence_context, zigzag_positions
from mimo_launch.layers.varlen_attention import parts_of_documents, takes_lists

CPU = torch.device("cpu")
SEQ = 24
# Two sequences each; one document, many, and such that begin or end with chunks of 2, 3, 4 or 6.
LENGTHS = [
    (24, 24),
    (1,) * 48,
    (12, 12, 6, 18),
    (1, 22, 1, 5, 2, 17),
    (3, 3, 3, 3, 4, 4, 4, 23, 1),
    (7, 17, 20, 4),
]


def pairs_of_parts(lengths: tuple[int, ...], cp_size: int, cp_index: int) -> torch.Tensor:
    """Return which of the tokens [2 * S] each query of a rank sees, by its lists."""
    parts = parts_of_documents(lengths, 2, cp_size, cp_index)
    spans = [torch.arange(row * SEQ + first, row * SEQ + last) for row, first, last in parts.spans]
    tokens = torch.cat(spans)
    assert len(tokens) == sum(parts.keys)
    sees = torch.zeros(sum(parts.queries), 2 * SEQ, dtype=torch.bool)
    first_query = first_key = 0
    for queries, keys in zip(parts.queries, parts.keys, strict=True):
        assert 0 < queries <= keys
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        of_part = tokens[first_key : first_key + keys]
        sees[first_query : first_query + queries, of_part] = seen
        first_query, first_key = first_query + queries, first_key + keys
    return sees


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("cp_size", [2, 3, 4, 6])
def test_a_token_sees_what_the_mask_lets_it_see(lengths: tuple[int, ...], cp_size: int) -> None:
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).view(2, SEQ)
    documents = Documents(numbers, lengths)
    mask = sequence_context(2, torch.arange(SEQ), None, torch.float32, documents=documents)
    allowed = torch.block_diag(*mask.lower_right(SEQ, SEQ)[:, 0]).bool()
    for index in range(cp_size):
        positions = zigzag_positions(SEQ, index, cp_size, CPU)
        mine = torch.cat([positions, SEQ + positions])
        assert pairs_of_parts(lengths, cp_size, index).equal(allowed[mine])


@pytest.mark.parametrize("cp_size", [2, 3, 4, 6])
def test_no_key_is_taken_that_no_query_of_the_chunk_sees(cp_size: int) -> None:
    for lengths in LENGTHS:
        starts = {start for start, _ in pairwise([0, *torch.tensor(lengths).cumsum(0).tolist()])}
        for index in range(cp_size):
            for row, first, last in parts_of_documents(lengths, 2, cp_size, index).spans:
                assert row * SEQ + first in starts
                # The first document reaches into the chunk.
                following = min(start for start in [*starts, 2 * SEQ] if start > row * SEQ + first)
                assert following > row * SEQ + last - SEQ // (2 * cp_size)


@pytest.mark.parametrize("shape", [(48, 4, 64), (2, 24, 4, 64)])
def test_on_gpus_queries_of_sequences_and_of_images_go_over_lists(shape: tuple[int, ...]) -> None:
    """Flash attention refuses queries with other than four dimensions, without a word."""
    asked = []

    def can(given: SDPAParams) -> bool:
        asked.append(tuple(given.query.shape))
        return given.query.dim() == 4

    # A tensor that holds no numbers needs no GPU.
    with FakeTensorMode(), patch.object(varlen_attention, "can_use_flash_attention", can):
        queries = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        assert takes_lists(queries)
    assert asked == [(1, 4, 48, 64)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_on_processors_there_are_masks(dtype: torch.dtype) -> None:
    assert not takes_lists(torch.ones(4, 2, 8, dtype=dtype))
