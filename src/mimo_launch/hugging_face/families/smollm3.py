"""SmolLM3: a Llama without rotary positions in every fourth layer.

Source: `transformers` 5.24, models/smollm3.
"""

from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, SLIDING, WindowKeys
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, ConfigError, number, short
from mimo_launch.hugging_face.settings import Computed, defaults_of
from mimo_launch.spec.layers import Nope

_WINDOWS = WindowKeys(size=None, asked=True, by_layer=True)
_TURNS, _EVERY = "no_rope_layers", "no_rope_layer_interval"


def prepared(config: Config) -> Config:
    """Return a configuration with lists of layers; windows are in layers without rotary positions.

    Despite its name `no_rope_layers` has a 1 for each layer with rotary positions.
    Raises: ConfigError.
    """
    every, layers = int(number(config, _EVERY, 4)), int(number(config, "num_hidden_layers"))
    turns = config.get(_TURNS)
    if turns is None and every > 0:
        turns = [int(i % every != 0) for i in range(1, layers + 1)]
    if not isinstance(turns, list) or len(turns) < layers:
        raise ConfigError(f"`{_TURNS}` is {short(turns)}, not a list of {layers} numbers")
    cut = bool(config.get("use_sliding_window")) and config.get("sliding_window") is not None
    types = [SLIDING if cut and not turn else FULL for turn in turns[:layers]]
    return {**config, _TURNS: turns, "layer_types": config.get("layer_types") or types}


def still_layers(config: Config) -> dict[str, Any] | None:
    """Return the layers without rotary positions, as `nope`; None if there are none."""
    layers = range(int(number(config, "num_hidden_layers")))
    found = tuple(i for i in layers if not config[_TURNS][i])
    return defaults_of(Nope) | {"layers": found} if found else None


def turns_as_written(model: Any) -> Config:
    """Return the setting for layers with rotary positions."""
    still = () if model.nope is None else model.nope.layers
    return {_TURNS: [int(i not in still) for i in range(model.layers)]}


SMOLLM3 = Family(
    model_type="smollm3",
    kind="decoder",
    architecture="SmolLM3ForCausalLM",
    published=("HuggingFaceTB/SmolLM3-3B",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=4),
        _WINDOWS,
        nope=Computed(
            still_layers,
            turns_as_written,
            f"layers with 0 in `{_TURNS}`, or every n-th by `{_EVERY}`; every fourth",
        ),
    ),
    tensors=decoders.TENSORS,
    refused=decoders.not_computed(_WINDOWS),
    defaults={
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
        "num_hidden_layers": 36, "num_attention_heads": 16, "rope_theta": 2e6,
        "tie_word_embeddings": True,
    },
    prepared=prepared,
    notes="`no_rope_layers` has a 1 for each layer with rotary positions. Without `layer_types`, "
    "windows are in the others. The base of rotary positions is 2e6 if left out.",
)  # fmt: skip
