"""Layers without keys of their own, and per-layer embeddings, as Gemma 4 E2B and E4B have them.

Decides: how configurations and files write them; which tensors of files nobody computes with.
Relies on: `settings` and `tensors`.
Leaves: all else to `families.gemma4`.
Source: `transformers` 5.24, models/gemma4.
"""

import re
from typing import Any

from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import Refusals, refusals, where
from mimo_launch.hugging_face.settings import Computed
from mimo_launch.hugging_face.tensors import PER_LAYER_TABLE, in_layers

_SHARERS, _DOUBLE, _LAYERS = "num_kv_shared_layers", "use_double_wide_mlp", "num_hidden_layers"
_MLP, _OF_EXPERTS = "intermediate_size", "enable_moe_block"
WIDTH = "hidden_size_per_layer_input"
_WORDS, _PADDING, _VOCAB = "vocab_size_per_layer_input", "pad_token_id", "vocab_size"
_KEYS = re.compile(r"model\.layers\.(\d{1,6})\.self_attn\.(k_proj|v_proj|k_norm)\.")


def _sharers(config: Config) -> int:
    return int(number(config, _SHARERS, 0))


def _lacks_sources(config: Config) -> bool:
    """Return whether a layer has no earlier one that has keys and sees the same tokens."""
    types = config.get("layer_types")
    types = types if isinstance(types, list) else []
    first = int(number(config, _LAYERS)) - _sharers(config)
    return _sharers(config) > 0 and set(types[: max(0, first)]) != set(types)


def _shared_keys(config: Config) -> dict[str, Any] | None:
    if not (layers := _sharers(config)):
        return None
    mlp = 2 * number(config, _MLP) if config.get(_DOUBLE) else None
    return {"layers": layers, "mlp": mlp}


def _of_shared_keys(model: Any) -> Config:
    shared = model.shared_keys
    found = {_SHARERS: shared.layers if shared else 0}
    return {**found, _DOUBLE: bool(shared and shared.mlp)}


def _embeddings(config: Config) -> dict[str, Any] | None:
    if not config.get(WIDTH):
        return None
    return {"width": number(config, WIDTH), "padding": number(config, _PADDING, 0)}


def _of_embeddings(model: Any) -> Config:
    own = model.per_layer_embeddings
    if own is None:
        return {WIDTH: 0}
    return {WIDTH: own.width, _WORDS: model.vocab, _PADDING: own.padding}


SETTINGS = {
    "shared_keys": Computed(
        _shared_keys, _of_shared_keys, f"`{_SHARERS}`, with `mlp` twice `{_MLP}` if `{_DOUBLE}`"
    ),
    "per_layer_embeddings": Computed(
        _embeddings, _of_embeddings, f"`{WIDTH}` and `{_PADDING}`; 256, 0; none if it is 0"
    ),
}
TENSORS = {
    "per_layer.table.weight": PER_LAYER_TABLE,
    "per_layer.project.weight": "model.per_layer_model_projection.weight",
    "per_layer.norm.weight": "model.per_layer_projection_norm.weight",
    **in_layers(
        "model.layers.*.",
        {
            "per_layer.narrow": "per_layer_input_gate",
            "per_layer.widen": "per_layer_projection",
            "per_layer.norm": "post_per_layer_input_norm",
        },
    ),
}
REFUSED: Refusals = refusals(
    where(_SHARERS, "without an earlier layer of each kind", _lacks_sources, 0),
    where(
        _DOUBLE, "with experts",
        lambda config: bool(config.get(_DOUBLE) and config.get(_OF_EXPERTS) and _sharers(config)),
        False,
    ),
    where(
        _WORDS, f"other than `{_VOCAB}`",
        lambda config: bool(config.get(WIDTH))
        and number(config, _WORDS, 262144) != number(config, _VOCAB),
        262144,
    ),
    where(
        _PADDING, "of `null` with embeddings of layers",
        lambda config: bool(config.get(WIDTH)) and config.get(_PADDING, 0) is None, 0,
    ),
)  # fmt: skip


def is_of_sharer(name: str, model: Any) -> bool:
    """Return whether a tensor makes keys or values of a layer that has those of another one.

    Published folders hold some, which `transformers` leaves out as well.
    """
    found = _KEYS.match(name)
    return found is not None and int(found[1]) in model.key_layers
