"""Known ways to get gates of attention and heads that rotate in part wrong."""

from dataclasses import replace
from typing import Any

from tests.support.specs import behind_vision

from mimo_launch.layers import attention, pointwise
from mimo_launch.models import language_model
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "heads": 4, "kv_heads": 2, "head_dim": 12, "qk_norm": True, "norm_offset": True,
    "gated_attention": True, "rotary_factor": 0.5, "mrope": [1, 1, 1], "mrope_interleaved": True,
    "rope_theta": 100.0,
}  # fmt: skip


def gated(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Gated attention that sees images, on ranks of its own; a hybrid if it has a pattern."""
    return behind_vision(MODEL, data, **language)


def mixed(pattern: str = "*-*-", **language: Any) -> Spec:
    """The same in a hybrid, with gated MLPs."""
    return gated(model={"kind": "hybrid", "pattern": pattern, "activation": "silu"}, **language)


def neighbours(**language: Any) -> Spec:
    """Heads whose pairs are neighbours, a half of which rotate."""
    return gated(model={"gated_attention": False, "rotary_interleaved": True}, **language)


def gate_ignored() -> None:
    """Outputs of heads pass as they are."""
    attention.sigmoid_gated = lambda x, gate: x + 0 * gate.flatten(1)


def gate_of_another_head() -> None:
    """Each head has the gate of the one before it."""
    correct = attention.sigmoid_gated
    attention.sigmoid_gated = lambda x, gate: correct(x, gate.roll(1, dims=1))


def frequencies_of_whole_heads() -> None:
    """The dimensions that rotate do so at the first frequencies of a whole head."""
    correct = language_model.sequence_context

    def whole(batch: int, positions: Any, rotary: Any, *rest: Any, **options: Any) -> Any:
        if rotary is None:
            return correct(batch, positions, rotary, *rest, **options)
        size = rotary.size
        twice = replace(rotary, size=2 * size, axes=(0, 1, 2) * 2)
        made = correct(batch, positions, twice, *rest, **options)
        cut = [*range(size // 2), *range(size, size + size // 2)]
        object.__setattr__(made, "cos", made.cos[..., cut])
        object.__setattr__(made, "sin", made.sin[..., cut])
        return made

    language_model.sequence_context = whole


def last_dimensions_rotate() -> None:
    """The dimensions that rotate are the last of a head."""
    correct = pointwise.rotated
    pointwise.rotated = lambda x, cos, sin, *_: correct(x.flip(-1), cos, sin).flip(-1)


def pairs_of_halves() -> None:
    """Numbers that rotate together are half of those that rotate apart."""
    pointwise.rotated_interleaved = pointwise.rotated


GATE_BUGS = {
    "pairs of halves": (pairs_of_halves, neighbours(cp=2)),
    "gate ignored": (gate_ignored, mixed()),
    "gate of another head": (gate_of_another_head, gated(tp=2)),
    "frequencies of whole heads": (frequencies_of_whole_heads, gated(cp=2)),
    "last dimensions rotate": (last_dimensions_rotate, mixed(cp=2)),
}
