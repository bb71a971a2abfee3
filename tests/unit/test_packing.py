"""Packs: every record once an epoch, alike from any place, and the arrays of their records."""

from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.damage import damaged
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.packing import Int64s, best_fit, joined_documents
from mimo_launch.data.order.sample_order import (
    GlobalOrder,
    PackedOrder,
    SampleOrder,
    global_order,
    make_step_data,
    records_of,
    steps_of,
)
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD
from mimo_launch.layout.step_data import ImageSpan, SampleData, StepData, packed, without_records
from mimo_launch.layout.step_views import Reads
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import read_step, step_inputs


def packs_of(lengths: list[int], seq: int) -> list[tuple[int, ...]]:
    return list(best_fit(np.array(lengths, dtype=np.int64), seq).tuples())


@given(st.lists(st.integers(1, 20), max_size=60))
def test_best_fit_holds_each_record_once_and_wastes_little(lengths):
    packs = packs_of(lengths, 20)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    fill = [sum(lengths[index] for index in pack) for pack in packs]
    assert all(0 < tokens <= 20 for tokens in fill)
    # No two packs would fit in one; so at most one is half empty.
    assert all(a + b > 20 for a, b in pairwise(sorted(fill)))


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(20, 60))
def test_packs_are_those_of_a_search_through_all_packs_for_each_record(lengths, seq):
    """A run that was begun goes on with the packs that it had."""
    packs: list[list[int]] = []
    left: list[tuple[int, int]] = []  # The room of each pack, and the turn that left it.
    for turn, index in enumerate(sorted(range(len(lengths)), key=lambda each: -lengths[each])):
        able = [n for n, (room, _) in enumerate(left) if room >= max(1, lengths[index])]
        best = min(able, key=lambda n: (left[n][0], -left[n][1]), default=len(packs))
        if best == len(packs):
            packs.append([])
            left.append((seq, turn))
        packs[best].append(index)
        left[best] = (left[best][0] - lengths[index], turn)
    assert packs_of(lengths, seq) == [tuple(sorted(pack)) for pack in packs]


def test_best_fit_takes_the_fullest_pack_that_has_room():
    assert packs_of([6, 5, 4, 3, 2], 10) == [(0, 2), (1, 3, 4)]
    with pytest.raises(ValueError, match="11 tokens does not fit in 10"):
        packs_of([3, 11], 10)


def test_many_short_records_fill_sequences():
    random = Random(0)
    lengths = [min(4096, int(random.lognormvariate(6.4, 0.8))) for _ in range(4096)]
    assert sum(lengths) / (len(packs_of(lengths, 4096)) * 4096) > 0.995


def lengths_of(num: int, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randint(1, 12) for _ in range(num)]


def order_of(num: int, batch: int, chunk: int, seed: int = 0) -> tuple[SampleOrder, list[int]]:
    lengths = lengths_of(num, seed)

    def of(ids: Int64s) -> Int64s:
        return np.array(lengths)[ids]

    return PackedOrder(GlobalOrder(num, batch, seed), of, 12, chunk), lengths


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.sampled_from([4, 16, 1000]), st.integers(0, 3))
def test_each_record_is_in_one_pack_of_each_epoch(num, batch, chunk, seed):
    """Whatever the batch: the packs of an epoch are the same, in the same order."""
    order, lengths = order_of(num, batch, chunk, seed)
    packs: list[tuple[int, ...]] = []
    place = 0
    while place < 3 * num:
        step = order.take(place)
        assert len(step) == batch
        packs += step
        place = order.after(place)
    assert all(sum(lengths[index] for index in pack) <= 12 for pack in packs)
    seen = [index for pack in packs for index in pack]
    for epoch in range(3):
        assert sorted(seen[epoch * num : (epoch + 1) * num]) == list(range(num))
    whole, _ = order_of(num, 1, chunk, seed)
    assert packs == [pack for [pack] in steps_of(whole, len(packs))]


