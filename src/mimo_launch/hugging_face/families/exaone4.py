"""EXAONE 4: norms after layers; layers without windows have no rotary positions.

Source: `transformers` 5.24, models/exaone4; arXiv:2507.11407.
"""

from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, WindowKeys, in_turn
from mimo_launch.hugging_face.families.olmo import TENSORS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.settings import Computed, defaults_of
from mimo_launch.spec.layers import Nope

_WINDOWS, _EVERY = WindowKeys(by_layer=True), "sliding_window_pattern"


def _slides(config: Config) -> bool:
    return config.get("sliding_window", _WINDOWS.size) is not None


def _prepared(config: Config) -> Config:
    every = int(number(config, _EVERY, 4)) if _slides(config) else 1
    return in_turn(config, max(1, every))


def _nope(config: Config) -> dict[str, Any] | None:
    if not _slides(config):
        return None
    found = tuple(i for i, each in enumerate(config["layer_types"]) if each == FULL)
    return defaults_of(Nope) | {"layers": found} if found else None


EXAONE4 = Family(
    model_type="exaone4",
    kind="decoder",
    architecture="Exaone4ForCausalLM",
    published=("LGAI-EXAONE/EXAONE-4.0-32B",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=32),
        _WINDOWS,
        qk_norm=True,
        pre_norms=False,
        post_norms=True,
        nope=Computed(_nope, words="layers without windows, if others have some"),
    ),
    tensors=TENSORS,
    refused=decoders.not_computed(_WINDOWS),
    defaults={
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
    },
    prepared=_prepared,
    notes="Norms follow attention and MLP. Every fourth layer has neither windows nor rotary "
    "positions; if no layer has windows, all rotate.",
)  # fmt: skip
