"""EXAONE 4: norms after layers; layers without windows have no rotary positions; with experts.

Source: `transformers` 5.24, models/exaone4 and models/exaone_moe; arXiv:2507.11407.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.decoders import FULL, LAYERS, WindowKeys, in_turn
from mimo_launch.hugging_face.families.olmo import TENSORS
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.settings import Computed, defaults_of
from mimo_launch.hugging_face.tensors import Place, in_layers
from mimo_launch.spec.layers import Nope

_WINDOWS, _EVERY = WindowKeys(by_layer=True), "sliding_window_pattern"
_WIDTH = "moe_intermediate_size"


def _slides(config: Config) -> bool:
    return config.get("sliding_window", _WINDOWS.size) is not None


def _prepared(config: Config) -> Config:
    # Published folders have a word beside `layer_types`: `LLLG`.
    asks = _slides(config) and not config.get("layer_types")
    every = int(number(config, _EVERY, 4)) if asks else 1
    return in_turn(config, max(1, every))


def _nope(config: Config) -> dict[str, Any] | None:
    if not _slides(config):
        return None
    found = tuple(i for i, each in enumerate(config["layer_types"]) if each == FULL)
    return defaults_of(Nope) | {"layers": found} if found else None


_NOPE = Computed(_nope, words="layers without windows, if others have some")
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
        nope=_NOPE,
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


def _of_experts(config: Config) -> Config:
    """Return a configuration with the names of a DeepSeek-V3 for experts."""
    shared = {"n_shared_experts": config.get("num_shared_experts", 1)}
    return decoders.with_dense_first(_prepared(config), 1) | shared


_MOE = decoders.GROUPED.settings.but(
    {
        "experts": "num_experts",
        "shared": Computed(
            lambda config: number(config, "n_shared_experts") * number(config, _WIDTH),
            lambda moe: {"num_shared_experts": moe.shared // moe.width},
            f"`num_shared_experts` x `{_WIDTH}`",
        ),
    }
)
EXAONE_MOE = Family(
    model_type="exaone_moe",
    kind="decoder",
    architecture="ExaoneMoeForCausalLM",
    published=("LGAI-EXAONE/K-EXAONE-236B-A23B",),
    settings=decoders.decoder(
        decoders.sizes(kv_heads=32),
        _WINDOWS,
        qk_norm=True,
        nope=_NOPE,
        moe=replace(decoders.GROUPED, settings=_MOE),
    ).but(decoders.DENSE_LIST),
    tensors=decoders.GROUPED_TENSORS
    | in_layers(
        LAYERS,
        {
            "mlp.router.expert_bias": Place(
                "mlp.e_score_correction_bias", at_least_fp32=True
            )
        },
    ),
    refused=decoders.not_computed(_WINDOWS) + refusals(decoders.DENSE_LATER),
    defaults=EXAONE4.defaults
    | {
        "num_experts": 64, "num_experts_per_tok": 8, _WIDTH: 1024, "routed_scaling_factor": 2.5,
        "n_group": 1, "topk_group": 1,
    },
    prepared=_of_experts,
    notes="Norms come before attention and experts, which are chosen as in DeepSeek-V3. Layers "
    "are as in EXAONE 4.",
)  # fmt: skip
