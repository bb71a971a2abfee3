"""Tiny thinkers of Qwen-Omni of `transformers`, which see and hear, and specs for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support import qwen_vl
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.random_models import shaken, theirs
from tests.support.specs import Box, box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.layers.initial_weights import sinusoids
from mimo_launch.spec.spec import Spec

SEEN, HEARD, MELS = 38, 39, 5
# Boxes of vision, audio and language.
LAYOUTS: dict[str, tuple[Box, Box, Box]] = {
    "one rank": (box(0), box(0), box(0)),
    "tp2": (box(0, tp=2), box(0, dp=2), box(0, tp=2, sequence_parallel=True)),
    "pp2": (box(0, dp=2), box(0, pp=2), box(0, pp=2)),
    "cp2": (box(0, tp=2), box(0, cp=2), box(0, cp=2)),
    "colocated": (box(0, dp=2), box(0, tp=2, sequence_parallel=True), box(0, dp=2)),
    "apart": (box(0, cp=2), box(2, tp=2, cp=2, sequence_parallel=True), box(6, pp=2)),
}


@dataclass(frozen=True)
class Kind:
    """A thinker: its name in classes, its parts, and what they are in a spec."""

    name: str
    audio: dict[str, Any]
    keys: dict[str, Any]
    seeing: str
    longer_than: int = 30


_AUDIO = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "num_mel_bins": MELS, "output_dim": 32,
}  # fmt: skip
_KEYS = {"layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "mels": MELS, "frames": 60}
KINDS = {
    "qwen2_5_omni": Kind(
        "Qwen2_5Omni",
        {**_AUDIO, "n_window": 6},
        {
            **_KEYS, "kind": "audio", "stack": 2, "chunk": 12, "pooling": "mean",
            "projector": "linear",
        },
        "qwen2_5_vl",
    ),
    "qwen3_omni_moe": Kind(
        "Qwen3OmniMoe",
        {
            **_AUDIO, "n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 3,
            "conv_chunksize": 2,
        },
        {**_KEYS, "kind": "aut", "channels": 3, "chunk": 100, "window": 2, "frames": 260},
        "qwen3_vl_moe",
        200,
    ),
}  # fmt: skip


def tiny(
    kind: str, dtype: torch.dtype = torch.float32, vocab: int = qwen_vl.VOCAB, **tokens: int
) -> Any:
    """Return a thinker in which no weight is a constant; `tokens` are special ones."""
    family = KINDS[kind]
    like = qwen_vl.ALL_KINDS[family.seeing]
    config = getattr(theirs(), f"{family.name}ThinkerConfig")(
        audio_config=family.audio,
        vision_config=like.vision,
        text_config=qwen_vl.TEXT | like.text | {"tie_word_embeddings": False, "vocab_size": vocab},
        **{"image_token_id": SEEN, "audio_token_id": HEARD, **tokens},
    )
    made = getattr(theirs(), f"{family.name}ThinkerForConditionalGeneration")(config)
    return shaken(made, dtype, lambda name: float("norm" in name or "ln_" in name))


# A talker of experts, its code predictor, and a vocoder, which no module of ours is.
START, END = 17, 18
_SPEECH: dict[str, Any] = {
    "talker_config": {
        "num_code_groups": 3, "thinker_hidden_size": 32, "accept_hidden_layer": 2,
        "spatial_merge_size": 2, "codec_bos_id": START, "codec_eos_token_id": END,
        "text_config": {
            "vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "moe_intermediate_size": 8,
            "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 8,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 50.0, "mrope_section": [2, 1, 1],
            },
        },
        "code_predictor_config": {
            "vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_code_groups": 3,
        },
    },
    "code2wav_config": {
        "codebook_size": 12, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 16, "num_hidden_layers": 1, "num_quantizers": 3, "decoder_dim": 16,
        "upsample_rates": [2], "upsampling_ratios": [2],
    },
}  # fmt: skip


def tiny_whole(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a whole model, with a talker of experts, in which no weight is a constant."""
    thinker = tiny(kind).config.to_dict()
    config = getattr(theirs(), f"{KINDS[kind].name}Config")(thinker_config=thinker, **_SPEECH)
    return shaken(getattr(theirs(), f"{KINDS[kind].name}ForConditionalGeneration")(config), dtype)


