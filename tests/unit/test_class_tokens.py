"""Masks of images with class tokens: every token on one rank, each image whole and alone."""

import numpy as np
import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.layers.attention_contexts import two_list_context
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.row_owners import held_patches, local_extra_tokens

CPU = torch.device("cpu")


def owners(lengths: list[int], patches: int, class_tokens: int, shards: int) -> np.ndarray:
    """Return the image of each token of all shards, -1 for padding, as the layout describes it."""
    images = np.repeat(np.arange(len(lengths)), lengths)
    of_patches = np.full(shards * patches, -1)
    of_patches[: len(images)] = images
    of_class = np.full(shards * class_tokens, -1)
    of_class[: len(lengths)] = np.arange(len(lengths))
    parts = of_patches.reshape(shards, patches), of_class.reshape(shards, class_tokens)
    return np.concatenate(parts, axis=1).flatten()


@pytest.mark.parametrize("lengths", [[4], [3, 7, 1, 5], [2] * 6, [1], [9, 1]])
@pytest.mark.parametrize(("cp", "tp"), [(1, 1), (2, 1), (3, 2), (1, 4)])
def test_each_token_attends_to_its_own_image(lengths: list[int], cp: int, tp: int) -> None:
    vision = box(0, cp=cp, tp=tp, sequence_parallel=True, model={"class_token": True})
    module = build_layout(spec({"vision": vision, "language": box(0)}))["vision"]
    class_tokens = local_extra_tokens(module, len(lengths))
    patches = len(held_patches(module, sum(lengths), 0)) // tp
    everyone = owners(lengths, patches, class_tokens, cp * tp)
    size, seen = (patches + class_tokens) * tp, 0
    for rank in range(cp):
        shards = range(rank * tp, (rank + 1) * tp)
        mask = two_list_context(lengths, [1] * len(lengths), (patches, class_tokens), shards, CPU)
        mine = everyone[rank * size : (rank + 1) * size]
        if (mine < 0).all():
            assert mask.tokens.numel() == 0
            continue
        assert len(mask.tokens) == size
        flat, longest = mask.queries.flatten(), mask.queries.shape[1]
        for token, image in enumerate(mine):
            if image < 0:
                continue
            # What the kernel computes for the token is what was asked for it, in its image's row.
            place = int(mask.tokens[token])
            assert int(flat[place]) == token
            row = place // longest
            keys = mask.keys[row][mask.valid[row]].tolist()
            assert sorted(keys) == np.flatnonzero(everyone == image).tolist()
            seen += 1
        assert mask.is_full == bool(mask.valid.all())
    assert seen == sum(lengths) + len(lengths)


def test_without_an_image_there_is_nothing_to_attend_to() -> None:
    mask = two_list_context([], [], (0, 0), range(1), CPU)
    assert mask.tokens.numel() == mask.queries.numel() == mask.keys.numel() == 0


def test_class_tokens_are_cut_over_the_ranks_of_sequence_parallelism() -> None:
    vision = box(0, cp=2, tp=3, sequence_parallel=True, model={"class_token": True})
    module = build_layout(spec({"vision": vision, "language": box(0)}))["vision"]
    assert [local_extra_tokens(module, images) for images in (1, 6, 7, 12)] == [1, 1, 2, 2]
