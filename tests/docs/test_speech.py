"""The page of spoken digits in short: few clips, few steps; test_worked_example.py runs it whole.

That the model hears and says digits is what the page proves; this shows that its files go together.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tests.docs.test_docs import ROOT, write_files
from tests.docs.test_worked_example import MARK, run
from tests.support.hugging_face import save
from tests.support.qwen_omni import tiny

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
