"""Known ways to get clips in chunks wrong; `planted` lists them with the others."""

from typing import Any

from tests.support.specs import box, spec

from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.models import aut, patches
from mimo_launch.models.audio_encoder import AudioStage
from mimo_launch.spec.spec import Spec


def chunked(kind: str = "audio") -> Spec:
    """Audio tp 2 cp 2 of a Qwen2.5-Omni or a Qwen3-Omni; most clips are of several chunks."""
    models: dict[str, dict[str, Any]] = {
        "audio": {"chunk": 8, "stack": 2, "pooling": "mean", "projector": "linear"},
        # An odd chunk: of its last places, one is outside.
        "aut": {"mels": 5, "channels": 3, "chunk": 18, "window": 2},
    }
    model = {"kind": kind, "frames": 60, **models[kind]}
    modules = {
        "audio": box(0, tp=2, cp=2, sequence_parallel=True, model=model), "language": box(4),
    }  # fmt: skip
    return spec(modules, microbatches=2, mbs=2, max_images=3, max_frames=60, seq=96)


def frame_after_the_end() -> None:
    """The second convolution sees what the first one makes of the zeros after the last frame."""
    correct = AudioStage.convolved
    AudioStage.convolved = lambda self, *given: correct(self, *given[:2], 0 * given[2])


def places_of_the_clip() -> None:
    """Positions count through a clip, not from the start of each chunk."""
    correct = patches._places

    def on(numbers: tuple[int, ...], *rest: Any) -> Any:
        found = correct(numbers, *rest).clone()
        found[:, 0] = correct((sum(numbers),), (10**6,), *rest[1:])[:, 0]
        return found

    patches._places = on


def chunks_together() -> None:
    """Every token attends to its whole clip."""
    EncoderView.windows = property(lambda self: (self.lengths, self.extras))


def outside_of_the_chunk() -> None:
    """Convolutions read what earlier ones make of places outside a chunk."""
    correct = aut.AutStage.convolved

    def inside(self: Any, frames: Any, places: Any, missing: Any) -> Any:
        return correct(self, frames, 0 * places + 1, missing)

    aut.AutStage.convolved = inside


CHUNK_BUGS = {
    "frame after the end": (frame_after_the_end, chunked()),
    "places of the clip": (places_of_the_clip, chunked()),
    "chunks together": (chunks_together, chunked("aut")),
    "outside of the chunk": (outside_of_the_chunk, chunked("aut")),
}
