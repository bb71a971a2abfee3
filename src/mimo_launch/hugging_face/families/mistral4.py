"""Mistral 4: latent attention and experts as in DeepSeek-V3, queries that grow as in Ministral 3.

Source: `transformers` 5.24, models/mistral4.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import isclose
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families import mistral
from mimo_launch.hugging_face.families.deepseek_v3 import (
    DEEPSEEK_V3,
    TURNING,
    head_dim_of,
    with_defaults,
)
from mimo_launch.hugging_face.folder import Config, number, short
from mimo_launch.hugging_face.refusals import Refusal, refusals
from mimo_launch.hugging_face.settings import Fixed
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, in_layers

_DEFAULTS: Config = {
    "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 32,
    "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0,
    "kv_lora_rank": 256, "q_lora_rank": 1024, TURNING: 64, "v_head_dim": 128,
    "qk_nope_head_dim": 64, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
    "first_k_dense_replace": 0,
}  # fmt: skip
_ROPE: Config = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _whole(config: Config) -> Config:
    said = rotary.rope_settings(config) or _ROPE
    return with_defaults(_DEFAULTS)({**config, "rope_parameters": said})


def _part(model: Any) -> Config:
    turning = model.head_size if model.mla is None else model.mla.rope_head_dim
    return {rotary.FACTOR: turning / model.head_size}


def _part_is_other(config: Config) -> Iterator[str]:
    usual = number(config, TURNING) / head_dim_of(config)
    if not isclose(said := rotary.factor_of(config, usual), usual):
        yield f"{rotary.FACTOR}: {short(said)}"


MISTRAL4 = replace(
    DEEPSEEK_V3,
    model_type="mistral4",
    architecture="Mistral4ForCausalLM",
    published=("mistralai/Mistral-Small-4-119B-2603",),
    settings=replace(DEEPSEEK_V3.settings, written={}).but(
        mistral.growing(_part)
        | {
            "moe": replace(
                decoders.GROUPED,
                settings=decoders.GROUPED.settings.but(
                    {"score": Fixed("softmax"), "bias_update_rate": Fixed(None)}
                ),
            )
        }
    ),
    tensors=DEEPSEEK_V3.tensors
    | in_layers(
        decoders.LAYERS,
        {f"mlp.experts.*.{x}.weight": ExpertStack("mlp.experts", x) for x in MLP},
    ),
    depths=None,
    defaults=_DEFAULTS,
    prepared=_whole,
    refused=DEEPSEEK_V3.refused.without(rotary.FACTOR, "rope_type")
    + refusals(
        rotary.rope_refusal(in_part=True),
        Refusal(f"`{rotary.FACTOR}` other than `{TURNING}` / `head_dim`", _part_is_other),
    ),
    rank=2,
    notes="Experts are chosen by softmax. The published folder is a `mistral3` around it.",
)  # fmt: skip
