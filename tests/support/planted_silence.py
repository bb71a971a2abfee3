"""Known ways to get clips without their silence wrong; `planted` lists them with the others."""

from typing import Any

import numpy as np
from tests.support.specs import box, spec

from mimo_launch.models import audio_encoder, stage_interface
from mimo_launch.models.audio_encoder import AudioStage
from mimo_launch.models.patches import Reader
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loader


def unpadded() -> Spec:
    """Audio tp 2 cp 2 as in Qwen2-Audio; some clips have a token that fills no row."""
    model = {
        "kind": "audio", "stack": 2, "unpadded": True, "pooling": "mean", "projector": "linear",
    }  # fmt: skip
    modules = {
        "audio": box(0, tp=2, cp=2, sequence_parallel=True, model=model), "language": box(4),
    }  # fmt: skip
    return spec(modules, microbatches=2, mbs=2, max_images=3, max_frames=16)


def silence_not_seen() -> None:
    """The convolutions see zeros behind a clip, not the frame of silence that is there."""
    correct = stage_interface.reader

    def blind(model: Any) -> Reader:
        how = correct(model)

        def cut(array: np.ndarray, **options: Any) -> Any:
            return how.cut(array[:, : array.shape[1] // 2 * 2], **options)

        return Reader(how.source, how.width, how.axes, cut)

    stage_interface.reader = loader.reader = blind


def loose_tokens_not_seen() -> None:
    """No token attends to one that fills no row."""
    correct = stage_interface.two_list_context

    def without(lengths: list[int], extras: list[int], *rest: Any, **options: Any) -> Any:
        return correct(lengths, [0] * len(extras), *rest, **options)

    stage_interface.two_list_context = without


def loose_tokens_in_front() -> None:
    """The tokens that fill no row stand in front of the others of a shard."""
    correct = AudioStage._embed

    def in_front(self: Any, given: Any, loose: Any) -> Any:
        return correct(self, given, loose).roll(0 if loose is None else len(loose.values), dims=0)

    AudioStage._embed = in_front


def loose_tokens_at_the_start() -> None:
    """The tokens that fill no row have the positions of the first ones of their clips."""
    correct = audio_encoder.without_loose

    def first(*args: Any) -> Any:
        rows, loose = correct(*args)
        for each in loose:
            each.positions.zero_()
        return rows, loose

    audio_encoder.without_loose = first


SILENCE_BUGS = {
    name: (plant, unpadded())
    for name, plant in {
        "silence not seen": silence_not_seen,
        "loose tokens not seen": loose_tokens_not_seen,
        "loose tokens in front": loose_tokens_in_front,
        "loose tokens at the start": loose_tokens_at_the_start,
    }.items()
}
