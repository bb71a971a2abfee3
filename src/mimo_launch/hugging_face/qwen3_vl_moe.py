"""Qwen3-VL with experts: the tower of the dense Qwen3-VL, and a Qwen3-MoE with M-RoPE.

Decides: what the text part of its configuration means, and that a tensor stacks all experts of a
layer, their gates above their ups.
Relies on: `qwen3_vl` for the tower, `qwen_vl` and `moe_decoder` for the rest.
Leaves: files in which these matrices are transposed, as older versions wrote them, to `checkpoint`.

Source: `transformers` 5.23, models/qwen3_vl_moe.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoder, moe_decoder, qwen3_vl
from mimo_launch.hugging_face.family import Family, Place, moe_keys, stacked_expert
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.qwen_vl import QwenVl, TextKind, plain, text_config, text_keys
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.spec.spec import DecoderModel

MODEL_TYPE = "qwen3_vl_moe"
_TEXT = TextKind(
    decoder.DecoderFamily(qkv_bias=False, qk_norm=True, kv_heads=16, head_size=None),
    {"rope_theta": 5e5},
    (24, 20, 20),
    interleaved=True,
)
_EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)\.weight")
_ROUTER = re.compile(r"layers\.(\d+)\.mlp\.router\.weight")


def _keys(config: Config) -> dict[str, Any]:
    count = "num_local_experts" if "num_local_experts" in config else "num_experts"
    moe = moe_keys(
        experts=number(config, count, 60),
        top_k=number(config, "num_experts_per_tok", 4),
        width=number(config, "moe_intermediate_size", 1408),
        every=number(config, "decoder_sparse_step", 1),
        first_dense=len(config.get("mlp_only_layers") or []),
    )
    return {**text_keys(_TEXT, config), "moe": moe}


def _place(name: str, model: DecoderModel) -> Place:
    """Return the place of our tensor; experts are stacked. Raises: KeyError."""
    if found := _ROUTER.fullmatch(name):
        return Place(f"model.layers.{found[1]}.mlp.gate.weight")
    if (found := _EXPERT.fullmatch(name)) is None or model.moe is None:
        return decoder.place(name, model)
    layer = f"model.layers.{found[1]}.mlp.experts"
    return stacked_expert(layer, int(found[2]), found[3], model.moe, model.hidden)


def _config(model: DecoderModel) -> Config:
    if (moe := model.moe) is None:
        raise ValueError(f"a {MODEL_TYPE} has experts")
    return {
        **text_config(TEXT.model_type, _TEXT, model),
        "num_local_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.width,
        "norm_topk_prob": True,
        "decoder_sparse_step": moe.every,
        "mlp_only_layers": list(range(moe.first_dense)),
    }


TEXT = Family(
    model_type=f"{MODEL_TYPE}_text",
    kind="decoder",
    not_computed=decoder.not_computed(_TEXT.block).after(partial(plain, _TEXT))
    + refusals(moe_decoder.FIRST_DENSE),
    keys=_keys,
    place=_place,
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
