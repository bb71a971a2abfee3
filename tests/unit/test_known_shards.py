"""What a plan knows of shards, against the steps that a run over them takes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.reports import build_report
from tests.support.shards import (
    clip_bytes,
    image_bytes,
    shard_data,
    tokenizer_folder,
    write_shard,
    write_shards,
)
from tests.support.specs import box, spec
from tests.support.videos import TEMPLATE, asked, frames, zipped
from tests.unit.test_expected_steps import assert_is_true, walk, with_steps

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import ready_shards
from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.data.fact_source import Source
from mimo_launch.data.index.indexer import SampleIndexer
from mimo_launch.data.index.open_index import open_index
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.drawing.answer_text import facts_of, losses_of
from mimo_launch.drawing.rows import Report
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search import advice, answer, packing_change
from mimo_launch.search.answer import LostTime, what_fits
from mimo_launch.search.packing_change import packed, padding_waste
from mimo_launch.spec.spec import Spec, UserData

VIT = {"kind": "vit", "patch": 4, "shuffle": 2, "channels": 3}
Samples = Iterator[tuple[str, dict[str, Any]]]


def sound_and_videos() -> Samples:
    """Samples with a clip, a video, both, or only text, of many lengths."""
    random = np.random.default_rng(0)
    for number in range(200):
        parts, members = [], dict[str, Any]()
        if number % 3 == 0:
            parts.append("video")
            members["frames.zip"] = zipped(
                frames(int(random.integers(2, 9)), 8, 8 * (1 + number % 4))
            )
        if number % 4 == 0:
            parts.append("audio")
            members["wav"] = clip_bytes(int(random.integers(2_000, 30_000)), seed=number)
        content = asked(*parts, "What?", said="It is so. " * int(random.integers(1, 12)))
        for each in content["messages"][0]["content"]:
            if each == {"type": "text", "text": "audio"}:
                each.update(type="audio", text="")
        yield f"{number:03d}", {**members, "json": content}


def mostly_text() -> Samples:
    """Captions of very different lengths, of which few have an image; some are too long."""
    random = np.random.default_rng(1)
    for number in range(300):
        members: dict[str, Any] = {"txt": "a red house " * int(random.integers(1, 60))}
        if number % 7 == 0:
            members["png"] = image_bytes(*(int(n) for n in random.integers(16, 80, 2)), number)
        yield f"{number:03d}", members


def data_set(kind: str, folder: Path) -> Spec:
    """Write a data set of a few hundred samples, and return a spec that trains on it."""
    # Two replicas of language; encoders balance their samples on ranks of their own.
    layout: dict[str, Any] = {"microbatches": 2, "mbs": 2}
    vision = box(0, dp=4, model=VIT)
    if kind == "photographs and chats":
        write_shards(folder, samples=300, bad=4, shards=3)
        data = shard_data(folder, tokenizer_folder(folder / "tokenizer"), packing=True, max_rows=24)
        modules = {"vision": vision}
    elif kind == "sound and videos":
        write_shard(folder / "0.tar", sound_and_videos())
        tokenizer = tokenizer_folder(folder / "tokenizer", TEMPLATE, specials=("<|video_pad|>",))
        data = shard_data(folder, tokenizer)
        video = {"temporal_patch": 2, "video": {"time": "patches"}}
        hearing = {"kind": "audio", "mels": 80, "frames": 200}
        modules = {
            "vision": box(0, dp=4, model={**VIT, **video}, placeholder=380),
            "sound": box(0, dp=2, model=hearing),
        }
    else:
        write_shard(folder / "0.tar", mostly_text())
        tokenizer = tokenizer_folder(folder / "tokenizer")
        data = shard_data(folder, tokenizer, template="caption", too_long="truncate", max_rows=64)
        modules = {"vision": vision}
    language = box(4, dp=2, model={"vocab": 400})
    made = spec({**modules, "language": language}, seq=128, data=data, **layout)
    return with_steps(made, 40)  # More than an epoch, but for packs.


@pytest.mark.parametrize("seq", [28, 40, 64])
@pytest.mark.parametrize("samples", [sound_and_videos, mostly_text])
def test_the_lengths_of_all_samples_are_those_of_each(
    samples: Callable[[], Samples], seq: int, tmp_path: Path
) -> None:
    """Few samples are looked at one by one, since an index may have millions."""
    write_shard(tmp_path / "0.tar", samples())
    modules = {"vision": box(0, model=VIT), "language": box(1, model={"vocab": 400})}
    template = "caption"
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    if samples is sound_and_videos:
        template = "chat"
        tokenizer = tokenizer_folder(tmp_path / "tokenizer", TEMPLATE, specials=("<|video_pad|>",))
        video = {"temporal_patch": 2, "video": {"time": "patches"}}
        hearing = {"kind": "audio", "mels": 80, "frames": 200}
        modules["vision"] = box(0, model={**VIT, **video}, placeholder=380)
        modules["sound"] = box(0, model=hearing)
    data = shard_data(tmp_path, tokenizer, template=template, too_long="truncate", max_rows=64)
    made = spec(modules, seq=seq, data=data)
    assert isinstance(made.data, UserData)
    indexer = SampleIndexer(made, made.data)
    index = open_index(indexer, "train", lambda progress: None)
    split = OpenSplit(made, made.data, indexer.inputs, "train", index)
    each = [split.rows.end(split.row(sample)) for sample in range(split.num_samples)]
    assert split.rows.lengths.tolist() == each
    assert 0 < split.rows.num_too_long < len(each)


@pytest.mark.parametrize("kind", ["photographs and chats", "sound and videos", "mostly text"])
def test_rows_tokens_padding_and_the_largest_step_of_shards_are_those_of_a_run(
    kind: str, tmp_path: Path
) -> None:
    made = data_set(kind, tmp_path)
    looked = expected_steps(made)
    assert looked.source is Source.HEADERS
    assert not list(tmp_path.glob(".mimo-index")), "a plan makes no index"
    steps = walk(made)
    ready_shards(made, Console(), speaks=False)  # Both make it.
    known = expected_steps(made)
    assert known.source is Source.INDEX
    assert_is_true(made, known, steps)
    assert all(sum(step.num_terms(name) for step in steps) > 0 for name in made.modules)
    # Shards this small are seen as a whole.
    assert [list(step.samples) for step in looked.sampled] == [
        list(steps[step.step].samples) for step in looked.sampled
    ]


def test_a_look_counts_a_file_as_often_as_its_source_says(tmp_path: Path) -> None:
    for name, number in (("few", 30), ("many", 50)):
        texts = ((f"{n:03d}", {"txt": "red " * (1 + n % 5)}) for n in range(number))
        write_shard(tmp_path / f"{name}.tar", texts)
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    sources = [{"path": str(tmp_path / "few.tar"), "epochs": 3}, str(tmp_path / "many.tar")]
    data = {"kind": "files", "sources": sources, "tokenizer": str(tokenizer), "template": "caption"}
    made = spec({"language": box(0, model={"vocab": 400})}, seq=64, data=data)
    looked = expected_steps(made)
    assert looked.source is Source.HEADERS
    assert looked.order is not None
    assert looked.order.records.in_all == 3 * 30 + 50


def test_a_look_at_some_samples_tells_how_many_there_are_and_what_they_hold(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(2)
    for shard in range(2):
        texts = ("red " * int(n) for n in random.integers(1, 60, 700))
        write_shard(
            tmp_path / f"{shard}.tar", ((f"{n:03d}", {"txt": t}) for n, t in enumerate(texts))
        )
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    data = shard_data(tmp_path, tokenizer, template="caption", packing=True)
    language = box(0, model={"vocab": 400})
    made = with_steps(spec({"language": language}, mbs=8, seq=256, data=data), 20)
    looked = expected_steps(made)
    assert "512 of about 1,4" in looked.basis  # Of 1,400: a tar ends with empty blocks.
    steps = walk(made)
    tokens = sum(sample.num_tokens for step in steps for sample in step.samples)
    assert looked.padding == pytest.approx(1 - tokens / (20 * 8 * 256), abs=0.02)


def test_the_first_screen_tells_of_padding_and_what_packing_gains(tmp_path: Path) -> None:
    with_packs = data_set("photographs and chats", tmp_path)
    alone = with_packs.replace(data=with_packs.data.replace(packing=False))
    report, after = (build_report(Plan.of(each), advice=True) for each in (alone, with_packs))
    full, fuller = (1 - each.header.padding for each in (report, after))
    assert report.header.padding_if_packed == pytest.approx(1 - fuller, abs=0.01)
    assert facts_of(report)["padding"].startswith(
        f"{100 * (1 - full):.0f}% of positions hold no token; "
    )
    change = padding_loss(report).change
    assert change is not None
    assert change.settings == {"data.packing": True}
    # In tokens of the data, as the plan of the packed spec has them.
    assert 1.25 < fuller / full == pytest.approx(change.fuller)
    before = full * report.answer.tokens_per_second
    assert fuller * after.answer.tokens_per_second / before == pytest.approx(1 + change.gain)
    assert change.needed_bytes == after.answer.fit.needed_bytes
    said = next(each.helps for each in losses_of(report.answer) if "padding" in each.head)
    assert said is not None
    assert said.startswith(f"{1 + change.gain:.1f} times as many tokens of the data a second, ")
    assert said.endswith(
        f"pack records into sequences; a step then holds {change.fuller:.1f} times as many tokens "
        "of the data"
    )
    # Without a search, and with packing, nothing is offered.
    assert padding_loss(build_report(Plan.of(alone))).change is None
    assert all(each.kind != "pads" for each in after.answer.losses)
    assert after.header.padding_if_packed is None


def padding_loss(report: Report) -> LostTime:
    """Return the loss by padding."""
    (found,) = (each for each in report.answer.losses if each.kind == "pads")
    return found


def test_padding_takes_the_work_of_language_and_not_of_modules_beside_it(tmp_path: Path) -> None:
    with_packs = data_set("photographs and chats", tmp_path)
    alone = with_packs.replace(data=with_packs.data.replace(packing=False))
    estimator = Estimator.of(Plan.of(alone))
    now = estimator.estimates()
    # As much work of others again, in the same time.
    shared = replace(now, ranks=tuple(replace(row, tflop=2 * row.tflop) for row in now.ranks))
    whole, half = (padding_waste(estimator, each) for each in (now, shared))
    assert whole is not None
    assert half is not None
    assert half.ranks == whole.ranks
    assert half.share == pytest.approx(whole.share / 2)


def test_packing_is_made_to_fit_or_not_offered(tmp_path: Path) -> None:
    with_packs = data_set("photographs and chats", tmp_path)
    alone = with_packs.replace(data=with_packs.data.replace(packing=False))
    estimator = Estimator.of(Plan.of(alone))
    needed = max(row.total_bytes for row in Estimator.of(Plan.of(with_packs)).estimates().ranks)
    found = packed(estimator, needed - 1)
    assert found is not None
    assert len(found.planned.change.settings) > 1
    assert max(row.total_bytes for row in found.planned.estimates.ranks) < needed
    assert packed(estimator, 1) is None


def test_packing_is_offered_to_a_job_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packs = data_set("photographs and chats", tmp_path)
    alone = with_packs.replace(data=with_packs.data.replace(packing=False))
    estimator = Estimator.of(Plan.of(alone))
    needed = max(row.total_bytes for row in estimator.estimates().ranks)
    monkeypatch.setattr(advice, "TOLERANCE", 0.0)
    monkeypatch.setattr(answer, "_gpu_memory", lambda estimates: needed - 1)
    first, *others = what_fits(estimator).changes
    assert first.settings["data.packing"] is True
    assert first.needed_bytes < needed
    assert first.fuller > 1
    assert all(first.gain >= each.gain and each.fuller == 1 for each in others)


def test_packing_is_not_offered_with_settings_that_a_rule_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of settings that need less memory, some leave too few tokens on a rank for FP8 by blocks."""
    made = data_set("photographs and chats", tmp_path)
    sizes = {"hidden": 256, "heads": 8, "kv_heads": 8, "head_dim": 32, "mlp": 256, "vocab": 400}
    in_tiles = {"backend": "transformer_engine", "fp8": {"scaling": "blockwise"}}
    language = box(4, tp=2, dp=2, model=sizes, **in_tiles)
    alone = spec(
        {"vision": box(0, dp=4, model=VIT), "language": language},
        seq=128, microbatches=2, mbs=2,
        data=made.data.replace(packing=False), train={"precision": "bf16"},
    )  # fmt: skip
    every = [change.spec for change in packing_change._changes(alone)]
    assert {is_legal(each, files=False) for each in every} == {True, False}
    planned = []

    def plan_of(packs: Spec) -> Plan:
        planned.append(packs)
        return Plan.of(packs)

    estimator = Estimator.of(Plan.of(alone))
    monkeypatch.setattr(packing_change, "Plan", SimpleNamespace(of=plan_of))
    assert packed(estimator, 1) is None
    assert planned
    assert all(is_legal(each, files=False) for each in planned)