def test_a_run_goes_on_from_any_place_without_packing_what_was_before():
    order, lengths = order_of(500, 7, 50)
    steps, places, place = [], [], 0
    for _ in range(60):
        places.append(place)
        steps.append(order.take(place))
        place = order.after(place)
    asked: Counter[int] = Counter()

    def of(ids: Int64s) -> Int64s:
        asked.update(ids.tolist())
        return np.array(lengths)[ids]

    for step in (59, 31, 8):
        asked.clear()
        again = PackedOrder(GlobalOrder(500, 7, 0), of, 12, 50)
        assert again.take(places[step]) == steps[step]
        assert asked.total() <= 2 * 50
    with pytest.raises(ValueError, match="no sample -1"):
        order.take(-1)


@settings(deadline=None)
@given(st.integers(1, 70), st.sampled_from([4, 16, 1000]), st.integers(0, 2))
def test_a_share_of_the_records_of_a_chunk_is_at_least_that_share_of_its_packs(num, chunk, epoch):
    """So the first record takes a pack: no run of a part of an epoch ends without a step."""
    order, _ = order_of(num, 1, chunk)
    for first in range(0, num, chunk):
        begin, size = epoch * num + first, min(chunk, num - first)
        place, packs = begin, 0
        while place < begin + size:
            place, packs = order.after(place), packs + 1
        for records in range(1, size):
            taken = order.place_after(begin + records) - begin
            assert records * packs <= taken * size < records * packs + size
        assert order.place_after(begin + size) == begin + size


def test_the_place_behind_the_last_pack_of_a_chunk_counts_the_records_of_the_chunk():
    """Four records a pack, two packs a chunk: a run that ends there has taken whole chunks."""
    order = PackedOrder(GlobalOrder(16, 2, 0), lambda ids: 0 * ids + 3, 12, chunk=8)
    assert (order.after(0), order.after(8), order.after(16)) == (8, 16, 24)
    assert (order.after(1), order.after(9)) == (9, 17)
    # A place that no run has is that of the next chunk.
    assert order.take(5) == order.take(8)


def test_a_run_packs_each_chunk_of_a_step_once():
    """A run asks for the running step, the place after it, and the next step."""
    asked = []

    def lengths(ids: Int64s) -> Int64s:
        asked.append(len(ids))
        return 0 * ids + 12

    order, place = PackedOrder(GlobalOrder(500, 80, 0), lengths, 12, chunk=8), 0
    for _ in range(4):
        order.take(place)
        place = order.after(place)
        order.take(place)
    assert sum(asked) == 5 * 80


def test_packs_differ_from_epoch_to_epoch_and_by_seed_and_are_in_no_order_of_length():
    def epoch(number: int, seed: int) -> list[Any]:
        order, _ = order_of(200, 1, 1000, seed)
        packs, place = [], number * 200
        while place < (number + 1) * 200:
            packs += order.take(place)
            place = order.after(place)
        return packs

    assert len({frozenset(epoch(*at)) for at in ((0, 0), (1, 0), (0, 1))}) == 3
    longest = [max(lengths_of(200, 0)[i] for i in pack) for pack in epoch(0, 0)]
    assert longest != sorted(longest, reverse=True)


def test_packs_are_shuffled_anew_in_every_epoch_and_every_chunk():
    """Records of a whole sequence, so that packs are records: their order is the shuffle alone."""
    records = GlobalOrder(60, 20, 0)
    order = PackedOrder(records, lambda ids: 0 * ids + 12, 12, chunk=20)
    shuffles = []
    for epoch, chunk in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):
        first = 20 * chunk
        begin = 60 * epoch + first
        unshuffled = records.between(begin, begin + 20).tolist()
        packs = order.take(60 * epoch + first)
        shuffles.append(tuple(unshuffled.index(index) for (index,) in packs))
    assert len(set(shuffles)) == 5


