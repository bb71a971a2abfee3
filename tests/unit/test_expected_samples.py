"""Samples of shards that are not here, as `data.expect` or a file of statistics describes them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.files_page import ROOT
from tests.support.shards import shard_data
from tests.support.specs import box, spec
from tests.unit.test_expected_steps import walk
from tests.unit.test_known_shards import data_set

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.expected_steps import ExpectedSteps, expected_steps
from mimo_launch.data.fact_source import Source
from mimo_launch.data.sample_statistics import BadStatistics, read_statistics, statistics_text
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

VIT = {"kind": "vit", "patch": 4, "shuffle": 2, "channels": 3}


def expecting(
    folder: Path, expect: object, modules: dict[str, Any] | None = None, **more: Any
) -> Spec:
    """A spec of shards and a tokenizer that do not exist."""
    boxes = modules or {"vision": box(0, dp=2, model=VIT)}
    made = {**boxes, "language": box(2, model={"vocab": 400})}
    data = shard_data(folder, expect=expect, **more)
    settings = {"steps": 20, "precision": "fp64"}
    return spec(made, seq=512, mbs=4, microbatches=4, data=data, train=settings)


def samples(steps: ExpectedSteps) -> Iterator[SampleData]:
    for step in steps.sampled:
        yield from step.samples


def test_without_shards_and_without_expect_a_plan_guesses_and_says_so(tmp_path: Path) -> None:
    found = expected_steps(expecting(tmp_path, None))
    assert (found.source, found.looked_at) == (Source.GUESS, 0)
    assert found.sampled == found.heaviest
    assert "guess" in found.basis
    assert "expect: {images: 1.5, rows: 240, text: 400}" in found.basis


@pytest.mark.parametrize("packing", [False, True])
def test_a_plan_makes_samples_of_the_numbers_in_expect(packing: bool, tmp_path: Path) -> None:
    made = expecting(
        tmp_path, {"images": 1.5, "rows": 30, "text": 40.25, "text_only": 0.2}, packing=packing
    )
    found = expected_steps(made)
    assert found.source is Source.EXPECT
    records = [record for each in samples(found) for record in each.records]
    images = [len(each.spans.get("vision", ())) for each in records]
    assert {*images} == {0, 1, 2}
    # A pack of texts holds many of them, so the share of texts differs between packs.
    assert sum(images) / len(images) == pytest.approx(0.8 * 1.5, rel=0.2 if packing else 0.1)
    assert images.count(0) / len(images) == pytest.approx(0.2, abs=0.1)
    rows = {span.rows for each in records for span in each.spans.get("vision", ())}
    assert rows == {30}
    text = [each.num_tokens - each.rows("vision") for each in records]
    assert {*text} == {40, 41}
    # Of texts about three in five tokens are learnt, and of rows none.
    assert all(0.5 < each.num_labels / n < 0.6 for each, n in zip(records, text, strict=True))
    expected = 76.25 / 512
    if packing:
        assert found.padding < 0.1
        expected = 1 - found.padding_with(packing=False)
    assert found.padding_with(packing=False) == pytest.approx(1 - expected, abs=0.02)
    assert found.padding_with(packing=True) < 0.1


def test_percentiles_say_how_samples_differ(tmp_path: Path) -> None:
    found = expected_steps(
        expecting(tmp_path, {"images": [0, 1, 3], "rows": [4, 64], "text": [10, 100, 460]})
    )
    images = [len(each.spans.get("vision", ())) for each in samples(found)]
    assert {*images} == {0, 1, 2, 3}
    text = [each.num_tokens - each.rows("vision") for each in samples(found)]
    assert 10 <= min(text) < 20
    assert 300 < max(text) <= 460
    assert sum(each < 100 for each in text) / len(text) == pytest.approx(0.5, abs=0.1)
    heaviest = max(each.rows("vision") for step in found.heaviest for each in step.samples)
    assert heaviest >= max(each.rows("vision") for each in samples(found))


def test_numbers_are_by_module_and_videos_are_temporal_patches(tmp_path: Path) -> None:
    hearing = {"kind": "audio", "mels": 80, "frames": 200}
    video = {"temporal_patch": 2, "video": {"time": "patches"}}
    modules = {
        "vision": box(0, model={**VIT, **video}),
        "sound": box(1, model=hearing),
    }
    expect = {
        "images": {"sound": 2}, "rows": {"sound": 5}, "text": 50,
        "videos": 1, "temporal_patches": 6, "frame_rows": 9,
    }  # fmt: skip
    found = expected_steps(expecting(tmp_path, expect, modules))
    for each in samples(found):
        assert [span.rows for span in each.spans["sound"]] == [5, 5]
        assert [span.rows for span in each.spans["vision"]] == [9] * 6
        assert each.num_tokens == 50 + 10 + 54


@pytest.mark.parametrize("kind", ["photographs and chats", "sound and videos"])
def test_a_file_of_statistics_stands_for_the_shards(kind: str, tmp_path: Path) -> None:
    made = data_set(kind, tmp_path)
    file = tmp_path / "stats.json"
    file.write_text(statistics_text(made, build_dataset(made)))
    steps = walk(made)
    away = made.data.model_copy(update={"shards": "away/*.tar", "expect": str(file)})
    found = expected_steps(made.model_copy(update={"data": away}))
    assert found.source is Source.EXPECT
    assert found.tokens == sum(each.num_tokens for step in steps for each in step.samples)
    # All but the ids, which only the shards have.
    for shown in found.sampled:
        real = steps[shown.step].samples
        assert [(s.num_tokens, s.num_labels, s.spans) for s in shown.samples] == [
            (s.num_tokens, s.num_labels, s.spans) for s in real
        ]


def test_a_file_of_which_samples_differ_in_depths_is_damaged(tmp_path: Path) -> None:
    made = load_spec(ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml").spec
    assert made is not None
    found = json.loads((ROOT / "docs/measured/photographs.json").read_text())
    found["sizes"][3][2] = [70, 60]
    (tmp_path / "stats.json").write_text(json.dumps(found))
    with pytest.raises(BadStatistics, match=r"stats.json is damaged: .* at unlike depths"):
        read_statistics(made, tmp_path / "stats.json")


def test_a_file_of_an_older_version_is_read() -> None:
    """It lacks what is new, such as the sound of videos."""
    made = load_spec(ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml").spec
    assert made is not None
    samples, number = read_statistics(made, ROOT / "docs/measured/photographs.json")
    assert (len(samples), number) == (512, 512)
    first = samples[0]
    assert (first.num_tokens, first.num_labels) == (831, 75)
    assert [(s.position, s.height, s.width, s.parts) for s in first.spans["vision"]] == [
        (6, 12, 21, ()), (260, 13, 18, ()), (496, 13, 18, ()),
    ]  # fmt: skip
    assert not any(span.joined for each in samples for span in each.spans.get("vision", ()))


def test_samples_that_are_too_long_are_no_part_of_an_epoch(tmp_path: Path) -> None:
    made = load_spec(ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml", ["batch.seq=512"]).spec
    assert made is not None
    found = json.loads((ROOT / "docs/measured/photographs.json").read_text())
    found["samples"] *= 10
    (tmp_path / "stats.json").write_text(json.dumps(found))
    samples, number = read_statistics(made, tmp_path / "stats.json")
    assert len(samples) == sum(size[0] <= 512 for size in found["sizes"]) < 512
    assert number == 10 * len(samples)


def test_a_text_is_cut_behind_its_rows_and_a_sample_without_room_for_one_left_out(
    tmp_path: Path,
) -> None:
    expect = {"images": [1, 9], "rows": 90, "text": 300}
    found = expected_steps(expecting(tmp_path, expect, too_long="truncate"))
    made = list(samples(found))
    assert {each.rows("vision") for each in made} == {n * 90 for n in range(1, 6)}
    assert all(each.num_tokens == min(512, each.rows("vision") + 300) for each in made)


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        ({"images": {"eye": 1}, "text": 3}, "encoders of this spec: `vision`"),
        ({"images": 9, "rows": 90, "text": 3}, "no sample has room in `batch.seq` 512"),
        ("nowhere.json", "cannot be read"),
        ({"version": 4}, "was not written by"),
        ({"version": 1, "modules": ["vision", "language"], "sizes": 3}, "is damaged"),
        ({"version": 1, "modules": ["eye", "language"], "sizes": []}, "is for the modules eye"),
    ],
)
def test_what_cannot_be_expected_is_an_error(expect: Any, why: str, tmp_path: Path) -> None:
    if "version" in expect:
        file = tmp_path / "stats.json"
        file.write_text(json.dumps(expect))
        expect = str(file)
    [found] = [x for x in check(expecting(tmp_path, expect)) if x.code == "expect-not-usable"]
    assert found.is_error
    assert why in found.why


def test_a_generator_has_rows_of_what_it_makes_and_no_images(tmp_path: Path) -> None:
    draw = box(1, model={"kind": "flow"}, reads=["language"])
    modules = {"vision": box(0, model=VIT), "draw": draw}
    wrong, right = (
        [x for x in check(expecting(tmp_path, {key: {"draw": 4}, "text": 9}, modules))
         if x.code == "expect-not-usable"]
        for key in ("images", "rows")
    )  # fmt: skip
    assert [each.headline for each in wrong] == ["`images` names `draw`, which has none"]
    assert right == []


@pytest.mark.parametrize("name", ["draw", "three_encoders", "hybrid", "bench/talker_1b_disjoint"])
def test_every_module_gets_the_rows_that_are_expected(name: str, tmp_path: Path) -> None:
    loaded = load_spec(f"topologies/{name}.yaml").spec
    assert loaded is not None
    made = loaded.model_dump(by_alias=True)
    made["data"] = shard_data(tmp_path, expect={"rows": 6, "text": 12, "targets": 2})
    made["batch"]["seq"] = 512
    spec = Spec.model_validate(made)
    sample = expected_steps(spec).sampled[0].samples[0]
    for module in (*spec.encoders, *spec.generators):
        number = 2 if module in spec.generators else 1
        assert [span.rows for span in sample.spans[module]] == [6] * number
    assert sample.num_tokens == 12 + 6 * len(spec.sources_of("language"))


def test_tiles_without_their_processor_can_be_expected(tmp_path: Path) -> None:
    tiles = {"patch": 1, "channels": 3, "image": [2, 2], "tiles": {"grids": [[1, 2]]}}
    made = expecting(tmp_path, {"text": 20}, {"vision": box(0, model={"kind": "vit", **tiles})})
    assert all(each.rows("vision") > 0 for each in samples(expected_steps(made)))
