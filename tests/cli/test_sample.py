"""`mimo-launch sample`: pictures and answers of a checkpoint, on any layout."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.specs import box, spec

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.cli.app import run
from mimo_launch.cli.sample import weights_from_nowhere
from mimo_launch.data.build import build_dataset
from mimo_launch.data.digit_images import PIXEL_DEVIATION, load_digits
from mimo_launch.layout.step_data import SampleData, StepData
from mimo_launch.spec.adapters import AdapterSpec
from mimo_launch.train.evaluation import Answer, Drawn, picture
from mimo_launch.train.samples import _written, sheet_of

DRAW = """
version: 1
name: draw
modules:
  vision: {{model: {{kind: vit, layers: 1, hidden: 16, heads: 2, patch: 4}}, ranks: 0}}
  language: {{model: {{kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: digits}}, ranks: 0}}
  drawer:
    model: {{kind: flow, layers: 2, hidden: 16, heads: 2, patch: 2}}
    ranks: {ranks}
    grid: {grid}
    sequence_parallel: {parallel}
    reads: [language]
batch: {{global: 4, seq: 24}}
data: {{kind: digits, tasks: [read, draw], max_digits: 3}}
train: {{steps: 2}}
eval: {{samples: 4}}
"""


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.*")) if file.is_file()}


def test_pictures_and_answers_are_those_of_any_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("draw.yaml").write_text(DRAW.format(ranks=0, grid="{}", parallel="false"))
    Path("other.yaml").write_text(DRAW.format(ranks="0-1", grid="{tp: 2}", parallel="true"))
    assert run(["train", "draw.yaml"]) == 0
    assert "drawn digits recognised" in capsys.readouterr().out
    assert run(["sample", "runs/draw", "--to", "one", "--samples", "8"]) == 0
    shorter = ["--to", "two", "--samples", "8", "--spec", "other.yaml", "--tokens", "1"]
    assert run(["sample", "runs/draw", *shorter]) == 0
    one, two = written(Path("one")), written(Path("two"))
    assert one.keys() == two.keys()
    assert {"drawer.png", "samples.jsonl"} < one.keys()
    lines, others = (
        [json.loads(line) for line in to["samples.jsonl"].decode().splitlines()]
        for to in (one, two)
    )
    # One token of an answer is one letter.
    assert any(len(line.get("answer", "")) > 1 for line in lines)
    coarse = ["--to", "coarse", "--samples", "8", "--steps", "1"]
    assert run(["sample", "runs/draw", *coarse]) == 0
    assert all(Path("coarse", each).read_bytes() != one[each] for each in one if "-" in each)
    assert others == [
        line | ({"answer": line["answer"][:1]} if "answer" in line else {}) for line in lines
    ]
    pictures = [name for line in lines for name in line.get("pictures", {}).get("drawer", [])]
    assert len(pictures) == len(one) - 2 > 0
    # What asks for a picture has no answer in words.
    assert {"answer" in line for line in lines} == {True, False}
    for name in pictures:
        ours, theirs = (np.asarray(Image.open(f"{to}/{name}")).astype(int) for to in ("one", "two"))
        assert ours.shape == (8, 8)
        # Rounded to whole numbers of grey from sums in another order.
        assert abs(ours - theirs).max() <= 1


TALK = """
version: 1
name: talk
modules:
  language: {{model: {{kind: decoder, layers: 2, hidden: 16, heads: 2, vocab: digits}}, ranks: {language}}}
  speech:
    model: {{kind: talker, layers: 2, hidden: 16, heads: 2, codebooks: 8, vocab: 19, reads_text: true}}
    ranks: {ranks}
    grid: {grid}
    reads: [language]
