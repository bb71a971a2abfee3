"""What a block keeps where attention goes over lists, beside the tables of
`kinds.saved_activations`."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.support.memory import TOKENS, model, per_block
from tests.unit.test_kept import block_of, kept_by_block
from torch import Tensor

from mimo_launch.kinds.layer import Rotary
from mimo_launch.layers import attention, varlen_attention
from mimo_launch.layers.image_contexts import AttentionContext, image_context
from mimo_launch.layers.sequence_contexts import Documents, sequence_context

CPU = torch.device("cpu")
DTYPE = torch.bfloat16
# They fill the two sequences, or images, of a microbatch.
LENGTHS = (100, 156, 3, 250, 3)


def forward(inputs: tuple[Tensor, ...], **lists: Any) -> tuple[Tensor, Tensor]:
    """Return what the kernel over lists returns, and compute nothing."""
    q_NhK, *_ = inputs
    return torch.zeros_like(q_NhK), torch.zeros(q_NhK.shape[1], len(q_NhK))


def mask_of(name: str) -> AttentionContext:
    if name == "vision":
        return image_context(list(LENGTHS), range(TOKENS), CPU, alone=True)
    numbers = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)).view(2, -1)
    documents = Documents(numbers, LENGTHS)
    return sequence_context(2, torch.arange(256), Rotary(32, 1e4), DTYPE, documents=documents)


def kept(name: str, *, by_lists: bool) -> int:
    block = block_of(name, DTYPE, compiled=False, frozen=False)
    with (
        patch.object(varlen_attention, "varlen_forward", forward),
        patch.object(attention, "takes_lists", lambda q: by_lists),
    ):
        return kept_by_block(block, mask_of(name), DTYPE)


@pytest.mark.parametrize("name", ["language", "vision"])
def test_lists_keep_as_much_as_sequences_and_images_of_one_length(name: str) -> None:
    assert kept(name, by_lists=True) == per_block(model(compiled=False), name)


@pytest.mark.parametrize("name", ["language", "vision"])
def test_masks_keep_more(name: str) -> None:
    assert kept(name, by_lists=False) > per_block(model(compiled=False), name)