def packed_spec(**data: Any) -> Spec:
    made = spec({"vision": box(0, dp=2), "language": box(0, tp=2)}, mbs=2, seq=64)
    data = {"packing": True, "min_digits": 1, "max_digits": 3, "text_only": 0.3, **data}
    changed = {"data": {"kind": "digits", **data}, "modules": made.model_dump()["modules"]}
    changed["modules"]["vision"]["model"]["patch"] = 4
    changed["modules"]["language"]["model"]["vocab"] = "digits"
    return Spec.model_validate({**made.model_dump(by_alias=True), **changed})


MADE = packed_spec()


def test_an_epoch_of_digits_has_each_strip_once_and_few_gaps():
    dataset = build_dataset(packed_spec(samples=300))
    order = global_order(packed_spec(samples=300), dataset)
    ids: list[int] = []
    tokens = packs = place = 0
    while place < 300:
        for sample in order.take(place):
            ids += records_of(sample)
            tokens += sum(dataset.describe("train", i).num_tokens for i in records_of(sample))
            packs += 1
        place = order.after(place)
    assert sorted(ids[:300]) == list(range(300))
    assert tokens / (packs * 64) > 0.9


def test_a_pack_is_its_records_one_behind_the_other():
    dataset = build_dataset(MADE)
    ids = global_order(MADE, dataset).take(0)
    assert max(len(records_of(sample)) for sample in ids) > 2
    inputs = step_inputs(dataset, "train", ids, 0)
    for position, sample in enumerate(ids):
        tokens, labels = inputs.text(position)
        documents, described = inputs.documents(position), inputs.data.samples[position]
        images = inputs.images(position, "vision")
        first = 0
        for number, index in enumerate(records_of(sample)):
            own, wanted = dataset.text("train", index)
            length = dataset.describe("train", index).num_tokens
            here = slice(first, first + length)
            np.testing.assert_array_equal(tokens[here], own[:length])
            np.testing.assert_array_equal(labels[here], wanted[:length])
            assert labels[first + length - 1] == IGNORE_LABEL
            assert set(documents[here]) == {number}
            for image in dataset.images("train", index, "vision"):
                np.testing.assert_array_equal(images.pop(0), image)
            first += length
        assert images == []
        assert (tokens[first:] == PAD).all()
        assert (labels[first:] == IGNORE_LABEL).all()
        assert described.num_tokens == first
        assert described.num_labels == (labels != IGNORE_LABEL).sum()
        placed = sorted(
            span.position + i
            for span in described.spans.get("vision", ())
            for i in range(span.rows)
        )
        assert placed == np.flatnonzero(tokens == tokens[placed[0]] if placed else []).tolist()


def test_documents_of_a_record_stay_apart_in_a_pack():
    made = spec({"vision": box(0)}, max_documents=4, mbs=8)
    dataset = build_dataset(made)
    index = next(i for i in range(99) if dataset.documents("train", i).max() > 0)
    own = dataset.documents("train", index)[: dataset.describe("train", index).num_tokens]
    [found] = make_step_data(dataset, "train", ((index, index),), 0).samples
    longer = np.concatenate([own, own + own.max() + 1])
    inputs = step_inputs(_Longer(dataset, len(longer) + 2), "train", ((index, index),), 0)
    documents = inputs.documents(0)
    np.testing.assert_array_equal(documents[: len(longer)], longer)
    assert set(documents[len(longer) :]) == {longer[-1]}
    assert found.num_tokens == len(longer)


class _Longer(Dataset):
    """The same data set in longer sequences."""

    def __init__(self, dataset: Any, seq: int) -> None:
        self.describe, self._dataset, self._seq = dataset.describe, dataset, seq

    def documents(self, split: Any, index: int) -> Any:
        own = self._dataset.documents(split, index)
        return np.concatenate([own, np.full(self._seq - len(own), own[-1])])


