"""A tiny Qwen2.5-Omni of `transformers` with random weights, and a spec that starts from it."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any

import torch
from tests.support.hugging_face import widen
from tests.support.qwen_vl import axes
from tests.support.random_models import shaken
from tests.support.specs import Box, box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

VOCAB, CODES, START, END = 40, 23, 20, 21
_ROPE = {"rope_type": "default", "rope_theta": 50.0}
_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-3,
    "rope_parameters": {**_ROPE, "mrope_section": [1, 2, 1]}, "tie_word_embeddings": False,
}  # fmt: skip
_VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 24, "num_heads": 4, "patch_size": 2,
    "spatial_merge_size": 2, "out_hidden_size": 32, "window_size": 9, "fullatt_block_indexes": [0],
}  # fmt: skip
_AUDIO = {
    "num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "d_model": 16, "output_dim": 32, "max_source_positions": 20, "n_window": 4,
}  # fmt: skip
_SPEECH = {
    "vocab_size": CODES, "embedding_size": 32, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "rms_norm_eps": 1e-3, "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]},
    "tts_codec_start_token_id": START, "tts_codec_end_token_id": END,
    "tts_codec_pad_token_id": 19, "tts_codec_mask_token_id": 22,
}  # fmt: skip
_VOCODER = {
    "dit_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ff_mult": 1,
        "emb_dim": 8, "head_dim": 8, "num_embeds": 40, "mel_dim": 8, "enc_emb_dim": 8, "enc_dim": 8,
        "enc_channels": [8, 8, 8, 8, 24], "enc_attention_channels": 4, "enc_res2net_scale": 2,
        "enc_se_channels": 4,
    },
    "bigvgan_config": {"mel_dim": 8, "upsample_initial_channel": 64},
}  # fmt: skip
LANGUAGE = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 48,
    "vocab": VOCAB, "vocab_multiple": 16, "qkv_bias": True, "norm_eps": 1e-3, "rope_theta": 50.0,
    "mrope": [1, 2, 1],
}  # fmt: skip
SPEECH = {
    "kind": "talker", "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "head_dim": 8,
    "mlp": 40, "qkv_bias": True, "norm_eps": 1e-3, "rope_theta": 50.0, "codebooks": 1,
    "vocab": CODES, "start": START, "end": END, "reads_text": True,
}  # fmt: skip
# Boxes of language and of speech.
LAYOUTS: dict[str, tuple[Box, Box]] = {
    "one rank": (box(0), box(0)),
    "tp2": (box(0, tp=2, sequence_parallel=True), box(0, tp=2)),
    "pp2, apart": (box(0, pp=2), box(2, pp=2)),
    "cp2": (box(0, cp=2), box(0, cp=2)),
    "dp2 on tp2": (box(0, tp=2), box(0, dp=2)),
    "unequal, apart": (box(0, tp=2), box(2, tp=2, cp=2, sequence_parallel=True)),
}


def tiny(
    dtype: torch.dtype = torch.float32,
    vocab: int = VOCAB,
    tokens: Mapping[str, int] = MappingProxyType({}),
) -> Any:
    """Return a whole model in which no weight is a constant; `tokens` are special ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

        config = Qwen2_5OmniConfig(
            thinker_config={
                "text_config": _TEXT | {"vocab_size": vocab}, "vision_config": _VISION,
                "audio_config": _AUDIO, **tokens,
            },
            talker_config=_SPEECH,
            token2wav_config=_VOCODER,
        )  # fmt: skip
        made = Qwen2_5OmniForConditionalGeneration(config)
    return shaken(made, dtype, lambda name: float("norm" in name))


def made(layout: str, folder: Path, precision: str = "fp64", **more: Any) -> Spec:
    """Return a spec whose thinker and talker start from a folder; clips of codes, and none."""
    language, speech = LAYOUTS[layout]
    modules = {
        "language": {**language, "model": LANGUAGE, "init_from": str(folder)},
        "speech": {
            **speech, "model": SPEECH, "init_from": str(folder), "reads": ["language"],
            "loss_weight": 0.5,
        },
    }  # fmt: skip
    data = {"kind": "synthetic", "max_images": 2, "max_patches": 6, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": 9}
    asked = spec(modules, mbs=4, seq=32, data=data, train=train, **more)
    assert not check(asked)
    return asked


def widen_all(model: Any) -> None:
    """Compute norms and angles of thinker and talker in float64."""
    for part in (model.thinker.model, model.talker.model):
        widen(part)
    for part in (model.thinker.model.language_model, model.talker.model):
        part.rotary_emb.forward = MethodType(axes, part.rotary_emb)
