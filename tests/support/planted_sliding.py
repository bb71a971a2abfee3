"""Known ways to get sliding windows of decoders wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import torch
from tests.support.specs import behind_vision

from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.layers import attention
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.spec.spec import Spec

# Layers 0 and 2 attend in windows, at their own base; 1 and 3 to whole sequences, scaled.
MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "kv_heads": 2, "qk_norm": True, "post_norms": True,
    "norm_offset": True, "activation": "gelu_tanh", "embedding_scale": 5.5,
    "query_pre_attn_scalar": 20.0, "tied": True, "rope_theta": 200.0,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "sliding_window": {"size": 5, "full": [1, 3], "rope_theta": 20.0},
}  # fmt: skip


def sliding(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with windows behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def window_one_longer() -> None:
    """A token attends to one token more than the window holds."""
    correct = SequenceContext.lower_right

    def longer(self: SequenceContext, *sizes: int) -> torch.Tensor:
        reach = self.reach
        return correct(self if reach is None else replace(self, reach=reach + 1), *sizes)

    SequenceContext.lower_right = longer


def windows_in_every_layer() -> None:
    """Layers that attend to whole sequences attend in windows, too."""
    correct = DecoderKind.sight

    def local(self: Any, number: int) -> Any:
        return replace(correct(self, number), window=self.model.sliding_window)

    DecoderKind.sight = local


def one_base_everywhere() -> None:
    """Layers with windows rotate as the others do."""
    correct = DecoderKind.sight
    whole = LanguageKind.sight

    def alike(self: Any, number: int) -> Any:
        return replace(correct(self, number), rotary=whole(self, number).rotary)

    DecoderKind.sight = alike


def windows_counted_in_the_stage() -> None:
    """A stage counts its layers from 0 when it asks which of them have windows."""
    correct = LanguageStage.__init__

    def forgetting(
        self: Any, context: Any, kind: Any, stage: Any, *more: Any, **named: Any
    ) -> None:
        correct(self, context, kind, stage, *more, **named)
        self.sights = {number: kind.sight(place) for place, number in enumerate(stage.layers)}

    LanguageStage.__init__ = forgetting


def windows_end_with_a_chunk() -> None:
    """A chunk of a cp rank has only its own keys, not those of the chunk before it."""
    correct = attention.Attention._attend

    def own(self: Any, q: Any, k: Any, v: Any, allowed: Any, **more: Any) -> torch.Tensor:
        size = q.shape[2]
        if allowed is not None and k.shape[2] > size:
            k, v, allowed = k[:, :, -size:], v[:, :, -size:], allowed[..., -size:]
        return correct(self, q, k, v, allowed, **more)

    attention.Attention._attend = own


SLIDING_BUGS = {
    "window one token longer": (window_one_longer, sliding()),
    "windows in every layer": (windows_in_every_layer, sliding(cp=2)),
    "one base everywhere": (one_base_everywhere, sliding()),
    "windows counted in the stage": (
        windows_counted_in_the_stage,
        sliding(pp=2, model={"sliding_window": {"size": 5, "full": [2, 3]}}),
    ),
    "windows end with a chunk": (windows_end_with_a_chunk, sliding(cp=2)),
}