@pytest.mark.parametrize("bad", [0, 1])
def test_no_record_attends_to_a_gap_in_front_of_it(bad: int):
    """A gap in front would move positions, and padding would be among the keys."""
    own = np.zeros(16, dtype=np.int64)
    records = [SampleData(number, 4, 2, first=4 * number) for number in range(3)]
    documents = joined_documents([(record, own) for record in records if record.id > bad], len(own))
    assert (np.diff(documents) >= 0).all()
    for record in records[bad + 1 :]:
        here = slice(record.first, record.first + record.num_tokens)
        assert len(set(documents[here])) == 1
        assert documents[here.start - 1] < documents[here.start]


def test_a_record_that_cannot_be_read_leaves_a_gap_in_its_pack():
    dataset = build_dataset(MADE)
    order = global_order(MADE, dataset)
    ids = order.take(0)
    position = next(p for p, sample in enumerate(ids) if len(records_of(sample)) > 2)
    bad = records_of(ids[position])[1]
    everything = tuple(range(len(ids)))
    reads = Reads(texts=everything, documents=everything, answers=(), images={"vision": everything})
    source = step_inputs(damaged(MADE, {("text", "train", bad): OSError("gone")}), "train", ids, 0)
    inputs, reasons = read_step(source, reads, MADE, lambda: None)
    [number] = reasons
    assert inputs.record(number).id == bad
    left, whole = inputs.without(reasons), step_inputs(dataset, "train", ids, 0)
    for other in everything:
        tokens, labels = (array.copy() for array in whole.text(other))
        described = whole.data.samples[other]
        if other == position:
            record = described.parts[1]
            here = slice(record.first, record.first + record.num_tokens)
            tokens[here], labels[here] = PAD, IGNORE_LABEL
            rest = [part for part in described.parts if part is not record]
            seen = left.data.samples[other]
            for name in ("num_tokens", "num_labels"):
                assert getattr(seen, name) == sum(getattr(part, name) for part in rest)
            assert seen.rows("vision") == sum(part.rows("vision") for part in rest)
            # Spans of those behind the gap stay where they are.
            kept = {span for part in packed(rest).spans.values() for span in part}
            assert {(s.height, s.width) for s in kept} == {
                (s.height, s.width) for part in seen.spans.values() for s in part
            }
            assert set(seen.spans.get("vision", ())) <= set(described.spans["vision"])
        got = left.text(other)
        np.testing.assert_array_equal(got[0], tokens)
        np.testing.assert_array_equal(got[1], labels)
        assert len(left.images(other, "vision")) == len(
            left.data.samples[other].spans.get("vision", ())
        )
    assert left.data.num_labels < inputs.data.num_labels
    assert left.data.indexed == inputs.data.samples


@pytest.mark.parametrize("bad", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_every_count_of_a_pack_is_that_of_its_readable_records(bad: tuple[int, ...]):
    """Tokens, rows, labels, and the labels of each depth of multi-token prediction."""
    records = [
        SampleData(n, 9 + n, 5 + n, {"vision": (ImageSpan(0, 1, 1 + n),)}, labels_ahead=(4 + n, n))
        for n in range(3)
    ]
    data = StepData(0, (without_records(packed(records), bad), records[2]))
    left = [each for each in records if each.id not in bad] + [records[2]]
    terms = [data.num_terms("language", depth) for depth in range(3)]
    assert terms == [
        sum(each.num_labels for each in left),
        *(sum(each.labels_ahead[depth] for each in left) for depth in range(2)),
    ]
    assert data.num_terms("vision") == sum(each.rows("vision") for each in left)
    found = sum(sample.num_tokens for sample in data.samples)
    assert found == sum(each.num_tokens for each in left)


def test_a_span_moves_with_all_that_it_says():
    """Its parts move with it, since they are places in the text."""
    numbers = {each.name: number for number, each in enumerate(fields(ImageSpan), start=1)}
    span = ImageSpan(**{**numbers, "parts": ((1, 2), (7, 3))})
    assert span.moved(5) == replace(span, position=6, parts=((6, 2), (12, 3)))
