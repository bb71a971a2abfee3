"""Tiny models of `transformers` that see, InternVL to Pixtral, and specs for them."""

import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support import hugging_face
from tests.support.hugging_face import ALIKE, MOE_KINDS, ids_of, tokens_of, widen
from tests.support.llava import GRID, LAYOUTS, PATCH, TEXT, VISION, VOCAB, images_of
from tests.support.qwen_vl import KINDS_IN_FP32, axes, start
from tests.support.random_models import of_norm, shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.spec.spec import Spec

TOKEN = 7
_KEYS = {
    "layers": 3, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3, "shuffle": 2,
    "positions": "learned", "image": [GRID, GRID], "norm_eps": 1e-6,
}  # fmt: skip
_INTERNVL = {
    "class_token": True, "layer_scale": 0.1, "projector_norm_eps": 1e-5, "activation": "gelu",
}  # fmt: skip
_OVIS2 = {
    **_KEYS, "kind": "ovis2_vision", "norm_eps": 1e-5, "words": 18,
    "tiles": {"grids": [[1, 1], [1, 2], [2, 2]]},
}  # fmt: skip
_IDEFICS = {
    "interpolation": "nearest", "activation": "gelu_tanh", "projector": "linear",
    "projector_bias": False,
}  # fmt: skip
_GEMMA = {
    "activation": "gelu_tanh", "projector": "linear", "projector_bias": False, "pooling": "mean",
    "projector_norm_eps": 1e-6, "projector_norm": "rms", "projector_norm_offset": True,
}  # fmt: skip
_PIXTRAL = {
    "layers": 3, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3,
    "positions": "rope2d", "rope_frequencies": "in_turn", "norm": "rms", "norm_eps": 1e-5,
    "activation": "swiglu", "qkv_bias": False, "block_bias": False, "patch_bias": False,
    "pre_norm": True, "final_norm": False,
}  # fmt: skip
_MERGER = {
    "shuffle": 2, "pooling": "linear", "projector_norm_eps": 1e-4, "projector_norm": "rms",
    "projector_bias": False,
}  # fmt: skip
_SIGLIP = {key: each for key, each in _KEYS.items() if key != "shuffle"} | {
    "activation": "gelu_tanh", "final_norm": True,
}  # fmt: skip
_CLIP = _SIGLIP | {
    "layers": 2, "activation": "quick_gelu", "norm_eps": 1e-5, "class_token": True,
    "pre_norm": True, "patch_bias": False, "final_norm": False,
}  # fmt: skip
# So small that it is quickly made.
_VQ = {
    "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "num_embeddings": 16,
    "latent_channels": 32, "projection_dim": 24, "image_token_embed_dim": 24,
}  # fmt: skip
_PALI = {
    "head_dim": 8, "tied": True, "activation": "gelu_tanh", "norm_offset": True,
    "embedding_scale": 24**0.5, "bidirectional_prompts": True,
}  # fmt: skip
# A Qwen3.5, of which tokens of images count as those of text.
_DELTA_KEYS = {
    **KINDS_IN_FP32["qwen3_5"].language, "mrope": None, "mrope_interleaved": False,
    "rope_theta": 50.0,
}  # fmt: skip
_DELTA = {
    **KINDS_IN_FP32["qwen3_5"].text, "pad_token_id": None,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
_YARN = {**ALIKE, "original_max_position_embeddings": 6}
_GEMMA4_ROPES = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 500.0,
        "factor": 2.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
_TEXT_KEYS = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "mlp": 40, "vocab": VOCAB,
    "vocab_multiple": 16, "norm_eps": 1e-6,
}  # fmt: skip

# In no text of a first step.
_PADDING = 3


@dataclass(frozen=True)
class Kind:
    """A family: its name in classes, its parts, and what they are in a spec.

    `whole` are settings of its own; `names` are patterns of names that `transformers` writes unlike
    published folders, and what these have.
    """

    name: str
    keys: dict[str, Any]
    text: dict[str, Any]
    text_keys: dict[str, Any]
    vision: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    names: tuple[tuple[str, str], ...] = ()


