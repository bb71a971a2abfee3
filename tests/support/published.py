"""Configurations of published models: sizes as in their `config.json`, and what some of them mean.

Keys that are left out have the defaults of the configuration classes of `transformers`, as in the
files. Weights are not needed.
"""

from typing import Any

Config = dict[str, Any]


def dense(model_type: str, *sizes: int, **more: Any) -> Config:
    """Return a decoder by layers, width, heads, key heads, MLP and vocabulary."""
    names = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size",
    )  # fmt: skip
    return {"model_type": model_type, **dict(zip(names, sizes, strict=True)), **more}


def llama3(*sizes: int, factor: float = 8.0, **more: Any) -> Config:
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    common = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": scaling}
    return dense("llama", *sizes, **common, **more)


def qwen3(*sizes: int, **more: Any) -> Config:
    return {**dense("qwen3", *sizes), "head_dim": 128, "rope_theta": 1000000, **more}


def tower(model_type: str, layers: int, hidden: int, mlp: int, image: int, patch: int) -> Config:
    """Return a tower with 16 heads."""
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": mlp, "num_attention_heads": 16, "image_size": image,
        "patch_size": patch,
    }  # fmt: skip


# Of Mistral Small 3.1 and of Pixtral 12B, whose folder leaves out what its classes have.
PIXTRAL: Config = {
    **tower("pixtral", 24, 1024, 4096, 1540, 14), "head_dim": 64, "hidden_act": "silu",
    "attention_dropout": 0.0, "num_channels": 3, "rope_theta": 10000.0,
}  # fmt: skip
MISTRAL: Config = {
    "model_type": "mistral", "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 1e9, "sliding_window": None, "hidden_size": 5120, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "vocab_size": 131072,
}  # fmt: skip


def gemma2(*sizes: int, **more: Any) -> Config:
    capped = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return dense("gemma2", *sizes, 256000, **{**capped, "sliding_window": 4096, **more})


def glm(model_type: str, *sizes: int, **more: Any) -> Config:
    common = {"partial_rotary_factor": 0.5, "attention_bias": False, "head_dim": 128}
    return dense(model_type, *sizes, 151552, **{**common, **more})


def gemma3(*sizes: int, **more: Any) -> Config:
    scaling = {"rope_type": "linear", "factor": 8.0}
    text = dense("gemma3_text", *sizes, sliding_window=1024, rope_scaling=scaling, **more)
    vision = tower("siglip_vision_model", 27, 1152, 4304, 896, 14) | {"vision_use_head": False}
    return {
        "model_type": "gemma3", "text_config": text, "vision_config": vision,
        "mm_tokens_per_image": 256, "image_token_index": 262144,
    }  # fmt: skip


def gemma4(*sizes: int, vision: Config | None = None, **more: Any) -> Config:
    """Return a Gemma 4 that sees, by default without embeddings of layers, and with its tower."""
    common = {
        "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024,
        "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    tower = {
        "model_type": "gemma4_vision", "num_hidden_layers": 27, "hidden_size": 1152,
        "intermediate_size": 4304, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 72, "patch_size": 16, "pooling_kernel_size": 3, "standardize": True,
        "position_embedding_size": 10240, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    }  # fmt: skip
    return {
        "model_type": "gemma4", "text_config": dense("gemma4_text", *sizes, **(common | more)),
        "vision_config": tower | (vision or {}), "audio_config": None, "image_token_id": 258880,
    }  # fmt: skip


