"""Tiny decoders of `transformers` with random weights, and what a layout makes of their weights."""

import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor, nn

from mimo_launch.checkpoint.boxes import Box, weight_boxes
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.layers.sequence_contexts import zigzag_positions
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import RopeScaling, Spec
from mimo_launch.train.events import Event, WeightsLoaded
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.oracle_layers import attention_factor, frequencies

VOCAB = 37
# In no text of a first step.
PADDING = 4
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
# Its scores do not grow: both numbers of `mscale` are alike.
ALIKE = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "beta_slow": 1.0, "truncate": True,
}  # fmt: skip
# What each kind is in a spec, and in its own configuration besides the sizes.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"norm_eps": 1e-6, "rope_theta": 500.0, "head_dim": None},
        {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "qwen2": (
        {"norm_eps": 1e-3, "qkv_bias": True, "tied": True, "head_dim": None},
        {"rms_norm_eps": 1e-3, "tie_word_embeddings": True},
    ),
    "qwen3": (
        {"norm_eps": 1e-2, "qk_norm": True, "head_dim": 12},
        {"rms_norm_eps": 1e-2, "head_dim": 12},
    ),
    "mistral": (
        {"norm_eps": 1e-6, "head_dim": None}, {"sliding_window": None, "rms_norm_eps": 1e-6},
    ),
    # Queries grow within the 16 tokens of a sequence, twice.
    "ministral3": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rope_theta": 500.0,
            "rope_scaling": {**ALIKE, "original_max_position_embeddings": 6},
            "query_scaling": {"beta": 0.5, "length": 6},
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "pad_token_id": None,
            "rope_parameters": {
                **ALIKE, "rope_theta": 500.0, "original_max_position_embeddings": 6,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "lfm2": (
        {
            "kind": "hybrid", "pattern": "C-*-", "activation": "silu", "qk_norm": True,
            "norm_eps": 1e-3, "tied": True, "rope_theta": 500.0, "head_dim": None,
        },
        {
            "norm_eps": 1e-3, "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False, "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    # The second layer has no rotary positions.
    "smollm3": (
        {
            "norm_eps": 1e-3, "head_dim": None, "tied": True, "rope_theta": 500.0,
            "nope": {"layers": [1]},
        },
        {
            "rms_norm_eps": 1e-3, "tie_word_embeddings": True, "no_rope_layers": [1, 0],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "glm": (
        {
            "norm_eps": 1e-3, "qkv_bias": True, "head_dim": 12, "rotary_factor": 0.5,
            "rope_theta": 500.0, "rotary_interleaved": True,
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "pad_token_id": None, "eos_token_id": 1,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "glm4": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rotary_factor": 0.5, "rope_theta": 500.0,
            "rotary_interleaved": True, "post_norms": True,
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "pad_token_id": None, "eos_token_id": 1,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    # The first layer attends in windows, the second one to whole sequences.
    "gemma2": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "tied": True, "rope_theta": 500.0,
            "activation": "gelu_tanh", "sliding_window": {"size": 5, "full": [1]},
            "post_norms": True, "norm_offset": True, "embedding_scale": 32**0.5,
            "query_pre_attn_scalar": 20, "attention_softcap": 2.0, "logit_softcap": 3.0,
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "tie_word_embeddings": True,
            "sliding_window": 5, "query_pre_attn_scalar": 20, "pad_token_id": None,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "seed_oss": (
        {"norm_eps": 1e-3, "head_dim": 12, "qkv_bias": True, "output_bias": True},
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "attention_out_bias": True,
            "attention_dropout": 0.0, "residual_dropout": 0.0, "pad_token_id": None,
        },
    ),
    **{
        kind: (
            {
                "norm_eps": 1e-3, "head_dim": 8, "rotary_interleaved": True, "rope_theta": 500.0,
                "tied": kind == "ernie4_5",
            },
            {
                "rms_norm_eps": 1e-3, "head_dim": 8, "pad_token_id": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            },
        )
        for kind in ("ernie4_5", "helium")
    },
    # The first layer attends to whole sequences.
    "cwm": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rope_theta": 500.0,
            "sliding_window": {"size": 5, "full": [0]},
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "sliding_window": 5, "eos_token_id": 1,
            "bos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "ministral": (
        {"norm_eps": 1e-3, "head_dim": 12, "sliding_window": {"size": 5, "full": [1]}},
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3": (
        {
            "norm_eps": 1e-3, "head_dim": None, "rotary_factor": 0.5, "rope_theta": 500.0,
            "sliding_window": {"size": 5, "full": []},
        },
        {
            "rms_norm_eps": 1e-3, "sliding_window": 5, "pad_token_id": None, "bos_token_id": 1,
            "eos_token_id": 2, "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    # The rotary scaling of texts that are not longer than those it was first trained on.
    "phi3, long": (
        {
            "norm_eps": 1e-3, "head_dim": None, "rotary_factor": 0.5, "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "longrope", "factor": 4.0, "short_factor": [1.5, 2.5],
                "original_max_position_embeddings": 16,
            },
        },
        {
            "rms_norm_eps": 1e-3, "sliding_window": None, "pad_token_id": None, "bos_token_id": 1,
            "eos_token_id": 2, "max_position_embeddings": 64,
            "original_max_position_embeddings": 16, "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
                "short_factor": [1.5, 2.5], "long_factor": [3.0, 4.0],
            },
        },
    ),
    "youtu": (
        {
            "norm_eps": 1e-3, "kv_heads": 4, "head_dim": 10, "rope_theta": 500.0, "tied": True,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
        {
            "rms_norm_eps": 1e-3, "num_key_value_heads": 4, "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 12, "q_lora_rank": 14,
            "bos_token_id": 1, "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "gemma": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "tied": True, "activation": "gelu_tanh",
            "norm_offset": True, "embedding_scale": 32**0.5,
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "tie_word_embeddings": True,
            "pad_token_id": None,
        },
    ),
    "olmo2": (
        {
            "norm_eps": 1e-3, "head_dim": None, "rope_theta": 500.0, "pre_norms": False,
            "post_norms": True, "qk_norm": True, "wide_qk_norm": True,
        },
        {
            "rms_norm_eps": 1e-3, "pad_token_id": None, "eos_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "olmo3": (
        {
            "norm_eps": 1e-3, "head_dim": None, "rope_theta": 500.0, "pre_norms": False,
            "post_norms": True, "qk_norm": True, "wide_qk_norm": True,
            "rope_scaling": {**ALIKE, "original_max_position_embeddings": 6},
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
        },
        {
            "rms_norm_eps": 1e-3, "pad_token_id": None, "eos_token_id": 1, "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {
                    **ALIKE, "original_max_position_embeddings": 6, "rope_theta": 500.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    "exaone4": (
        {
            "norm_eps": 1e-3, "head_dim": None, "pre_norms": False, "post_norms": True,
            "qk_norm": True, "sliding_window": {"size": 5, "full": [1]}, "nope": {"layers": [1]},
        },
        {"rms_norm_eps": 1e-3, "sliding_window": 5, "sliding_window_pattern": 2},
    ),
    "granite": (
        {
            "norm_eps": 1e-3, "head_dim": None, "residual_scale": 0.22, "embedding_scale": 12.0,
            "logit_scale": 0.25, "query_pre_attn_scalar": 16.0, "qkv_bias": True,
            "output_bias": True,
        },
        {
            "rms_norm_eps": 1e-3, "residual_multiplier": 0.22, "embedding_multiplier": 12.0,
            "logits_scaling": 4.0, "attention_multiplier": 0.25, "attention_bias": True,
        },
    ),
    **{
        kind: ({"norm_eps": 1e-3, "head_dim": 12}, {"rms_norm_eps": 1e-3, "head_dim": 12, **more})
        for kind, more in (("internlm3", {"pad_token_id": None}), ("iquestcoder", {}))
    },
    "exaone": (
        {"norm_eps": 1e-3, "head_dim": None, "rope_theta": 500.0},
        {
            "rms_norm_eps": 1e-3, "pad_token_id": None, "eos_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "vaultgemma": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "tied": True, "activation": "gelu_tanh",
            "sliding_window": {"size": 5, "full": [1]}, "norm_offset": True,
            "embedding_scale": 32**0.5, "query_pre_attn_scalar": 20, "attention_softcap": 2.0,
            "logit_softcap": 3.0,
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "tie_word_embeddings": True,
            "sliding_window": 5, "query_pre_attn_scalar": 20, "pad_token_id": None,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
    ),
    "hyperclovax": (
        {
            "norm_eps": 1e-3, "head_dim": None, "residual_scale": 0.22, "embedding_scale": 12.0,
            "logit_scale": 0.25, "post_norms": True,
        },
        {
            "rms_norm_eps": 1e-3, "residual_multiplier": 0.22, "embedding_multiplier": 12.0,
            "logits_scaling": 0.25,
        },
    ),
    # Layers with windows have another base.
    "cohere_compass_text": (
        {
            "norm_eps": 1e-3, "head_dim": None, "tied": True, "parallel": True,
            "norm": "layer_without_bias", "mrope": [2, 1, 1], "mrope_interleaved": True,
            "rope_theta": 500.0, "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
        },
        {
            "layer_norm_eps": 1e-3, "sliding_window": 5, "pad_token_id": None, "eos_token_id": 1,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta, "mrope_section": [2, 1, 1]}
                for kind, theta in (("full_attention", 500.0), ("sliding_attention", 20.0))
            },
        },
    ),
    "stablelm": (
        {
            "norm_eps": 1e-3, "head_dim": None, "norm": "layer", "qkv_bias": True,
            "rotary_factor": 0.5, "rope_theta": 500.0,
        },
        {
            "layer_norm_eps": 1e-3, "use_qkv_bias": True, "eos_token_id": 1, "bos_token_id": 2,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "hunyuan_v1_dense": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rope_theta": 500.0 * 3.0**1.2, "qk_norm": True,
            "rotated_qk_norm": True, "qkv_bias": True, "output_bias": True,
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "attention_bias": True, "pad_token_id": None,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 500.0, "alpha": 3.0, "factor": 1.0,
            },
        },
    ),
    "arcee": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rope_theta": 500.0, "activation": "squared_relu",
            "mlp_bias": True, "qkv_bias": True, "output_bias": True,
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "mlp_bias": True, "attention_bias": True,
            "bos_token_id": 1, "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "apertus": (
        {
            "norm_eps": 1e-3, "head_dim": None, "rope_theta": 500.0, "activation": "xielu",
            "qk_norm": True, "qkv_bias": True, "output_bias": True,
        },
        {
            "rms_norm_eps": 1e-3, "attention_bias": True, "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "starcoder2": (
        {
            "norm_eps": 1e-3, "head_dim": None, "norm": "layer", "tied": True, "mlp_bias": True,
            "activation": "gelu_tanh_without_gate", "qkv_bias": True, "output_bias": True,
            "sliding_window": {"size": 5, "full": []}, "rope_theta": 500.0,
        },
        {
            "norm_epsilon": 1e-3, "sliding_window": 5, "bos_token_id": 1, "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    # Command R; in the newer one the second layer has neither windows nor rotary positions.
    **{
        kind: (
            {
                "norm_eps": 1e-3, "head_dim": None, "tied": True, "rotary_interleaved": True,
                "rope_theta": 500.0, "logit_scale": 0.25, "parallel": True,
                "norm": "layer_without_bias", **ours,
            },
            {
                "layer_norm_eps": 1e-3, "logit_scale": 0.25, "pad_token_id": None,
                "eos_token_id": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, **its,
            },
        )
        for kind, ours, its in (
            ("cohere", {"qkv_bias": True, "output_bias": True}, {"attention_bias": True}),
            (
                "cohere2",
                {"sliding_window": {"size": 5, "full": [1]}, "nope": {"layers": [1]}},
                {
                    "sliding_window": 5,
                    "layer_types": ["sliding_attention", "full_attention"],
                },
            ),
        )
    },
    # The same.
    "gemma3_text": (
        {
            "norm_eps": 1e-2, "qk_norm": True, "head_dim": 12, "tied": True, "rope_theta": 500.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "activation": "gelu_tanh",
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0}, "post_norms": True,
            "norm_offset": True, "embedding_scale": 32**0.5, "query_pre_attn_scalar": 20,
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "tie_word_embeddings": True,
            "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
            # The embedding of a padding token would get no gradient.
            "query_pre_attn_scalar": 20, "pad_token_id": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    # Heads of two sizes, values from keys in the last layer.
    "gemma4_text": (
        {
            "norm_eps": 1e-2, "qk_norm": True, "value_norm": True, "values_from_keys": True,
            "head_dim": 20, "kv_heads": 1, "tied": True, "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5,
            },
            "activation": "gelu_tanh", "post_norms": True, "embedding_scale": 32**0.5,
            "query_pre_attn_scalar": 1.0, "logit_softcap": 3.0, "layer_scalar": 1.0,
            "sliding_window": {
                "size": 5, "full": [1], "rope_theta": 20.0, "head_dim": 12, "kv_heads": 2,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "global_head_dim": 20, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
            "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": None, "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 500.0, "factor": 2.0,
                    "partial_rotary_factor": 0.5,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
}  # fmt: skip
# Layers that share keys, with wide MLPs, and per-layer embeddings.
KINDS["gemma4_text, small"] = (
    {key: each for key, each in KINDS["gemma4_text"][0].items() if key != "values_from_keys"} | {
        "layers": 4, "kv_heads": 2, "shared_keys": {"layers": 2, "mlp": 96},
        "per_layer_embeddings": {"width": 6, "padding": PADDING},
        "sliding_window": {"size": 5, "full": [1, 3], "rope_theta": 20.0, "head_dim": 12},
    },
    KINDS["gemma4_text"][1] | {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "attention_k_eq_v": False,
        "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": VOCAB,
        "pad_token_id": PADDING,
    },
)  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "truncate": False,
    "original_max_position_embeddings": 32,
}  # fmt: skip
GROWN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5}
_GRANITE = KINDS["granite"]
_FEW: dict[str, Any] = {"experts": 4, "top_k": 3, "width": 48, "aux_loss": 0.0}
_FEW_THEIRS = {"num_local_experts": 4, "num_experts_per_tok": 3}
# The same of decoders with experts.
MOE_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixtral": (
        {
            "norm_eps": 1e-3, "rope_theta": 500.0, "head_dim": None, "mlp": None,
            "moe": {"experts": 4, "top_k": 2, "width": 48},
        },
        {
            "rms_norm_eps": 1e-3, "num_local_experts": 4, "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "gemma4_text, experts": (
        KINDS["gemma4_text"][0] | {
            "mlp": None,
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "shared": 24, "separate_norms": True,
                "learned_scale": True, "aux_loss": 0.0,
            },
        },
        KINDS["gemma4_text"][1] | {
            "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3,
            "moe_intermediate_size": 20, "intermediate_size": 24,
        },
    ),
    "granitemoe": (_GRANITE[0] | {"mlp": None, "moe": _FEW}, _GRANITE[1] | _FEW_THEIRS),
    "granitemoeshared": (
        _GRANITE[0] | {"mlp": None, "moe": _FEW | {"shared": 20}},
        _GRANITE[1] | _FEW_THEIRS | {"shared_intermediate_size": 20},
    ),
    # The first layer has chunks and an MLP, the second one neither chunks nor positions.
    "llama4_text": (
        {
            "norm_eps": 1e-3, "head_dim": 12, "rope_theta": 500.0, "rotary_interleaved": True,
            "l2_qk_norm": True, "mlp": 40,
            "sliding_window": {"size": 5, "full": [1], "chunked": True},
            "nope": {
                "layers": [1],
                "query_scaling": {"beta": 0.5, "length": 3, "first_position": 1},
            },
            "moe": {
                "experts": 4, "top_k": 2, "width": 20, "shared": 20, "every": 2,
                "score": "sigmoid", "normalize": False, "scale_inputs": True, "aux_loss": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-3, "head_dim": 12, "intermediate_size": 20,
            "intermediate_size_mlp": 40, "num_local_experts": 4, "interleave_moe_layer_step": 2,
            "num_experts_per_tok": 2, "no_rope_layers": [1, 0], "attention_chunk_size": 5,
            "floor_scale": 3, "attn_scale": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "qwen3_moe": (
        {
            "norm_eps": 1e-2, "qk_norm": True, "head_dim": 12,
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "normalize": False, "first_dense": 1,
                "aux_loss": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 20, "mlp_only_layers": [0], "norm_topk_prob": False,
        },
    ),
    "qwen2_moe": (
        {
            "norm_eps": 1e-2, "qkv_bias": True, "head_dim": None,
            "sliding_window": {"size": 5, "full": [1]},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "normalize": False, "first_dense": 1,
                "aux_loss": 0.0, "shared": 24, "shared_gate": True,
            },
        },
        {
            "rms_norm_eps": 1e-2, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 5,
        },
    ),
    # The first layer has an MLP, the second one experts.
    "dots1": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "qk_norm": True,
            "sliding_window": {"size": 5, "full": [0]},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "moe_intermediate_size": 20,
            "n_routed_experts": 6, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1, "n_shared_experts": 1, "norm_topk_prob": True,
            "sliding_window": 5, "max_window_layers": 1,
        },
    ),
    "glm4_moe_lite": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 10, "kv_heads": 4,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 1.8,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "num_key_value_heads": 4, "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 12, "q_lora_rank": 14,
            "moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    **{
        kind: (
            {
                "norm_eps": 1e-2, "head_dim": None, "mlp": None, "qk_norm": True,
                "wide_qk_norm": True, "rope_theta": 500.0, **after,
                "moe": {
                    "experts": 4, "top_k": 2, "width": 48, "normalize": False, "aux_loss": 0.0,
                },
            },
            {
                "rms_norm_eps": 1e-2, "num_experts": 4, "num_experts_per_tok": 2,
                "pad_token_id": None, "eos_token_id": 1, **more,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            },
        )
        for kind, after, more in (
            ("olmoe", {"clip_qkv": 0.75}, {"clip_qkv": 0.75}),
            ("flex_olmo", {"pre_norms": False, "post_norms": True}, {}),
        )
    },
    "minimax_m2": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "mlp": None, "qk_norm": True, "rope_theta": 500.0,
            "wide_qk_norm": True, "rotary_factor": 0.5,
            "moe": {
                "experts": 6, "top_k": 3, "width": 48, "score": "sigmoid", "aux_loss": 0.0,
                "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "num_local_experts": 6,
            "num_experts_per_tok": 3, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "mellum": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "qk_norm": True, "rope_theta": 500.0,
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "first_dense": 1, "aux_loss": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 20, "mlp_layer_types": ["dense", "sparse"],
            "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    "exaone_moe": (
        {
            "norm_eps": 1e-2, "head_dim": None, "qk_norm": True, "nope": {"layers": [1]},
            "sliding_window": {"size": 5, "full": [1]},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 40, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "moe_intermediate_size": 20, "num_experts": 6,
            "num_experts_per_tok": 3, "num_shared_experts": 2, "pad_token_id": None,
            "eos_token_id": 2, "sliding_window": 5, "sliding_window_pattern": 2,
        },
    ),
    "ernie4_5_moe": (
        {
            "norm_eps": 1e-2, "head_dim": None, "rope_theta": 500.0, "rotary_interleaved": True,
            "tied": True,
            "moe": {
                "experts": 4, "top_k": 3, "width": 20, "shared": 40, "first_dense": 1,
                "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "moe_intermediate_size": 20, "moe_num_experts": 4, "moe_k": 3,
            "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "hy_v3": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "qk_norm": True, "rope_theta": 500.0,
            "moe": {
                "experts": 4, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 40, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "moe_intermediate_size": 20, "num_experts": 4,
            "num_experts_per_tok": 3, "num_shared_experts": 2, "router_scaling_factor": 2.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "solar_open": (
        {
            "norm_eps": 1e-2, "head_dim": 12, "mlp": None, "rope_theta": 500.0, "qkv_bias": True,
            "moe": {
                "experts": 4, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "moe_intermediate_size": 20,
            "n_routed_experts": 4, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "mistral4": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 10, "kv_heads": 4,
            "rope_scaling": {**GROWN, "original_max_position_embeddings": 6},
            "query_pre_attn_scalar": 10 / (1 + 0.05 * math.log(4.0)) ** 4,
            "query_scaling": {"beta": 0.5, "length": 6},
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
            "moe": {
                "experts": 8, "top_k": 3, "width": 20, "scale": 1.5, "shared": 40, "groups": 4,
                "top_groups": 2, "first_dense": 1, "aux_loss": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "rope_parameters": {
                **GROWN, "original_max_position_embeddings": 6, "rope_theta": 500.0,
                "llama_4_scaling_beta": 0.5, "beta_slow": 1.0,
            },
            "num_key_value_heads": 4, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
            "v_head_dim": 6, "kv_lora_rank": 12, "q_lora_rank": 14, "moe_intermediate_size": 20,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 4,
            "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
            "pad_token_id": None,
        },
    ),
    "sarvam_mla": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 10, "kv_heads": 4,
            "mla": {"kv_rank": 12, "q_rank": None, "rope_head_dim": 4, "v_head_dim": 6},
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "num_key_value_heads": 4, "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 12, "pad_token_id": None,
            "moe_intermediate_size": 20, "n_routed_experts": 6, "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    # The first layer attends in windows, the second one to whole sequences.
    "gpt_oss": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "rope_scaling": YARN, "head_dim": 12,
            "mlp": None, "qkv_bias": True, "output_bias": True, "attention_sinks": True,
            "activation": "clamped_silu", "sliding_window": {"size": 5, "full": [1]},
            "moe": {"experts": 4, "top_k": 2, "width": 48, "bias": True},
        },
        {
            "rms_norm_eps": 1e-2, "rope_parameters": {**YARN, "rope_theta": 500.0},
            "head_dim": 12, "sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
        },
    ),
    # The first layer has an MLP, the second one experts.
    "glm4_moe": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 12, "rotary_factor": 0.5,
            "qk_norm": True, "qkv_bias": True,
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "moe_intermediate_size": 20,
            "n_routed_experts": 6, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True,
            "num_mtp_layers": 0, "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "sarvam_moe": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 12, "qk_norm": True,
            "moe": {
                "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "head_dim": 12, "moe_intermediate_size": 20,
            "n_routed_experts": 6, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1, "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    # The same.
    "deepseek_v3": (
        {
            "norm_eps": 1e-2, "rope_theta": 500.0, "rope_scaling": GROWN, "head_dim": 10,
            "kv_heads": 4, "query_pre_attn_scalar": 10 / (1 + 0.05 * math.log(4.0)) ** 4,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
            "moe": {
                "experts": 8, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 40, "groups": 4, "top_groups": 2, "first_dense": 1, "aux_loss": 0.0,
                "bias_update_rate": 0.0,
            },
        },
        {
            "rms_norm_eps": 1e-2, "rope_parameters": {**GROWN, "rope_theta": 500.0},
            "num_key_value_heads": 4, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
            "v_head_dim": 6, "kv_lora_rank": 12, "q_lora_rank": 14, "moe_intermediate_size": 20,
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 4,
            "topk_group": 2, "first_k_dense_replace": 1, "pad_token_id": None,
        },
    ),
}  # fmt: skip


LAYOUTS = {
    "one rank": {},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "pp2": {"pp": 2},
    "cp2": {"cp": 2},
    "colocated dp2": {"dp": 2},
}
WIDE = {"tp4 dp2": {"tp": 4, "dp": 2}, "tp2 pp2": {"tp": 2, "pp": 2}}  # fmt: skip


def made(kind: str, layout: str, folder: Path, precision: str = "fp32", **more: Any) -> Spec:
    """Return a spec of text alone whose language module starts from a folder."""
    model = model_keys(kind) | more.pop("model", {})
    modules = {"language": box(0, **{**LAYOUTS, **WIDE}[layout], init_from=str(folder), **more)}
    if "colocated" in layout:
        modules["vision"] = box(0, dp=2)
        model["vocab"] += 1
    modules["language"]["model"] = model
    train = {"steps": 1, "precision": precision}
    found = spec(modules, microbatches=2, mbs=2, seq=16, text_only=1.0, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def save(model: Any, folder: Path, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **more)


def model_keys(kind: str) -> dict[str, Any]:
    """Return `model` of a spec for one of the kinds."""
    return {
        "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "mlp": 48, "vocab": VOCAB,
        "vocab_multiple": 16, **(KINDS | MOE_KINDS)[kind][0],
    }  # fmt: skip


def type_of(kind: str) -> str:
    """Return `model_type` of one of the kinds."""
    return kind.partition(",")[0]


def tiny(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Return a model in which no weight is a constant, as `randomise` does to ours."""
    transformers = theirs()
    config = transformers.CONFIG_MAPPING[type_of(kind)]
    auto = transformers.models.auto.modeling_auto
    # A Mistral 4 is listed among models that see.
    names = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    made = getattr(transformers, names[type_of(kind)])(
        config(**(SIZES | (KINDS | MOE_KINDS)[kind][1] | settings))
    )
    return shaken(
        made,
        dtype,
        lambda name: float("norm" in name or name.endswith(("r.scale", "expert_scale", "scalar"))),
    )


def widen(model: nn.Module) -> None:
    """Compute norms and angles in float64: transformers does in float32, whatever the type."""

    def norm(self: Any, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return self.weight * x * scale

    def offset(self: Any, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * (1 + self.weight)

    def centred(self: Any, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return norm(self, x)

    def angles(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        rope = self.config.rope_parameters
        rope = rope if layer_type is None else rope[layer_type]
        rates = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"
        size = 2 * len(getattr(self, rates))
        known = {key: each for key, each in rope.items() if key in RopeScaling.model_fields}
        if known["rope_type"] == "longrope":
            length = rope["original_max_position_embeddings"]
            known.setdefault("factor", self.config.max_position_embeddings / length)
        scaling = None if known["rope_type"] in ("default", "dynamic") else RopeScaling(**known)
        # A Hunyuan has a factor on its base.
        theta = rope["rope_theta"] * rope.get("alpha", 1.0) ** (size / (size - 2))
        turns = torch.tensor(frequencies(size, theta, scaling), dtype=torch.float64)
        turn = position_ids[..., None] * turns
        if "Llama4" in type(self).__name__:
            return torch.polar(torch.ones_like(turn), turn)
        if turn.ndim == 4:
            # Text is at the same place on all three axes.
            turn = turn[0].repeat(1, 1, 2)
        elif type(self).__name__.startswith("Cohere"):
            turn = turn.repeat_interleave(2, dim=2)
        elif not type(self).__name__.startswith("GptOss"):
            turn = turn.repeat(1, 1, 2)
        return turn.cos() * attention_factor(scaling), turn.sin() * attention_factor(scaling)

    def places(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        size, turns = 2 * len(self.inv_freq), []
        for axis in (0, 1):
            exponents = torch.arange(2 * axis, size, 4, dtype=torch.float64) / size
            turns.append(position_ids[:, axis, None] * 10000.0**-exponents)
        turn = torch.cat(turns * 2, dim=-1)
        return turn.cos(), turn.sin()

    def exact(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return given, {**named, "position_ids": named["position_ids"].double()}

    for module in model.modules():
        if type(module).__name__ in ("Ministral3Attention", "Mistral4Attention"):
            # Its factors of queries.
            module.register_forward_pre_hook(exact, with_kwargs=True)
        if type(module).__name__ in (
            "GemmaRMSNorm",
            "VaultGemmaRMSNorm",
            "Gemma2RMSNorm",
            "Gemma3RMSNorm",
            "Qwen3NextRMSNorm",
        ):
            module.forward = MethodType(offset, module)  # type: ignore[method-assign]
        elif type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(norm, module)  # type: ignore[method-assign]
        elif type(module).__name__.startswith("Cohere") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(centred, module)  # type: ignore[method-assign]
        if type(module).__name__ == "PixtralVisionRotaryEmbedding":
            module.forward = MethodType(places, module)  # type: ignore[method-assign]
        elif re.search(r"(?<!K25Vision)(?<!Llama4Vision)RotaryEmbedding$", type(module).__name__):
            module.forward = MethodType(angles, module)  # type: ignore[method-assign]
        if type(module).__name__.endswith("ScaledWordEmbedding"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)


def widen_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 each softmax that transformers computes in float32, whatever the type."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))


class Seen(NamedTuple):
    """Logits [B, S, v] of words from `first_word` on, of one microbatch on one rank."""

    samples: tuple[int, ...]
    positions: Tensor
    first_word: int
    logits: Tensor


def started(spec: Spec, run: Path) -> tuple[RankSession, list[Event]]:
    """Open a session and load what `init_from` names."""
    session, events = RankSession(Plan.of(spec), draw=False), list[Event]()
    start_run(session, run, events.append)
    return session, events


def logits_on_rank(spec: Spec, run: Path) -> list[Seen]:
    """Run a step from the weights of `init_from`; return the logits this rank computed."""
    session, _ = started(spec, run)
    seen: list[Seen] = []
    compute = LanguageStage._logits

    def shown(self: LanguageStage, x_ND: Tensor) -> tuple[Tensor, range]:
        logits, part = compute(self, x_ND)
        grid = session.layout.language.grid
        samples = session.layout.samples.language(grid.index("dp", session.rank), len(seen))
        shape = (len(samples), -1, len(part))
        values = logits.detach().clone().view(shape)
        cp = session.modules["language"].context.cp
        held = zigzag_positions(spec.batch.seq, cp.index, cp.size, torch.device("cpu"))
        seen.append(Seen(tuple(samples), held, part.start, values))
        return logits, part

    LanguageStage._logits = shown  # type: ignore[method-assign]
    try:
        dataset = build_dataset(spec)
        session.gradients(step_inputs(dataset, "train", ids_of(spec), 0))
    finally:
        LanguageStage._logits = compute  # type: ignore[method-assign]
        session.__exit__(None, None, None)
    return seen


def ids_of(spec: Spec) -> Sequence[int]:
    """Return the samples of the first step."""
    order = GlobalOrder(
        build_dataset(spec).num_samples("train"), spec.batch.global_, spec.train.seed
    )
    return order.ids(0)


def tokens_of(spec: Spec) -> Tensor:
    """Return the tokens of the first step, [samples, S]."""
    dataset = build_dataset(spec)
    return torch.stack([torch.from_numpy(dataset.text("train", i)[0]) for i in ids_of(spec)])


def joined(spec: Spec, parts: list[list[Seen]], num_words: int) -> Tensor:
    """Return the logits of all ranks as one tensor [samples, S, words]; none may be left out."""
    whole = torch.full(
        (spec.batch.global_, spec.batch.seq, num_words), torch.nan, dtype=torch.float64
    )
    for each in (seen for part in parts for seen in part):
        words = range(each.first_word, min(num_words, each.first_word + each.logits.shape[2]))
        for item, sample in enumerate(each.samples):
            rows = each.logits[item, :, : len(words)].double()
            whole[sample, each.positions, words.start : words.stop] = rows
    assert not whole.isnan().any()
    return whole


def weights_on_rank(
    spec: Spec, run: Path, prepare: Callable[[], object] | None = None
) -> tuple[list[Box], list[WeightsLoaded], object]:
    """Return what this rank holds of language after `init_from`, the event, and what was noted."""
    noted = prepare() if prepare is not None else None
    session, events = started(spec, run)
    chunks = [
        Box(c.name, c.shape, c.offsets, c.tensor.clone(), c.counted)
        for c in weight_boxes(session.modules["language"])
    ]
    dist.barrier()
    session.__exit__(None, None, None)
    return chunks, [event for event in events if isinstance(event, WeightsLoaded)], noted