def test_the_first_screen_names_the_largest_step_once_an_index_knows_all(tmp_path: Path) -> None:
    made = data_set("photographs and chats", tmp_path)
    before = build_report(Plan.of(made), advice=False)
    assert before.answer.fit.step is None
    assert "largest step" not in facts_of(before)["memory"]
    ready_shards(made, Console(), speaks=False)
    report = build_report(Plan.of(made), advice=False)
    fit, fullest = report.answer.fit, max(report.estimates.ranks, key=lambda row: row.total_bytes)
    assert (fit.step, fit.rank) == (fullest.fullest_step, fullest.fullest_rank)
    said = f"the largest step is {fullest.fullest_step + 1}, on rank {fullest.fullest_rank}"
    assert facts_of(report)["memory"].endswith(said)
    assert build_report(Plan.of(made), worst=True, advice=False).answer.fit.step is None


def test_a_file_that_is_not_here_is_an_error_for_a_run_and_a_warning_for_a_plan() -> None:
    text = Path("tests/fixtures/valid.yaml").read_text()
    data = (
        "data: {kind: webdataset, shards: nowhere.tar, tokenizer: no-folder, template: caption,"
        " processors: {vision: no-processor}}\n"
    )
    text = text.replace("data: {kind: digits}\n", data)
    text = text.replace("vocab: digits", "vocab: 64") + "init_from: no-weights\n"
    codes = {
        "shards-not-found", "tokenizer-not-usable", "init-from-not-checkpoint",
        "processor-not-supported",
    }  # fmt: skip
    for only_plans in (False, True):
        found = check_text(text, only_plans=only_plans)
        assert {each.code for each in found.diagnostics if not each.is_error} >= (
            codes if only_plans else set()
        )
        assert (found.spec is None) is not only_plans
