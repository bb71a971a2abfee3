"""Tiny models of `transformers` that hear, Voxtral to Qwen3-ASR, and specs for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.hugging_face import ids_of, tokens_of, widen
from tests.support.llava import LAYOUTS, TEXT, VOCAB
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.layers.initial_weights import sinusoids
from mimo_launch.spec.spec import Spec

TOKEN, FRAMES, MELS, CHUNK = 7, 40, 5, 100
_KEYS: dict[str, Any] = {
    "kind": "audio", "layers": 2, "hidden": 32, "heads": 4, "mels": MELS, "frames": FRAMES,
    "stack": 2,
}  # fmt: skip
_TEXT_KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "mlp": 40, "vocab": VOCAB,
    "vocab_multiple": 16, "norm_eps": 1e-6, "rope_theta": 50.0,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A family: its name in classes, its parts, what they are in a spec, and frames of clips.

    `token` and `mask` are its names for the placeholder and for the frames with sound.
    """

    name: str
    audio: dict[str, Any]
    keys: dict[str, Any]
    text: dict[str, Any]
    text_keys: dict[str, Any]
    frames: dict[str, int]
    token: str = "audio_token_id"
    mask: str = ""
    seq: int = 64


_ENCODER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_mel_bins": MELS, "max_source_positions": FRAMES // 2,
}  # fmt: skip
_POOLED = {"mlp": 48, "unpadded": True, "pooling": "mean"}
# With one row, `transformers` takes a clip for one that is still to be counted.
_VARIED = {"min_frames": 8, "max_frames": FRAMES}
_QWEN2 = ({"model_type": "qwen2"}, {"head_dim": None, "qkv_bias": True})
KINDS = {
    "voxtral": Kind(
        "Voxtral",
        _ENCODER | {"intermediate_size": 64},
        {"mlp": 64, "fixed_length": True, "projector_bias": False},
        {"model_type": "llama", "head_dim": 8},
        {"head_dim": 8},
        {},
    ),
    "qwen2_audio": Kind(
        "Qwen2Audio",
        {
            "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48, "num_mel_bins": MELS, "max_source_positions": FRAMES // 2,
        },
        _POOLED | {"projector": "linear"},
        *_QWEN2,
        _VARIED,
        "audio_token_index",
        "feature_attention_mask",
    ),
    "audioflamingo3": Kind(
        "AudioFlamingo3",
        _ENCODER | {"intermediate_size": 48},
        _POOLED,
        *_QWEN2,
        _VARIED,
        mask="input_features_mask",
    ),
    # A window is two chunks; some clips are longer.
    "qwen3_asr": Kind(
        "Qwen3ASR",
        {
            "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48, "num_mel_bins": MELS, "output_dim": 24,
            "n_window_infer": 2 * CHUNK, "downsample_hidden_size": 3,
        },
        {
            "kind": "aut", "mlp": 48, "frames": 260, "stack": 1, "channels": 3, "chunk": CHUNK,
            "window": 2, "projector": "merger",
        },
        {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True},
        {"head_dim": 8, "qk_norm": True, "tied": True},
        {"min_frames": 8, "max_frames": 260},
        mask="input_features_mask",
        seq=96,
    ),
}  # fmt: skip


def tiny(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in which no weight is a constant."""
    family, rope = KINDS[kind], {"rope_type": "default", "rope_theta": 50.0}
    text = TEXT | family.text | {"rms_norm_eps": 1e-6, "rope_parameters": rope}
    config = getattr(theirs(), f"{family.name}Config")(
        audio_config=family.audio, text_config=text, **{family.token: TOKEN}
    )
    return shaken(getattr(theirs(), f"{family.name}ForConditionalGeneration")(config), dtype)


def made(kind: str, layout: str, folder: Path, precision: str = "fp32") -> Spec:
    """Return a spec whose modules start from a folder; some samples have several clips or none."""
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    family, start = KINDS[kind], {"init_from": str(folder)}
    words = _TEXT_KEYS | family.text_keys
    modules = {
        "audio": box(0, placeholder=TOKEN, model=_KEYS | family.keys, **start, **encoder),
        "language": box(language.pop("first", 0), model=words, **start, **language),
    }
    data = {"kind": "synthetic", "max_images": 2, "text_only": 0.4, **family.frames}
    train = {"steps": 1, "precision": precision, "seed": 5}
    found = spec(modules, microbatches=2, mbs=2, seq=family.seq, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def heard(clips: list[np.ndarray], dtype: torch.dtype, mask: str) -> dict[str, Tensor]:
    """Return clips of several lengths with a mask of the frames with sound.

    Behind the frame of silence that the last token sees stands noise, which nobody should hear. Of
    the last two frames of a clip, the first may be the last one with sound.
    """
    if not clips:
        return {}
    random = np.random.default_rng(0)
    frames, masks = [], []
    for number, clip in enumerate(clips):
        tokens = clip.shape[1] // 2
        rest = random.normal(size=(MELS, FRAMES - clip.shape[1])) * 3
        frames.append(np.concatenate([clip, rest], axis=1))
        masks.append(np.arange(FRAMES) < 2 * tokens - number % 2)
    return {
        "input_features": torch.from_numpy(np.stack(frames)).to(dtype),
        mask: torch.from_numpy(np.stack(masks)).long(),
    }


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    rows, data, frames, counts = [], build_dataset(made), set(), set()
    varied = made.modules["audio"].model.unpadded
    masks = {each.name: each.mask for each in KINDS.values()}
    mask = masks[type(model).__name__.removesuffix("ForConditionalGeneration")]
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        clips = [np.asarray(each) for each in data.images("train", sample, "audio")]
        counts.add(len(clips))
        frames |= {clip.shape[1] for clip in clips}
        if made.modules["audio"].model.kind == "aut":
            inputs = in_chunks(clips, model.dtype)
        elif varied:
            inputs = heard(clips, model.dtype, mask)
        else:
            inputs = whole(clips, model.dtype)
        rows.append(model(input_ids=tokens[None], **inputs).logits)
    assert counts == {0, 1, 2}
    if made.modules["audio"].model.kind == "aut":
        # Some are of several windows, some end in the middle of a token.
        assert max(frames) > 2 * CHUNK
        assert {each % 2 for each in frames} == {0, 1}
    elif varied:
        # Some clips have a token that is no row.
        assert {each // 2 % 2 for each in frames} == {0, 1}
        assert max(frames) < FRAMES
    return torch.cat(rows)


def whole(clips: list[np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return clips of one length as a Voxtral takes them."""
    return {"input_features": torch.from_numpy(np.stack(clips)).to(dtype)} if clips else {}


def in_chunks(clips: list[np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return clips as a Qwen3-ASR takes them: whole chunks, with zeros after each clip."""
    if not clips:
        return {}
    longest = -(-max(clip.shape[1] for clip in clips) // CHUNK) * CHUNK
    frames = [np.pad(clip, ((0, 0), (0, longest - clip.shape[1]))) for clip in clips]
    masks = [np.arange(longest) < clip.shape[1] for clip in clips]
    return {
        "input_features": torch.from_numpy(np.stack(frames)).to(dtype),
        "input_features_mask": torch.from_numpy(np.stack(masks)).long(),
    }


def exact(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 what `transformers` computes in float32, a table of positions, too."""
    del monkeypatch
    widen(model)
    table = getattr(model.model.audio_tower, "positional_embedding", None)
    if table is not None:
        places, width = table.positional_embedding.shape
        table.positional_embedding = torch.from_numpy(sinusoids(range(places), width))
