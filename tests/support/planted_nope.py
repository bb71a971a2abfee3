"""Known ways to get layers without rotary positions, and chunks, wrong; `planted` lists them."""

from dataclasses import replace
from typing import Any

from tests.support.specs import behind_vision

from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.layers import sequence_contexts
from mimo_launch.models import language_model
from mimo_launch.spec.spec import Spec

# As in Llama 4: every second layer has no rotary positions but larger queries at later positions,
# and attends to whole sequences; the others attend in chunks.
MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 12, "rope_theta": 200.0,
    "nope": {
        "layers": [1, 3], "query_scaling": {"beta": 0.5, "length": 3, "first_position": 1},
    },
    "sliding_window": {"size": 5, "chunked": True, "full": [1, 3]},
}  # fmt: skip


def unturned(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with layers without rotary positions behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def sights_with(**change: Any) -> None:
    """Change the sight of every layer that has no rotary positions, or else growth."""
    correct = DecoderKind.sight

    def changed(self: Any, number: int) -> Any:
        found = correct(self, number)
        given = {key: value(self, number, found) for key, value in change.items()}
        return replace(found, **given)

    DecoderKind.sight = changed


def every_layer_rotates() -> None:
    """Layers of `nope` rotate as the others do."""
    sights_with(rotary=lambda kind, number, found: LanguageKind.sight(kind, number).rotary)


def no_layer_rotates() -> None:
    """The other layers do not rotate either."""
    sights_with(rotary=lambda *_: None)


def queries_grow_in_every_layer() -> None:
    """Layers that rotate have larger queries at later positions, too."""
    sights_with(growth=lambda kind, *_: kind.model.nope.query_scaling)


def chunks_in_every_layer() -> None:
    """Layers of `full` attend in chunks, too."""
    sights_with(window=lambda kind, *_: kind.model.sliding_window)


def positions_from_0() -> None:
    """The first position is 0 whatever the spec says."""
    correct = language_model.query_factors

    def from_0(scaling: Any, *more: Any) -> Any:
        return correct(scaling and scaling.replace(first_position=0), *more)

    language_model.query_factors = from_0


def chunks_slide() -> None:
    """A chunk is a window that moves with the token."""
    correct = language_model.in_window

    def sliding(sequences: Any, window: Any, seq: int) -> Any:
        return correct(sequences, window and window.replace(chunked=False), seq)

    language_model.in_window = sliding


def chunks_of_sequences() -> None:
    """Chunks count from the start of a sequence, not of each document."""
    correct = sequence_contexts.places

    def of_sequences(documents: Any, *more: Any) -> Any:
        found = correct(None, *more)
        return found if documents is None else found.expand(documents.numbers.shape)

    sequence_contexts.places = of_sequences


# Without growth, which counts in documents as chunks do.
STEADY = {"model": {"nope": {"layers": [1, 3]}}}
NOPE_BUGS = {
    "every layer rotates": (every_layer_rotates, unturned(tp=2)),
    "no layer rotates": (no_layer_rotates, unturned()),
    "queries grow in every layer": (queries_grow_in_every_layer, unturned()),
    "positions from 0": (positions_from_0, unturned(cp=2)),
    "chunks in every layer": (chunks_in_every_layer, unturned(pp=2)),
    "chunks slide": (chunks_slide, unturned(cp=2)),
    "chunks of sequences": (chunks_of_sequences, unturned({"max_documents": 3}, **STEADY)),
}