# What the talker of experts is in a spec.
SPEECH: dict[str, Any] = {
    "kind": "talker", "layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1, "mlp": 16, "vocab": 20,
    "start": START, "end": END, "qk_norm": True, "norm_eps": 1e-6, "rope_theta": 50.0,
    "codebooks": 3, "reads_text": "instead", "reads_layer": 2,
    "moe": {
        "experts": 4, "top_k": 2, "width": 8, "normalize": False, "shared": 8, "shared_gate": True,
    },
    "predictor": {
        "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 16, "vocab": 12,
        "rope_theta": 10000.0,
    },
}  # fmt: skip


def made(
    kind: str, layout: str, folder: Path, precision: str = "fp32", speech: Box | None = None
) -> Spec:
    """Return a spec whose modules start from a folder; samples have images and clips, or none.

    With the box of a talker they also have codes.
    """
    family, start = KINDS[kind], {"init_from": str(folder)}
    like = qwen_vl.ALL_KINDS[family.seeing]
    vision, audio, language = LAYOUTS[layout]
    modules = {
        "vision": {**vision, "model": like.keys, "placeholder": SEEN, **start},
        "audio": {**audio, "model": family.keys, "placeholder": HEARD, **start},
        "language": {**language, "model": qwen_vl.LANGUAGE_KEYS | like.language, **start},
    }
    if speech is not None:
        given = {"model": SPEECH, "reads": ["language"], "loss_weight": 0.5, **start}
        modules["speech"] = {**speech, **given}
    data = {
        "kind": "synthetic", "max_images": 2, "max_patches": 24, "text_only": 0.3,
        "min_frames": 8, "max_frames": family.keys["frames"],
    }  # fmt: skip
    train = {"steps": 1, "precision": precision, "seed": 9 if speech is None else 38}
    seq = 96 if speech is None else 128
    found = spec(modules, microbatches=2, mbs=2, seq=seq, data=data, train=train)
    assert [item for item in check(found) if item.is_error] == []
    return found


def inputs_of(model: Any, made: Spec) -> dict[str, Tensor]:
    """Return the texts, images and clips of the first step, as a thinker takes them."""
    data, ids = build_dataset(made), ids_of(made)
    images = [each for i in ids for each in data.images("train", i, "vision")]
    clips = [np.asarray(each) for i in ids for each in data.images("train", i, "audio")]
    frames = {clip.shape[1] for clip in clips}
    # Some clips end in the middle of a token, some are of several windows.
    assert {each % 2 for each in frames} == {0, 1}
    assert max(frames) > next(
        each.longer_than for each in KINDS.values() if type(model).__name__.startswith(each.name)
    )
    longest, dtype = max(frames), model.lm_head.weight.dtype
    heard = [np.pad(clip, ((0, 0), (0, longest - clip.shape[1]))) for clip in clips]
    mask = [np.arange(longest) < clip.shape[1] for clip in clips]
    pixels = torch.cat([qwen_vl._patches(image) for image in images])
    return {
        "input_ids": tokens_of(made),
        "position_ids": torch.stack([_places(data, i, made.batch.seq) for i in ids], dim=1),
        "pixel_values": pixels.to(dtype),
        "image_grid_thw": torch.tensor([[1, *qwen_vl._grid(image)] for image in images]),
        "input_features": torch.from_numpy(np.stack(heard)).to(dtype),
        "feature_attention_mask": torch.from_numpy(np.stack(mask)).long(),
    }


def _places(data: Any, sample: int, seq: int) -> Tensor:
    """Return positions on three axes: images have height and width, clips are like text."""
    spans = {each.position: each for each in data.describe("train", sample).spans.get("vision", ())}
    found: list[tuple[int, int, int]] = []
    start = 0
    while len(found) < seq:
        if (span := spans.get(len(found))) is None:
            found.append((start,) * 3)
            start += 1
            continue
        rows = [(y, x) for y in range(span.height) for x in range(span.width)]
        found += [(start, start + y, start + x) for y, x in rows]
        start += max(span.height, span.width)
    return torch.tensor(found).T


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of the first step, [samples, S, words]."""
    logits: Tensor = model(**inputs_of(model, made)).logits
    return logits


def widen_all(model: Any) -> None:
    """Compute in float64 what transformers does in float32."""
    qwen_vl.widen_all(model)
    table = model.model.audio_tower.positional_embedding
    places, width = table.positional_embedding.shape
    table.positional_embedding = torch.from_numpy(sinusoids(range(places), width))
