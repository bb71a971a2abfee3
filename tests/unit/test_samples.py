"""Who encodes which sample, and who trains language on it: every sample once on both sides."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.specs import layout_specs

from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.samples import SampleMap
from mimo_launch.layout.step_data import SampleData, StepData


def encoder_table(samples: SampleMap, num_replicas: int, group_size: int) -> list[list[tuple]]:
    """Samples of each encoder replica, one row per group."""
    return [
        [samples.encoder(e, num_replicas, group, group_size) for e in range(num_replicas)]
        for group in range(samples.microbatches // group_size)
    ]


def language_table(samples: SampleMap) -> list[list[tuple]]:
    """Samples of each language replica, one row per microbatch."""
    return [
        [tuple(samples.language(d, j)) for d in range(samples.replicas)]
        for j in range(samples.microbatches)
    ]


def test_each_language_replica_owns_a_contiguous_share():
    samples = SampleMap(global_batch=12, replicas=2, microbatches=3)
    assert samples.microbatch_size == 2
    assert language_table(samples) == [
        [(0, 1), (6, 7)],
        [(2, 3), (8, 9)],
        [(4, 5), (10, 11)],
    ]


@pytest.mark.parametrize(
    ("samples", "encoders", "k", "table"),
    [
        pytest.param(
            SampleMap(16, replicas=1, microbatches=2), 4, 1,
            [
                [(0, 1), (2, 3), (4, 5), (6, 7)],
                [(8, 9), (10, 11), (12, 13), (14, 15)],
            ],
            id="fan-in 4:1",
        ),
        pytest.param(
            SampleMap(12, replicas=3, microbatches=2), 3, 1,
            [[(0, 1), (4, 5), (8, 9)], [(2, 3), (6, 7), (10, 11)]],
            id="one-to-one 3:3",
        ),
        pytest.param(
            SampleMap(6, replicas=3, microbatches=2), 1, 1,
            [[(0, 2, 4)], [(1, 3, 5)]],
            id="fan-out 1:3",
        ),
        pytest.param(
            SampleMap(12, replicas=3, microbatches=4), 1, 2,
            [[(0, 1, 4, 5, 8, 9)], [(2, 3, 6, 7, 10, 11)]],
            id="fan-out 1:3, groups of 2",
        ),
        pytest.param(
            SampleMap(12, replicas=2, microbatches=6), 3, 3,
            [[(0, 1), (2, 6), (7, 8)], [(3, 4), (5, 9), (10, 11)]],
            id="dp 3 into dp 2, groups of 3",
        ),
        pytest.param(
            SampleMap(12, replicas=3, microbatches=2), 2, 2,
            [[(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11)]],
            id="dp 2 into dp 3, one group",
        ),
        pytest.param(
            SampleMap(12, replicas=3, microbatches=2), 2, 1,
            [[(0, 1, 4), (5, 8, 9)], [(2, 3, 6), (7, 10, 11)]],
            id="dp 2 into dp 3, microbatches of 2",
        ),
    ],
)  # fmt: skip
def test_encoder_samples_are_those_of_the_table(samples, encoders, k, table):
    assert encoder_table(samples, encoders, k) == table


def test_a_sample_is_located_in_its_microbatch():
    samples = SampleMap(global_batch=12, replicas=2, microbatches=3)
    assert [samples.locate(sample) for sample in (0, 1, 5, 6, 11)] == [
        (0, 0, 0), (0, 0, 1), (0, 2, 1), (1, 0, 0), (1, 2, 1),
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(layout_specs(24, supported_only=False))
def test_every_sample_is_encoded_once_and_trained_on_once(spec):
    layout = build_layout(spec)
    samples, every = layout.samples, list(range(spec.batch.global_))
    language = [s for row in language_table(samples) for part in row for s in part]
    assert sorted(language) == every
    for encoder in layout.encoders:
        table = encoder_table(samples, encoder.grid.size("dp"), encoder.group_size)
        assert sorted(s for row in table for part in row for s in part) == every
        assert len({len(part) for row in table for part in row}) == 1


@settings(max_examples=50, deadline=None)
@given(layout_specs(24, supported_only=False))
def test_an_encoder_group_holds_the_samples_of_its_microbatches_in_order(spec):
    layout = build_layout(spec)
    for encoder in layout.encoders:
        k = encoder.group_size
        for group, row in enumerate(encoder_table(layout.samples, encoder.grid.size("dp"), k)):
            assert [s for part in row for s in part] == [
                sample
                for replica in range(layout.samples.replicas)
                for microbatch in range(group * k, (group + 1) * k)
                for sample in layout.samples.language(replica, microbatch)
            ]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_locate_inverts_the_language_map(replicas, microbatches, mbs):
    samples = SampleMap(replicas * microbatches * mbs, replicas, microbatches)
    assert [samples.locate(s) for s in range(samples.global_batch)] == [
        (d, j, i) for d in range(replicas) for j in range(microbatches) for i in range(mbs)
    ]
    assert all(s in samples.language(*samples.locate(s)[:2]) for s in range(samples.global_batch))


def test_labels_of_a_step_are_counted_once() -> None:
    """Not again for every microbatch."""

    class Counted(tuple[SampleData, ...]):
        reads = 0

        def __iter__(self) -> Iterator[SampleData]:
            Counted.reads += 1
            return super().__iter__()

    data = StepData(0, Counted(SampleData(n, 8, n) for n in range(5)))
    assert [data.num_labels for _ in range(4)] == [10] * 4
    assert Counted.reads == 1
