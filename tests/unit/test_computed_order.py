"""The computed order of large sets: a permutation, of which any place is known at once."""

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimo_launch.checkpoint.folder import Marker
from mimo_launch.checkpoint.loading import run_state
from mimo_launch.data.order import epochs
from mimo_launch.data.order.permutation import ROUNDS, Permutation
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.data.random_draws import Purpose, generator, split_key
from mimo_launch.runtime.progress import RunState


def permutation(number: int, seed: int = 0) -> Permutation:
    return Permutation(number, np.random.default_rng(seed).integers(0, 2**64, ROUNDS, np.uint64))


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_every_item_has_one_place(number: int, seed: int) -> None:
    assert sorted(permutation(number, seed)[0:number].tolist()) == list(range(number))


@given(st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 300), st.integers(0, 9))
def test_places_are_the_same_however_they_are_asked_for(
    number: int, first: int, length: int, seed: int
) -> None:
    order = permutation(number, seed)
    first %= number
    items = order[first : first + length].tolist()
    assert len(items) == len({*items}) == min(length, number - first)
    assert all(0 <= item < number for item in items)
    middle = first + length // 2
    assert items == [*order[first:middle], *order[middle : first + length]]


def test_orders_are_even_and_independent_of_places() -> None:
    """Chi-squared of where 10 items go in 4,000 orders, and of neighbours in a large one."""
    seen = np.zeros((10, 10))
    for seed in range(4000):
        seen[np.arange(10), permutation(10, seed)[0:10]] += 1
    assert ((seen - 400) ** 2 / 400).sum() < 150  # 81 degrees of freedom
    large = permutation(300_007)[0:300_007]
    steps = np.histogram(np.diff(large) % 300_007, 64)[0]
    assert ((steps - steps.mean()) ** 2 / steps.mean()).sum() < 120  # 63 degrees of freedom
    assert not np.array_equal(large, permutation(300_007, 1)[0:300_007])


def test_the_computed_order_is_pinned() -> None:
    """A change gives runs over large sets other samples after a resume."""
    order = GlobalOrder(10**9, 4, seed=3)
    assert order.ids(0) == PINNED[0]
    assert order.ids(10**8) == PINNED[1]


PINNED = (
    (974401765, 503381691, 249678654, 438263848),
    (777705354, 638983714, 973844795, 943533513),
)


def test_any_step_of_a_billion_samples_takes_milliseconds_and_little_memory() -> None:
    GlobalOrder(10**9, 4096, seed=1).take(0)
    tracemalloc.start()
    taken = []
    for step in (0, 7, 10**5, 10**7):
        begin = time.process_time()
        order = GlobalOrder(10**9, 4096, seed=1)
        assert len({*order.ids(step)}) == 4096
        taken.append(time.process_time() - begin)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(taken) < 0.05  # Some 2 ms without the tracing of memory.
    assert peak < 50e6


def test_runs_of_earlier_releases_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version sorted random words, whatever the size."""
    monkeypatch.setattr(epochs, "LARGE", 50)
    monkeypatch.setattr("mimo_launch.data.order.sample_order.LARGE", 50)
    words = generator(split_key(5, "train", Purpose.ORDER), 1).random_raw(60)
    old, new = GlobalOrder(60, 6, 5, version=1), GlobalOrder(60, 6, 5)
    assert old.between(60, 120).tolist() == np.argsort(words, kind="stable").tolist()
    assert sorted(new.between(60, 120).tolist()) == list(range(60))
    assert new.between(60, 120).tolist() != old.between(60, 120).tolist()
    counts = {"step": 3, "samples": 24, "skipped": 0, "bad_samples": 0}
    saved = Marker(format=1, counts=counts, updates={}, plan="", spec={}, torch="", files={})
    assert run_state(saved) == RunState(step=3, samples=24, order=1, evaluated=3)
    assert run_state(replace(saved, counts={**counts, "order": 2})).order == 2 == RunState().order
    assert GlobalOrder(50, 6, 5, version=1).ids(3) == GlobalOrder(50, 6, 5).ids(3)