KINDS = {
    "internvl": Kind(
        "InternVL",
        {**_KEYS, **_INTERNVL, "final_norm": False},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"qkv_bias": True, "tied": True},
        {"attention_bias": True, "layer_norm_eps": 1e-6},
        {"tie_word_embeddings": True},
    ),
    # As the tower of 6 B weights: its norms, and those of queries and keys of all heads.
    "internvl_large": Kind(
        "InternVL",
        {**_KEYS, **_INTERNVL, "final_norm": False, "norm": "rms", "qk_norm": True,
         "qkv_bias": False},
        {
            "model_type": "qwen3", "head_dim": 8,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0},
        },
        {"head_dim": 8, "qk_norm": True, "rope_theta": 500.0},
        {"attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm"},
        {"tie_word_embeddings": False},
    ),
    "ovis2": Kind(
        "Ovis2",
        _OVIS2,
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"qkv_bias": True, "tied": True},
        {"hidden_stride": 2, "vocab_size": 23},
        {"tie_word_embeddings": True, "hidden_size": TEXT["hidden_size"], "vocab_size": VOCAB},
    ),
    # Images are one tile, of rows of one patch.
    "ovis2_untied": Kind(
        "Ovis2",
        _OVIS2 | {"shuffle": 1, "tiles": {}, "qkv_bias": True, "block_bias": True},
        {"model_type": "qwen2"},
        {"qkv_bias": True},
        {"hidden_stride": 1, "vocab_size": 23, "qkv_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": False, "hidden_size": TEXT["hidden_size"], "vocab_size": VOCAB},
    ),
    "qianfan_ocr": Kind(
        "QianfanOCR",
        {**_KEYS, **_INTERNVL, "final_norm": False},
        {"model_type": "qwen3", "head_dim": 8},
        {"head_dim": 8, "qk_norm": True},
        {"layer_norm_eps": 1e-6, "drop_path_rate": 0.0},
        names=((r"(language_model\.model\.)encoder\.", r"\1"),),
    ),
    "gemma3": Kind(
        "Gemma3",
        {**_KEYS, **_GEMMA},
        {
            "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 5, "pad_token_id": None,
            "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
        {
            "head_dim": 8, "qk_norm": True, "tied": True, "rope_theta": 500.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "activation": "gelu_tanh",
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0}, "post_norms": True,
            "norm_offset": True, "embedding_scale": 24**0.5, "query_pre_attn_scalar": 20,
            "bidirectional_images": True,
        },
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        {"mm_tokens_per_image": 4},
    ),
    # Images in both directions in the first layer alone, as far as its window reaches.
    "gemma4": Kind(
        "Gemma4",
        {
            "kind": "gemma4_vision", "layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2,
            "mlp": 48, "patch": PATCH, "channels": 3, "shuffle": 2, "places": 16,
            "rope_theta": 20.0, "norm_eps": 1e-2, "standardize": True,
        },
        {
            "model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 12,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "rms_norm_eps": 1e-2,
            "hidden_size_per_layer_input": 0, "sliding_window": 5, "pad_token_id": TOKEN,
            "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": "vision", "rope_parameters": _GEMMA4_ROPES,
        },
        {
            "head_dim": 12, "kv_heads": 1, "qk_norm": True, "value_norm": True,
            "values_from_keys": True, "tied": True, "norm_eps": 1e-2, "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5,
            },
            "activation": "gelu_tanh", "post_norms": True, "embedding_scale": 24**0.5,
            "query_pre_attn_scalar": 1.0, "layer_scalar": 1.0,
            "sliding_window": {
                "size": 5, "full": [1], "rope_theta": 20.0, "head_dim": 8, "kv_heads": 2,
            },
            "bidirectional_images": "in_windows",
        },
        {
            "model_type": "gemma4_vision", "head_dim": 8, "num_key_value_heads": 2,
            "position_embedding_size": 16, "pooling_kernel_size": 2, "standardize": True,
            "rms_norm_eps": 1e-2, "use_clipped_linears": False,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 20.0},
        },
    ),
    # The second layer of language does not rotate, and has experts.
    "llama4": Kind(
        "Llama4",
        {
            "kind": "llama4_vision", "layers": 3, "hidden": 32, "heads": 4, "mlp": 128,
            "patch": PATCH, "channels": 3, "image": [GRID, GRID], "rope_theta": 20.0,
            "projector_mlp": 20, "projector_out": 20,
        },
        {"model_type": "llama4_text", **MOE_KINDS["llama4_text"][1]},
        MOE_KINDS["llama4_text"][0],
        {
            "intermediate_size": 128, "projector_input_dim": 20, "projector_output_dim": 20,
            "vision_output_dim": 20, "rope_parameters": {"rope_type": "axial", "rope_theta": 20.0},
        },
        {"tie_word_embeddings": False},
    ),
    # States of two layers after one of a layer later, in no order.
    "vipllava": Kind(
        "VipLlava",
        _CLIP | {"layers": 3, "features": [1, 2, 0], "projector_norm_eps": 1e-3},
        {"model_type": "llama"},
        {},
        {"model_type": "clip_vision_model"},
        {"vision_feature_layer": [-2, -1, 1], "projector_layernorm_eps": 1e-3},
    ),
    "deepseek_vl": Kind(
        "DeepseekVL",
        _SIGLIP,
        {"model_type": "llama", "tie_word_embeddings": False},
        {},
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        {"tie_word_embeddings": False},
    ),
    "janus": Kind(
        "Janus",
        _SIGLIP | {"activation": "gelu", "projector_activation": "gelu", "qkv_bias": False},
        {"model_type": "llama", "tie_word_embeddings": True},
        {"tied": True},
        {
            "mlp_ratio": 1.5, "projection_dim": 24, "attention_bias": False,
        },
        {"vq_config": _VQ},
    ),
    "video_llava": Kind(
        "VideoLlava", _CLIP, {"model_type": "llama"}, {}, {"model_type": "clip_vision_model"}
    ),
    "paligemma": Kind(
        "PaliGemma",
        _SIGLIP | {"projector": "linear"},
        {"model_type": "gemma", "head_dim": 8, "rms_norm_eps": 1e-6, "pad_token_id": None},
        _PALI,
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        {"projection_dim": 24, "hidden_size": 24},
    ),
    "paligemma2": Kind(
        "PaliGemma",
        _SIGLIP | {"projector": "linear"},
        {
            "model_type": "gemma2", "head_dim": 8, "rms_norm_eps": 1e-6, "pad_token_id": None,
            "query_pre_attn_scalar": 20, "sliding_window": 5, "attn_logit_softcapping": None,
            "final_logit_softcapping": 3.0, "layer_types": ["sliding_attention", "full_attention"],
        },
        _PALI | {
            "post_norms": True, "query_pre_attn_scalar": 20, "logit_softcap": 3.0,
            "sliding_window": {"size": 5, "full": [1]},
        },
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        {"projection_dim": 24, "hidden_size": 24},
    ),
    # Names, images and positions as in a Qwen2-VL.
    "paddleocr_vl": Kind(
        "PaddleOCRVL",
        _SIGLIP | {
            "positions": "learned+rope2d", "interpolation": "linear", "shuffle": 2,
            "projector_mlp": 128, "projector_norm_eps": 1e-5, "projector_norm_of": "patch",
        },
        {
            "head_dim": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "pad_token_id": None,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 2, 1],
            },
        },
        {"head_dim": 8, "tied": True, "rope_theta": 500.0, "mrope": [1, 2, 1]},
        {"spatial_merge_size": 2},
    ),
    "video_llama_3": Kind(
        "VideoLlama3",
        {key: each for key, each in _SIGLIP.items() if key != "image"} | {"positions": "rope2d"},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"qkv_bias": True, "tied": True},
    ),
    **{
        kind: Kind(
            name,
            {
                **_KEYS, "activation": "gelu_tanh", "projector": "swiglu", "projector_mlp": 14,
                **keys,
            },
            {
                "model_type": "cohere2", "sliding_window": 5, "layer_norm_eps": 1e-3,
                "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.25,
                "pad_token_id": None, "eos_token_id": 1, "num_hidden_layers": 2,
            },
            {
                "sliding_window": {"size": 5, "full": [1]}, "nope": {"layers": [1]}, "tied": True,
                "parallel": True, "norm": "layer_without_bias", "norm_eps": 1e-3,
                "rotary_interleaved": True,
            },
            {"model_type": "siglip_vision_model", "vision_use_head": False},
            {"alignment_intermediate_size": 28, "downsample_factor": 2, **whole},
        )
        for kind, name, keys, whole in (
            ("cohere2_vision", "Cohere2Vision", {"final_norm": True}, {}),
            (
                "aya_vision", "AyaVision",
                {"final_norm": False, "projector_norm_eps": 1e-4, "projector_norm": "layer"},
                {"adapter_layer_norm_eps": 1e-4},
            ),
        )
    },
    # The second layer of language has experts.
    "kimi_k25": Kind(
        "Kimi_K25",
        {
            **_KEYS, "activation": "gelu_tanh", "positions": "learned+rope2d", "norm_eps": 1e-5,
            "rope_frequencies": "alternating", "projector": "merger", "projector_norm_eps": 1e-4,
            "projector_norm_of": "patch",
        },
        {
            "model_type": "deepseek_v3", "num_key_value_heads": 4, "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 12, "q_lora_rank": 14,
            "moe_intermediate_size": 20, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "pad_token_id": None,
            "num_nextn_predict_layers": 0,
        },
        {
            "kv_heads": 4, "head_dim": 10,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
            "moe": {
                "experts": 4, "top_k": 2, "width": 20, "score": "sigmoid", "scale": 2.5,
                "shared": 20, "first_dense": 1, "aux_loss": 0.0, "bias_update_rate": 0.0,
            },
        },
        {"pos_emb_height": GRID, "pos_emb_width": GRID},
        {
            "projection_hidden_size": 32, "projection_layer_norm_eps": 1e-4,
            "tie_word_embeddings": False,
        },
        names=(
            (r"(language_model\.model\.)blocks\.", r"\1layers."),
            (r"(vision_tower\.)encoder\.(patch_embed)", r"\1\2"),
            (r"^model\.(mm_projector)", r"\1"),
        ),
    ),
    **{
        kind: Kind(
            name,
            {
                **_KEYS, "interpolation": "nearest", "activation": "gelu_tanh",
                "projector": "merger", "projector_norm_eps": 1e-6,
            },
            {"rms_norm_eps": 1e-3, "tie_word_embeddings": tied, **_DELTA},
            {"norm_eps": 1e-3, "tied": tied, **_DELTA_KEYS},
            {"insert_layer_id": 1},
            {"downsample_mode": "4x", "tie_word_embeddings": tied},
        )
        for kind, name, tied in (
            ("minicpm_ocr", "MiniCPMOcr", True), ("minicpmv4_6", "MiniCPMV4_6", False)
        )
    },
    "lfm2_vl": Kind(
        "Lfm2Vl",
        {
            **_KEYS, "interpolation": "averaged", "activation": "gelu_tanh", "projector": "mlp",
            "projector_activation": "gelu", "projector_mlp": 28, "projector_norm_eps": 1e-5,
        },
        {
            "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "norm_eps": 1e-3,
            "block_auto_adjust_ff_dim": False, "pad_token_id": None, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        {
            "kind": "hybrid", "pattern": "C-*-", "activation": "silu", "qk_norm": True,
            "norm_eps": 1e-3, "tied": True, "rope_theta": 500.0,
        },
        {
            "model_type": "siglip2_vision_model", "num_patches": GRID**2, "vision_use_head": False,
        },
        {"projector_hidden_size": 28},
    ),
    "smolvlm": Kind(
        "SmolVLM", {**_KEYS, **_IDEFICS}, {"model_type": "llama"}, {}, {}, {"scale_factor": 2}
    ),
    "mistral3": Kind(
        "Mistral3",
        {**_PIXTRAL, **_MERGER},
        {"model_type": "mistral", "head_dim": 8, "sliding_window": None, "rms_norm_eps": 1e-4},
        {"head_dim": 8, "norm_eps": 1e-4},
        {"model_type": "pixtral", "hidden_act": "silu"},
        {"tie_word_embeddings": False},
    ),
    "lighton_ocr": Kind(
        "LightOnOcr",
        {**_PIXTRAL, **_MERGER},
        {"model_type": "qwen3", "head_dim": 8, "rms_norm_eps": 1e-4, "tie_word_embeddings": True},
        {"head_dim": 8, "norm_eps": 1e-4, "qk_norm": True, "tied": True},
        {"model_type": "pixtral", "hidden_act": "silu"},
        {"tie_word_embeddings": True},
    ),
    "ministral3": Kind(
        "Mistral3",
        {**_PIXTRAL, **_MERGER},
        {
            "model_type": "ministral3", "head_dim": 8, "rms_norm_eps": 1e-4, "pad_token_id": None,
            "rope_parameters": {**_YARN, "rope_theta": 500.0, "llama_4_scaling_beta": 0.5},
        },
        {
            "head_dim": 8, "norm_eps": 1e-4, "rope_theta": 500.0, "rope_scaling": _YARN,
            "query_scaling": {"beta": 0.5, "length": 6},
        },
        {"model_type": "pixtral", "hidden_act": "silu"},
        {"tie_word_embeddings": False},
    ),
    "mistral4": Kind(
        "Mistral3",
        {**_PIXTRAL, **_MERGER},
        {"model_type": "mistral4", **MOE_KINDS["mistral4"][1], "rms_norm_eps": 1e-4},
        {**MOE_KINDS["mistral4"][0], "norm_eps": 1e-4},
        {"model_type": "pixtral", "hidden_act": "silu"},
        {"tie_word_embeddings": False},
    ),
    "pixtral": Kind(
        "Llava",
        _PIXTRAL,
        {"model_type": "mistral", "head_dim": 8, "sliding_window": 5},
        {"head_dim": 8, "sliding_window": {"size": 5}},
        {"model_type": "pixtral", "hidden_act": "silu"},
        {
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "tie_word_embeddings": False,
        },
    ),
    "idefics3": Kind(
        "Idefics3",
        {**_KEYS, **_IDEFICS},
        {"model_type": "llama"},
        {},
        {},
        {"scale_factor": 2},
    ),
}  # fmt: skip
# Layers that share keys, and per-layer embeddings, which images have of a token that no text has.
# The maps of the tower clip their numbers.
KINDS["gemma4_small"] = replace(
    KINDS["gemma4"],
    keys=KINDS["gemma4"].keys | {"clipped_linears": True},
    vision=KINDS["gemma4"].vision | {"use_clipped_linears": True},
    text={key: x for key, x in KINDS["gemma4"].text.items() if "global_key" not in key} | {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "attention_k_eq_v": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": _PADDING,
        "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": VOCAB,
    },
    text_keys={
        key: x for key, x in KINDS["gemma4"].text_keys.items() if key != "values_from_keys"
    } | {
        "layers": 4, "kv_heads": 2, "shared_keys": {"layers": 2},
        "per_layer_embeddings": {"width": 6, "padding": _PADDING},
        "sliding_window": {"size": 5, "full": [1, 3], "rope_theta": 20.0, "head_dim": 8},
    },
)  # fmt: skip