batch: {{global: 4, seq: 16}}
data: {{kind: digits, tasks: [draw], max_digits: 2}}
train: {{steps: 2, precision: fp64}}
eval: {{samples: 4}}
"""  # noqa: E501 - A line of a spec.


def test_codes_are_those_of_any_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A digit is eight frames of eight pixels; each is said behind those before it."""
    monkeypatch.chdir(tmp_path)
    Path("talk.yaml").write_text(TALK.format(language=0, ranks=0, grid="{}"))
    Path("other.yaml").write_text(TALK.format(language=0, ranks="1-4", grid="{cp: 2, pp: 2}"))
    assert run(["train", "talk.yaml"]) == 0
    assert "  codes " in capsys.readouterr().out
    for to, more in (("one", []), ("two", ["--spec", "other.yaml"])):
        assert run(["sample", "runs/talk", "--to", to, "--samples", "4", *more]) == 0
    assert written(Path("one")) == written(Path("two"))
    lines = [json.loads(line) for line in Path("one/samples.jsonl").read_text().splitlines()]
    clips = [np.load(f"one/{name}") for line in lines for name in line["codes"]["speech"]]
    assert len(clips) == sum(len(line["pictures"]["speech"]) for line in lines) > 4
    assert all(clip.shape[0] == 8 and clip.shape[1] <= 8 for clip in clips)


def test_a_run_without_a_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sample", str(tmp_path), "--to", str(tmp_path / "to")]) == 2
    assert "checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_no_folder_that_the_run_started_from_is_needed(tmp_path: Path) -> None:
    adapter = {"rank": 2, "init_from": "tuned"}
    made = spec({"vision": box(0), "language": box(1, init_from="weights", adapter=adapter)})
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(made.model_dump(mode="json", by_alias=True)))
    found = load_and_check(file, weights_from_nowhere(made), on_gpus=False)
    assert found.spec is not None, found.diagnostics
    assert found.spec.language.adapter == AdapterSpec(rank=2)


def test_a_sheet_holds_every_picture() -> None:
    pictures = [np.full((1, 8, 8), value, np.uint8) for value in range(5)]
    sheet = sheet_of(pictures)
    assert sheet.shape == (1, 19, 28)
    assert set(np.unique(sheet)) == {*range(5), 255}
    assert (sheet[0, 10:18, 10:18] == 4).all()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_sheet_has_room_for_its_largest_picture(is_reversed: bool) -> None:
    """Wherever it is: here one picture is as wide, another as high as any."""
    sizes = [(8, 2), (2, 8), (4, 4)]
    pictures = [np.full((1, *size), value, np.uint8) for value, size in enumerate(sizes)]
    pictures = pictures[::-1] if is_reversed else pictures
    sheet = sheet_of(pictures)
    assert sheet.shape == (1, 19, 19)
    assert all((sheet == each[0, 0, 0]).sum() == each.size for each in pictures)


def test_a_line_tells_all_that_was_made_for_a_sample_and_nothing_has_no_line(
    tmp_path: Path,
) -> None:
    """Two generators draw what the first sample asks for; none has anything for the third."""

    class Words:
        def name(self, _split: str, index: int) -> str:
            return f"record {index}"

        def words(self, tokens: tuple[int, ...]) -> str:
            return " ".join(map(str, tokens))

        def pixels(self, _generator: str, image: np.ndarray) -> np.ndarray:
            return image

        def count_recognised(self, _split: str, _index: int, images: tuple) -> tuple[int, int]:
            return len(images), len(images) + 1

    data: Any = SimpleNamespace(data=StepData(0, [SampleData(n, 4, 1) for n in (5, 6, 7)]))
    image = np.zeros((1, 2, 2), np.uint8)
    found = [
        ([], [Drawn("left", 5, (image,)), Drawn("right", 5, (image, image))]),
        ([Answer(1, (1, 2), (1, 3)), Answer(2, (4,), ())], []),
    ]
    sheets: dict[str, list[np.ndarray]] = {}
    dataset: Any = Words()
    assert list(_written(dataset, data, found, tmp_path, sheets)) == [
        {
            "sample": "record 5",
            "pictures": {
                "left": ["left-00000005-0.png"],
                "right": ["right-00000005-0.png", "right-00000005-1.png"],
            },
            "recognised": 3,
            "of": 5,
        },
        {"sample": "record 6", "answer": "1 2", "true": "1 3"},
    ]
    assert {name: len(each) for name, each in sheets.items()} == {"left": 1, "right": 2}


