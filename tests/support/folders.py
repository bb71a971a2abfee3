"""One table of configurations: what each means in keys of a spec, and what of it is refused.

The configurations are published ones, and further forms of them: versions before transformers 5,
parts that stand alone, sizes that no published model has.
"""

from typing import Any

from tests.support.published import CLIP, ENCODERS, INTERN, MODELS, SIGLIP, Config, dense, qwen3

PUBLISHED = {name: config for name, (config, _) in MODELS.items()} | {
    name: config for name, (_, config) in ENCODERS.items()
}
_ROPE35 = {
    "mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default",
    "rope_theta": 10000000, "partial_rotary_factor": 0.25,
}  # fmt: skip
_QWEN35: Config = {
    "model_type": "qwen3_5", "image_token_id": 49, "tie_word_embeddings": False,
    "text_config": {
        **dense("qwen3_5_text", 4, 512, 4, 2, 96, 50), "head_dim": 128,
        "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "attn_output_gate": True, "mtp_num_hidden_layers": 1, "rope_parameters": _ROPE35,
    },
    "vision_config": {
        "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4,
        "num_position_embeddings": 2304, "out_hidden_size": 512, "patch_size": 16,
    },
}  # fmt: skip
_EXPERTS35 = {
    "model_type": "qwen3_5_moe_text", "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip
_DEEPSEEK: Config = {
    **dense("deepseek_v3", 61, 7168, 128, 128, 18432, 129280), "moe_intermediate_size": 2048,
    "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
    "num_experts_per_tok": 8, "moe_layer_freq": 1, "first_k_dense_replace": 3,
    "norm_topk_prob": True, "scoring_func": "sigmoid", "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "attention_bias": False, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}  # fmt: skip
GROWING = {
    "rope_type": "yarn", "type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
_MINISTRAL: Config = {
    **dense("ministral3", 34, 4096, 32, 8, 14336, 131072), "head_dim": 128, "rms_norm_eps": 1e-5,
    "rope_parameters": GROWING, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
_SMOLLM3: Config = {
    **dense("smollm3", 4, 64, 4, 2, 96, 300),
    "use_sliding_window": True,
    "sliding_window": 16,
}
_GEMMA3_1B: Config = {
    **dense("gemma3_text", 26, 1152, 4, 1, 6912, 262144), "head_dim": 256, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
    "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
}  # fmt: skip
_GEMMA4: Config = {
    **dense("gemma4_text", 12, 1024, 8, 4, 4096, 262144), "head_dim": 256, "rms_norm_eps": 1e-6,
    "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0, "sliding_window": 1024, "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": "vision",
}  # fmt: skip
_NVIDIA: Config = {
    **dense("nemotron_h", 4, 64, 8, 2, 96, 300), "hybrid_override_pattern": "M-M*", "head_dim": 16,
    "mamba_num_heads": 12, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 3,
    "conv_kernel": 4, "chunk_size": 256, "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2",
    "use_bias": False, "use_conv_bias": True,
}  # fmt: skip
_NANO = {
    "hybrid_override_pattern": "MEM*E", "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
    "moe_shared_expert_intermediate_size": 80, "routed_scaling_factor": 2.5, "n_group": 1,
    "topk_group": 1, "moe_latent_size": None,
}  # fmt: skip
_MIXTRAL: Config = {
    **dense("mixtral", 4, 64, 4, 2, 96, 300), "rms_norm_eps": 1e-6, "num_local_experts": 8,
    "num_experts_per_tok": 2, "rope_theta": 1e6, "sliding_window": None, "head_dim": None,
    "router_aux_loss_coef": 0.02,
}  # fmt: skip
_QWEN3_MOE: Config = {
    **dense("qwen3_moe", 4, 64, 4, 2, 96, 300), "rms_norm_eps": 1e-6, "num_experts": 16,
    "num_experts_per_tok": 4, "head_dim": 32, "moe_intermediate_size": 40, "norm_topk_prob": True,
    "decoder_sparse_step": 2, "mlp_only_layers": [0, 1], "use_sliding_window": False,
    "sliding_window": 4096,
}  # fmt: skip
_GLM4V = PUBLISHED["GLM-4.1V-9B"]
_VISION4V, _TEXT4V = _GLM4V["vision_config"], _GLM4V["text_config"]
_ROPE4V = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
_NOW4V = {
    key: each for key, each in _TEXT4V.items() if not key.startswith(("rope_", "partial_"))
} | {"rope_parameters": _ROPE4V | {"partial_rotary_factor": 0.5}}  # fmt: skip
_LLAMA = {**dense("llama", 2, 64, 4, 2, 96, 50), "rms_norm_eps": 1e-5}
_TOWER: Config = {
    "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 17, "patch_size": 4,
    "num_channels": 1,
}  # fmt: skip
_LLAVA: Config = {
    "model_type": "llava", "vision_config": _TOWER, "text_config": _LLAMA, "image_token_index": 49,
}  # fmt: skip
_INTERNVL = PUBLISHED["InternVL3.5-8B"] | {
    "downsample_ratio": 0.5, "projector_hidden_act": "gelu", "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}  # fmt: skip
_SMOLVLM = PUBLISHED["SmolVLM2-2.2B"]
_WINDOWS = {
    **PUBLISHED["Qwen2.5-VL-7B"],
    "vision_config": PUBLISHED["Qwen2.5-VL-7B"]["vision_config"] | {"window_size": 139},
}
_TOWER_26 = {
    key: each for key, each in PUBLISHED["llava-onevision-qwen2-7b"]["vision_config"].items()
    if key != "vision_use_head"
}  # fmt: skip
_PIXTRAL = {
    "vision_config": {"model_type": "pixtral", "hidden_act": "silu"}, "tie_word_embeddings": False,
}  # fmt: skip
_BARE = {"text_config": {"model_type": "qwen2"}, "audio_config": {}}
# Further forms, by a name of ours.
FORMS: dict[str, Config] = {
    "Qwen3.5": _QWEN35,
    "Qwen3.5 with experts": {
        **_QWEN35, "model_type": "qwen3_5_moe",
        "text_config": _QWEN35["text_config"] | _EXPERTS35,
    },
    "Qwen3.5, text": _QWEN35["text_config"],
    "DeepSeek-V3": _DEEPSEEK,
    "Ministral 3, text": _MINISTRAL,
    "gemma-2 without caps": {
        "model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": None,
    },
    "SmolLM3 with windows": _SMOLLM3,
    "SmolLM3 with windows by type": {
        **_SMOLLM3, "no_rope_layers": [1, 1, 1, 0], "layer_types": [
            "full_attention", "full_attention", "full_attention", "sliding_attention",
        ],
    },
    "SmolLM3 with all layers turned": {**_SMOLLM3, "no_rope_layers": [1] * 4},
    "gemma-3-1b": _GEMMA3_1B,
    "Gemma 4, text": _GEMMA4,
    "Gemma 4, text, heads by layer": {
        **{key: each for key, each in _GEMMA4.items() if "global" not in key},
        "per_layer_config": {
            str(layer): {"head_dim": 512, "num_key_value_heads": 2} for layer in (5, 11)
        },
    },
    "Gemma 4, text, small": {
        **{key: each for key, each in _GEMMA4.items() if "key_value" not in key},
        "num_key_value_heads": 1, "attention_k_eq_v": False, "num_kv_shared_layers": 6,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 128, "pad_token_id": 3,
    },
    "gemma-3-1b with a cap": {**_GEMMA3_1B, "final_logit_softcapping": 30.0},
    "GLM-4.6": {
        **dense("glm4_moe", 92, 5120, 96, 8, 12288, 151552), "attention_bias": True,
        "head_dim": 128, "partial_rotary_factor": 0.5, "moe_intermediate_size": 1536, "n_group": 1,
        "topk_group": 1, "n_routed_experts": 160, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5,
        "rope_theta": 1000000, "routed_scaling_factor": 2.5, "use_qk_norm": True,
        "first_k_dense_replace": 3,
    },
    "LFM2-1.2B": {
        **dense("lfm2", 16, 2048, 32, 8, 12288, 65536), "block_auto_adjust_ff_dim": True,
        "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "norm_eps": 1e-5, "rope_theta": 1000000.0,
        "tie_embedding": True,
    },
    "LFM2, bare": {"model_type": "lfm2"},
    "LFM2-VL-450M": {
        "model_type": "lfm2_vl", "image_token_id": 396, "projector_hidden_act": "gelu",
        "projector_hidden_size": 2560, "projector_bias": True, "downsample_factor": 2,
        "text_config": {
            **dense("lfm2", 16, 1024, 16, 8, 6656, 65536), "block_auto_adjust_ff_dim": True,
            "block_ff_dim": 6656, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_embedding": True,
        },
        "vision_config": {
            "model_type": "siglip2_vision_model", "hidden_size": 768, "intermediate_size": 3072,
            "num_attention_heads": 12, "num_hidden_layers": 12, "num_patches": 256,
        },
    },
    "Nemotron-H": _NVIDIA,
    "Nemotron-H with experts": _NVIDIA | _NANO,
    "Mixtral, small": _MIXTRAL,
    "Qwen3-MoE, small": _QWEN3_MOE,
    "GLM-4.1V of version 5": {**_GLM4V, "text_config": _NOW4V},
    "GLM-4.1V with narrow heads": {
        **_GLM4V, "text_config": _NOW4V | {"head_dim": 64, "attention_bias": False},
    },
    "GLM-4.6V-Flash": {**_GLM4V, "model_type": "glm46v"},
    "Cosmos 3 Omni": {
        **PUBLISHED["Qwen3-VL-4B"], "model_type": "cosmos3_omni", "tie_word_embeddings": False,
    },
    "GLM-GA": {**_GLM4V, "model_type": "glmga"},
    "GLM-4.6V-Flash with types": {
        **_GLM4V, "model_type": "glm46v",
        "text_config": _NOW4V | {"model_type": "glm4v_text"},
        "vision_config": _VISION4V | {"model_type": "glm4v_vision"},
    },
    "GLM-4.5V without biases": {
        **PUBLISHED["GLM-4.5V"],
        "text_config": {
            key: each for key, each in PUBLISHED["GLM-4.5V"]["text_config"].items()
            if not key.startswith("partial_")
        } | {"attention_bias": False},
    },
    "Qwen2.5-VL with windows of 139": _WINDOWS,
    "Qwen2.5-VL with windows of 140": {
        **_WINDOWS, "vision_config": _WINDOWS["vision_config"] | {"window_size": 140},
    },
    "Qwen2.5-VL without whole layers": {
        **_WINDOWS, "vision_config": _WINDOWS["vision_config"] | {"fullatt_block_indexes": []},
    },
    "Qwen2.5-VL without windows": {
        **_WINDOWS,
        "vision_config": _WINDOWS["vision_config"] | {"fullatt_block_indexes": list(range(32))},
    },
    "InternVL with a tower of 6 B": {
        **_INTERNVL, "tie_word_embeddings": False,
        "text_config": qwen3(64, 5120, 64, 8, 25600, 151936),
        "vision_config": INTERN | {
            "attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm",
            "hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45,
            "num_attention_heads": 25,
        },
    },
    # As versions before 4.50 called the part of the tower.
    "Idefics3": {
        **_SMOLVLM, "model_type": "idefics3", "scale_factor": 2,
        "vision_config": SIGLIP | {"model_type": "idefics3", "image_size": 364},
    },
    "LLaVA, small": _LLAVA,
    "LLaVA-NeXT-Video, small": {
        **_LLAVA, "model_type": "llava_next_video", "image_grid_pinpoints": [[17, 34], [34, 17]],
        "text_config": _LLAMA | {"tie_word_embeddings": True},
    },
    # The defaults of the whole and of its text do not fit each other.
    "Ovis2, bare": {
        "model_type": "ovis2", "hidden_size": 4096, "vocab_size": 151936, "vision_config": {},
        "text_config": {},
    },
    "Ovis2-1B": {
        "model_type": "ovis2", "image_token_id": 151665, "hidden_size": 896, "vocab_size": 151936,
        "visual_indicator_token_ids": [151666, 151667, 151668, 151669, 151670],
        "vision_config": {
            "model_type": "ovis2_vision", "image_size": 448, "hidden_stride": 2,
            "vocab_size": 65536, "backbone_kwargs": {}, "tau": 1.0,
        },
        "text_config": {
            "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
            "vocab_size": 151936,
        },
    },
    "Video-LLaVA, small": {**_LLAVA, "model_type": "video_llava"},
    "VideoLLaMA 3, small": {
        "model_type": "video_llama_3", "image_token_id": 49, "vision_config": {},
        "text_config": {**_LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    },
    "Qwen2-Audio, bare": {"model_type": "qwen2_audio", "audio_token_index": 151646, **_BARE},
    "Qwen2-Audio, said to be tied": {
        "model_type": "qwen2_audio", "audio_token_index": 151646, "tie_word_embeddings": True,
        **_BARE,
    },
    "Audio Flamingo 3, bare": {"model_type": "audioflamingo3", **_BARE},
    "Emu3": {"model_type": "emu3", "text_config": {"attention_dropout": 0.0}},
    "Phi-4 multimodal": {
        "model_type": "phi4_multimodal", "audio_config": {}, "num_attention_heads": 24,
        "vision_config": {"model_type": "phi4_multimodal_vision"},
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0] * 48, "long_factor": [1.5] * 48,
        },
    },
    "Phi-4 multimodal, bare": {"model_type": "phi4_multimodal"},
    "Qwen3-ASR": {"model_type": "qwen3_asr", "audio_config": {"output_dim": 2048}},
    "Voxtral, bare": {
        "model_type": "voxtral", "audio_token_id": 24, "audio_config": {},
        "text_config": {"model_type": "llama"},
    },
    "CLIP beside a text model": {"model_type": "clip", "vision_config": CLIP},
    "Qwen3-MoE of version 5": {
        **{key: each for key, each in _QWEN3_MOE.items() if key != "num_experts"},
        "num_local_experts": 16,
    },
    "Nemotron-H, layers by name": {
        **{key: each for key, each in _NVIDIA.items() if key != "hybrid_override_pattern"},
        "layers_block_type": ["mamba", "mlp", "linear_attention", "attention"],
    },
    # transformers takes 0 for not said.
    "Nemotron-H, a shared expert of 0": _NVIDIA | _NANO | {
        "moe_shared_expert_intermediate_size": 0,
    },
    "Omni that predicts further tokens": {
        **PUBLISHED["Nemotron-3-Nano-Omni-30B-A3B"],
        "llm_config": PUBLISHED["Nemotron-3-Nano-Omni-30B-A3B"]["llm_config"] | {
            "num_nextn_predict_layers": 1,
        },
    },
    "Hunyuan with a factor on its base": {
        "model_type": "hunyuan_v1_dense", "rope_theta": 10000.0,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "Kimi-K2 as DeepSeek-V3": {**PUBLISHED["Kimi-K2-Instruct"], "model_type": "deepseek_v3"},
    "gpt-oss-20b with all said": {
        **PUBLISHED["gpt-oss-20b"], "swiglu_limit": 7.0, "attention_bias": True,
        "router_aux_loss_coef": 0.9, "rope_theta": 150000, "hidden_act": "silu",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head",
            ],
        },
    },
    "Qwen2-VL of version 4.52": {
        "model_type": "qwen2_vl", "vision_config": PUBLISHED["Qwen2-VL-7B"]["vision_config"],
        "text_config": {
            key: each for key, each in PUBLISHED["Qwen2-VL-7B"].items() if key != "vision_config"
        } | {"model_type": "qwen2_vl_text"},
    },
    # Layers from 80 on have windows.
    "Qwen2-VL with windows": {
        **PUBLISHED["Qwen2-VL-7B"], "num_hidden_layers": 82, "use_sliding_window": True,
    },
    "parakeet_encoder, bare but for dropout": {
        "model_type": "parakeet_encoder", "dropout": 0.0, "layerdrop": 0.0,
        "activation_dropout": 0.0, "attention_dropout": 0.0,
    },
    "native AIMv2": {"model_type": "aimv2_vision_model", "is_native": True},
    **{
        f"{kind}, bare": {"model_type": kind}
        for kind in (
            "gemma2", "glm4", "ministral3", "smollm3", "gpt_oss", "radio", "dinov3_vit",
            "dinov2", "dinov2_with_registers", "aimv2_vision_model", "gemma4_vision", "gemma4_text",
            "clip_vision_model", "siglip_vision_model", "cohere", "cohere2", "stablelm",
            "llama4_text", "arcee", "apertus", "starcoder2", "hunyuan_v1_dense",
            "cohere_compass_text",
        )
    },
    **{
        f"{kind}, bare but for sizes": {
            key: each for key, each in dense(kind, 2, 64, 4, 2, 96, 50).items()
            if key != "num_key_value_heads"
        }
        for kind in ("llama", "qwen2", "qwen3")
    },
    "deepseek_v3, bare": {
        "model_type": "deepseek_v3", "rope_scaling": _DEEPSEEK["rope_scaling"],
    },
    "mistral4, bare": {"model_type": "mistral4"},
    "Mistral Small 4": {
        "model_type": "mistral3", "text_config": {"model_type": "mistral4"}, **_PIXTRAL,
    },
    "Qianfan-OCR": {
        "model_type": "qianfan_ocr", "text_config": qwen3(36, 2560, 32, 8, 9728, 153678),
        "vision_config": {**INTERN, "model_type": "qianfan_ocr_vision", "drop_path_rate": 0.0},
    },
    "ShieldGemma 2": PUBLISHED["gemma-3-4b"] | {"model_type": "shieldgemma2"},
    "ViP-LLaVA": {
        "model_type": "vipllava", "image_token_index": 32000, "vision_config": CLIP,
        "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5},
    },
    "HyperCLOVA X SEED Think": {
        "model_type": "hyperclovax_vision_v2", "image_token_id": 128060,
        "tie_word_embeddings": False,
        "text_config": {
            **dense("hyperclovax", 72, 5120, 40, 8, 24192, 128256), "head_dim": 128,
            "embedding_multiplier": 10.0, "logits_scaling": 0.125,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl", "hidden_size": 1280, "intermediate_size": 3456,
            "out_hidden_size": 3584,
        },
    },
    "Cosmos 3 Edge": {
        "model_type": "cosmos3_edge", "vision_config": {}, "text_config": {},
    },
    "EXAONE 4.5": {
        "model_type": "exaone4_5", "image_token_id": 67, "video_token_id": 68,
        "text_config": {
            "model_type": "exaone4_5_text", "hidden_size": 5120, "num_attention_heads": 40,
            "num_key_value_heads": 8, "intermediate_size": 27392, "num_hidden_layers": 64,
            "vocab_size": 153600,
        },
        "vision_config": {
            "depth": 28, "hidden_size": 2048, "num_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 5120, "out_hidden_size": 5120,
        },
    },
    "GLM-OCR": {
        "model_type": "glm_ocr", "image_token_id": 59280,
        "text_config": {
            "model_type": "glm_ocr_text", "hidden_size": 1536, "head_dim": 128,
            "intermediate_size": 4608, "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000, "mrope_section": [16, 24, 24],
            },
        },
        "vision_config": {"model_type": "glm_ocr_vision", "out_hidden_size": 1536},
    },
    "qwen3_next, bare": {"model_type": "qwen3_next", "rope_theta": 1e7},
    **{
        f"{kind} around bare parts": {
            "model_type": kind, "vision_config": {},
            "text_config": {
                "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96,
                "vocab_size": 50, "hidden_size": hidden, "bos_token_id": 1, "eos_token_id": 2,
            },
        }
        for kind, hidden in (
            ("qwen2_vl", 512), ("qwen2_5_vl", 512), ("qwen3_vl", 512), ("qwen3_5", 512),
            ("cohere_compass", 512),
            ("qwen3_5_moe", 512),
        )
    },
    **{
        f"{kind} around bare parts": {"model_type": kind, "text_config": {"rope_parameters": {
            "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5,
        }}}
        for kind in ("glm4v", "glm4v_moe")
    },
    "kimi_k25 around a bare deepseek_v3": {
        "model_type": "kimi_k25", "text_config": {"model_type": "deepseek_v3"},
        "vision_config": {"model_type": "kimi_k25_vision"},
    },
    **{
        f"{kind} around a bare qwen3_5": {
            "model_type": kind, "image_token_id": 7, "downsample_mode": "4x",
            "vision_config": {"model_type": f"{kind}_vision", "image_size": 980, "patch_size": 14},
            "text_config": {"model_type": "qwen3_5_text"},
        }
        for kind in ("minicpm_ocr", "minicpmv4_6")
    },
    **{
        f"{kind} around a bare cohere2": {
            "model_type": kind, "text_config": {"model_type": "cohere2"},
            "vision_config": {**SIGLIP, "image_size": 364},
        }
        for kind in ("aya_vision", "cohere2_vision")
    },
    **{
        f"{kind} around a bare {text}": {
            "model_type": kind, "text_config": {"model_type": text}, **more,
        }
        for kind, text, more in (
            ("internvl", "qwen2", {}), ("idefics3", "llama", {}), ("smolvlm", "llama", {}),
            ("mistral3", "mistral", _PIXTRAL), ("mistral3", "ministral3", _PIXTRAL),
            ("llava_onevision", "qwen2", {"vision_config": _TOWER_26}), *(
                ("llava", text, {"vision_config": _TOWER}) for text in ("llama", "qwen2", "qwen3")
            ),
        )
    },
}  # fmt: skip
CONFIGS = PUBLISHED | FORMS
# Two forms of one model.
SAME = [
    ("GLM-4.1V-9B", "GLM-4.1V of version 5"), ("GLM-4.1V-9B", "GLM-4.6V-Flash"),
    ("GLM-4.1V-9B", "GLM-GA"),
    ("GLM-4.6V-Flash", "GLM-4.6V-Flash with types"), ("Qwen3-MoE, small", "Qwen3-MoE of version 5"),
    ("Nemotron-H", "Nemotron-H, layers by name"), ("Kimi-K2-Instruct", "Kimi-K2 as DeepSeek-V3"),
    ("gpt-oss-20b", "gpt-oss-20b with all said"),
    ("SmolLM3 with windows", "SmolLM3 with windows by type"),
    ("Qwen2-VL-7B", "Qwen2-VL of version 4.52"),
]  # fmt: skip
# How language gets the times of frames: `time` and `per_second`; None: its type reads no videos.
VIDEOS = {
    "Qwen2-VL-7B": ("patches", None), "Qwen2.5-VL-7B": ("seconds", 4.0),
    "cohere_compass around bare parts": ("text", None),
    "Qwen3-VL-4B": ("text", None), "GLM-4.1V-9B": ("text_after", None), "GLM-4.6V-Flash": None,
    "EXAONE 4.5": ("none", None), "GLM-OCR": None,
}  # fmt: skip
# Whether a tensor in files is left out, by our kind of module.
IGNORED = [
    ("DeepSeek-V3", "decoder", "model.layers.61.eh_proj.weight", True),
    ("DeepSeek-V3", "decoder", "model.layers.60.mlp.gate.weight", False),
    # Of layers 6 to 11, which share keys and values of layers before them.
    *(
        (
            "Gemma 4, text, small",
            "decoder",
            f"model.layers.{layer}.self_attn.{each}.weight",
            left,
        )
        for layer, left in ((5, False), (6, True), (11, True))
        for each in ("k_proj", "v_proj", "k_norm")
    ),
    ("Gemma 4, text, small", "decoder", "model.layers.6.self_attn.q_proj.weight", False),
    ("Gemma 4, text", "decoder", "model.layers.11.self_attn.k_proj.weight", False),
    *(
        (name, kind, tensor, tensor.startswith("mtp."))
        for name in ("Qwen3.5", "Qwen3.5 with experts", "Qwen3.5, text")
        for kind in (("hybrid",) if name.endswith("text") else ("hybrid", "vit"))
        for tensor in ("mtp.layers.0.self_attn.q_proj.weight", "mtp.fc.weight", "strange.weight")
    ),
]
IGNORED += [
    ("Cosmos 3 Omni", kind, tensor, not tensor.endswith("strange.weight"))
    for kind in ("decoder", "vit")
    for tensor in (
        "layers.0.self_attn.add_q_proj.weight",
        "layers.0.self_attn.norm_added_k.weight",
        "layers.0.mlp_moe_gen.up_proj.weight",
        "norm_moe_gen.weight",
        "time_embedder.linear.bias",
        "proj_out.weight",
        "audio_modality_embed",
        "layers.0.strange.weight",
    )
    if kind == "decoder" or not tensor.startswith("layers.")
]
# What a configuration means, in some keys of each of our kinds.
READ: dict[str, dict[str, dict[str, Any]]] = {
    "HyperCLOVA X SEED Think": {
        "vit": {"projector_out": 3584, "hidden": 1280},
        "decoder": {"scaled_rows": True, "embedding_scale": 10.0, "logit_scale": 0.125},
    },
    "ViP-LLaVA": {
        "vit": {"layers": 23, "features": (22, 19, 16, 13, 5), "projector_norm_eps": 1e-5},
    },
    "EXAONE 4.5": {"vit": {"kv_heads": 8, "layers": 28}, "decoder": {"mrope": None}},
    "GLM-OCR": {
        "vit": {
            "mlp": 4096, "projector_mlp": 4608, "head_qk_norm": True, "positions": "rope2d",
            "block_bias": True,
        },
        "decoder": {"head_dim": 128, "qkv_bias": False, "rotary_factor": 1.0},
    },
    "gemma-2-2b": {
        "decoder": {
            "sliding_window": {"size": 4096, "full": tuple(range(1, 26, 2)), "rope_theta": None},
            "attention_softcap": 50.0, "logit_softcap": 30.0, "head_dim": 256, "tied": True,
        },
    },
    "gemma-2-27b": {"decoder": {"query_pre_attn_scalar": 144, "head_dim": 128}},
    "gemma-2 without caps": {"decoder": {"attention_softcap": None, "logit_softcap": None}},
    "gemma-3-1b": {
        "decoder": {
            "sliding_window": {"size": 512, "full": (5, 11, 17, 23), "rope_theta": 10000.0},
            "rope_theta": 1e6, "rope_scaling": None,
        },
    },
    "gemma-3-1b with a cap": {"decoder": {"logit_softcap": 30.0}},
    "Gemma 4, text": {
        "decoder": {
            "head_dim": 512, "kv_heads": 1, "values_from_keys": True, "logit_softcap": 30.0,
            "rope_theta": 1e6, "query_pre_attn_scalar": 1.0, "bidirectional_images": "in_windows",
            "sliding_window": {
                "size": 1024, "full": (5, 11), "rope_theta": 10000.0, "head_dim": 256,
                "kv_heads": 4,
            },
        },
    },
    "Gemma 4, text, heads by layer": {"decoder": {"head_dim": 512, "kv_heads": 2}},
    "Gemma 4, text, small": {
        "decoder": {
            "kv_heads": 1, "shared_keys.layers": 6, "shared_keys.mlp": 8192, "mlp": 4096,
            "per_layer_embeddings.width": 128, "per_layer_embeddings.padding": 3,
        },
    },
    "gemma-4-31b": {
        "gemma4_vision": {
            "shuffle": 3, "places": 10240, "standardize": True, "rope_theta": 100.0,
            "activation": "gelu_tanh", "projector": "linear", "kv_heads": None, "norm_eps": 1e-6,
        },
        "decoder": {
            "bidirectional_images": "in_windows", "head_dim": 512, "kv_heads": 4,
            "sliding_window.size": 1024, "sliding_window.kv_heads": 16, "tied": True,
        },
    },
    "gemma-4-e2b": {
        "gemma4_vision": {"clipped_linears": True, "standardize": False},
        "decoder": {
            "shared_keys.layers": 20, "shared_keys.mlp": 12288, "per_layer_embeddings.width": 256,
        },
    },
    "gemma-4-26b-a4b": {
        "decoder": {
            "head_dim": 512, "kv_heads": 2, "moe.experts": 128, "moe.top_k": 8, "moe.width": 704,
            "moe.shared": 2112, "moe.separate_norms": True, "moe.learned_scale": True,
            "moe.normalize": True, "moe.score": "softmax",
        },
    },
    "gemma4_text, bare": {"decoder": {"per_layer_embeddings.width": 256, "shared_keys": None}},
    "gemma4_vision, bare": {"gemma4_vision": {"layers": 16, "hidden": 768, "heads": 12}},
    "gemma-3-4b": {
        "vit": {
            "image": (64, 64), "shuffle": 4, "pooling": "mean", "projector_norm": "rms",
            "projector_norm_eps": 1e-6,
        },
        "decoder": {"bidirectional_images": True, "rope_theta": 1e6},
    },
    "glm-4-9b-chat-hf": {
        "decoder": {"qkv_bias": True, "rotary_factor": 0.5, "rotary_interleaved": True},
    },
    "GLM-4-9B-0414": {
        "decoder": {"qkv_bias": False, "rotary_factor": 0.5, "rotary_interleaved": True},
    },
    "GLM-4.6": {
        "decoder": {
            "rotary_factor": 0.5, "rotary_interleaved": False, "qk_norm": True, "qkv_bias": True,
            "moe.scale": 2.5,
        },
    },
    "gpt-oss-20b": {
        "decoder": {
            "sliding_window": {"size": 128, "full": tuple(range(1, 24, 2)), "rope_theta": None},
        },
    },
    "DeepSeek-V3": {
        "decoder": {
            "query_pre_attn_scalar": 192 / 1.3688879454113936**4, "head_dim": 192, "kv_heads": 128,
        },
    },
    "Kimi-K2-Instruct": {
        "decoder": {
            "query_pre_attn_scalar": 58.39573, "moe.experts": 384, "moe.groups": 1,
            "head_dim": 192,
        },
    },
    "SmolLM3-3B": {
        "decoder": {
            "nope": {"layers": tuple(range(3, 36, 4)), "query_scaling": None},
            "sliding_window": None, "rope_theta": 5e6, "tied": True,
        },
    },
    "SmolLM3 with windows": {
        "decoder": {
            "nope.layers": (3,), "sliding_window.full": (0, 1, 2), "sliding_window.size": 16,
        },
    },
    "SmolLM3 with all layers turned": {"decoder": {"nope": None, "sliding_window": None}},
    "Ministral 3, text": {
        "decoder": {
            "query_scaling": {"beta": 0.1, "length": 16384}, "sliding_window": None,
        },
    },
    "Llama-4-Scout": {
        "llama4_vision": {
            "layers": 34, "hidden": 1408, "image": (24, 24), "shuffle": 2, "mlp": 5632,
            "projector_mlp": 4096, "projector_out": 4096, "projector_bias": False,
            "rope_theta": 1e4,
        },
        "decoder": {"layers": 48, "tied": False, "moe.experts": 16},
    },
    "Ovis2, bare": {
        "ovis2_vision": {
            "layers": 24, "hidden": 1024, "heads": 8, "mlp": 2816, "patch": 14, "image": (16, 16),
            "shuffle": 1, "words": 16379, "norm": "rms", "activation": "swiglu", "norm_eps": 1e-5,
            "qkv_bias": False, "block_bias": False, "patch_norm": True, "class_token": False,
        },
        "decoder": {"layers": 32, "hidden": 4096, "qkv_bias": True, "tied": True},
    },
    "Ovis2-1B": {
        "ovis2_vision": {"image": (32, 32), "shuffle": 2, "words": 65531},
        "decoder": {"layers": 24, "hidden": 896, "vocab": 151936, "tied": True},
    },
    "kimi_k25 around a bare deepseek_v3": {
        "vit": {
            "layers": 27, "image": (64, 64), "mlp": 4304, "shuffle": 2, "norm_eps": 1e-5,
            "projector_norm_eps": 1e-5, "rope_frequencies": "alternating",
        },
        "decoder": {"layers": 61, "tied": True},
    },
    **{
        f"{kind} around a bare qwen3_5": {
            "vit": {
                "image": (70, 70), "interpolation": "nearest", "final_norm": True, "shuffle": 2,
                "projector": "merger", "projector_norm_eps": 1e-6,
            },
            "hybrid": {"hidden": 4096, "tied": tied, "mrope": None, "rotary_factor": 0.25},
        }
        for kind, tied in (("minicpm_ocr", True), ("minicpmv4_6", False))
    },
    "Cosmos 3 Edge": {
        "vit": {
            "image": (16, 16), "interpolation": "averaged", "shuffle": 2, "projector_mlp": 11520,
            "projector_norm_of": "patch", "layers": 27,
        },
        "decoder": {
            "activation": "squared_relu", "mrope": (24, 20, 20), "mrope_interleaved": True,
            "rope_theta": 1e8, "kv_heads": 8,
        },
    },
    "cohere2_vision around a bare cohere2": {
        "vit": {"projector_mlp": 18432, "projector": "swiglu", "shuffle": 2, "final_norm": True},
        "decoder": {"logit_scale": None},
    },
    "aya_vision around a bare cohere2": {
        "vit": {"projector_mlp": 4096, "projector_norm_eps": 1e-6, "final_norm": False},
    },
    "cohere2, bare": {
        "decoder": {
            "nope.layers": tuple(range(3, 40, 4)), "sliding_window.size": 4096,
            "logit_scale": 0.0625, "norm": "layer_without_bias", "tied": True,
        },
    },
    "llama4_text, bare": {
        "decoder": {
            "nope.layers": tuple(range(3, 48, 4)), "sliding_window.chunked": True,
            "nope.query_scaling": {"beta": 0.1, "length": 8192, "first_position": 1},
            "moe.top_k": 1, "moe.shared": 8192, "mlp": 16384, "l2_qk_norm": True,
        },
    },
    "hunyuan_v1_dense, bare": {
        "decoder": {
            "qk_norm": True, "rotated_qk_norm": True, "head_dim": 128, "kv_heads": 32,
            "rope_theta": 1e4,
        },
    },
    "Hunyuan with a factor on its base": {
        "decoder": {"rope_theta": 1e4 * 1000.0 ** (128 / 126), "rope_scaling": None},
    },
    "arcee, bare": {
        "decoder": {
            "activation": "squared_relu", "mlp_bias": False, "output_bias": False, "hidden": 2560,
            "mlp": 18432, "kv_heads": 32, "head_dim": 80, "norm_eps": 1e-5, "tied": False,
        },
    },
    "apertus, bare": {
        "decoder": {
            "activation": "xielu", "qk_norm": True, "hidden": 4096, "mlp": 14336, "kv_heads": 32,
            "norm_eps": 1e-5, "rope_theta": 12e6, "rope_scaling.factor": 8.0, "tied": False,
        },
    },
    "starcoder2, bare": {
        "decoder": {
            "activation": "gelu_tanh_without_gate", "mlp_bias": True, "qkv_bias": True,
            "output_bias": True, "norm": "layer", "tied": True, "sliding_window": None,
            "kv_heads": 2, "head_dim": 128, "mlp": 12288,
        },
    },
    "stablelm, bare": {"decoder": {"rotary_factor": 0.25, "norm": "layer", "head_dim": 80}},
    "GLM-4.1V of version 5": {
        "vit": {
            "image": (24, 24), "mlp": 4096, "projector_mlp": 13696, "qkv_bias": False,
            "block_bias": False, "norm_eps": 1e-5,
        },
        "decoder": {
            "rotary_factor": 0.5, "mrope": (8, 12, 12), "rope_theta": 1e4, "kv_heads": 2,
            "head_dim": 128, "qkv_bias": True, "post_norms": True, "rotary_interleaved": True,
            "tied": False, "vocab": 151552,
        },
    },
    # Attention ignores `head_dim`, and always has biases.
    "GLM-4.1V with narrow heads": {"decoder": {"head_dim": 128, "qkv_bias": True}},
    "GLM-4.5V": {
        "decoder": {
            "heads": 96, "kv_heads": 8, "head_dim": 128, "mlp": 10944, "rotary_factor": 0.5,
            "rotary_interleaved": False, "post_norms": False, "qkv_bias": True,
            "output_bias": False, "moe.experts": 128, "moe.top_k": 8, "moe.width": 1408,
            "moe.shared": 1408, "moe.score": "sigmoid", "moe.first_dense": 1, "moe.scale": 1.0,
        },
    },
    "GLM-4.5V without biases": {"decoder": {"qkv_bias": False, "rotary_factor": 0.5}},
    "Qwen2.5-VL with windows of 139": {"vit": {"windows": {"side": 4, "full": (7, 15, 23, 31)}}},
    "Qwen2.5-VL with windows of 140": {"vit": {"windows": {"side": 5, "full": (7, 15, 23, 31)}}},
    "Qwen2.5-VL without whole layers": {"vit": {"windows": {"side": 4, "full": ()}}},
    "Qwen2.5-VL without windows": {"vit": {"windows": None}},
    "Qwen3-VL-4B": {
        "vit": {"deepstack": (5, 11, 17), "image": (48, 48)},
        "decoder": {
            "mrope": (24, 20, 20), "mrope_interleaved": True, "rope_theta": 5e6, "qk_norm": True,
            "head_dim": 128, "tied": True,
        },
    },
    **{
        name: {
            "hybrid": {
                "pattern": pattern, "rotary_factor": 0.25, "mrope": (6, 5, 5), "rope_theta": 1e7,
                "deltanet": {
                    "heads": 4, "key_heads": 2, "head_dim": 128, "key_dim": 128, "conv": 4,
                },
            },
            "vit": {"deepstack": ()},
        }
        for name, pattern in (("Qwen3.5", "G-G-G-*-"), ("Qwen3.5 with experts", "GEGEGE*E"))
    },
    "Qwen3-Next-80B-A3B": {
        "hybrid": {"pattern": "GEGEGE*E" * 12, "rotary_factor": 0.25, "moe.shared_gate": True},
    },
    "LFM2-1.2B": {
        "hybrid": {
            "pattern": "C-C-*-C-C-*-C-C-*-C-*-C-*-C-*-C-", "mlp": 8192, "head_dim": 64,
            "tied": True, "short_conv": 3, "rope_theta": 1e6,
        },
    },
    "LFM2-VL-450M": {
        "hybrid": {"mlp": 4608, "tied": True, "hidden": 1024},
        "vit": {
            "interpolation": "averaged", "image": (16, 16), "shuffle": 2, "projector_mlp": 2560,
            "projector_norm": "layer", "final_norm": True,
        },
    },
    "LFM2, bare": {"hybrid": {"pattern": "*-" * 32, "mlp": 8192, "hidden": 2560, "head_dim": 80}},
    "Nemotron-H": {"hybrid": {"pattern": "M-M*"}},
    "Nemotron-H, a shared expert of 0": {"hybrid": {"moe.shared": 96}},
    "Omni that predicts further tokens": {"vit": {"final_norm": True}},
    "Nemotron-3-Nano-Omni-30B-A3B": {
        "vit": {
            "shuffle": 2, "final_norm": False, "projector_activation": "squared_relu",
            "registers": 10,
        },
        "hybrid": {"tied": False},
    },
    "InternVL with a tower of 6 B": {
        "vit": {
            "norm": "rms", "qk_norm": True, "qkv_bias": False, "image": (32, 32), "shuffle": 2,
            "layers": 45, "layer_scale": 0.1, "projector_norm_eps": 1e-5,
        },
        "decoder": {"layers": 64, "qk_norm": True, "tied": False},
    },
    "Mistral-Small-3.1-24B": {
        "vit": {
            "patch": 14, "shuffle": 2, "pooling": "linear", "projector_bias": False,
            "projector_norm_eps": 1e-5,
        },
        "decoder": {"head_dim": 128, "rope_theta": 1e9, "tied": False},
    },
    "Voxtral, bare": {
        "audio": {"stack": 4, "frames": 3000, "mels": 128},
        "decoder": {"layers": 30, "hidden": 3072, "head_dim": 128, "rope_theta": 1e8},
    },
    "Qwen2-Audio, bare": {
        "audio": {
            "stack": 2, "frames": 3000, "mels": 128, "pooling": "mean", "unpadded": True,
            "projector": "linear",
        },
        "decoder": {"layers": 32, "hidden": 4096, "kv_heads": 32, "mlp": 22016},
    },
    "Audio Flamingo 3, bare": {
        "audio": {
            "layers": 32, "hidden": 1280, "heads": 20, "mlp": 5120, "stack": 2, "frames": 3000,
            "mels": 128, "pooling": "mean", "unpadded": True, "projector": "mlp",
            "projector_bias": True,
        },
        "decoder": {"layers": 32, "hidden": 4096, "kv_heads": 32, "mlp": 22016, "tied": False},
    },
    "Emu3": {
        "decoder": {
            "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "mlp": 14336,
            "vocab": 184622, "rope_theta": 1e6, "norm_eps": 1e-5, "tied": False,
        },
    },
    "Phi-4 multimodal": {
        "vit": {
            "layers": 26, "hidden": 1152, "heads": 16, "mlp": 4304, "patch": 14, "image": (32, 32),
            "shuffle": 2, "pooling": "mean", "final_norm": False, "tiles.whole": "last",
        },
        "conformer": {
            "layers": 24, "hidden": 1024, "heads": 16, "mlp": 1536, "kernel": 3, "channels": 1024,
            "mels": 80, "distance_bias": 1000, "gated": True, "causal": True, "sound": "phi4",
            "scale_input": False, "bias": True, "conv_bias": True, "projector": "mlp",
        },
        "decoder": {
            "layers": 32, "hidden": 3072, "heads": 24, "kv_heads": 8, "mlp": 8192, "vocab": 200064,
            "rotary_factor": 0.75, "sliding_window": None, "tied": False,
            "rope_scaling": {"rope_type": "longrope", "factor": 32.0},
        },
    },
    "Qwen3-ASR": {
        "aut": {
            "layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096, "mels": 128, "channels": 480,
            "chunk": 100, "window": 8, "projector": "merger",
        },
        "decoder": {
            "layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128,
            "mlp": 6144, "tied": True,
        },
    },
    # Its class ties nothing, so files hold both.
    "Qwen2-Audio, said to be tied": {"decoder": {"tied": False}},
    "llava-onevision-qwen2-7b": {
        "vit": {
            "layers": 26, "image": (27, 27), "final_norm": False, "tiles.most": 9,
            "tiles.side": 384,
            "tiles.grids": tuple((down, right) for down in range(1, 7) for right in range(1, 7)),
        },
    },
    "llava-v1.6-mistral-7b": {
        "vit": {
            "layers": 23, "image": (24, 24), "final_norm": False, "class_token": True,
            "tiles": {"most": None, "each": True, "side": None},
            "tiles.grids": ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)),
        },
        "decoder": {"kv_heads": 8, "rope_theta": 1e6},
    },
    "LLaVA-NeXT-Video, small": {
        "vit": {"layers": 2, "tiles.each": True}, "decoder": {"tied": True},
    },
    "Video-LLaVA, small": {"vit": {"layers": 2, "class_token": True}},
    "VideoLLaMA 3, small": {
        "vit": {"positions": "rope2d", "final_norm": True, "shuffle": 1, "mlp": 3072},
        "decoder": {"tied": True},
    },
    "paligemma-3b-pt-224": {
        "vit": {"final_norm": True, "projector": "linear", "projector_bias": True, "shuffle": 1},
        "decoder": {"bidirectional_prompts": True, "tied": True, "kv_heads": 1, "head_dim": 256},
    },
    "paligemma2-3b-pt-224": {
        "decoder": {"bidirectional_prompts": True, "sliding_window": {"size": 4096}},
    },
    "Cosmos 3 Omni": {"vit": {"deepstack": (5, 11, 17)}, "decoder": {"mrope": (24, 20, 20)}},
    "PaddleOCR-VL": {
        "vit": {
            "image": (27, 27), "positions": "learned+rope2d", "interpolation": "linear",
            "projector_norm_of": "patch", "projector_mlp": 4608, "shuffle": 2,
        },
        "decoder": {
            "tied": True, "mrope": (16, 24, 24), "head_dim": 128, "rope_theta": 5e5, "kv_heads": 2,
        },
    },
    "Janus-Pro-1B": {
        "vit": {
            "image": (24, 24), "mlp": 4096, "final_norm": True, "projector_activation": "gelu",
        },
        "decoder": {"tied": False, "heads": 16},
    },
    "parakeet_encoder, bare but for dropout": {
        "conformer": {
            "layers": 24, "hidden": 1024, "heads": 8, "mlp": 4096, "mels": 80, "channels": 256,
            "kernel": 9, "bias": True, "conv_bias": True, "scale_input": True,
        },
    },
    "radio, bare": {"vit": {"registers": 10, "image": (128, 128), "mlp": 5120}},
    "dinov2, bare": {
        "vit": {"image": (16, 16), "mlp": 3072, "layer_scale": 1.0, "class_token": True},
    },
    "dinov2_with_registers, bare": {
        "vit": {"image": (14, 14), "registers": 4, "interpolation": "bicubic_averaged"},
    },
    "dinov2-giant": {"vit": {"mlp": 4096, "image": (37, 37), "activation": "swiglu"}},
    "native AIMv2": {"vit": {"image": None, "positions": "sincos_mae", "patch_norm": True}},
    "aimv2_vision_model, bare": {
        "vit": {"image": (16, 16), "mlp": 2816, "patch_norm": True, "qkv_bias": False},
    },
    "dinov3_vit, bare": {"dinov3": {"registers": 0, "class_token": True, "mlp": 1536}},
    "dinov3-vit7b16": {
        "dinov3": {
            "activation": "swiglu", "qkv_bias": False, "block_bias": True, "registers": 4,
            "layer_scale": 1.0, "rope_theta": 100.0, "positions": "rope2d",
        },
    },
}  # fmt: skip
AWQ: Config = {"quantization_config": {"quant_method": "awq", "bits": 3}}
_BY_LAYER = 'per_layer_config: {"5": {'
_UNBOUNDED = "rope_type: dynamic without max_position_embeddings"
DYNAMIC = ({"rope_parameters": {"rope_type": "dynamic"}}, _UNBOUNDED)
_YARN = ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type: yarn")
Change = Config | tuple[Config, str]


