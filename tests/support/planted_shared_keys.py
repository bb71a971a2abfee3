"""Known ways to get keys and values that layers share wrong; `planted` lists them."""

from dataclasses import replace
from typing import Any

from tests.support.specs import behind_vision

from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.sequence_contexts import KeysValues
from mimo_launch.spec.language_models import DecoderModel
from mimo_launch.spec.spec import Spec

# Layers 2 and 3 attend to keys of layers 0 and 1.
MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 12, "qk_norm": True, "value_norm": True,
    "mlp": 32, "query_pre_attn_scalar": 1.0, "post_norms": True, "rope_theta": 50.0,
    "shared_keys": {"layers": 2, "mlp": 64},
    "sliding_window": {
        "size": 5, "full": [1, 3], "rope_theta": 20.0, "head_dim": 8, "kv_heads": 4,
    },
}  # fmt: skip


def sharing(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with such layers after vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def gradients_of_one_reader() -> None:
    """Keys get no gradient from the layers that attend to those of another one."""
    correct = Attention._seen

    def alone(self: Any, q: Any, k: Any, v: Any, sequences: Any) -> Any:
        if sequences.held is not None:
            held = sequences.held
            held = KeysValues(held.keys.detach(), held.values.detach())
            sequences = replace(sequences, held=held)
        return correct(self, q, k, v, sequences)

    Attention._seen = alone  # type: ignore[method-assign]


def keys_of_the_first_layer() -> None:
    """Keys are those of the first layer alike, not of the last."""

    def first(self: Any) -> dict[int, int | None]:
        shared = self.shared_keys
        if shared is None:
            return {}
        full = () if self.sliding_window is None else self.sliding_window.full
        sharers = range(self.layers - shared.layers, self.layers)
        return {
            layer: min(n for n in range(self.layers) if (n in full) == (layer in full))
            for layer in sharers
        }

    DecoderModel.key_layers = property(first)  # type: ignore[assignment,method-assign]


def shared_values_not_normed() -> None:
    """Values that are shared have no norm."""
    correct = DecoderKind.attention

    def plain(self: Any, number: int, **given: Any) -> Any:
        found = correct(self, number, **given)
        return replace(found, value_norm=found.sharing is None)

    DecoderKind.attention = plain  # type: ignore[method-assign]


SHARED_KEYS_BUGS = {
    "keys without gradients of later layers": (gradients_of_one_reader, sharing(tp=2)),
    "keys of the first layer": (keys_of_the_first_layer, sharing(
        cp=2, recompute=["attention"], model={"layers": 5, "sliding_window": None},
    )),
    "shared values not normed": (shared_values_not_normed, sharing(cp=2)),
}  # fmt: skip
