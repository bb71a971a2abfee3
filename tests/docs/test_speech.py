"""The page of spoken digits in short: few clips, few steps; test_worked_example.py runs it whole.

That the model hears and says digits is what the page proves; this shows that its files go together.
"""

import json
import re
from pathlib import Path

import numpy as np
from tests.docs.test_docs import ROOT, write_files
from tests.docs.test_worked_example import MARK, run

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