def tiny(
    kind: str, dtype: torch.dtype = torch.float32, token: int = TOKEN, vocab: int = VOCAB
) -> Any:
    """Return a model in which no weight is a constant."""
    transformers = theirs()
    family = KINDS[kind]
    config = getattr(transformers, f"{family.name}Config")(
        vision_config=VISION | family.vision,
        text_config=TEXT | family.text | {"vocab_size": vocab},
        image_token_id=token,
        **family.whole,
    )
    made = getattr(transformers, f"{family.name}ForConditionalGeneration")(config)
    if "deltanet" in family.text_keys:
        return shaken(made, dtype, partial(start, "qwen3_5"))
    if kind == "llama4":
        # Of complex numbers `to` would keep the real part.
        del made.vision_model.rotary_embedding.freqs_ci
    found = shaken(made, dtype, lambda name: 0.5 if "lambda" in name else of_norm(name))
    if kind == "llama4":
        turn_patches(found)
    return found


def turn_patches(model: Any) -> None:
    """Make the angles of a Llama 4's tower again."""
    each = model.vision_model.rotary_embedding
    each.freqs_ci = each._compute_freqs_ci(model.config.vision_config)


def save(kind: str, model: Any, folder: Path) -> None:
    """Save a model with the names of published folders."""
    hugging_face.save(model, folder)
    if patterns := KINDS[kind].names:
        file = folder / "model.safetensors"
        held = load_file(file)
        for pattern, name in patterns:
            held = {re.sub(pattern, name, key): tensor for key, tensor in held.items()}
        save_file(held, file, {"format": "pt"})


