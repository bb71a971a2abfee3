"""Masks of images with class tokens: every token on one rank, each image whole and alone."""

import numpy as np
import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.layers.image_contexts import ImageContext, two_list_context
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.row_owners import held_patches, local_extra_tokens

CPU = torch.device("cpu")


def owners(
    lengths: list[int], patches: int, class_tokens: int, shards: int, each: int = 1
) -> np.ndarray:
    """Return the image of each token of all shards, -1 for padding, as the layout describes it."""
    images = np.repeat(np.arange(len(lengths)), lengths)
    of_patches = np.full(shards * patches, -1)
    of_patches[: len(images)] = images
    of_class = np.full(shards * class_tokens, -1)
    of_class[: each * len(lengths)] = np.repeat(np.arange(len(lengths)), each)
    parts = of_patches.reshape(shards, patches), of_class.reshape(shards, class_tokens)
    return np.concatenate(parts, axis=1).flatten()


def seen_by(mask: ImageContext, token: int) -> list[int]:
    """Return the places of the keys that a token of this rank attends to."""
    assert mask.order is not None
    place = int(mask.order.back[token])
    assert int(mask.order.own[place]) == token
    if mask.same is not None:
        first = place // mask.same[1] * mask.same[1]
        return mask.order.keys[first : first + mask.same[1]].tolist()
    row, query = divmod(int(mask.tokens[place]), mask.queries.shape[1])
    assert int(mask.queries[row, query]) == place
    return mask.order.keys[mask.keys[row][mask.valid[row].expand(query + 1, -1)[query]]].tolist()


@pytest.mark.parametrize("lengths", [[4], [3, 7, 1, 5], [2] * 6, [1], [9, 1]])
@pytest.mark.parametrize(("cp", "tp"), [(1, 1), (2, 1), (3, 2), (1, 4)])
@pytest.mark.parametrize("registers", [0, 3])
def test_each_token_attends_to_its_own_image(
    lengths: list[int], cp: int, tp: int, registers: int
) -> None:
    model = {"class_token": True, "registers": registers}
    vision = box(0, cp=cp, tp=tp, sequence_parallel=True, model=model)
    module = build_layout(spec({"vision": vision, "language": box(0)}))["vision"]
    extras = [module.learned_tokens] * len(lengths)
    class_tokens = local_extra_tokens(module, sum(extras))
    patches = len(held_patches(module, sum(lengths), 0)) // tp
    everyone = owners(lengths, patches, class_tokens, cp * tp, 1 + registers)
    size, seen = (patches + class_tokens) * tp, 0
    for rank in range(cp):
        shards = range(rank * tp, (rank + 1) * tp)
        mask = two_list_context(
            lengths, extras, (patches, class_tokens), shards, CPU, alone=cp == 1
        )
        mine = everyone[rank * size : (rank + 1) * size]
        if (mine < 0).all():
            assert mask.tokens.numel() == 0
            continue
        for token in np.flatnonzero(mine >= 0):
            keys = seen_by(mask, int(token))
            assert sorted(keys) == np.flatnonzero(everyone == mine[token]).tolist()
            seen += 1
    assert seen == sum(lengths) + sum(extras)


def test_without_an_image_there_is_nothing_to_attend_to() -> None:
    mask = two_list_context([], [], (0, 0), range(1), CPU, alone=True)
    assert mask.tokens.numel() == mask.queries.numel() == mask.keys.numel() == 0


def test_class_tokens_are_cut_over_the_ranks_of_sequence_parallelism() -> None:
    vision = box(0, cp=2, tp=3, sequence_parallel=True, model={"class_token": True})
    module = build_layout(spec({"vision": vision, "language": box(0)}))["vision"]
    assert [local_extra_tokens(module, images) for images in (1, 6, 7, 12)] == [1, 1, 2, 2]
