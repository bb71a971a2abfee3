"""Lists of captions: an epoch learns one of each record, by seed, and all sizes are its own."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.faults.index_scale import repeat
from tests.support.caption_lists import (
    caption_drawn,
    captions_of,
    pictures_of,
    write_apart,
    write_lists,
    write_tars,
)
from tests.unit.test_expected_steps import assert_is_true, walk, with_steps
from tests.unit.test_record_facts import assert_same
from tests.unit.test_shard_samples import opened, with_vocab
from tests.unit.test_sources import bad_of, everything_of, files_spec

from mimo_launch.cli.data_tables import as_text, page
from mimo_launch.data.dataset import changed_files
from mimo_launch.data.expected_steps import expected_steps, look_again
from mimo_launch.data.fact_source import Source
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.index.split_report import summary_of
from mimo_launch.data.order.captions import Captions
from mimo_launch.data.order.sample_order import (
    GlobalOrder,
    global_order,
)
from mimo_launch.data.record_facts import facts_of
from mimo_launch.data.run_length import with_steps as of_epochs
from mimo_launch.data.sample_statistics import read_statistics, statistics_text
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.survey.reading_speed import survey

NUMBERS = range(1, 48)
COUNTS = [len(captions_of(number)) for number in NUMBERS]


def caption_spec(folder: Path, *sources: Any, **data: Any) -> Spec:
    made = files_spec(folder, *sources, **{"template": "caption", **data})
    return with_vocab(made.replace(train=made.train.replace(seed=7)))


def as_tar(folder: Path) -> str:
    write_tars(folder, NUMBERS, shards=1)
    return str(folder / "000.tar")


def as_list(folder: Path) -> str:
    lines = Path(write_lists(folder, NUMBERS)).read_text().splitlines()
    (folder / "x.json").write_text(json.dumps(list(map(json.loads, lines)), indent=1))
    return str(folder / "x.json")


def as_parquet(folder: Path) -> str:
    rows = [
        {
            "captions": captions_of(number),
            "images": [{"bytes": each, "path": "x.png"} for each in pictures_of(number)],
        }
        for number in NUMBERS
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "x.parquet")
    return str(folder / "x.parquet")


def sample_of(record: int, caption: int) -> int:
    return record + caption * len(NUMBERS)


@pytest.mark.parametrize(
    "write", [lambda folder: write_lists(folder, NUMBERS), as_list, as_tar, as_parquet],
    ids=["lines", "list", "tar", "parquet"],
)  # fmt: skip
def test_each_caption_is_the_sample_of_a_record_with_it_alone(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    found = opened(caption_spec(tmp_path, write(tmp_path)))
    apart = opened(caption_spec(tmp_path, write_apart(tmp_path, NUMBERS)))
    assert found.num_samples("train") == len(NUMBERS)
    counts = found.captions()
    assert counts is not None
    assert counts.tolist() == COUNTS
    assert apart.captions() is None
    twin = 0
    for record, count in enumerate(COUNTS):
        for caption in range(count):
            sample = sample_of(record, caption)
            *arrays, described = everything_of(found, sample)
            *wanted, told = everything_of(apart, twin)
            assert arrays == wanted
            assert (described.id, told.id) == (sample, twin)
            assert described.spans == told.spans
            assert found.length("train", sample) == described.num_tokens == told.num_tokens
            assert_same(found.facts("train", np.array([sample])), facts_of([described]))
            twin += 1
        for other in (sample_of(record, count), -1 - record):
            words = f"^sample {other} of {len(COUNTS)} with captions$"
            with pytest.raises(IndexError, match=words):
                found.text("train", other)
            with pytest.raises(IndexError, match=words):
                found.facts("train", np.array([record, other]))
    assert twin == apart.num_samples("train") == sum(COUNTS)


def test_an_epoch_has_a_caption_of_each_record_and_epochs_have_all() -> None:
    """In as many epochs as a record has captions, each of them once; a pure function of seed."""
    counts, seed = np.array([1, 2, 3, 5, 7] * 400), 3
    number = len(counts)
    order = GlobalOrder(number, 8, seed, captions=Captions(counts, seed))
    plain = GlobalOrder(number, 8, seed)
    seen: dict[int, list[int]] = {n: [] for n in range(number)}
    for epoch in range(35):
        here = slice(epoch * number, (epoch + 1) * number)
        captions, records = np.divmod(order.between(here.start, here.stop), number)
        assert records.tolist() == plain.between(here.start, here.stop).tolist()
        for caption, record in zip(captions.tolist(), records.tolist(), strict=True):
            seen[record].append(caption)
            if record < 50:
                assert caption == caption_drawn(seed, epoch, record, int(counts[record]))
    for record, drawn in seen.items():
        count = int(counts[record])
        for first in range(0, 35 - count + 1, count):
            assert sorted(drawn[first : first + count]) == list(range(count))
    # In one epoch, each caption is drawn about as often as the others: chi-square, 99.9 %.
    for count, most in ((2, 10.8), (3, 13.8), (5, 18.5), (7, 22.5)):
        for epoch in (0, 1, 34):
            tally = Counter(seen[n][epoch] for n in range(number) if counts[n] == count)
            assert len(tally) == count
            assert sum((n - 400 / count) ** 2 for n in tally.values()) * count / 400 < most


def test_captions_are_drawn_by_seed_and_never_change() -> None:
    counts = np.full(8, 5)

    def drawn(seed: int, epoch: int) -> list[int]:
        records = np.arange(8)
        return (Captions(counts, seed).drawn(records, records * 0 + epoch) // 8).tolist()

    assert drawn(0, 0) == [caption_drawn(0, 0, n, 5) for n in range(8)] == GOLDEN
    assert drawn(0, 1) == [(n + 1) % 5 for n in GOLDEN]
    assert drawn(1, 0) != drawn(0, 0)
    assert drawn(1 << 64, 2**40) == [(n + 2**40) % 5 for n in GOLDEN]


GOLDEN = [4, 2, 0, 2, 1, 4, 4, 1]


def read_by_index(found: ShardSamples, steps: list[StepData]) -> None:
    """What a run reads of each sample has the sizes of the index."""
    for step in steps:
        for sample in step.samples:
            for record in sample.records:
                tokens, labels = found.text("train", record.id)
                assert (tokens != PAD).sum() == record.num_tokens
                assert (labels != IGNORE_LABEL).sum() == record.num_labels
                images = found.images("train", record.id, "vision")
                assert len(images) == len(record.spans.get("vision", ()))


@pytest.mark.parametrize("packing", [False, True])
def test_plans_runs_and_the_index_agree_in_every_epoch(tmp_path: Path, packing: bool) -> None:
    path = write_lists(tmp_path, NUMBERS)
    made = with_steps(caption_spec(tmp_path, path), 60 if packing else 190, packing=packing)
    found, steps = opened(made), walk(made)
    look_again()
    told = expected_steps(made)
    assert told.source is Source.INDEX
    assert_is_true(made, told, steps)
    read_by_index(found, steps)
    ids = [record.id for step in steps for each in step.samples for record in each.records]
    epochs = len(ids) // len(NUMBERS)
    assert epochs > 3
    for epoch in range(epochs):
        here = ids[epoch * len(NUMBERS) : (epoch + 1) * len(NUMBERS)]
        wanted = [
            sample_of(record, caption_drawn(7, epoch, record, count))
            for record, count in enumerate(COUNTS)
        ]
        assert sorted(here) == sorted(wanted)


def test_a_run_of_epochs_counts_records_once(tmp_path: Path) -> None:
    path = write_lists(tmp_path, NUMBERS)
    for packing in (False, True):
        made = caption_spec(tmp_path, path, packing=packing)
        opened(made)
        look_again()
        made = of_epochs(made.replace(train=made.train.replace(epochs=3, steps=1000)))
        ids = [r for step in walk(made) for s in step.samples for r in (x.id for x in s.records)]
        each = Counter(n % len(NUMBERS) for n in ids[: 3 * len(NUMBERS)])
        assert set(each.values()) == {3}
        assert 0 <= len(ids) - 3 * len(NUMBERS) < 4 * made.batch.global_ * (1 + 9 * packing)


def test_a_plan_without_an_index_looks_at_the_captions_of_the_first_epoch(tmp_path: Path) -> None:
    made = with_steps(caption_spec(tmp_path, write_lists(tmp_path, NUMBERS)), 10)
    look_again()
    told = expected_steps(made)
    assert told.source is Source.HEADERS
    found = opened(made)
    wanted = [
        found.length("train", sample_of(record, caption_drawn(7, 0, record, count)))
        for record, count in enumerate(COUNTS)
    ]
    assert told.order is not None
    assert told.order.records.tokens(np.arange(len(NUMBERS))).tolist() == wanted
    sizes, number = read_statistics(made, _written(tmp_path, statistics_text(made, found)))
    assert ([each.num_tokens for each in sizes], number) == (wanted, len(NUMBERS))


def _written(folder: Path, text: str) -> Path:
    (folder / "stats.json").write_text(text)
    return folder / "stats.json"


def test_each_source_of_a_mixture_draws_in_epochs_of_its_own(tmp_path: Path) -> None:
    few, many = range(1, 6), range(10, 60)
    sources = [
        {"path": write_lists(tmp_path, few, "few.jsonl"), "weight": 1},
        {"path": write_lists(tmp_path, many, "many.jsonl"), "weight": 1},
    ]
    made = caption_spec(tmp_path, *sources, weigh="tokens")
    found, number = opened(made), len(few) + len(many)
    order = global_order(made, found)
    ids = np.concatenate([np.array(order.take(n)) for n in range(600)])
    counts = [len(captions_of(n)) for n in (*few, *many)]
    taken = Counter[int]()
    for caption, record in zip(*(each.tolist() for each in np.divmod(ids, number)), strict=True):
        assert caption == caption_drawn(7, taken[record], record, counts[record])
        taken[record] += 1
    assert taken[0] > 5 * taken[number - 1]
    # Over whole turns, records have the mean length of their captions.
    for source, numbers in zip(found.sources(), (few, many), strict=True):
        lengths = [
            [found.length("train", n + k * number) for k in range(counts[n])]
            for n in range(source.first, source.first + source.number)
        ]
        assert source.number == len(numbers)
        assert source.tokens == round(sum(map(np.mean, lengths)))
    samples = [found.describe("train", n) for n in ids[:100].tolist()]
    assert {each.source for each in samples} == {"few", "many"}


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_a_caption_that_is_too_long_is_left_out_or_cut_alone(tmp_path: Path, too_long: str) -> None:
    long = "house " * 60
    texts = [["a cat", long, "a dog"], [long, long + "x"], [long, "a hill"], "a train"]
    lines = [json.dumps({"caption": each}) for each in texts]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    made = caption_spec(tmp_path, str(tmp_path / "x.jsonl"), too_long=too_long)
    made = made.replace(batch=made.batch.replace(seq=40))
    found = opened(made)
    split, counts = found.splits["train"], found.captions()
    assert counts is not None
    assert split.rows.num_too_long == 4
    said = summary_of(split)
    ending = {"truncate": "cut", "drop": "left out"}[too_long]
    text = as_text(survey(made, found, records=9, steps=1, show=0), None)
    assert f"too long   4 texts, {ending}\n" in text
    if too_long == "truncate":
        assert counts.tolist() == [3, 2, 2, 1]
        assert [found.length("train", n) for n in (4, 1, 5, 2)] == [40] * 4
        assert "4 samples (train) with 8 captions, one of each learnt in an epoch; 4 longer" in said
        return
    assert counts.tolist() == [2, 1, 1]
    shown = [_text_of(found, "train", n) for n in range(4)]
    assert shown == ["a cat", "a hill", "a train", "a dog"]
    names = [found.name("train", n) for n in range(4)]
    assert [each.removeprefix("x.jsonl ") for each in names] == [
        "line 1, caption 1 of 3", "line 3, caption 2 of 2", "line 4", "line 1, caption 3 of 3",
    ]  # fmt: skip
    assert "3 samples (train) with 4 captions, one of each learnt in an epoch; 4 longer" in said
    with pytest.raises(ValueError, match=r"x.jsonl line 1, caption 2 of 3 with \d+ tokens"):
        opened(made.replace(data=made.data.replace(too_long="error")))


def _text_of(found: ShardSamples, split: Any, sample: int) -> str:
    tokens, _ = found.text(split, sample)
    return found.words(tokens[tokens != PAD].tolist())


def test_a_record_that_counts_twice_draws_each_time(tmp_path: Path) -> None:
    path = write_lists(tmp_path, NUMBERS)
    found = opened(caption_spec(tmp_path, {"path": path, "epochs": 2}))
    once = opened(caption_spec(tmp_path, path))
    counts, number = found.captions(), 2 * len(NUMBERS)
    assert counts is not None
    assert counts.tolist() == np.repeat(COUNTS, 2).tolist()
    for record in range(number):
        for caption in range(int(counts[record])):
            *ours, _ = everything_of(found, record + caption * number)
            *theirs, _ = everything_of(once, sample_of(record // 2, caption))
            assert ours == theirs


def test_held_out_records_are_evaluated_by_their_first_caption(tmp_path: Path) -> None:
    path, held = write_lists(tmp_path, NUMBERS), write_lists(tmp_path, range(50, 60), "held.jsonl")
    made = caption_spec(tmp_path, path, eval_sources=[held]).replace(eval=EvalSpec(samples="all"))
    found = opened(made)
    assert list(found.heldout_sets()[""]) == list(range(10))
    for n, number in enumerate(range(50, 60)):
        assert captions_of(number)[0] in _text_of(found, "heldout", n)


def test_bad_lists_are_bad_samples_with_their_line(tmp_path: Path) -> None:
    image = "images/0001-0.png"
    write_lists(tmp_path, NUMBERS)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"caption": []}, "`caption` of its JSON is a list of nothing, not text"),
        ({"caption": ["a", 3]}, "text 2 of 2 in `caption` of its JSON is a number, not text"),
        ({"caption": ["a", ["b"]]}, "text 2 of 2 in `caption` of its JSON is a list, not text"),
        (
            {"caption": [{"raw": "a"}]},
            "text 1 of 1 in `caption` of its JSON is an object, not text",
        ),
        ({"caption": ["a", " "]}, "text 2 of 2 in `caption` of its JSON is empty"),
        ({"caption": ["a", "b <image> c"]}, "text 2 of 2: it has 0 images and 1 marker for them"),
        ({"caption": ["a <image>", "b"], "image": [image, image]}, "text 1 of 2: it has 2 images"),
        ({"caption": ["a", ""], "markers": False}, "text 2 of 2 in `caption` of its JSON is empty"),
        ({"caption": ["a", "x" * 200]}, "text 2 of 2: its text has 200 characters"),
        (
            {"text": ["a", "b"]},
            "`text` of its JSON is a list: with `template: {kind: caption, text: t",
        ),
        ({"captions": {"raw": ["a"]}}, "`captions` of its JSON is an object, not text"),
        ({"sentences": ["a"]}, "its .json has no key `text` or `caption` or `captions`"),
    ]
    lines = [json.dumps(record) for record, _ in bad]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, '{"caption": ["good", "better"]}']))
    found = opened(
        caption_spec(tmp_path, str(tmp_path / "x.jsonl"), max_bad_samples=100, max_characters=100)
    )
    said = bad_of(found)
    assert found.num_samples("train") == 1
    for number, (_, why) in enumerate(bad, start=1):
        assert said[f"line {number}"].startswith(why), said[f"line {number}"]


def test_a_list_of_one_text_is_that_text(tmp_path: Path) -> None:
    for name, record in (("one", {"captions": ["a cat"]}), ("bare", {"captions": "a cat"})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record))
    one, bare = (
        opened(caption_spec(tmp_path, str(tmp_path / f"{name}.jsonl"))) for name in ("one", "bare")
    )
    assert one.captions() is None
    assert everything_of(one, 0) == everything_of(bare, 0)
    assert one.name("train", 0) == "one.jsonl line 1"


def test_another_caption_is_another_sample_for_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    def contents(*texts: list[str]) -> Any:
        path.write_text("\n".join(json.dumps({"caption": each}) for each in texts))
        return opened(caption_spec(tmp_path, str(path))).contents("train")

    first = contents(["a", "b"], ["c", "d"])
    assert [each.samples for each in first] == [2]
    assert changed_files(first, contents(["a", "b"], ["c", "d"])) == []
    for other in (["b", "a"], ["a", "bb"], ["a", "b", "c"], ["a"]):
        assert changed_files(first, contents(other, ["c", "d"])) == [
            "x.jsonl: 2 samples -> 2 other samples"
        ]


def test_data_shows_which_caption_of_how_many(tmp_path: Path) -> None:
    made = caption_spec(tmp_path, write_lists(tmp_path, NUMBERS), packing=True)
    opened(made)
    total = sum(COUNTS)
    mean = total / len(NUMBERS)
    for records in (4, 100):  # Fewer and more than there are to look at.
        found = survey(made, opened(made), records=records, steps=1, show=2)
        text = as_text(found, None)
        assert f"captions   {total}, {mean:.1f} a record, of which an epoch has one" in text
    shown = [record for sample in found.shown for record in sample.records]
    assert len(shown) > 2
    for record in shown:
        caption, number = divmod(record.id, len(NUMBERS))
        name = f"lists.jsonl line {number + 1}"
        if COUNTS[number] > 1:
            name += f", caption {caption + 1} of {COUNTS[number]}"
        assert record.name == name
        said = "".join(each.text for each in record.pieces if each.kind != "rows")
        assert captions_of(NUMBERS[number])[caption] in said
        assert name in text
        assert name in page(found)


# Planted bugs: each must fail the tests above that guard against it.


def of_the_first(self: Captions, records: Any, epochs: Any) -> Any:
    return _drawn(self, records, 0 * epochs)


_drawn = Captions.drawn


def by_place(self: Captions, records: Any, epochs: Any) -> Any:
    """A planted bug: by the place in the part of the order that is asked for."""
    return _drawn(self, records, epochs + np.arange(len(records)))


def sizes_of_first(self: OpenSplit, samples: Any) -> Any:
    """A planted bug: the columns of the first caption."""
    return _rows_at(self, samples % self.num_samples)


_rows_at = OpenSplit.rows_at


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        (Captions, "drawn", of_the_first),
        (Captions, "drawn", by_place),
        (OpenSplit, "rows_at", sizes_of_first),
    ],
)
@pytest.mark.parametrize("packing", [False, True])
def test_planted_bugs_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, bug: Any, packing: bool
) -> None:
    test_plans_runs_and_the_index_agree_in_every_epoch(tmp_path, packing)
    monkeypatch.setattr(where, name, bug)
    look_again()
    with pytest.raises(AssertionError):
        test_plans_runs_and_the_index_agree_in_every_epoch(tmp_path, packing)
    monkeypatch.undo()
    look_again()


def memory_of(made: Spec) -> tuple[int, int, int]:
    """Return the rows of an index, and what a rank keeps of it and has at most, in bytes."""
    data: Any = made.data
    inputs, index = ShardInputs(made, data), opened(made).splits["train"].index

    def used() -> OpenSplit:
        split = OpenSplit(made, data, inputs, "train", index)
        ids = np.arange(40) * (split.num_samples // 40)
        split.facts(ids)
        [split.describe(sample) for sample in ids.tolist()]
        return split

    used()  # What Python keeps is kept now.
    tracemalloc.start()
    try:
        kept = used()
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept.index.num_rows, now, peak


@pytest.mark.parametrize(
    ("too_long", "most_kept", "most_at_once"), [("error", 0.5, 2.5), ("truncate", 4.5, 6)]
)
def test_rows_of_an_index_take_hardly_any_memory_of_a_rank(
    tmp_path: Path, too_long: str, most_kept: float, most_at_once: float
) -> None:
    """Lists of captions and a sample that is cut: the ranks of a host share the columns."""
    path = Path(write_lists(tmp_path, NUMBERS))
    made = caption_spec(tmp_path, str(path), too_long=too_long)
    found = opened(made)
    if too_long == "truncate":
        longest = int(found.splits["train"].index.columns["tokens"].max())
        made = made.replace(batch=made.batch.replace(seq=longest - 1))
    repeat(found, 20)
    few = memory_of(made)
    repeat(opened(made), 20)
    many = memory_of(made)
    rows = many[0] - few[0]
    assert (many[1] - few[1]) / rows < most_kept
    assert (many[2] - few[2]) / rows < most_at_once
