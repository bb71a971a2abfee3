"""Qwen3-VL with experts: the tower of the dense Qwen3-VL, and a Qwen3-MoE with M-RoPE.

Decides: what the text part of its configuration means, and that one tensor stacks all experts of a
layer, with gates above ups.
Relies on: `qwen3_vl` for the tower, `qwen_vl` and `moe_decoder` for the rest.
Leaves: transposed matrices, as older versions wrote them, to `checkpoint`.

Source: `transformers` 5.23, models/qwen3_vl_moe.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, moe_decoder, qwen3_vl
from mimo_launch.hugging_face.family import Family, Place, moe_keys, stacked_expert
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.names import in_layers
from mimo_launch.hugging_face.qwen_vl import QwenVl, TextKind, plain, text_config, text_keys
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "qwen3_vl_moe"
_TEXT = TextKind(
    decoder.DecoderFamily(qk_norm=True, kv_heads=16),
    {"rope_theta": 5e5},
    (24, 20, 20),
    interleaved=True,
)
_MOE = Settings(
    {
        "top_k": ("num_experts_per_tok", 4),
        "width": ("moe_intermediate_size", 1408),
        "every": ("decoder_sparse_step", 1),
    }
)


def _stacked(part: str, model: DecoderModel, _layer: int, expert: int) -> Place:
    if model.moe is None:
        raise KeyError(part)
    return stacked_expert("mlp.experts", expert, part, model.moe, model.hidden)


_NAMES = decoder.place | in_layers(
    decoder.LAYERS,
    {
        "mlp.router.weight": "mlp.gate.weight",
        **{f"mlp.experts.*.{part}.weight": partial(_stacked, part) for part in decoder.MLP},
    },
)


def _keys(config: Config) -> dict[str, Any]:
    moe = moe_keys(
        experts=moe_decoder.count_of(config, 60),
        **_MOE.keys(config),
        first_dense=len(config.get("mlp_only_layers") or []),
    )
    return {**text_keys(_TEXT, config), "moe": moe}


def _config(model: DecoderModel) -> Config:
    if (moe := model.moe) is None:
        raise ValueError(f"a {MODEL_TYPE} has experts")
    return {
        **text_config(TEXT.model_type, _TEXT, model),
        "num_local_experts": moe.experts,
        **_MOE.config(moe),
        "norm_topk_prob": True,
        "mlp_only_layers": list(range(moe.first_dense)),
    }


TEXT = Family(
    model_type=f"{MODEL_TYPE}_text",
    kind="decoder",
    not_computed=decoder.not_computed(_TEXT.block).after(partial(plain, _TEXT))
    + refusals(moe_decoder.FIRST_DENSE),
    keys=_keys,
    place=_NAMES,
    is_ignored=decoder.is_ignored,
    config=_config,
    architecture="Qwen3VLMoeTextModel",
    training=moe_decoder.balance,
    of_experts=True,
)
VISION = replace(
    qwen3_vl.VISION,
    model_type=f"{MODEL_TYPE}_vision",
    architecture="Qwen3VLMoeVisionModel",
    config=lambda model: {**qwen3_vl.VISION.config(model), "model_type": f"{MODEL_TYPE}_vision"},
)
WHOLE = QwenVl(
    model_type=MODEL_TYPE,
    architecture="Qwen3VLMoeForConditionalGeneration",
    vision=VISION,
    text=TEXT,
    nested=True,
)