def test_patches_become_the_picture_they_were_cut_from() -> None:
    import torch

    from mimo_launch.models.patches import cut_image

    flow = {"kind": "flow", "patch": 2, "channels": 3}
    made = spec({"language": box(0), "drawer": box(0, model=flow, reads=["language"])})
    model = made.modules["drawer"].model
    image = np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)
    cut = cut_image(image, images=model, dtype=torch.float32, pinned=False)
    assert (picture(cut.values, 3, 2, model) == image).all()


def test_digits_to_draw_have_words_pictures_and_a_judge() -> None:
    asked = {"kind": "digits", "tasks": ["read", "draw"], "max_digits": 3}
    made = spec(
        {
            "vision": box(0, model={"patch": 4}),
            "language": box(0, model={"vocab": "digits"}),
            "drawer": box(0, model={"kind": "flow", "patch": 2}, reads=["language"]),
        },
        data=asked,
        seq=24,
    )
    dataset = build_dataset(made)
    drawn = [i for i in range(40) if dataset.strip("heldout", i).is_drawn]
    assert 10 < len(drawn) < 30
    for index in drawn:
        data, images = (
            dataset.describe("heldout", index),
            dataset.images("heldout", index, "drawer"),
        )
        assert dataset.images("heldout", index, "vision") == []
        assert data.num_labels == 0
        assert [span.num_positions for span in data.spans["drawer"]] == [1] * len(images)
        # The real held-out images are nearly all judged as what they are.
        right, judged = dataset.count_recognised("heldout", index, images)
        assert judged == len(images)
        assert right >= judged - 1
        shown = load_digits().images[list(dataset.strip("heldout", index).images)].astype(float)
        pixels = np.stack([dataset.pixels("drawer", image)[0] for image in images])
        assert abs(pixels - shown * 255 / 16).max() <= 0.501
        assert abs(np.stack(images) * PIXEL_DEVIATION + 5 - shown[:, None]).max() < 1e-4


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "flow", "patch": 2, "channels": 1},
        {"kind": "flow", "patch": 2, "channels": 3},
        {"kind": "talker", "codebooks": 1, "vocab": 19},
        {"kind": "talker", "codebooks": 8, "vocab": 19},
    ],
    ids=lambda each: " ".join(map(str, each.values())),
)
def test_a_digit_is_judged_by_all_of_its_channels_and_codes(model: dict[str, Any]) -> None:
    """Neither one channel alone shows the digit, nor codes in another order."""
    drawer = box(0, model=model, reads=["language"])
    made = spec(
        {"language": box(0, model={"vocab": "digits"}), "drawer": drawer},
        data={"kind": "digits", "tasks": ["draw"], "max_digits": 3},
        seq=24,
    )
    dataset, rng = build_dataset(made), np.random.default_rng(0)
    found, wrong = np.zeros(2, int), 0
    for index in range(20):
        images = dataset.images("heldout", index, "drawer")
        channels = model.get("channels", 1)
        noise = rng.normal(scale=5, size=(channels, 8, 8)).astype(np.float32)
        noise -= noise.mean(axis=0)
        drawn = [each + noise if "channels" in model else each for each in images]
        # What is said behind the last pixel does not count.
        drawn = [each if "channels" in model else np.tile(each, 2) for each in drawn]
        found += dataset.count_recognised("heldout", index, drawn)
        ones = [each[:1] if "channels" in model else each[::-1] for each in drawn]
        wrong += len(images) - dataset.count_recognised("heldout", index, ones)[0]
    right, judged = found
    assert judged > 30
    assert right >= 0.95 * judged
    # Where there are several, one of them or another order is judged otherwise.
    several = model.get("channels", 1) > 1 or model.get("codebooks", 1) > 1
    assert (wrong > judged / 2) == several