def _layers(kind: str, count: int = 1) -> Change:
    return {"layer_types": ["full_attention", *[kind] * count]}, f"layer_types: {kind}"


# By configuration, our kind and the section that is changed: changes, each with the words of its
# refusal, which are else the one setting that changes.
REFUSED: dict[tuple[str, str, str], list[Change]] = {
    ("gemma-2-2b", "decoder", ""): [
        {"attention_bias": True}, {"use_bidirectional_attention": True},
        {"hidden_activation": "gelu"}, _layers("chunked_attention"), AWQ,
    ],
    ("Gemma 4, text", "decoder", ""): [
        {"num_kv_shared_layers": 12}, {"num_kv_shared_layers": 7},
        (
            {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "enable_moe_block": True},
            "use_double_wide_mlp: true",
        ),
        (
            {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 9},
            "vocab_size_per_layer_input: 9",
        ),
        {"use_bidirectional_attention": "all"},
        {"attention_bias": True},
        {"per_layer_config": {"0": {"head_dim": 512}}},
        ({"per_layer_config": {"5": {"head_dim": 512}, "11": {"head_dim": 256}}}, _BY_LAYER),
        ({"per_layer_config": {"5": {"mlp": 9}, "11": {"mlp": 9}}}, _BY_LAYER),
    ],
    ("Ovis2-1B", "ovis2_vision", ""): [
        {"visual_indicator_token_ids": [1, 2, 3]}, {"visual_indicator_token_ids": 1},
        {"hidden_size": 1536}, {"vocab_size": 151643},
    ],
    ("Ovis2-1B", "ovis2_vision", "vision_config"): [
        {"tokenize_function": "st_argmax"}, {"tokenize_function": "gumbel_argmax"},
        {"num_visual_indicator_tokens": 4}, {"hidden_act": "gelu"}, {"mlp_bias": True},
        {"image_size": 462}, {"image_size": 450}, {"attention_dropout": 0.1},
    ],
    ("Llama-4-Scout", "llama4_vision", "vision_config"): [
        {"hidden_act": "quick_gelu"}, {"norm_eps": 1e-6},
        {"pixel_shuffle_ratio": 0.4},
        {"vision_feature_select_strategy": "full"}, {"multi_modal_projector_bias": True},
        {"image_size": [336, 448]}, {"patch_size": [14, 16]}, {"intermediate_size": 1408},
        {"projector_input_dim": 2048}, {"vision_output_dim": 7680}, {"projector_dropout": 0.1},
    ],
    ("gemma-4-31b", "gemma4_vision", "vision_config"): [
        {"head_dim": 64}, {"attention_bias": True},
        {"hidden_activation": "silu"}, {"attention_dropout": 0.1}, {"pooling_kernel_size": 1},
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type: linear"),
    ],
    ("gemma-3-1b", "decoder", ""): [
        {"attn_logit_softcapping": 50.0}, {"use_bidirectional_attention": True},
        _layers("chunked"), _YARN, {"hidden_activation": "gelu"},
    ],
    ("gemma-3-4b", "vit", ""): [{"mm_tokens_per_image": rows} for rows in (250, 9, 0)],
    ("GLM-4-9B-0414", "decoder", ""): [
        {"hidden_act": "gelu"}, AWQ,
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, _UNBOUNDED),
    ],
    ("gpt-oss-20b", "decoder", ""): [
        AWQ, {"swiglu_limit": 10.0}, {"attention_bias": False}, _layers("chunked_attention", 23),
    ],
    ("DeepSeek-V3", "decoder", ""): [AWQ, {"num_key_value_heads": 64}, {"attention_bias": True}],
    ("ERNIE-4.5-21B-A3B", "decoder", ""): [
        {"moe_layer_end_index": 26}, {"moe_layer_end_index": 28}, {"moe_layer_interval": 2},
        {"moe_norm_min": 1e-9}, {"use_bias": True}, AWQ,
    ],
    ("Kimi-K2-Instruct", "decoder", ""): [
        {"scoring_func": "softmax"}, {"topk_method": "greedy"}, {"moe_layer_freq": 2},
        {"rope_interleave": False}, {"num_key_value_heads": 8}, AWQ,
    ],
    ("SmolLM3 with windows", "decoder", ""): [
        {"attention_bias": True}, {"mlp_bias": True}, _layers("chunked_attention"), AWQ,
    ],
    ("cohere, bare", "decoder", ""): [{"use_qk_norm": True}, {"hidden_act": "gelu"}],
    ("cohere2, bare", "decoder", ""): [_layers("chunked_attention", 39)],
    ("cohere_compass_text, bare", "decoder", ""): [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
         "rope_type: yarn of full_attention"),
    ],
    ("hunyuan_v1_dense, bare", "decoder", ""): [
        {"hidden_act": "gelu"}, {"mlp_bias": True}, DYNAMIC,
    ],
    ("arcee, bare", "decoder", ""): [{"hidden_act": "silu"}, AWQ],
    ("apertus, bare", "decoder", ""): [{"hidden_act": "silu"}, {"mlp_bias": True}, AWQ],
    ("llama4_text, bare", "decoder", ""): [
        {"moe_layers": [0, 2]}, {"moe_layers": []}, {"hidden_act": "gelu"},
        _layers("sliding_attention", 47),
    ],
    ("starcoder2, bare", "decoder", ""): [
        {"hidden_act": "gelu"}, {"residual_dropout": 0.1}, {"embedding_dropout": 0.1},
    ],
    ("stablelm, bare", "decoder", ""): [{"qk_layernorm": True}, {"hidden_dropout": 0.1}],
    ("Ministral 3, text", "decoder", ""): [
        {"attention_bias": True}, {"hidden_act": "gelu"}, _layers("sliding_attention", 33),
        ({"rope_parameters": {**GROWING, "rope_type": "dynamic"}}, _UNBOUNDED),
    ],
    ("Qwen3-Next-80B-A3B", "hybrid", ""): [
        {"attention_bias": True}, {"hidden_act": "gelu"}, _YARN, _layers("sliding"),
        {"attention_dropout": 0.1}, AWQ,
    ],
    ("Qwen3.5", "hybrid", "text_config"): [
        {"hidden_act": "gelu"}, {"attention_bias": True}, _layers("sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: yarn"),
    ],
    ("Qwen3-MoE, small", "decoder", ""): [
        {"mlp_only_layers": [1, 3]}, {"attention_bias": True},
    ],
    ("LFM2-1.2B", "hybrid", ""): [
        {"conv_bias": True}, _layers("sliding_attention", 16), _YARN,
    ],
    ("LFM2-VL-450M", "vit", ""): [
        {"projector_hidden_act": "relu"}, {"projector_bias": False},
    ],
    ("Phi-4 multimodal", "vit", "vision_config"): [
        {"feature_layer": 0}, {"image_size": 462, "crop_size": 462}, {"crop_size": 336},
        {"hidden_act": "relu"},
        {"attention_dropout": 0.1},
    ],
    ("Phi-4 multimodal", "vit", ""): [{"embd_pdrop": 0.1}],
    ("Phi-4 multimodal", "conformer", "audio_config"): [
        {"activation": "gelu"}, {"conv_activation": "gelu"}, {"conv_glu_type": "sigmoid"},
        {"nemo_activation": "gelu"}, {"time_reduction": 4}, {"chunk_size": 18},
        {"depthwise_multiplier": 2}, {"bias_symmetric": True}, {"downsample_rate": 2},
        {"ext_pw_out_channel": 512}, {"depthwise_separable_out_channel": 512},
        {"dropout_rate": 0.1},
    ],
    ("Phi-4 multimodal", "decoder", ""): [{"resid_pdrop": 0.1}, {"hidden_act": "gelu"}],
    ("Nemotron-H", "hybrid", ""): [
        ({"hybrid_override_pattern": "MEM*", "n_group": 4, "topk_group": 1}, "n_group: 4"),
        ({"hybrid_override_pattern": "MEM*", "topk_group": 2}, "topk_group: 2"),
        ({"layers_block_type": ["moe", "mlp"], "moe_latent_size": 16}, "moe_latent_size: 16"),
        ({"layers_block_type": ["mlp", "conv"]}, "layers_block_type: conv"),
        {"mlp_hidden_act": "silu"}, {"use_bias": True}, {"use_conv_bias": False},
    ],
    ("Nemotron-3-Nano-Omni-30B-A3B", "vit", ""): [{"downsample_ratio": 0.4}],
    ("GLM-4.1V of version 5", "vit", "vision_config"): [
        {"hidden_act": "gelu"}, {"attention_dropout": 0.1}, {"out_hidden_size": 2048},
    ],
    ("GLM-4.1V of version 5", "decoder", "text_config"): [
        {"hidden_act": "gelu"}, {"attention_dropout": 0.1}, {"quantization_config": {"bits": 4}},
        DYNAMIC,
    ],
    **{
        ("GLM-4.6V-Flash", kind, section): [
            ({"model_type": other}, f"{section}.model_type: {other}"),
        ]
        for kind in ("vit", "decoder")
        for section, other in (
            ("text_config", "glm4v_moe_text"), ("vision_config", "glm4v_moe_vision"),
        )
    },
    ("Qwen2-VL-7B", "vit", "vision_config"): [
        {"hidden_act": "relu"},
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}, "rope_theta: 100.0"),
    ],
    ("Qwen2.5-VL-7B", "vit", "vision_config"): [{"out_hidden_size": 256}, {"hidden_act": "gelu"}],
    ("Qwen3-VL-4B", "vit", "vision_config"): [
        {"deepstack_visual_indexes": [2, 0]}, {"deepstack_visual_indexes": [2, 24]},
        {"num_position_embeddings": 2305}, {"out_hidden_size": 256},
    ],
    ("InternVL with a tower of 6 B", "vit", "vision_config"): [
        {"hidden_act": "relu"}, {"norm_type": "batch_norm"}, {"image_size": [448, 224]},
        {"hidden_dropout_prob": 0.1}, {"use_absolute_position_embeddings": False},
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps: 1e-05 with use_qk_norm: true"),
        ({"use_mean_pooling": False}, "use_mean_pooling: false with norm_type: rms_norm"),
    ],
    ("ViP-LLaVA", "vit", ""): [
        {"vision_feature_layer": [-2, 0]}, {"vision_feature_layer": []},
        {"projector_hidden_act": "relu"},
    ],
    ("EXAONE 4.5", "decoder", "text_config"): [
        ({"model_type": "llama"}, "text_config.model_type: llama"),
    ],
    ("GLM-OCR", "vit", "vision_config"): [{"hidden_act": "gelu"}, {"out_hidden_size": 512}],
    # Without the setting, their classes drop.
    ("Qianfan-OCR", "vit", "vision_config"): [
        {"drop_path_rate": 0.1}, ({"drop_path_rate": None}, "drop_path_rate: 0.1"),
    ],
    ("Seed-OSS-36B", "decoder", ""): [
        ({"attention_dropout": None}, "attention_dropout: 0.1"),
        ({"residual_dropout": None}, "residual_dropout: 0.1"),
    ],
    ("mistral4, bare", "decoder", ""): [
        {"attention_bias": True}, {"num_key_value_heads": 8}, (
            {"rope_parameters": {**GROWING, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor: 0.25",
        ),
    ],
    ("InternVL3.5-8B", "vit", ""): [
        {"downsample_ratio": 0.4}, {"vision_feature_select_strategy": "full"},
        {"projector_hidden_act": "relu"}, {"vision_feature_layer": [-1, -2]},
    ],
    ("Mistral-Small-3.1-24B", "vit", "vision_config"): [
        {"hidden_act": "gelu"}, {"rope_theta": 1e6}, {"head_dim": 32},
        ({"rope_parameters": {"rope_theta": 500.0}}, "rope_theta: 500.0"),
        # What its class would have.
        ({"hidden_act": None}, "hidden_act: gelu"),
    ],
    ("Mistral-Small-3.1-24B", "vit", ""): [
        {"projector_hidden_act": "relu"}, {"multimodal_projector_bias": 1.5},
        {"vision_feature_layer": [-1, -2]},
    ],
    ("LLaVA, small", "vit", ""): [
        {"vision_feature_select_strategy": "full"}, {"vision_feature_layer": [-2, -2]},
        ({"vision_config": {**SIGLIP, **_TOWER, "model_type": "siglip_vision_model"}},
         "vision_feature_select_strategy: default"),
        {"vision_feature_layer": 0}, {"multimodal_projector_bias": False},
        {"projector_hidden_act": "relu"},
        ({"vision_config": {"model_type": "pixtral", "hidden_act": "silu"}},
         "vision_feature_select_strategy: default"),
    ],
    ("clip-vit-large-patch14-336", "vit", ""): [
        {"hidden_act": "silu"}, {"quantization_config": {"bits": 4}},
    ],
    ("llava-onevision-qwen2-7b", "vit", ""): [
        {"image_grid_pinpoints": [[384, 400]]}, {"image_grid_pinpoints": []},
        {"vision_aspect_ratio": "pad"}, {"vision_aspect_ratio": "anyres_max_0"},
        {"vision_feature_layer": [-2, -1]}, {"vision_feature_select_strategy": "default"},
        {"multimodal_projector_bias": False},
    ],
    ("llava-v1.6-mistral-7b", "vit", ""): [
        {"image_grid_pinpoints": [[336, 400]]}, {"vision_feature_layer": [-2, -2]},
        {"vision_feature_select_strategy": "full"}, {"multimodal_projector_bias": False},
    ],
    ("Video-LLaVA, small", "vit", ""): [
        {"vision_feature_layer": 0}, {"vision_feature_select_strategy": "full"},
    ],
    ("VideoLLaMA 3, small", "vit", "vision_config"): [
        {"hidden_act": "relu"}, {"attention_dropout": 0.1},
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}, "rope_theta: 100.0"),
    ],
    ("paligemma-3b-pt-224", "vit", ""): [{"projection_dim": 2304}],
    ("paligemma-3b-pt-224", "decoder", "text_config"): [{"hidden_act": "relu"}],
    ("Cosmos 3 Omni", "vit", "vision_config"): [{"out_hidden_size": 256}],
    ("PaddleOCR-VL", "vit", "vision_config"): [
        {"hidden_act": "relu"}, {"attention_dropout": 0.1},
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}, "rope_theta: 100.0"),
    ],
    ("PaddleOCR-VL", "decoder", ""): [
        {"use_bias": True}, {"hidden_act": "gelu"},
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type: longrope"),
    ],
    ("Janus-Pro-1B", "vit", "vision_config"): [
        {"use_qk_norm": True}, {"depth": 3}, {"projection_dim": 1024}, {"hidden_act": "relu"},
        {"hidden_dropout_rate": 0.1}, {"projection_dropout": 0.1},
    ],
    ("kimi_k25 around a bare deepseek_v3", "vit", "vision_config"): [
        {"hidden_act": "relu"}, {"merge_kernel_size": [1, 2]},
    ],
    ("minicpmv4_6 around a bare qwen3_5", "vit", ""): [
        {"downsample_mode": "16x"}, ({"downsample_mode": None}, "downsample_mode: 16x"),
        {"merge_kernel_size": [4, 4]}, {"merger_times": 2},
    ],
    ("minicpmv4_6 around a bare qwen3_5", "vit", "vision_config"): [{"hidden_act": "relu"}],
    ("Cosmos 3 Edge", "vit", "vision_config"): [
        {"num_patches": 257}, {"hidden_act": "relu"}, {"attention_dropout": 0.1},
    ],
    ("Cosmos 3 Edge", "decoder", "text_config"): [
        {"hidden_act": "silu"}, {"mlp_bias": True}, {"attention_bias": True},
    ],
    ("aya_vision around a bare cohere2", "vit", ""): [
        {"vision_feature_layer": [-2, -1]}, {"vision_feature_select_strategy": "default"},
    ],
    ("Voxtral, bare", "audio", ""): [{"projector_hidden_act": "relu"}],
    ("Voxtral, bare", "audio", "audio_config"): [
        {"activation_function": "relu"}, {"attention_dropout": 0.1}, {"intermediate_size": 5000},
        {"intermediate_size": 640}, ({"max_source_positions": 1501}, "intermediate_size: 5120"),
        # Rows of 8 tokens do not divide 1500 tokens, which are 3000 frames.
        {"intermediate_size": 10240},
    ],
    ("Qwen2-Audio, bare", "audio", "audio_config"): [
        {"activation_function": "relu"}, {"attention_dropout": 0.1}, {"encoder_layerdrop": 0.1},
    ],
    ("Audio Flamingo 3, bare", "audio", ""): [{"projector_hidden_act": "relu"}],
    ("Audio Flamingo 3, bare", "audio", "audio_config"): [
        {"activation_function": "relu"}, {"attention_dropout": 0.1}, {"layerdrop": 0.1},
    ],
    ("Qwen3-ASR", "aut", "audio_config"): [
        {"output_dim": 1024}, {"activation_function": "relu"}, {"n_window": 40},
        {"n_window_infer": 99}, {"max_position_embeddings": 12},
    ],
    ("parakeet_encoder, bare but for dropout", "conformer", ""): [
        {"hidden_act": "relu"}, {"subsampling_factor": 4}, {"subsampling_conv_kernel_size": 5},
        {"subsampling_conv_stride": 4}, {"dropout": 0.1}, {"dropout_positions": 0.1},
        {"layerdrop": 0.1}, {"activation_dropout": 0.1}, {"attention_dropout": 0.1},
    ],
    ("radio, bare", "vit", ""): [
        {"hidden_act": "relu"}, {"drop_path_rate": 0.1}, {"attention_probs_dropout_prob": 0.5},
        {"max_img_size": 15},
    ],
    ("dinov2, bare", "vit", ""): [
        {"hidden_act": "relu"}, {"image_size": [224, 112]}, {"patch_size": [14, 7]},
        {"drop_path_rate": 0.1}, {"hidden_dropout_prob": 0.1},
        {"attention_probs_dropout_prob": 0.1},
    ],
    ("dinov2_with_registers, bare", "vit", ""): [
        {"hidden_act": "relu"}, {"image_size": [224, 112]}, {"drop_path_rate": 0.1},
    ],
    ("aimv2_vision_model, bare", "vit", ""): [
        {"hidden_act": "gelu"}, {"is_native": 1.5}, {"mlp_bias": True}, {"attention_dropout": 0.1},
    ],
    ("dinov3_vit, bare", "dinov3", ""): [
        {"hidden_act": "silu"}, ({"use_gated_mlp": True}, "hidden_act: gelu"), {"key_bias": True},
        {"mlp_bias": False}, {"value_bias": False}, {"drop_path_rate": 0.1},
        {"pos_embed_jitter": 1.5}, {"pos_embed_shift": 0.1}, {"attention_dropout": 0.1},
    ],
}  # fmt: skip
# Values of a spec that a folder contradicts, by our kind of module: the key that is named, and what
# is said of it. Without a key, the change passes.
UNLIKE: list[tuple[str, str, dict[str, Any], str | None, str]] = [
    *((name, "decoder", {}, None, "") for name in ("Qwen2-VL-7B", "Qwen2.5-VL-7B")),
    ("Qwen2.5-VL-7B", "vit", {"windows": None}, "windows", "null, but in F {side: 4, full: ["),
    ("Qwen2.5-VL-7B", "vit", {"windows.side": 2}, "windows", "{side: 2, full: [7, 15, 23, 31]}, "),
    ("Qwen2.5-VL-7B", "vit", {"windows.full": [3]}, "windows", "{side: 4, full: [3]}, but in F "),
    ("Qwen2.5-VL-7B", "vit", {"norm": "layer"}, "norm", "layer, but in F rms"),
    ("Qwen2.5-VL-7B", "vit", {"activation": "gelu"}, "activation", "gelu, but in F swiglu"),
    ("Qwen2-VL-7B", "vit", {"windows": {"side": 4}}, "windows", "{side: 4, full: []}, but in F "),
    ("Qwen2-VL-7B", "vit", {"positions": "sincos"}, "positions", "sincos, but in F "),
    ("Qwen2-VL-7B", "vit", {"temporal_patch": 1}, "temporal_patch", "1, but in F "),
    ("Qwen2-VL-7B", "vit", {"projector": "mlp"}, "projector", "mlp, but in F "),
    ("Qwen2-VL-7B", "vit", {"video": {"time": "patches"}}, None, ""),
    (
        "Qwen2-VL-7B", "vit", {"video": {"time": "text"}}, "video",
        "{time: text, per_second: null}, but in F {time: patches,",
    ),
    ("Qwen2.5-VL-7B", "vit", {"video": {"time": "seconds", "per_second": 4}}, None, ""),
    (
        "Qwen2.5-VL-7B", "vit", {"video": {"time": "seconds", "per_second": 2}}, "video",
        "{time: seconds, per_second: 2}, but in F {time: seconds",
    ),
    ("Qwen2-VL-7B", "decoder", {"mrope": [32, 16, 16]}, "mrope", "[32, 16, 16], but in F "),
    ("Qwen2-VL-7B", "decoder", {"mrope": None}, "mrope", "null, but in F "),
    ("Qwen2.5-7B", "decoder", {"mrope": [16, 24, 24]}, "mrope", "[16, 24, 24], but in F "),
    *(
        (name, "decoder", {"moe.aux_loss": 0.0, **change}, "moe" if change else None, "")
        for name in ("Mixtral, small", "Qwen3-MoE, small")
        for change in ({}, {"moe.top_k": 1}, {"moe.every": 4}, {"moe.shared": 8})
    ),
    # How experts are trained is for the spec to say, whether they have a bias is not.
    *(
        (
            "Nemotron-H with experts", "hybrid",
            {"moe.aux_loss": 1e-4, "moe.bias_update_rate": 1e-3, **change},
            "moe" if said else None, said,
        )
        for change, said in (
            ({}, ""), ({"moe.aux_loss": 0.0, "moe.bias_update_rate": 0.0}, ""),
            ({"moe.bias_update_rate": None}, "bias_update_rate: null"),
            ({"moe.top_k": 2}, "top_k: 2"), ({"moe.score": "softmax"}, "score: softmax"),
        )
    ),
    ("Nemotron-H", "hybrid", {}, None, ""),
    ("Nemotron-H", "hybrid", {"mamba.state": 8}, "mamba", "state: 8"),
    ("Nemotron-H", "hybrid", {"pattern": "M-MM"}, "pattern", ""),
    ("Nemotron-H", "hybrid", {"rope_theta": 1e4}, "rope_theta", ""),
]  # fmt: skip