def qwen_vl(model_type: str, vision: Config, *sizes: int, **more: Any) -> Config:
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    common = {"rope_scaling": rope, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
    return {
        **dense(model_type, *sizes, **common, **more),
        "image_token_id": 151655,
        "vision_config": vision,
    }


def qwen2_5_tower(mlp: int, out: int) -> Config:
    return {
        "depth": 32, "hidden_size": 1280, "intermediate_size": mlp, "num_heads": 16,
        "out_hidden_size": out, "patch_size": 14, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }  # fmt: skip


def qwen3_vl(vision: Config, *sizes: int, **more: Any) -> Config:
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    text = dense(
        "qwen3_vl_text", *sizes, head_dim=128, rope_theta=5000000, rope_scaling=rope, **more
    )
    return {
        "model_type": "qwen3_vl", "text_config": text, "image_token_id": 151655,
        "vision_config": {"num_heads": 16, "out_hidden_size": sizes[1], **vision},
    }  # fmt: skip


def glm4v(layers: int, text: Config, **more: Any) -> Config:
    """Return a GLM-4.1V or one with experts; all have the same tower."""
    rope = {"rope_type": "default", "mrope_section": [8, 12, 12]}
    vision = {
        "depth": 24, "hidden_size": 1536, "num_heads": 12, "intermediate_size": 13696,
        "image_size": 336, "patch_size": 14, "out_hidden_size": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    common = {
        "num_hidden_layers": layers, "hidden_size": 4096, "attention_bias": True,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "rope_scaling": rope,
    }  # fmt: skip
    return {**more, "vision_config": vision, "text_config": common | text}


def gpt_oss(layers: int, experts: int) -> Config:
    """Return a GPT-OSS; all that is left out is as in its class."""
    return {
        "model_type": "gpt_oss", "num_hidden_layers": layers, "num_local_experts": experts,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip


def qwen3_vl_moe(*sizes: int, width: int) -> Config:
    """Return a Qwen3-VL with 128 experts, which has the tower of the others."""
    found = qwen3_vl({"model_type": "qwen3_vl_moe"}, *sizes)
    text = found["text_config"] | {
        "model_type": "qwen3_vl_moe_text", "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": width, "norm_topk_prob": True, "decoder_sparse_step": 1,
    }  # fmt: skip
    return {**found, "model_type": "qwen3_vl_moe", "text_config": text}


CLIP = tower("clip_vision_model", 24, 1024, 4096, 336, 14)
SIGLIP = tower("siglip_vision_model", 27, 1152, 4304, 384, 14)
INTERN = {
    **tower("internvl_vision", 24, 1024, 4096, 448, 14), "attention_bias": True,
    "layer_norm_eps": 1e-6,
}  # fmt: skip
QWEN2_7B = (28, 3584, 28, 4, 18944, 152064)
QWEN2_72B = (80, 8192, 64, 8, 29568, 152064)
QWEN3_8B = (36, 4096, 32, 8, 12288, 151936)
# By name: the configuration, and the GPUs with 141 GB that it is planned on.
MODELS: dict[str, tuple[Config, int]] = {
    "Llama-3.2-1B": (
        llama3(16, 2048, 32, 8, 8192, 128256, factor=32.0, tie_word_embeddings=True), 8,
    ),
    "Llama-3.1-8B": (llama3(32, 4096, 32, 8, 14336, 128256), 8),
    "Llama-3.1-70B": (llama3(80, 8192, 64, 8, 28672, 128256), 512),
    "EXAONE-3.5-7.8B": (
        {
            "model_type": "exaone", "num_layers": 32, "hidden_size": 4096, "vocab_size": 102400,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "layer_norm_epsilon": 1e-5, "activation_function": "silu", "rope_theta": 1e6,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        },
        8,
    ),
    "granite-3.1-3b-a800m": (
        dense(
            "granitemoe", 32, 1536, 24, 8, 512, 49155, num_local_experts=40, num_experts_per_tok=8,
            attention_multiplier=0.015625, embedding_multiplier=12.0, logits_scaling=6.0,
            residual_multiplier=0.22, rms_norm_eps=1e-6, rope_theta=1e7, tie_word_embeddings=True,
        ),
        8,
    ),
    # All their sizes are the defaults of their classes.
    "sarvam-30b": ({"model_type": "sarvam_moe"}, 64),
    "ERNIE-4.5-21B-A3B": ({"model_type": "ernie4_5_moe"}, 64),
    "Hy3-preview": ({"model_type": "hy_v3"}, 512),
    "deepseek-vl-1.3b": (
        {
            "model_type": "deepseek_vl", "image_token_id": 100015, "tie_word_embeddings": False,
            "text_config": dense("llama", 24, 2048, 16, 16, 5632, 102400),
            "vision_config": tower("siglip_vision_model", 24, 1024, 4096, 384, 16),
        },
        8,
    ),
    "Qwen2.5-0.5B": (
        dense(
            "qwen2", 24, 896, 14, 2, 4864, 151936, rope_theta=1e6, tie_word_embeddings=True,
            use_sliding_window=False, sliding_window=32768, max_window_layers=24,
        ),
        8,
    ),
    "Qwen2.5-7B": (dense("qwen2", *QWEN2_7B, rope_theta=1e6), 8),
    "Qwen2.5-72B": (dense("qwen2", *QWEN2_72B, rope_theta=1e6), 64),
    "Qwen3-0.6B": (qwen3(28, 1024, 16, 8, 3072, 151936, tie_word_embeddings=True), 8),
    "Qwen3-8B": (qwen3(*QWEN3_8B), 16),
    "Qwen3-32B": (qwen3(64, 5120, 64, 8, 25600, 151936), 32),
    "Apertus-8B": (
        dense(
            "apertus", 32, 4096, 32, 8, 21504, 131072, hidden_act="xielu", rms_norm_eps=1e-5,
            rope_theta=12e6, rope_scaling={
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            }, qk_norm=True, post_norm=False, mlp_bias=False,
        ),
        8,
    ),
    "SmolLM3-3B": (
        dense(
            "smollm3", 36, 2048, 16, 4, 11008, 128256, rms_norm_eps=1e-6, rope_theta=5e6,
            rope_scaling=None, no_rope_layer_interval=4, sliding_window=None,
            no_rope_layers=[1, 1, 1, 0] * 9, use_sliding_window=False,
            layer_types=["full_attention"] * 36, pretraining_tp=2, max_window_layers=28,
        ),
        8,
    ),
    "Qwen3-30B-A3B": (
        qwen3(
            48, 2048, 32, 4, 6144, 151936, model_type="qwen3_moe", num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
        ),
        32,
    ),
    "Qwen3-Next-80B-A3B": (
        dense(
            "qwen3_next", 48, 2048, 16, 2, 5120, 151936, head_dim=256, rms_norm_eps=1e-6,
            rope_theta=10000000, rope_scaling=None, partial_rotary_factor=0.25,
            full_attention_interval=4, linear_num_value_heads=32, linear_num_key_heads=16,
            linear_value_head_dim=128, linear_key_head_dim=128, linear_conv_kernel_dim=4,
            num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
            shared_expert_intermediate_size=512, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], attention_bias=False, tie_word_embeddings=False,
        ),
        64,
    ),
    "Mistral-7B-v0.1": (
        dense("mistral", 32, 4096, 32, 8, 14336, 32000, rms_norm_eps=1e-5, sliding_window=4096), 8,
    ),
    "Mixtral-8x7B": (
        dense(
            "mixtral", 32, 4096, 32, 8, 14336, 32000, rms_norm_eps=1e-5, rope_theta=1e6,
            num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
        ),
        64,
    ),
    "OLMo-2-1124-7B": (
        dense(
            "olmo2", 32, 4096, 32, 32, 11008, 100352, rms_norm_eps=1e-6, rope_theta=500000,
        ),
        16,
    ),
    "Olmo-3-1025-7B": (
        dense(
            "olmo3", 32, 4096, 32, 32, 11008, 100278, rms_norm_eps=1e-6, rope_theta=500000,
            sliding_window=4096, rope_scaling={
                "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
                "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1,
            },
        ),
        16,
    ),
    "EXAONE-4.0-32B": (
        dense(
            "exaone4", 64, 5120, 40, 8, 27392, 102400, head_dim=128, rms_norm_eps=1e-5,
            rope_theta=1000000, sliding_window=4096, rope_scaling={
                "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        ),
        64,
    ),
    "granite-3.3-8b": (
        dense(
            "granite", 40, 4096, 32, 8, 12800, 49159, rms_norm_eps=1e-5, rope_theta=1e7,
            attention_multiplier=0.0078125, embedding_multiplier=12.0, logits_scaling=16.0,
            residual_multiplier=0.22, tie_word_embeddings=True,
        ),
        16,
    ),
    "MiniMax-M2": (
        dense(
            "minimax_m2", 62, 3072, 48, 8, 1536, 200064, head_dim=128, rotary_dim=64,
            rope_theta=5000000, num_local_experts=256, num_experts_per_tok=8,
            scoring_func="sigmoid", qk_norm_type="per_layer", use_qk_norm=True,
        ),
        512,
    ),
    "gemma-7b": (
        dense("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256, hidden_act="gelu"), 16,
    ),
    "phi-4": (
        dense(
            "phi3", 40, 5120, 40, 10, 17920, 100352, rms_norm_eps=1e-5, rope_theta=250000,
            partial_rotary_factor=1.0, sliding_window=None,
        ),
        16,
    ),
    "Seed-OSS-36B": (
        dense(
            "seed_oss", 64, 5120, 80, 8, 27648, 155136, head_dim=128, attention_bias=True,
            rope_theta=1e7, attention_dropout=0.0, residual_dropout=0.0,
        ),
        64,
    ),
    "ERNIE-4.5-0.3B": (
        dense("ernie4_5", 18, 1024, 16, 2, 3072, 103424, head_dim=128, rope_theta=500000), 8,
    ),
    "Ministral-8B-2410": (
        dense(
            "ministral", 36, 4096, 32, 8, 12288, 131072, head_dim=128, rms_norm_eps=1e-5,
            rope_theta=1e8, sliding_window=32768,
        ),
        16,
    ),
    "Qwen2-57B-A14B": (
        dense(
            "qwen2_moe", 28, 3584, 28, 4, 18944, 151936, num_experts=64, num_experts_per_tok=8,
            moe_intermediate_size=2560, shared_expert_intermediate_size=20480,
            norm_topk_prob=False, rope_theta=1e6, use_sliding_window=False,
        ),
        64,
    ),
    "GLM-4.7-Flash": (
        {
            **dense("glm4_moe_lite", 47, 2048, 20, 20, 10240, 154880, rms_norm_eps=1e-5),
            "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64,
            "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
            "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8, "rope_theta": 1e6,
        },
        64,
    ),
    "gemma-2-2b": (gemma2(26, 2304, 8, 4, 9216), 8),
    "gemma-2-9b": (gemma2(42, 3584, 16, 8, 14336), 16),
    "gemma-2-27b": (gemma2(46, 4608, 32, 16, 36864, head_dim=128, query_pre_attn_scalar=144), 64),
    "glm-4-9b-chat-hf": (glm("glm", 40, 4096, 32, 2, 13696, attention_bias=True), 16),
    "GLM-4-9B-0414": (glm("glm4", 40, 4096, 32, 2, 13696), 16),
    "GLM-4-32B-0414": (glm("glm4", 61, 6144, 48, 8, 23040), 64),
    "GLM-4.5-Air": (
        glm(
            "glm4_moe", 46, 4096, 96, 8, 10944, attention_bias=True, use_qk_norm=False,
            n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8, n_group=1,
            moe_intermediate_size=1408, first_k_dense_replace=1, routed_scaling_factor=1.0,
            num_nextn_predict_layers=1, rope_theta=1000000,
        ),
        128,
    ),
    "gemma-3-4b": (gemma3(34, 2560, 8, 4, 10240, 262208), 8),
    "gemma-3-12b": (gemma3(48, 3840, 16, 8, 15360, 262208), 16),
    "gemma-3-27b": (
        gemma3(62, 5376, 32, 16, 21504, 262208, head_dim=128, query_pre_attn_scalar=168), 64,
    ),
    "gemma-4-31b": (
        gemma4(60, 5376, 32, 16, 21504, 262144, num_global_key_value_heads=4), 64,
    ),
    "gemma-4-26b-a4b": (
        gemma4(
            30, 2816, 16, 8, 2112, 262144, num_global_key_value_heads=2, enable_moe_block=True,
            num_experts=128, top_k_experts=8, moe_intermediate_size=704,
        ),
        64,
    ),
    "gemma-4-e2b": (
        gemma4(
            35, 1536, 8, 1, 6144, 262144,
            vision={
                "num_hidden_layers": 16, "hidden_size": 768, "intermediate_size": 3072,
                "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
                "standardize": False, "use_clipped_linears": True,
            },
            attention_k_eq_v=False, sliding_window=512, num_kv_shared_layers=20,
            use_double_wide_mlp=True, hidden_size_per_layer_input=256,
            vocab_size_per_layer_input=262144, pad_token_id=0,
            layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7,
        ),
        8,
    ),
    "Llama-4-Scout": (
        {
            "model_type": "llama4", "image_token_index": 200092, "boi_token_index": 200080,
            "eoi_token_index": 200081,
            "text_config": dense(
                "llama4_text", 48, 5120, 40, 8, 8192, 202048, intermediate_size_mlp=16384,
                attention_chunk_size=8192, head_dim=128, interleave_moe_layer_step=1,
                num_local_experts=16, num_experts_per_tok=1, rms_norm_eps=1e-5,
                rope_theta=500000.0, max_position_embeddings=262144, use_qk_norm=True,
                attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1,
                moe_layers=[*range(48)], no_rope_layers=[1, 1, 1, 0] * 12,
                rope_scaling={
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
                },
            ),
            "vision_config": {
                **tower("llama4_vision_model", 34, 1408, 5632, 336, 14), "hidden_act": "gelu",
                "multi_modal_projector_bias": False, "norm_eps": 1e-5, "num_channels": 3,
                "pixel_shuffle_ratio": 0.5, "projector_dropout": 0.0, "rope_theta": 10000,
                "projector_input_dim": 4096, "projector_output_dim": 4096,
                "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
                "vision_output_dim": 4096,
            },
        },
        128,
    ),
    # The text part is a Llama of the default sizes, but for its vocabulary.
    "llava-1.5-7b": (
        {
            "model_type": "llava", "vision_config": CLIP, "image_token_index": 32000,
            "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5},
        },
        16,
    ),
    "llava-onevision-qwen2-7b": (
        {
            "model_type": "llava_onevision", "image_token_index": 151646,
            "video_token_index": 151647, "projector_hidden_act": "gelu",
            "vision_aspect_ratio": "anyres_max_9", "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
            "image_grid_pinpoints": [
                [384 * down, 384 * right] for down in range(1, 7) for right in range(1, 7)
            ],
            "text_config": dense("qwen2", *QWEN2_7B, rope_theta=1e6),
            "vision_config": {
                **tower("siglip_vision_model", 26, 1152, 4304, 384, 14), "vision_use_head": False,
            },
        },
        16,
    ),
    "llava-v1.6-mistral-7b": (
        {
            "model_type": "llava_next", "image_token_index": 32000, "projector_hidden_act": "gelu",
            "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
            "image_grid_pinpoints": [
                [336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008],
            ],
            "tie_word_embeddings": False, "vision_config": CLIP, "text_config": {
                "model_type": "mistral", "intermediate_size": 14336, "vocab_size": 32064,
                "max_position_embeddings": 32768, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
                "rope_theta": 1000000.0, "sliding_window": None,
            },
        },
        16,
    ),
    # The settings of its text are beside those of its tower, which has the type of the whole.
    "PaddleOCR-VL": (
        {
            **dense("paddleocr_vl", 18, 1024, 16, 2, 3072, 103424), "head_dim": 128,
            "image_token_id": 100295, "hidden_act": "silu", "use_bias": False, "rms_norm_eps": 1e-5,
            "rope_theta": 500000, "tie_word_embeddings": False, "rope_scaling": {
                "mrope_section": [16, 24, 24], "rope_type": "default", "type": "default",
            },
            "vision_config": {
                **tower("paddleocr_vl", 27, 1152, 4304, 384, 14), "spatial_merge_size": 2,
                "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_channels": 3,
            },
        },
        8,
    ),
    "paligemma-3b-pt-224": (
        {
            "model_type": "paligemma", "image_token_index": 257152, "hidden_size": 2048,
            "projection_dim": 2048, "vocab_size": 257216,
            "text_config": dense("gemma", 18, 2048, 8, 1, 16384, 257216),
            "vision_config": {
                **tower("siglip_vision_model", 27, 1152, 4304, 224, 14), "projection_dim": 2048,
                "vision_use_head": False,
            },
        },
        8,
    ),
    "paligemma2-3b-pt-224": (
        {
            "model_type": "paligemma", "image_token_index": 257152, "hidden_size": 2304,
            "projection_dim": 2304, "vocab_size": 257216,
            "text_config": {
                **gemma2(26, 2304, 8, 4, 9216, head_dim=256, query_pre_attn_scalar=256),
                "vocab_size": 257216,
            },
            "vision_config": {
                **tower("siglip_vision_model", 27, 1152, 4304, 224, 14), "projection_dim": 2304,
                "vision_use_head": False,
            },
        },
        8,
    ),
    "Janus-Pro-1B": (
        {
            "model_type": "janus", "image_token_id": 100581, "tie_word_embeddings": False,
            "text_config": dense("llama", 24, 2048, 16, 16, 5632, 102400, rms_norm_eps=1e-6),
            "vision_config": {
                "model_type": "janus_vision_model", "hidden_size": 1024, "num_hidden_layers": 24,
                "num_attention_heads": 16, "image_size": 384, "patch_size": 16, "mlp_ratio": 4.0,
                "projection_dim": 2048, "depth": 2, "hidden_act": "gelu", "use_qk_norm": False,
            },
            "vq_config": {"model_type": "janus_vqgan"},
        },
        8,
    ),
    "Mistral-Small-3.1-24B": (
        {
            "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1,
            "text_config": {**MISTRAL, "intermediate_size": 32768, "num_attention_heads": 32},
            "vision_config": PIXTRAL,
        },
        64,
    ),
    # Sizes and scaling that are left out are those of its classes.
    "Ministral-3-8B-2512": (
        {
            "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1,
            "text_config": {
                "model_type": "ministral3", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            },
            "vision_config": PIXTRAL,
        },
        16,
    ),
    "pixtral-12b": (
        {
            "model_type": "llava", "image_token_index": 10, "image_seq_length": 1,
            "projector_hidden_act": "gelu", "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "text_config": {**MISTRAL, "intermediate_size": 14336},
            "vision_config": {
                "model_type": "pixtral", "head_dim": 64, "hidden_act": "silu",
                "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0,
            },
        },
        32,
    ),
    "Voxtral-Mini-3B": (
        {
            "model_type": "voxtral", "audio_token_id": 24, "projector_hidden_act": "gelu",
            "audio_config": {
                "model_type": "voxtral_encoder", "hidden_size": 1280, "intermediate_size": 5120,
                "num_hidden_layers": 32, "num_attention_heads": 20, "num_mel_bins": 128,
                "max_source_positions": 1500, "activation_function": "gelu",
            },
            "text_config": dense(
                "llama", 30, 3072, 32, 8, 8192, 131072, head_dim=128, rms_norm_eps=1e-5,
                rope_theta=1e8,
            ),
        },
        8,
    ),
    # Sizes that are left out are those of its classes.
    "Qwen2-Audio-7B": (
        {
            "model_type": "qwen2_audio", "audio_token_index": 151646, "vocab_size": 156032,
            "audio_config": {
                "model_type": "qwen2_audio_encoder", "activation_function": "gelu",
                "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
                "encoder_layerdrop": 0.0, "encoder_layers": 32, "max_source_positions": 1500,
                "num_mel_bins": 128, "scale_embedding": False,
            },
            "text_config": {
                "model_type": "qwen2", "intermediate_size": 11008, "rms_norm_eps": 1e-5,
                "vocab_size": 156032, "max_position_embeddings": 8192, "rope_theta": 10000,
                "use_mrope": False,
            },
        },
        16,
    ),
    "Qwen2-VL-7B": (
        qwen_vl(
            "qwen2_vl",
            {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584},
            *QWEN2_7B,
        ),
        8,
    ),
    "Qwen2.5-VL-7B": (qwen_vl("qwen2_5_vl", qwen2_5_tower(3420, 3584), *QWEN2_7B), 8),
    "Qwen2.5-VL-72B": (qwen_vl("qwen2_5_vl", qwen2_5_tower(3456, 8192), *QWEN2_72B), 256),
    "Qwen3-VL-4B": (
        qwen3_vl(
            {
                "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
                "deepstack_visual_indexes": [5, 11, 17],
            },
            36, 2560, 32, 8, 9728, 151936, tie_word_embeddings=True,
        ),
        8,
    ),
    "Qwen3-VL-8B": (qwen3_vl({}, *QWEN3_8B), 16),
    "GLM-4.1V-9B": (
        glm4v(
            40,
            {
                "num_attention_heads": 32, "num_key_value_heads": 2, "intermediate_size": 13696,
                "vocab_size": 151552,
            },
            model_type="glm4v", image_token_id=151343,
        ),
        16,
    ),
    "GLM-4.5V": (
        glm4v(
            46,
            {
                "num_attention_heads": 96, "num_key_value_heads": 8, "intermediate_size": 10944,
                "head_dim": 128, "moe_intermediate_size": 1408, "n_routed_experts": 128,
                "num_experts_per_tok": 8, "vocab_size": 151552,
            },
            model_type="glm4v_moe", image_token_id=151363,
        ),
        64,
    ),
    "Kimi-K2-Instruct": (
        dense(
            "kimi_k2", 61, 7168, 64, 64, 18432, 163840, architectures=["DeepseekV3ForCausalLM"],
            attention_bias=False, attention_dropout=0.0, first_k_dense_replace=1,
            kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64,
            v_head_dim=128, moe_intermediate_size=2048, moe_layer_freq=1, n_group=1, topk_group=1,
            n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8, norm_topk_prob=True,
            routed_scaling_factor=2.827, scoring_func="sigmoid", topk_method="noaux_tc",
            rms_norm_eps=1e-6, rope_theta=50000.0, num_nextn_predict_layers=0,
            rope_scaling={
                "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn",
            },
            quantization_config={
                "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                "weight_block_size": [128, 128],
            },
        ),
        512,
    ),
    # Its type is that of GLM-4.5V, and so are its sizes.
    "GLM-4.6V": (
        glm4v(
            46,
            {
                "num_attention_heads": 96, "num_key_value_heads": 8, "intermediate_size": 10944,
                "head_dim": 128, "moe_intermediate_size": 1408, "n_routed_experts": 128,
                "num_experts_per_tok": 8, "vocab_size": 151552, "max_position_embeddings": 131072,
            },
            model_type="glm4v_moe", image_token_id=151363, video_token_id=151364,
        ),
        128,
    ),
    "gpt-oss-20b": (gpt_oss(24, 32), 16),
    "gpt-oss-120b": (gpt_oss(36, 128), 128),
    "Qwen3-VL-30B-A3B": (qwen3_vl_moe(48, 2048, 32, 4, 6144, 151936, width=768), 64),
    "Qwen3-VL-235B-A22B": (qwen3_vl_moe(94, 4096, 64, 4, 12288, 151936, width=1536), 256),
    "InternVL3.5-8B": (
        {
            "model_type": "internvl", "vision_config": INTERN, "text_config": qwen3(*QWEN3_8B),
            "image_token_id": 151671, "tie_word_embeddings": False,
        },
        16,
    ),
    # Of the language model, the sizes of Nemotron 3 Nano 30B-A3B; of the rest, those of its class.
    "Nemotron-3-Nano-Omni-30B-A3B": (
        {
            "model_type": "nemotron_h_omni", "img_context_token_id": 18, "downsample_ratio": 0.5,
            "vit_hidden_size": 1280, "sound_config": {"model_type": "parakeet"},
            "vision_config": {"model_type": "radio", "video_temporal_patch_size": 2},
            "llm_config": {
                "model_type": "nemotron_h", "hidden_size": 2688, "vocab_size": 131072,
                "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
                "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
                "conv_kernel": 4, "chunk_size": 128, "intermediate_size": 1856,
                "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
                "moe_shared_expert_intermediate_size": 3712, "norm_topk_prob": True,
                "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
            },
        },
        64,
    ),
    "Qwen3-Omni-30B-A3B": (
        {
            "model_type": "qwen3_omni_moe", "code2wav_config": {},
            "talker_config": {
                "accept_hidden_layer": 24, "num_code_groups": 16, "thinker_hidden_size": 2048,
                "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_pad_id": 2148,
                "text_config": {
                    "model_type": "qwen3_omni_moe_talker_text", "vocab_size": 3072,
                    "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 20,
                    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
                    "num_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 384,
                    "shared_expert_intermediate_size": 768, "norm_topk_prob": True,
                    "rms_norm_eps": 1e-6, "rope_theta": 1000000,
                    "rope_scaling": {
                        "rope_type": "default", "mrope_section": [24, 20, 20], "interleaved": True,
                    },
                },
                "code_predictor_config": {
                    "model_type": "qwen3_omni_moe_talker_code_predictor", "vocab_size": 2048,
                    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5,
                    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                    "num_code_groups": 16, "rope_theta": 1000000,
                },
            },
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker", "image_token_id": 151655,
                "audio_token_id": 151675, "video_token_id": 151656,
                "audio_config": {
                    "model_type": "qwen3_omni_moe_audio_encoder", "d_model": 1280,
                    "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
                    "num_mel_bins": 128, "n_window": 50, "n_window_infer": 800,
                    "downsample_hidden_size": 480, "output_dim": 2048,
                },
                "vision_config": {
                    "model_type": "qwen3_omni_moe_vision_encoder", "depth": 27,
                    "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
                    "patch_size": 16, "out_hidden_size": 2048, "num_position_embeddings": 2304,
                    "deepstack_visual_indexes": [8, 16, 24],
                },
                "text_config": {
                    "model_type": "qwen3_omni_moe_text", "vocab_size": 152064,
                    "hidden_size": 2048, "intermediate_size": 768, "num_hidden_layers": 48,
                    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                    "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
                    "rope_scaling": {
                        "rope_type": "default", "mrope_section": [24, 20, 20], "interleaved": True,
                        "mrope_interleaved": True,
                    },
                },
            },
        },
        64,
    ),
    "SmolVLM2-2.2B": (
        {
            "model_type": "smolvlm", "scale_factor": 3, "image_token_id": 49190,
            "vision_config": SIGLIP | {"model_type": "smolvlm_vision"},
            "text_config": dense("llama", 24, 2048, 32, 32, 8192, 49280, rope_theta=130000.0),
        },
        8,
    ),
}  # fmt: skip
# Encoders alone, in front of a Qwen3-0.6B.
ENCODERS: dict[str, tuple[str, Config]] = {
    "clip-vit-large-patch14-336": ("vision", CLIP),
    "siglip-so400m-patch14-384": ("vision", SIGLIP),
    # The defaults of its class.
    "C-RADIOv4-H": (
        "vision",
        {
            "model_type": "radio", "hidden_size": 1280, "num_hidden_layers": 32,
            "num_attention_heads": 16, "mlp_ratio": 4.0, "patch_size": 16, "max_img_size": 2048,
            "num_cls_tokens": 3, "num_registers": 7, "layerscale_value": 1.0, "qkv_bias": True,
        },
    ),
    "dinov3-vit7b16": (
        "vision",
        {
            "model_type": "dinov3_vit", "hidden_size": 4096, "intermediate_size": 8192,
            "num_hidden_layers": 40, "num_attention_heads": 32, "patch_size": 16,
            "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu",
            "query_bias": False, "value_bias": False, "pos_embed_rescale": 2.0,
        },
    ),
    "dinov2-with-registers-base": (
        "vision",
        {
            "model_type": "dinov2_with_registers", "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "mlp_ratio": 4, "patch_size": 14, "image_size": 518,
            "num_register_tokens": 4, "layerscale_value": 1.0, "qkv_bias": True,
        },
    ),
    "dinov2-giant": (
        "vision",
        {
            "model_type": "dinov2", "hidden_size": 1536, "num_hidden_layers": 40,
            "num_attention_heads": 24, "mlp_ratio": 4, "patch_size": 14, "image_size": 518,
            "use_swiglu_ffn": True, "layerscale_value": 1.0, "qkv_bias": True,
        },
    ),
    "whisper-large-v3": (
        "audio",
        {
            "model_type": "whisper", "encoder_layers": 32, "d_model": 1280, "num_mel_bins": 128,
            "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        },
    ),
}  # fmt: skip
