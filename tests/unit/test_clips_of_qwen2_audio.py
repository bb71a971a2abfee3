"""Clips and conversations become what the processor of a Qwen2-Audio makes of them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.support.shards import clip_bytes, tokenizer_folder, write_shard
from tests.support.specs import box
from tests.unit.test_shard_samples import opened, shard_spec
from transformers import AutoTokenizer, Qwen2AudioProcessor, WhisperFeatureExtractor

TOKENS = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
MODEL: dict[str, Any] = {
    "kind": "audio", "mels": 128, "frames": 3000, "stack": 2, "unpadded": True, "pooling": "mean",
}  # fmt: skip
# Frames of 160 samples: of each remainder by the four of a row, of half a minute and nearly so.
CLIPS = (1_600, 1_601, 1_760, 1_920, 2_079, 16_000, 479_999, 480_000, 479_500, 700)
SAID = [[0, 1], [2], [3, 4, 5], [], [6], [7], [8, 9]]


def conversation(clips: list[int]) -> list[dict[str, Any]]:
    asked = [{"type": "audio", "audio": str(each)} for each in clips]
    return [
        {"role": "user", "content": [*asked, {"type": "text", "text": "What is heard?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"{len(clips)} clips."}]},
    ]


@pytest.mark.parametrize("asks_for_type", [True, False])
def test_features_and_tokens_are_those_of_the_processor(
    asks_for_type: bool, tmp_path: Path
) -> None:
    """Features within 1e-5. Some templates ask for a key `audio`, others also for the type."""
    template = Qwen2AudioProcessor.default_chat_template.fget(None)
    by_type = " or content['type'] == 'audio'"
    assert by_type in template
    template = template if asks_for_type else template.replace(by_type, "")
    folder = tokenizer_folder(tmp_path / "words", template, specials=TOKENS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=128)
    processor = Qwen2AudioProcessor(extractor, tokenizer, chat_template=template)
    sounds = [clip_bytes(size, seed=size) for size in CLIPS]
    records = [
        (
            f"{number}",
            {
                **{f"{i}.wav": sounds[clip] for i, clip in enumerate(clips)},
                "json": {"messages": conversation(clips)},
            },
        )
        for number, clips in enumerate(SAID)
    ]
    write_shard(tmp_path / "a.tar", records)
    placeholder = tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    modules = {"sound": box(model=MODEL, placeholder=placeholder)}
    data = opened(shard_spec(tmp_path, modules, tokenizer=str(folder), template="chat", seq=4096))
    assert [each["why"] for each in data.splits["train"].index.bad()] == []
    assert data.num_samples("train") == len(SAID)
    for number, clips in enumerate(SAID):
        heard = [soundfile.read(io.BytesIO(sounds[each]), dtype="float32")[0] for each in clips]
        text = processor.apply_chat_template(conversation(clips), tokenize=False)
        wanted = processor(text=[text], audio=heard or None, sampling_rate=16_000)
        found = data.describe("train", number)
        tokens = data.text("train", number)[0][: found.num_tokens]
        assert tokens.tolist() == wanted["input_ids"][0]
        for clip, span, features, mask in zip(
            map(np.asarray, data.images("train", number, "sound")),
            found.spans.get("sound", ()),
            wanted.get("input_features", ()),
            wanted.get("feature_attention_mask", ()),
            strict=True,
        ):
            tokens_heard = -(-int(np.sum(mask)) // 2)
            assert 2 * span.rows + span.loose == clip.shape[1] // 2 == tokens_heard
            # With the frame behind the last token, unless the clip is half a minute long.
            assert clip.shape[1] == min(2 * tokens_heard + 1, 3000)
            assert np.abs(clip - np.asarray(features)[:, : clip.shape[1]]).max() <= 1e-5


def test_a_clip_of_a_single_token_has_no_row(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "<audio>"}, {"role": "assistant", "content": "ho"}]
    lengths = {"row": 480 + 1, "token": 320}
    records = [(k, {"wav": clip_bytes(n), "json": {"messages": said}}) for k, n in lengths.items()]
    write_shard(tmp_path / "a.tar", records)
    found = opened(shard_spec(tmp_path, {"sound": box(model=MODEL)}))
    assert [found.name("train", i) for i in range(found.num_samples("train"))] == ["a.tar row"]
    (bad,) = found.splits["train"].index.bad()
    assert bad["why"] == "for `sound`, a clip of 0.02 s is too short for a row"
