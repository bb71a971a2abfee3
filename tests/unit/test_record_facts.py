"""Facts about records as columns, against the description of each record."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.shards import write_shards
from tests.support.specs import box, layout_specs, spec
from tests.unit.test_custom_losses import chat, of_lines
from tests.unit.test_shard_samples import opened, shard_spec
from tests.unit.test_sources import as_lines, as_tar, chats, files_spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.sample_order import global_order, make_step_data, steps_of
from mimo_launch.data.record_facts import NO_SOURCE, RecordFacts, distinct_rows, facts_of, shape_of
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.data.step_of_records import step_of
from mimo_launch.estimate.step_work import StepWork
from mimo_launch.estimate.workload import step_flops
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_data import SampleData, StepData
from mimo_launch.layout.step_views import StepViews, reads_of
from mimo_launch.spec.layers import Mtp
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs


def assert_same(found: RecordFacts, wanted: RecordFacts) -> None:
    """All columns are equal; the images of a record may be in another order."""
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.terms, wanted.terms)
    np.testing.assert_array_equal(found.ahead(), wanted.ahead())
    named = [
        ["" if n == NO_SOURCE else each.source_names[n] for n in each.source.tolist()]
        for each in (found, wanted)
        if each.source is not None
    ]
    assert len(named) in (0, 2)
    assert named[:1] == named[1:]
    for name in {*found.images, *wanted.images}:
        tables = [
            np.concatenate([images.record[:, None], images.shapes], axis=1).tolist()
            for each in (found, wanted)
            if (images := each.images.get(name)) is not None and len(images.record)
        ]
        assert len(tables) in (0, 2), name
        assert sorted(*tables[:1]) == sorted(*tables[1:]) if tables else True
        np.testing.assert_array_equal(found.rows(name), wanted.rows(name))


def assert_one_by_one(dataset: Dataset, split: Any = "train", most: int = 64) -> None:
    """Facts about samples in any order, some twice, are those of each of them."""
    number = dataset.num_samples(split)
    ids = np.random.default_rng(0).integers(number, size=min(most, 2 * number))
    described = [dataset.describe(split, index) for index in ids.tolist()]
    found = dataset.facts(split, ids)
    assert_same(found, facts_of(described))
    np.testing.assert_array_equal(dataset.lengths(split, ids), found.tokens)
    if isinstance(dataset, ShardSamples):
        rows = dataset.splits[split].num_rows(ids)
        assert rows.keys() == found.images.keys()
        for name in rows:
            np.testing.assert_array_equal(rows[name], found.rows(name))
    none = dataset.facts(split, ids[:0])
    assert (len(none.tokens), len(none.labels)) == (0, 0)
    assert not any(len(images.record) for images in none.images.values())
    for beyond in (-1, number):
        with pytest.raises(IndexError, match=f"^sample {beyond} of {number} "):
            dataset.facts(split, np.append(ids, beyond))


@settings(max_examples=30)
@given(layout_specs(supported_only=False))
def test_generated_records_have_the_facts_of_each_of_them(made: Spec) -> None:
    dataset = build_dataset(made)
    assert_one_by_one(dataset)
    assert_one_by_one(dataset, "heldout")


GENERATED: dict[str, Callable[[], Spec]] = {
    "digits, shown and drawn": lambda: spec(
        {"language": box(model={"vocab": "digits"}), "vision": box(model={"patch": 4})},
        data={"kind": "digits", "text_only": 0.3, "max_digits": 4}, seq=64,
    ),
    "several images of any size": lambda: spec(
        {"vision": box(model={"patch": 4}), "glance": box(model={"patch": 8})},
        data={"kind": "synthetic", "max_images": 3, "min_images": 2, "max_patches": 12,
              "text_only": 0.2, "max_text": 20, "min_text": 3},
        seq=256,
    ),
    "no image": lambda: spec({"vision": box()}, text_only=1.0),
    "an image always": lambda: spec({"vision": box()}, text_only=0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_extreme_generated_records_have_the_facts_of_each_of_them(name: str) -> None:
    assert_one_by_one(build_dataset(GENERATED[name]()), most=400)


def photos(folder: Path) -> Spec:
    write_shards(folder, samples=40, bad=0, shards=2)
    return shard_spec(folder)


def sources(folder: Path) -> Spec:
    given = [
        {"path": str(write(folder, chats(20))), "name": name, "weight": weight}
        for write, name, weight in ((as_lines, "lines", 2), (as_tar, "tar", 1))
    ]
    return files_spec(folder, *given, too_long="truncate")


def texts(folder: Path) -> Spec:
    lines = [
        {"messages": [{"role": "user", "content": f"{n}?"},
                      {"role": "assistant", "content": "a dog " * (1 + n % 9)}]}
        for n in range(30)
    ]  # fmt: skip
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return files_spec(folder, str(folder / "x.jsonl"))


def counted(folder: Path) -> Spec:
    records = [chat("A dog " * (1 + n), weight=0.25 * n) for n in range(12)]
    return of_lines(folder, *records, columns={"weight": 1}, counts="weight")


REAL = {"photos": photos, "sources": sources, "texts": texts, "counted": counted}


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return REAL[request.param](tmp_path_factory.mktemp(request.param))


def variants(made: Spec) -> Iterator[Spec]:
    """Records as they are, cut or left out, with tokens ahead, packed."""
    model = made.language.model.model_copy(update={"vocab": 400})
    ahead = model.model_copy(update={"mtp": Mtp(depth=2)})
    for seq, how, language in ((512, "error", model), (40, "truncate", ahead), (60, "drop", model)):
        batch, data = made.batch.replace(seq=seq), made.data.replace(too_long=how)
        changed = made.language.replace(model=language)
        modules = {**made.modules, "language": changed}
        yield made.replace(batch=batch, data=data, modules=modules)


def test_records_of_an_index_have_the_facts_of_each_of_them(real: Spec) -> None:
    for made in variants(real):
        assert_one_by_one(opened(made))


def outline_of(sample: SampleData) -> Any:
    """What work depends on: lengths of records, and sizes of images, by module."""
    records = [(each.num_tokens, each.num_labels) for each in sample.records]
    sizes = {name: sorted(map(shape_of, spans)) for name, spans in sample.spans.items() if spans}
    return sample.num_tokens, sample.num_labels, records, sizes


def assert_is_step(made: Spec, found: StepData, bad: set[int]) -> None:
    """A step of columns is the step of its samples, also without some records."""
    wanted = StepData(found.step, list(found.samples))
    for ours, theirs in ((found, wanted), (found.without(bad), wanted.without(bad))):
        assert list(ours.samples) == list(theirs.samples)
        assert list(ours.indexed) == list(theirs.indexed)
        for name in ("num_records", "num_tokens", "num_labels", "most_labels", "labels_by_source"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name
        assert [*ours.labels_by_source] == [*theirs.labels_by_source]
        assert [*map(ours.numbers, range(3))] == [*map(theirs.numbers, range(3))]
        assert [*map(ours.record, range(9))] == [*map(theirs.record, range(9))]
        assert +ours.span_lengths(made.batch.seq) == +theirs.span_lengths(made.batch.seq)
        for module in made.modules:
            assert ours.num_terms(module) == pytest.approx(theirs.num_terms(module))
            assert ours.num_terms(module, 1) == theirs.num_terms(module, 1)
            every = range(len(wanted.samples))
            assert ours.rows(module, every) == theirs.rows(module, every)
            assert [ours.rows_of_media(module, each) for each in every] == [
                theirs.rows_of_media(module, each) for each in every
            ]
            assert ours.num_images(module) == theirs.num_images(module)
            assert ours.most_rows(module) == theirs.most_rows(module)
        for some in (every, [3, 1, 3]):
            assert ours.texts(some) == theirs.texts(some)
        assert [*map(outline_of, ours.outline.samples)] == [*map(outline_of, theirs.samples)]
        assert ours.outline.samples[1:3] == [ours.outline.samples[1], ours.outline.samples[2]]
        layout = build_layout(made)
        assert step_flops(made, layout, ours) == pytest.approx(step_flops(made, layout, theirs))


@pytest.mark.parametrize("packing", [False, True])
def test_a_step_of_an_index_is_that_of_its_samples(real: Spec, packing: bool) -> None:
    made = real.replace(
        data=real.data.replace(packing=packing), batch=real.batch.replace(global_=16)
    )
    dataset = opened(made)
    for step, ids in enumerate(steps_of(global_order(made, dataset), 3)):
        assert_is_step(made, make_step_data(dataset, "train", ids, step), {0, 3, 4})


@pytest.mark.parametrize("packing", [False, True])
def test_the_work_of_a_step_is_known_without_a_description(real: Spec, packing: bool) -> None:
    made = real.replace(data=real.data.replace(packing=packing))
    dataset, layout = opened(made), build_layout(made)
    data = make_step_data(dataset, "train", global_order(made, dataset).take(0), 0)
    described = StepData(0, list(data.samples))
    data.samples.known.clear()  # type: ignore[attr-defined]
    found, wanted = StepWork(layout, data), StepWork(layout, described)
    for module in layout.modules:
        assert found.work(module) == wanted.work(module)
    assert found.key == wanted.key
    assert found.texts == wanted.texts
    assert not data.samples.known  # type: ignore[attr-defined]
    # A bridge sends rows to the ranks that hold their places.
    assert list(found.views.data.samples) == list(wanted.views.data.samples)


@settings(max_examples=25)
@given(layout_specs(supported_only=False), st.booleans())
def test_a_generated_step_is_that_of_its_samples(made: Spec, packing: bool) -> None:
    made = made.replace(data=made.data.replace(packing=packing))
    dataset = build_dataset(made)
    ids = [*global_order(made, dataset).take(0), *range(9)]
    assert_is_step(made, make_step_data(dataset, "train", ids, 0), {0, 2})


def test_different_rows_of_any_table_are_counted() -> None:
    random = np.random.default_rng(0)
    for largest in (3, 200, 2**20, 2**40):
        table = random.integers(largest, size=(50, 4)) * (random.random((1, 4)) < 0.8)
        table = np.concatenate([table, table[::2]])
        found = {tuple(row): number for *row, number in distinct_rows(table).tolist()}
        assert found == Counter(map(tuple, table.tolist()))


def test_terms_of_a_step_are_counted_once() -> None:
    """Not again for every microbatch and depth."""
    records = [SampleData(n, 9, n, labels_ahead=(n, 1), counted=n / 2) for n in range(1, 6)]
    facts, asked = facts_of(records), list[str]()

    def ahead() -> Any:
        asked.append("ahead")
        return facts.ahead()

    def counted() -> Any:
        asked.append("counted")
        return facts.terms

    class Known:
        def facts(self, ids: Any) -> RecordFacts:
            return replace(facts, ahead=ahead, counted=counted)

        def describe(self, index: int) -> SampleData:
            return records[index]

    step = step_of(Known(), 0, np.arange(5), np.arange(6))
    for _ in range(3):
        assert [step.num_terms("language", depth) for depth in range(4)] == [7.5, 15, 5, 0]
    assert sorted(asked) == ["ahead", "counted"]


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions written in Python are called."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("kind", ["synthetic", "photos", "digits"])
def test_a_rank_of_many_describes_its_own_samples_only(
    kind: str, packing: bool, tmp_path: Path
) -> None:
    """Eight times the replicas and samples: a rank calls hardly more functions."""
    if kind == "photos":
        data = photos(tmp_path).data
    digits, drawn = {"kind": "digits", "text_only": 0.3}, {"kind": "synthetic", "samples": 2048}

    def calls(replicas: int) -> int:
        vision = {"kind": "vit", "patch": 2, "shuffle": 2, "channels": 3}
        vocab = "digits" if kind == "digits" else 400
        modules = {
            "vision": box(dp=2 * replicas, model={"patch": 4} if kind == "digits" else vision),
            "language": box(dp=replicas, tp=2, model={"vocab": vocab}),
        }
        made = spec(modules, mbs=4, seq=512, data=digits if kind == "digits" else drawn)
        if kind == "photos":
            made = made.replace(data=data)
        made = made.replace(data=made.data.replace(packing=packing))
        dataset, layout = build_dataset(made), build_layout(made)
        ids = global_order(made, dataset).take(0)

        def rank() -> None:
            source = step_inputs(dataset, "train", ids, 0)
            views = StepViews(layout, source.data)
            reads = reads_of(views, 0, decode=False)
            for each in (*reads.texts, *reads.images["vision"]):
                assert source.data.samples[each].num_tokens
            assert views.even_loads(layout["vision"]).sum() > 0
            assert source.data.num_terms("language") > 0
            assert step_flops(made, layout, source.data)["vision"] > 0

        rank()
        return calls_of(rank)

    few, many = calls(8), calls(64)
    assert many < 2 * few, (few, many)
