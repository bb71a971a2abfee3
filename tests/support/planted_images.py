"""Known ways to get tokens of images wrong that see each other; `planted` lists them."""

from typing import Any

import torch
from tests.support.planted_sliding import MODEL
from tests.support.specs import box, spec

from mimo_launch.layers import sequence_contexts
from mimo_launch.models import language_input, language_model
from mimo_launch.spec.spec import Spec


def seen_whole(
    data: dict[str, Any] | None = None, ranks: int = 1, vision: Any = None, **language: Any
) -> Spec:
    """Language whose images are seen in both directions, in windows and outside of them."""
    model = MODEL | {"bidirectional_images": True} | language.pop("model", {})
    sizes = {"max_images": 2, "max_patches": 24, "text_only": 0.2}
    return spec(
        {
            "vision": box(0, model={"layers": 1} | (vision or {})),
            "language": box(ranks, model=model, **language),
        },
        microbatches=2,
        mbs=2,
        **sizes | (data or {}),
    )


def images_as_one() -> None:
    """All images of a sequence see each other."""
    correct = sequence_contexts.with_images

    def together(sequences: Any, images_BS: Any, *rest: Any, **more: Any) -> Any:
        return correct(sequences, images_BS.clamp(max=0), *rest, **more)

    language_model.with_images = together


def images_end_with_a_chunk() -> None:
    """A chunk of a cp rank has the keys before its end, those of its images behind it not."""
    correct = sequence_contexts.with_images

    def cut(sequences: Any, images_BS: Any, cp: int, cp_size: int, dtype: Any, **more: Any) -> Any:
        made = correct(sequences, images_BS, cp, cp_size, dtype, **more)
        size = images_BS.shape[1] // (2 * cp_size)
        for chunk, mask in zip((cp, 2 * cp_size - 1 - cp), made.masks, strict=True):
            mask[..., (chunk + 1) * size :] = float("-inf")
        return made

    language_model.with_images = cut


def windows_without_images() -> None:
    """Layers with windows stay causal."""
    correct = sequence_contexts.with_images

    def causal(sequences: Any, *rest: Any, **more: Any) -> Any:
        return sequences if sequences.reach is not None else correct(sequences, *rest, **more)

    language_model.with_images = causal


def images_out_of_reach() -> None:
    """In layers with windows, a token sees its whole image, however long."""
    correct = sequence_contexts.with_images

    def far(sequences: Any, images_BS: Any, cp: int, cp_size: int, dtype: Any, **_: Any) -> Any:
        made = correct(sequences, images_BS, 0, 1, dtype)
        (mask,) = made.masks
        same = (images_BS[:, :, None] == images_BS[:, None]) & (images_BS[:, None] >= 0)
        mask.masked_fill_(same[:, None], 0)
        return made

    language_model.with_images = far


def prompts_with_what_they_ask() -> None:
    """The first token to learn is part of the prompt."""
    correct = language_input.read_prompts

    def longer(*given: Any) -> Any:
        numbers = correct(*given)
        numbers[:, 1:] = torch.where(numbers[:, 1:] < 0, numbers[:, :-1], numbers[:, 1:])
        return numbers

    language_input.read_prompts = longer


def prompts_of_the_first_document() -> None:
    """Only the first text of a sequence has a prompt."""
    correct = language_input.read_prompts

    def first(*given: Any) -> Any:
        numbers = correct(*given)
        return numbers.where(numbers == 0, -1)

    language_input.read_prompts = first


def prompts_in_reach() -> None:
    """Layers with windows see of a prompt what these reach, as of an image."""
    correct = sequence_contexts.with_images

    def near(*given: Any, **_: Any) -> Any:
        return correct(*given)

    language_model.with_images = near


# As a PaliGemma 2, on a pipeline with a stage that has neither tokens nor labels.
PROMPTS: dict[str, Any] = {"bidirectional_images": False, "bidirectional_prompts": True}
IMAGE_BUGS = {
    "prompts in reach": (
        prompts_in_reach,
        seen_whole(model=PROMPTS | {"sliding_window": {"size": 2, "full": [1, 3]}}),
    ),
    "prompts with what they ask": (prompts_with_what_they_ask, seen_whole(model=PROMPTS, cp=2)),
    "prompts of the first document": (
        prompts_of_the_first_document,
        seen_whole({"max_documents": 3}, model=PROMPTS, pp=3),
    ),
    "images as one": (images_as_one, seen_whole()),
    "images end with a chunk": (images_end_with_a_chunk, seen_whole(cp=2)),
    "windows without images": (windows_without_images, seen_whole()),
    "images out of reach": (
        images_out_of_reach,
        seen_whole(model={"sliding_window": {"size": 2, "full": [1, 3]}}),
    ),
}