def save_shieldgemma2(model: Any, folder: Path) -> None:
    """Save a Gemma 3 as a ShieldGemma 2 with names that both classes of `transformers` read."""
    hugging_face.save(model, folder)
    file, text = folder / "model.safetensors", folder / "config.json"
    named = {
        f"model.{name.replace('language_model.model.', 'language_model.')}": tensor
        for name, tensor in load_file(file).items()
    }
    save_file(named, file, {"format": "pt"})
    config = json.loads(text.read_text()) | {
        "model_type": "shieldgemma2", "architectures": ["ShieldGemma2ForImageClassification"],
    }  # fmt: skip
    text.write_text(json.dumps(config))


def made(
    kind: str,
    layout: str,
    folder: Path,
    precision: str = "fp32",
    side: int | None = GRID,
    **more: Any,
) -> Spec:
    """Return a spec whose two modules start from a folder.

    Images are of `side` x `side` patches; None: each of a size of its own.
    """
    modules = boxes(kind, layout, folder, vision=more.pop("vision", {}))
    data = {"kind": "synthetic", "max_images": 2, "text_only": 0.2}
    data |= {"image": [side, side]} if side is not None else {"max_patches": 24}
    train = {"steps": 1, "precision": precision}
    if kind.startswith("ovis2"):
        more |= {"seq": 96}
    found = spec(modules, microbatches=2, mbs=2, train=train, data=data, **more)
    assert not [item for item in check(found) if item.is_error]
    return found


