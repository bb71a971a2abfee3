"""Clips and conversations are as the processors of Qwen2.5-Omni and Qwen3-Omni make them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.support.shards import clip_bytes, tokenizer_folder, write_shard
from tests.support.specs import box
from tests.unit.test_clips_of_qwen2_audio import conversation
from tests.unit.test_record_facts import assert_one_by_one
from tests.unit.test_shard_samples import opened, shard_spec
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import (
    _get_feat_extract_output_lengths as tokens_of_2_5,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    _get_feat_extract_output_lengths as tokens_of_3,
)

# What a template writes around the placeholder.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
TOKENS = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|im_start|>", "<|im_end|>")
SIZES = {"mels": 128, "frames": 3000}
MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "qwen2_5_omni": (
        {"kind": "audio", "stack": 2, "chunk": 200, "pooling": "mean", **SIZES}, tokens_of_2_5,
    ),
    "qwen3_omni_moe": ({"kind": "aut", **SIZES}, tokens_of_3),
}  # fmt: skip
# Samples of clips, 160 to a frame: parts of a token, of one chunk, and several chunks.
CLIPS = (1_600, 1_601, 1_760, 1_920, 2_079, 16_000, 16_001, 64_000, 64_160, 40_001, 479_999)


@pytest.mark.parametrize("name", MODELS)
def test_features_and_rows_are_those_of_the_processor(name: str, tmp_path: Path) -> None:
    """Features within 1e-5, of each frame that the clip has and no more."""
    model, rows_of = MODELS[name]
    folder = tokenizer_folder(tmp_path / "words", TEMPLATE, specials=TOKENS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=128)
    sounds = [clip_bytes(size, seed=size) for size in CLIPS]
    records = [
        (f"{i:02}", {"0.wav": each, "json": {"messages": conversation([0])}})
        for i, each in enumerate(sounds)
    ]
    write_shard(tmp_path / "a.tar", records)
    placeholder = tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    modules = {"sound": box(model=model, placeholder=placeholder)}
    data = opened(shard_spec(tmp_path, modules, tokenizer=str(folder), template="chat", seq=4096))
    assert [each["why"] for each in data.splits["train"].index.bad()] == []
    assert_one_by_one(data)
    for number, sound in enumerate(sounds):
        (span,) = data.describe("train", number).spans["sound"]
        (clip,) = map(np.asarray, data.images("train", number, "sound"))
        heard = soundfile.read(io.BytesIO(sound), dtype="float32")[0]
        wanted = extractor(
            heard, sampling_rate=16_000, return_attention_mask=True, padding="max_length"
        )
        frames = int(wanted["attention_mask"].sum())
        assert clip.shape == (128, frames)
        assert np.abs(clip - wanted["input_features"][0][:, :frames]).max() <= 1e-5
        tokens = data.text("train", number)[0]
        assert int((tokens == placeholder).sum()) == span.rows == rows_of(frames)
