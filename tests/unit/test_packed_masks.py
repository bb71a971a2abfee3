"""What the host knows of packed sequences, against the index tensors made of the same lengths."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mimo_launch.layers.image_contexts import image_context  # noqa: E402
from mimo_launch.layers.varlen_attention import packed, packed_images  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("lengths", [[5, 3, 1], [4, 4], [1], []])
@pytest.mark.parametrize("cp", [1, 2, 3])
def test_lists_hold_the_tokens_that_the_index_tensors_name(lengths: list[int], cp: int) -> None:
    total = sum(lengths) + 2  # Two tokens of padding, so that no list is of equal images alone.
    size = -(-total // cp)
    seen = 0
    for index in range(cp):
        held = range(index * size, (index + 1) * size)
        mask = image_context(lengths, held, CPU, alone=cp == 1)
        assert mask.same is None
        own = [n for n in mask.own_lengths if n]
        assert sum(own) == mask.tokens.numel()
        assert mask.valid[:, 0].sum(dim=1).tolist() == list(mask.key_lengths)
        # Keys of the images here follow each other, from the first on.
        keys = mask.keys[mask.valid[:, 0]].tolist()
        assert keys == list(range(mask.first_key, mask.first_key + sum(mask.key_lengths)))
        seen += sum(own)
    assert seen == sum(lengths)


def test_bounds_begin_at_zero_and_the_limit_is_a_power_of_two() -> None:
    made = packed((5, 130, 1), CPU)
    assert made.bounds.dtype == torch.int32
    assert made.bounds.tolist() == [0, 5, 135, 136]
    assert made.longest == 256
    assert packed((128,), CPU).longest == 128
    assert packed((3,), CPU).longest == 64
    assert packed((5, 130, 1), CPU) is made


def test_documents_have_lengths_that_fill_their_sequences() -> None:
    from mimo_launch.models.language_input import document_lengths

    numbers = np.array([[0, 0, 1, 1, 1], [4, 4, 4, 4, 4], [0, 1, 2, 3, 3]])
    assert document_lengths(numbers) == (2, 3, 5, 1, 1, 1, 2)


def test_a_rank_that_holds_every_image_beside_others_does_not_go_its_own_way() -> None:
    assert image_context([2, 2], range(4), CPU, alone=True).same == (2, 2)
    assert image_context([2, 2], range(4), CPU, alone=False).same is None


def test_a_list_without_padding_is_not_sliced() -> None:
    """The backward of a slice fills a tensor and copies into it."""
    x = torch.randn(8, 2, 4, requires_grad=True)
    whole = packed_images(x, x, x, image_context([5, 3], range(8), CPU, alone=True))
    assert all(each is x for each in whole[:3])
    padded = packed_images(x, x, x, image_context([5, 2], range(8), CPU, alone=True))
    assert [len(each) for each in padded[:3]] == [7, 7, 7]
