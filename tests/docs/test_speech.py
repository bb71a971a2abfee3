"""The page of spoken digits in short: few clips, few steps; test_worked_example.py runs it whole.

That the model hears and says digits is what the page proves; this shows that its files go together.
"""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tests.docs.test_docs import ROOT, write_files
from tests.docs.test_worked_example import MARK, run
from tests.support import omni, qwen_vl
from tests.support.hugging_face import save
from tests.support.qwen_omni import tiny
from tests.support.shards import clip_bytes, write_shard
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
SHORT = f"""
set -e
echo '{MARK}0'
python make_speech.py 0 32
mimo-launch train speech.yaml --set train.steps=2 --set batch.global=8 --set eval=null
mimo-launch sample runs/speech --to said --samples 4 --tokens 2
echo '{MARK}1'
python score.py said || true
echo '{MARK}2'
python -c 'import speech
known = [speech.say(each) for each in range(10)]
listener = speech.Listener(known * 5, list(range(10)) * 5)
codec = speech.Codec(known, speech.np.random.default_rng(0))
print([listener.recognise(codec.decode(codec.encode(each))) for each in known])'
"""


def test_digits_are_heard_said_and_judged_in_short(tmp_path: Path) -> None:
    write_files(ROOT / "docs" / "speech.md", tmp_path)
    made, scored, known = run(SHORT, tmp_path)
    text = (tmp_path / "said" / "samples.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(each) for each in text.splitlines()]
    assert len(lines) == 4, made
    for line in lines:
        assert line["true"] in WORDS
        # Two steps teach no end, so both tokens may be words.
        assert len(line["answer"].split()) <= 2
        codes = np.load(tmp_path / "said" / line["codes"]["mouth"][0])
        assert codes.shape[0] == 2
        assert codes.shape[1] <= 21
    assert re.fullmatch(r"heard \d+\.\d%, said back \d+\.\d% of 4\n", scored)
    # The judge knows the voice of the codec.
    assert json.loads(known) == list(range(10))


@pytest.mark.example
def test_the_vocoder_of_a_folder_makes_sound_of_codes(tmp_path: Path) -> None:
    write_files(ROOT / "docs" / "speech.md", tmp_path)
    model, said = tiny(), tmp_path / "said"
    save(model, tmp_path / "omni")
    voice = {"cond": torch.randn(1, 8), "ref_mel": torch.randn(1, 30, 8)}
    torch.save({"Chelsie": voice}, tmp_path / "omni" / "spk_dict.pt")
    said.mkdir()
    lengths = []
    for frames in (9, 14):
        np.save(said / f"{frames}.npy", np.zeros((1, frames), np.int64))
    run(f"set -e\necho '{MARK}0'\npython waves.py omni said Chelsie", tmp_path)
    for frames in (9, 14):
        wave, rate = soundfile.read(said / f"{frames}.wav")
        assert rate == 24_000
        lengths.append(len(wave) / frames)
    # As many samples for each frame.
    assert lengths[0] == lengths[1] > 100


ANSWERS = """
set -e
echo '=== command 0'
mimo-launch train omni.yaml
mimo-launch sample runs/omni --to said --samples 2 --tokens 3
python code2wav.py model said
"""


def heard_and_said(folder: Path) -> dict[str, Any]:
    """Write clips that a tiny Qwen3-Omni in `model` answers in codes; return a spec for them."""
    specials = ["<end>", "<user>", "<model>"]
    names = [*specials, *(f"w{number}" for number in range(len(specials), omni.HEARD)), "<sound>"]
    words = Tokenizer(models.WordLevel({each: at for at, each in enumerate(names)}, unk_token="w9"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([*specials, "<sound>"])
    (folder / "words").mkdir()
    words.save(str(folder / "words" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "words" / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "words" / "chat_template.jinja").write_text(
        "{% for message in messages %}<{{ 'model' if message.role == 'assistant' else 'user' }}>"
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}{{ '<sound>' if part.type == 'audio' else part.text }}"
        "{% endfor %}{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
    )
    said = {"role": "assistant", "content": "<target>w5 w6"}
    asked = {"messages": [{"role": "user", "content": "<audio>"}, said]}
    codes = io.BytesIO()
    np.save(codes, np.random.default_rng(0).integers(0, 12, (3, 5)))
    members = {"target.npy": codes.getvalue(), "json": asked}
    clips = [(f"{at}", {"wav": clip_bytes(24_000, seed=at), **members}) for at in range(4)]
    write_shard(folder / "clips.tar", clips)
    like, start = qwen_vl.ALL_KINDS["qwen3_vl_moe"], {"init_from": "model"}
    ears = omni.KINDS["qwen3_omni_moe"].keys
    words_of = {"kind": "decoder", **qwen_vl.LANGUAGE_KEYS, **like.language}
    place = {"ranks": 0, **start}
    return {
        "version": 1,
        "name": "omni",
        "modules": {
            "audio": {"model": ears, "placeholder": omni.HEARD, **place},
            "language": {"model": words_of, **place},
            "mouth": {"model": omni.SPEECH, "reads": ["language"], **place},
        },
        "batch": {"global": 2, "seq": 48},
        "data": {
            "kind": "webdataset", "shards": "clips.tar", "eval_shards": "clips.tar",
            "tokenizer": "words", "template": "chat", "target_reads": 4,
        },
        "optimizer": {"kind": "adamw", "lr": 1e-3},
        "train": {"steps": 1, "precision": "fp32"},
        "eval": {"every": 1, "samples": 2},
        "checkpoint": {"every": 1},
    }  # fmt: skip


@pytest.mark.example
def test_a_qwen3_omni_hears_a_clip_and_says_codes_of_which_its_folder_makes_sound(
    tmp_path: Path,
) -> None:
    write_files(ROOT / "docs" / "speech.md", tmp_path)
    model = omni.tiny_whole("qwen3_omni_moe")
    save(model, tmp_path / "model")
    (tmp_path / "omni.yaml").write_text(json.dumps(heard_and_said(tmp_path)))
    run(ANSWERS, tmp_path)
    text = (tmp_path / "said" / "samples.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(each) for each in text.splitlines()]
    assert [each["true"] for each in lines] == ["w5 w6"] * 2
    for line in lines:
        (name,) = line["codes"]["mouth"]
        codes = np.load(tmp_path / "said" / name)
        assert codes.shape[0] == 3
        wave, rate = soundfile.read((tmp_path / "said" / name).with_suffix(".wav"))
        assert rate == 24_000
        with torch.no_grad():
            there = model.code2wav(torch.from_numpy(codes)[None]).flatten().numpy()
        # Stored with 16 bits.
        assert wave.shape == there.shape
        assert np.abs(wave - there).max() < 1e-3