def boxes(
    kind: str,
    layout: str,
    folder: Path,
    token: int = TOKEN,
    vocab: int = VOCAB,
    vision: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the two modules of a spec, which start from a folder."""
    tower, language = (dict(each) for each in LAYOUTS[layout])
    family = KINDS[kind]
    text = _TEXT_KEYS | {"head_dim": None, "vocab": vocab} | family.text_keys
    # A hybrid has no such key.
    text = {key: each for key, each in text.items() if (key, each) != ("qkv_bias", None)}
    model = family.keys | (vision or {})
    start = {"init_from": str(folder)}
    return {
        "vision": box(0, placeholder=token, model=model, **start, **tower),
        "language": box(language.pop("first", 0), model=text, **start, **language),
    }


# Classes that take the images of a sample, not of several samples.
_SEVERAL = (
    "InternVL",
    "Gemma3",
    "PaliGemma",
    "Deepseek",
    "Qianfan",
    "Janus",
    "VideoLlava",
    "Cohere2V",
    "Aya",
    "VipLlava",
)


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    rows = []
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        name = type(model).__name__
        if name.startswith(("VideoLlama3", "Paddle")):
            rows.append(
                model(input_ids=tokens[None], **_in_patches(model, made, sample, tokens)).logits
            )
            continue
        if name.startswith("Kimi"):
            shown = _in_squares(model, made, sample, tokens)
            rows.append(model(input_ids=tokens[None], **shown).logits)
            continue
        if name.startswith("Lfm2"):
            shown = _of_naflex(model, made, sample)
            rows.append(model(input_ids=tokens[None], **shown).logits)
            continue
        if name.startswith("Gemma4"):
            shown = _of_places(model, made, sample, tokens)
            rows.append(model(input_ids=tokens[None], **shown).logits)
            continue
        if name.startswith("Llama4"):
            rows.append(_of_llama4(model, images_of(made, sample).to(model.dtype), tokens[None]))
            continue
        if name.startswith("Ovis2"):
            rows.append(_of_ovis2(model, made, sample, tokens))
            continue
        if name.startswith("MiniCPM"):
            shown = _in_one_line(model, made, sample)
            rows.append(model(input_ids=tokens[None], **shown).logits)
            continue
        if name.startswith(("Mistral3", "Llava", "LightOn")):
            rows.append(model(input_ids=tokens[None], **_of_any_size(model, made, sample)).logits)
            continue
        pixels = images_of(made, sample).to(model.dtype)
        if pixels.ndim == 5:
            # Where videos are read, arrays have frames: here one each.
            pixels = pixels.squeeze(2)
        more = _prompt(made, sample) if name.startswith("PaliGemma") else {}
        if not len(pixels):
            rows.append(model(input_ids=tokens[None], **more).logits)
            continue
        several = pixels if name.startswith(_SEVERAL) else pixels[None]
        more = _mask(model, tokens, len(pixels)) if name.startswith("Gemma3") else more
        rows.append(model(input_ids=tokens[None], pixel_values=several, **more).logits)
    return torch.cat(rows)


def _of_any_size(model: Any, made: Spec, sample: int) -> dict[str, Any]:
    """Return the images of a sample, padded to the largest, with their sizes."""
    found = build_dataset(made).images("train", sample, "vision")
    if not found:
        return {}
    sizes = [image.shape[1:] for image in found]
    height, width = (max(each) for each in zip(*sizes, strict=True))
    padded = [
        F.pad(torch.from_numpy(image), (0, width - image.shape[2], 0, height - image.shape[1]))
        for image in found
    ]
    return {
        "pixel_values": torch.stack(padded).to(model.dtype),
        "image_sizes": torch.tensor(sizes),
    }


def _in_patches(model: Any, made: Spec, sample: int, tokens: Tensor) -> dict[str, Any]:
    """Return the patches of the images of a sample, line by line, with what a model needs to know.

    A PaddleOCR-VL takes images for one where no text stands between them, but not a video beside
    an image.
    """
    data = build_dataset(made)
    found = data.images("train", sample, "vision")
    if not found:
        return {}
    patches = [
        torch.from_numpy(image).unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH) for image in found
    ]
    pixels = torch.cat([each.permute(1, 2, 0, 3, 4).flatten(0, 1) for each in patches])
    grids = torch.tensor([[1, *each.shape[1:3]] for each in patches])
    if type(model).__name__.startswith("Paddle"):
        types = torch.zeros_like(tokens)[None]
        for number, span in enumerate(data.describe("train", sample).spans["vision"]):
            types[:, span.position : span.end] = 1 + number % 2
        each = {"image_grid_thw": grids[::2], "video_grid_thw": grids[1::2]}
        places, _ = model.model.get_rope_index(tokens[None], types, **each)
        more = {"pixel_values": pixels, "position_ids": places}
    else:
        more = {
            "pixel_values": pixels.flatten(1),
            "image_merge_sizes": torch.ones(len(found), dtype=torch.long),
        }
    return more | {"pixel_values": more["pixel_values"].to(model.dtype), "image_grid_thw": grids}


def _of_naflex(model: Any, made: Spec, sample: int) -> dict[str, Any]:
    """Return the patches of the images of a sample, padded to the longest, colours last."""
    found = build_dataset(made).images("train", sample, "vision")
    if not found:
        return {}
    patches = [
        torch.from_numpy(image).squeeze().unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
        for image in found
    ]
    lines = [each.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1) for each in patches]
    longest = max(map(len, lines))
    padded = [F.pad(each, (0, 0, 0, longest - len(each))) for each in lines]
    return {
        "pixel_values": torch.stack(padded).to(model.dtype),
        "spatial_shapes": torch.tensor([each.shape[1:3] for each in patches]),
        "pixel_attention_mask": torch.stack([torch.arange(longest) < len(x) for x in lines]).int(),
    }


def _of_places(model: Any, made: Spec, sample: int, tokens: Tensor) -> dict[str, Any]:
    """Return the patches of the images of a sample with their (x, y), colours last, padded.

    Masks are of each image by itself: the model takes images for one without text between them.
    """
    from transformers.models.gemma4 import modeling_gemma4 as theirs

    data = build_dataset(made)
    found = data.images("train", sample, "vision")
    if not found:
        return {}
    lines, places = [], []
    for image in found:
        each = torch.from_numpy(image).double().unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
        # The model maps 0 .. 1 to -1 .. 1.
        lines.append(each.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1) / 2 + 0.5)
        height, width = each.shape[1:3]
        places.append(torch.tensor([[x, y] for y in range(height) for x in range(width)]))
    longest = max(map(len, lines))
    number = torch.full((len(tokens),), -1)
    for image, span in enumerate(data.describe("train", sample).spans["vision"]):
        number[span.position : span.end] = image
    masks = theirs.create_masks_for_vision_model(
        model.config.text_config,
        torch.zeros(1, len(tokens), 1, dtype=model.dtype),
        None,
        None,
        None,
        number[None],
    )
    pixels = [F.pad(each, (0, 0, 0, longest - len(each))) for each in lines]
    ids = [F.pad(each, (0, 0, 0, longest - len(each)), value=-1) for each in places]
    return {
        "pixel_values": torch.stack(pixels).to(model.dtype),
        "image_position_ids": torch.stack(ids),
        "attention_mask": masks,
    }


def _of_llama4(model: Any, pixels: Tensor, tokens: Tensor) -> Tensor:
    """Return logits as the forward of the whole class does, which fails at its end in 5.24."""
    found = model.get_input_embeddings()(tokens)
    if len(pixels):
        seen = model.get_image_features(pixels, return_dict=True).last_hidden_state
        rows = model.multi_modal_projector(seen.flatten(0, -2))
        shown = model.get_placeholder_mask(tokens, inputs_embeds=found, image_features=rows)
        found = found.masked_scatter(shown, rows)
    logits: Tensor = model.language_model(inputs_embeds=found).logits
    return logits


_INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


def _of_ovis2(model: Any, made: Spec, sample: int, tokens: Tensor) -> Tensor:
    """Return logits, where images have the text that the processor of `transformers` writes."""
    from transformers.models.ovis2.processing_ovis2 import Ovis2Processor

    data = build_dataset(made)
    found, given = data.images("train", sample, "vision"), tokens[None].clone()
    if not found:
        return model(input_ids=given).logits  # type: ignore[no-any-return]
    writer, tower = Ovis2Processor.__new__(Ovis2Processor), model.config.vision_config
    writer.image_seq_length = (GRID // tower.hidden_stride) ** 2
    # Ids that the sample has not in its text.
    ids = [each for each in range(VOCAB) if each not in tokens][: len(_INDICATORS)]
    model.model.visual_indicator_token_ids = ids
    by_word = dict(zip(_INDICATORS, ids, strict=True), **{"<IMG_ATOM>": TOKEN})
    for span in data.describe("train", sample).spans["vision"]:
        grid = (1, 1) if span.shown is None else (span.shown.tall, span.shown.wide)
        text = writer.replace_image_token({"grids": torch.tensor([grid])}, 0)
        words = re.findall(r"<\w+>", text)
        assert len(words) == span.rows
        given[0, span.position : span.end] = torch.tensor([by_word[each] for each in words])
    tiles = torch.cat([torch.from_numpy(each) for each in found]).to(model.dtype)
    return model(input_ids=given, pixel_values=tiles).logits  # type: ignore[no-any-return]


def _in_one_line(model: Any, made: Spec, sample: int) -> dict[str, Any]:
    """Return the patches of the images of a sample side by side, with their sizes."""
    found = build_dataset(made).images("train", sample, "vision")
    if not found:
        return {}
    images = [torch.from_numpy(image).squeeze() for image in found]
    lines = [
        each.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).permute(0, 3, 1, 2, 4).flatten(2)
        for each in images
    ]
    sizes = [[side // PATCH for side in each.shape[1:]] for each in images]
    pixels = torch.cat(lines, dim=2)[None].to(model.dtype)
    return {"pixel_values": pixels, "target_sizes": torch.tensor(sizes, dtype=torch.int32)}


def _prompt(made: Spec, sample: int) -> dict[str, Any]:
    """Return what says which tokens are the prompt: 0 up to the first label."""
    is_learnt = build_dataset(made).text("train", sample)[1] != IGNORE_LABEL
    return {"token_type_ids": torch.arange(len(is_learnt))[None].gt(int(is_learnt.argmax())).long()}


def _in_squares(model: Any, made: Spec, sample: int, tokens: Tensor) -> dict[str, Any]:
    """Return the same as squares of pixels, without numbers of merged patches."""
    found = _in_patches(model, made, sample, tokens)
    found.pop("image_merge_sizes", None)
    squares = {"pixel_values": found["pixel_values"].view(-1, 3, PATCH, PATCH)} if found else {}
    return found | squares


def exact_kimi(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the tower of a Kimi K2.5 in float64: its angles, table and squares of patches."""
    from transformers.models.kimi_k25 import modeling_kimi_k25 as theirs

    tower: Any = model.model.vision_tower

    def turns(self: Any, _x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        angle = places[..., None] * 10000.0 ** -torch.tensor([0, 0.5]).double()
        parts = (angle.cos(), angle.sin())
        cos, sin = (self.recomposition_frequencies(each) for each in parts)
        return cos, sin

    def shares(grids: Tensor, side: int, **_: Any) -> tuple[Tensor, Tensor]:
        one_hot = torch.eye(side**2, dtype=torch.float64).view(1, side**2, side, side)
        found = torch.cat([
            F.interpolate(one_hot, each, mode="bicubic")[0].flatten(1).T
            for each in grids[:, 1:].tolist()
        ])  # fmt: skip
        return torch.arange(side**2).expand(found.shape), found

    def squares(_self: Any, x: Tensor, grids: Tensor, tall: int, wide: int, **_: Any) -> Tensor:
        found = []
        parts = x.split(grids.prod(1).tolist())
        for each, (_, height, width) in zip(parts, grids.tolist(), strict=True):
            grid = each.view(height // tall, tall, width // wide, wide, -1)
            found.append(grid.transpose(1, 2).reshape(-1, tall * wide, each.shape[1]))
        return torch.cat(found)

    monkeypatch.setattr(theirs, "get_vision_interpolation_indices_and_weights", shares)
    monkeypatch.setattr(tower.rotary_emb, "forward", MethodType(turns, tower.rotary_emb))
    monkeypatch.setattr(tower, "temporal_merge", MethodType(squares, tower))


def exact(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 what `transformers` computes in float32."""
    widen(model)
    for name, module in model.named_modules():
        if type(module).__name__ == "Cohere2RotaryEmbedding":
            monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        if name.endswith("rotary_pos_emb"):
            monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
            monkeypatch.setattr(module, "forward", MethodType(_angles, module))
        elif name.endswith("rotary_emb") and hasattr(module, "mrope_section"):
            monkeypatch.setattr(module, "forward", MethodType(axes, module))
    if type(model).__name__.startswith("Gemma4"):
        rope = model.model.vision_tower.encoder.rotary_emb
        monkeypatch.setattr(rope, "forward", MethodType(_angles_of_places, rope))
    if type(model).__name__.startswith(("PaliGemma", "Gemma4")):
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        hugging_face.widen_softmax(monkeypatch)
    if type(model).__name__.startswith("Lfm2"):
        # The table of positions.
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    if type(model).__name__.startswith("Paddle"):
        theirs = import_module(type(model).__module__)
        monkeypatch.setattr(theirs, "get_vision_interpolation_indices_and_weights", _shares)


def _shares(grids: Tensor, num_grid_per_side: int, **_: Any) -> tuple[Tensor, Tensor]:
    """Return the share of each place of a square table in each patch of images, in float64."""
    side = num_grid_per_side
    table = torch.eye(side**2, dtype=torch.float64).view(1, side**2, side, side)
    sizes = [tuple(each[1:]) for each in grids.tolist()]
    sized = [F.interpolate(table, size, mode="bilinear").flatten(2)[0].T for size in sizes]
    shares = torch.cat(sized)
    return torch.arange(side**2).expand(shares.shape), shares


def _angles(_self: Any, _x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rows and columns of patches, for heads of 8."""
    angle = (places[..., None] * 10000.0 ** -torch.tensor([0, 0.5]).double()).flatten(1)
    return angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)


def _angles_of_places(self: Any, _x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of columns, then of rows, of patches, each twice."""
    theta = self.config.rope_parameters["rope_theta"]
    turns = theta ** -(torch.arange(len(self.inv_freq)).double() / len(self.inv_freq))
    turn = (places[..., None] * turns).repeat(1, 1, 1, 2).flatten(2)
    return turn.cos(), turn.sin()


def _mask(model: Any, tokens: Tensor, images: int) -> dict[str, Any]:
    """Return what says that the tokens of each image see each other.

    `token_type_ids`, which take images for one where no text stands between them; then its masks.
    """
    is_row = tokens == TOKEN
    runs = int((is_row & ~is_row.roll(1).index_fill(0, torch.tensor(0), False)).sum())
    if runs == images:
        return {"token_type_ids": is_row[None].long()}
    from transformers.models.gemma3 import modeling_gemma3 as theirs

    number = (is_row.cumsum(0) - 1) * images // int(is_row.sum())
    # By position: the cache, of which there is none, changed its name in transformers 5.24.
    masks = theirs.create_masks_for_vision_model(
        model.config.text_config,
        torch.zeros(1, len(tokens), 1, dtype=model.dtype),
        None,
        None,
        None,
        torch.where(is_row, number, -1)[None],
    )
    return {"attention_mask": masks}
