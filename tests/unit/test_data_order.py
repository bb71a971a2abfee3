"""The global order: permutations, resuming, evaluation batches, and the plan of a step."""

import zipfile
from dataclasses import dataclass

import numpy as np
import pytest

from mimo_launch.data.dataset import Dataset
from mimo_launch.data.digit_images import from_uci, write_npz
from mimo_launch.data.order import epochs
from mimo_launch.data.order.sample_order import GlobalOrder, heldout_batches, make_step_data
from mimo_launch.data.random_draws import (
    Draws,
    Purpose,
    is_below,
    noise_of,
    order_of,
    pick,
    split_key,
    threshold,
)
from mimo_launch.layout.step_data import SampleData, without_records


@pytest.mark.parametrize(("num", "batch"), [(20, 5), (20, 8), (7, 32), (1, 3), (1000, 32)])
def test_epochs_are_permutations_whatever_the_batch(num, batch):
    order = GlobalOrder(num, batch, seed=5)
    steps = -(-2 * num // batch)
    ids = [i for step in range(steps) for i in order.ids(step)]
    assert len(ids) == steps * batch
    first, second = ids[:num], ids[num : 2 * num]
    assert sorted(first) == sorted(second) == list(range(num))
    assert num == 1 or first != second


@pytest.mark.parametrize("number", [0, 1, 2, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize(
    "equal",
    ["none", "whole words", "their high bits", "all high bits"],
    ids=lambda equal: equal.replace(" ", "-"),
)
def test_many_words_are_sorted_as_few_are(number, equal):
    """Words that are equal, or equal but for the bits that hold a place, included."""
    words = np.random.default_rng(number).integers(0, 2**64, number, dtype=np.uint64)
    half = number // 2
    if equal == "whole words":
        words[:half] = words[half : 2 * half]
    if equal == "their high bits":
        words[:half] = words[half : 2 * half] ^ np.uint64(1)
    if equal == "all high bits":
        words &= np.uint64(1)
    found = order_of(words)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(range(number), key=words.tolist().__getitem__)


def test_the_order_does_not_depend_on_the_batch():
    orders = {batch: GlobalOrder(50, batch, seed=1) for batch in (4, 10)}
    flat = [[i for step in range(100 // b) for i in o.ids(step)] for b, o in orders.items()]
    assert flat[0] == flat[1]


def test_the_records_of_an_epoch_are_sorted_once(monkeypatch: pytest.MonkeyPatch):
    """Also for the orders with packing and without, which a plan compares."""
    seen = []
    monkeypatch.setattr(
        epochs, "order_of", lambda words: seen.append(len(words)) or order_of(words)
    )
    for batch in (4, 10):
        assert len(GlobalOrder(53, batch, seed=71).between(0, 53)) == 53
    assert seen == [53]


def test_a_run_resumes_from_the_step_number_alone():
    whole = GlobalOrder(33, 8, seed=2)
    ids = [whole.ids(step) for step in range(40)]
    for step in (39, 17, 4, 0):
        assert GlobalOrder(33, 8, seed=2).ids(step) == ids[step]
    assert GlobalOrder(33, 8, seed=3).ids(0) != ids[0]
    with pytest.raises(ValueError, match="sample -8"):
        whole.ids(-1)
    with pytest.raises(ValueError, match="0 samples"):
        GlobalOrder(0, 8, seed=2)


def test_the_order_is_pinned():
    # A change here changes every run in the field: a resumed one would see samples twice.
    assert GlobalOrder(10, 10, seed=0).ids(0) == (0, 2, 9, 1, 8, 5, 4, 3, 6, 7)


def test_the_noise_of_generators_is_pinned():
    """A change gives every run other noise. numpy may change the streams of its distributions."""
    values, time = noise_of(0, 2, 5, 1, (1, 2), heldout=False)
    assert (values.tolist(), time) == (
        [[-0.00025476873270235956, -0.9477506279945374]],
        0.0005330552921900544,
    )
    assert noise_of(0, 3, 5, 1, (1, 2), heldout=False).time != time
    heldout = [noise_of(0, step, 5, 1, (1, 2), heldout=True).time for step in (2, 3)]
    assert heldout[0] == heldout[1]


def test_every_held_out_sample_is_in_one_batch_and_nothing_fills_the_last():
    empty = ()
    assert heldout_batches(10, 4, range(100)) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, empty, empty))
    assert heldout_batches(8, 8, range(100)) == (tuple(range(8)),)
    assert heldout_batches(4, 4, [5, 7, 8]) == ((5, 7, 8, empty),)
    assert heldout_batches("all", 4, range(6)) == ((0, 1, 2, 3), (4, 5, empty, empty))
    assert heldout_batches(1, 1, range(1)) == ((0,),)
    for number, batch, there in ((0, 4, 100), (4, 0, 100), (4, 4, 0), ("all", 4, 0)):
        with pytest.raises(ValueError, match="cannot evaluate"):
            heldout_batches(number, batch, range(there))


@dataclass
class Counting(Dataset):
    def describe(self, split, index):
        return SampleData(index, num_tokens=index, num_labels=2 if split == "train" else 1)


def test_a_data_plan_keeps_the_order_of_the_ids():
    data = make_step_data(Counting(), "train", (5, 1, 3), step=7)
    assert data.step == 7
    assert [sample.id for sample in data.samples] == [5, 1, 3]
    assert data.num_labels == 6
    assert make_step_data(Counting(), "heldout", (5,), step=0).num_labels == 1


def test_a_sample_without_records_is_padding():
    one, empty = make_step_data(Counting(), "heldout", (5, ()), step=0).samples
    assert (one.records, empty.records) == ((one,), ())
    assert (empty.num_tokens, empty.num_labels, empty.spans) == (0, 0, {})
    assert without_records(empty, []) == empty


def test_a_row_of_draws_depends_on_its_index_only():
    key = split_key(0, "train", Purpose.DIGITS)
    table = Draws(key, 6)
    rows = {index: table.row(index) for index in (5000, 3, 1024, 1023)}
    for index, row in rows.items():
        assert len(row) == 6
        assert Draws(key, 6).row(index) == row
    stream = np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(8 * 5001)
    assert stream.reshape(-1, 8)[5000, :6].tolist() == rows[5000]
    assert split_key(1 << 70, "train", Purpose.ORDER)[0] == 0
    assert split_key((1 << 64) - 2, "train", Purpose.ORDER)[0] == (1 << 64) - 2


def test_words_become_fair_integers_and_chances():
    top = (1 << 64) - 1
    assert (pick(0, 7), pick(top, 7), pick(top, 1)) == (0, 6, 0)
    assert threshold(0.0) == 0
    assert threshold(1.0) > top
    ends = np.array([0, top], dtype=np.uint64)
    assert [is_below(ends, threshold(share)).tolist() for share in (0.0, 0.5, 1.0)] == [
        [False, False], [True, False], [True, True]
    ]  # fmt: skip


def test_the_file_of_images_is_reproducible(tmp_path):
    images = np.arange(128, dtype=np.uint8).reshape(2, 8, 8) % 17
    labels = np.array([3, 9], dtype=np.uint8)
    for name in ("a", "b"):
        write_npz(tmp_path / name, {"images": images, "labels": labels})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
    table = np.concatenate([images.reshape(2, 64), labels[:, None]], axis=1)
    np.savetxt(tmp_path / "optdigits.tes", table, fmt="%d", delimiter=",")
    read_images, read_labels = from_uci(tmp_path / "optdigits.tes")
    assert (read_images == images).all()
    assert (read_labels == labels).all()


def test_few_rows_of_many_blocks_are_drawn_alone(monkeypatch: pytest.MonkeyPatch):
    """The same words, and a block only for a record of which many others are beside it."""
    made: list[int] = []
    draw = Draws._make_block
    key = split_key(0, "train", Purpose.DIGITS)
    beside = 7 * 1024 + np.arange(900)
    ids = np.append(np.random.default_rng(0).integers(8 * 1024, 10**9, size=300), beside)
    ids = np.random.default_rng(1).permutation(ids)
    wanted = Draws(key, 6).rows(ids)
    monkeypatch.setattr(Draws, "_make_block", lambda *of: made.append(of[1]) or draw(*of))
    table = Draws(key, 6, 10**9)
    assert (table.rows(ids) == wanted).all()
    assert [table.row(index) for index in ids[:9].tolist()] == wanted[:9].tolist()
    assert table.rows(ids[:0]).shape == (0, 6)
    assert made == [7]


def test_a_step_draws_each_block_of_records_once(monkeypatch: pytest.MonkeyPatch):
    """Also if it has records of more blocks than are kept, in any order."""
    made: list[int] = []
    draw = Draws._make_block
    monkeypatch.setattr(Draws, "_make_block", lambda *of: made.append(of[1]) or draw(*of))
    table = Draws(split_key(0, "train", Purpose.DIGITS), 6)
    ids = np.random.default_rng(0).permutation(600)[np.arange(1800) % 600] * 1024 + 3
    found = table.rows(ids)
    assert sorted(made) == list(range(600))
    assert [found[place].tolist() for place in (0, 900)] == [
        table.row(ids[place].item()) for place in (0, 900)
    ]
