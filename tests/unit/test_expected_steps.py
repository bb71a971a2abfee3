"""The steps that a plan expects, against the steps of a run."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.specs import box, layout_specs, spec
from tests.unit.test_owners import step_of

from mimo_launch.data.build import build_dataset
from mimo_launch.data.expected_steps import ExpectedSteps, expected_steps
from mimo_launch.data.fact_source import Source
from mimo_launch.data.heaviest_steps import heaviest_steps
from mimo_launch.data.order.sample_order import global_order, make_step_data, steps_of
from mimo_launch.data.record_facts import Int64s
from mimo_launch.data.run_records import DrawnRecords
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

STEPS = 12
TWO_ENCODERS = {
    "vision": box(0, dp=2, model={"patch": 4}),
    "glance": box(2, model={"patch": 8}),
    "language": box(3, tp=2, model={"vocab": "digits"}),
}


def with_steps(made: Spec, steps: int = STEPS, **data: object) -> Spec:
    train = made.train.model_copy(update={"steps": steps})
    changed = made.data.model_copy(update=data)
    return made.model_copy(update={"train": train, "data": changed})


def walk(made: Spec) -> list[StepData]:
    """Return all steps of a run, as its loader makes them."""
    dataset = build_dataset(made)
    ids = steps_of(global_order(made, dataset), made.train.steps)
    return [make_step_data(dataset, "train", each, step) for step, each in enumerate(ids)]


def loads(layout: Layout, data: StepData) -> Iterator[tuple[str, int]]:
    """Yield what each replica holds at once, by the name of what it is."""
    views = StepViews(layout, data)
    for module in layout.modules:
        replicas, groups = range(module.grid.size(Axis.DP)), range(layout.num_groups(module))
        for replica in replicas:
            if module.is_language:
                for group in groups:
                    samples = [data.samples[n] for n in views.language(replica, group).samples]
                    yield "tokens", sum(each.num_tokens for each in samples)
                    encoders = [m.name for m in layout.modules if not m.is_language]
                    yield "rows", sum(each.rows(name) for each in samples for name in encoders)
                continue
            rows = [views.encoder(module.name, replica, group).num_rows for group in groups]
            yield from ((f"{module.name} at once", number) for number in rows)
            yield f"{module.name} in a step", sum(rows)


def most(layout: Layout, steps: list[StepData]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, number in (each for step in steps for each in loads(layout, step)):
        found[name] = max(found.get(name, 0), number)
    return found


def assert_is_true(made: Spec, found: ExpectedSteps, steps: list[StepData] | None = None) -> None:
    """All of it equals what a run sees, exactly."""
    steps, layout = steps or walk(made), build_layout(made)
    assert found.num_steps == found.looked_at == len(steps)
    for shown in (*found.sampled, *found.heaviest):
        assert list(shown.samples) == list(steps[shown.step].samples)
    assert most(layout, list(found.heaviest)) == most(layout, steps)
    assert found.tokens == sum(each.num_tokens for step in steps for each in step.samples)
    assert found.positions == len(steps) * made.batch.global_ * made.batch.seq


@settings(max_examples=15)
@given(layout_specs(supported_only=False), st.booleans())
def test_drawn_steps_and_the_heaviest_of_any_layout_are_those_of_a_run(
    made: Spec, packing: bool
) -> None:
    wanted = with_steps(made, packing=packing)
    found = expected_steps(wanted)
    assert found.source is Source.DRAWN
    assert_is_true(wanted, found)


def test_a_very_large_data_set_or_step_takes_no_time_to_expect() -> None:
    digits = {"kind": "digits", "samples": 2**31 - 1}
    made = with_steps(spec(TWO_ENCODERS, microbatches=4, mbs=4, seq=128, data=digits))
    assert expected_steps(made).looked_at == STEPS
    batch = made.batch.model_copy(update={"global_": 2**16})
    large = expected_steps(made.model_copy(update={"batch": batch}))
    assert (large.looked_at, len(large.sampled)) == (1, 1)
    assert large.heaviest == large.sampled
    # Of a step with more records than are looked at, the largest part is not known.
    assert (expected_steps(made).names_largest, large.names_largest) == (True, False)
    assert large.sampled[0].samples[2**16 - 1].num_tokens > 0
    assert large.padding == pytest.approx(expected_steps(made).padding, abs=0.02)


def test_balanced_encoders_of_digits_have_their_heaviest_step() -> None:
    digits = {"kind": "digits", "packing": True, "text_only": 0.3}
    made = with_steps(spec(TWO_ENCODERS, microbatches=4, mbs=4, seq=128, data=digits))
    found = expected_steps(made)
    assert_is_true(made, found)
    assert 0 < found.padding < 0.2
    assert len(found.sampled) == 8
    assert {found.sampled[0].step, found.sampled[-1].step} == {0, STEPS - 1}


def test_a_step_is_the_heaviest_by_large_samples_of_two_groups_alone() -> None:
    """The replica with the largest share of a step has none of the small ones of other groups."""
    made = spec({"vision": box(0, dp=2), "language": box(2)}, microbatches=4, mbs=2)
    rows = np.array([[11, 11, *[0] * 6], [4] * 8, [10, 10, 10, *[0] * 5]])
    steps, layout = [step_of(each) for each in rows.tolist()], build_layout(made)
    samples = [sample for step in steps for sample in step.samples]

    def part_of(numbers: Int64s) -> StepData:
        return StepData(0, [samples[number] for number in numbers.tolist()])

    found = heaviest_steps(layout, 0 * rows, {"vision": rows}, part_of)
    assert most(layout, [steps[n] for n in found]) == most(layout, steps)
    assert most(layout, steps)["vision in a step"] == 20
    assert found == [0, 2]


def test_sizes_alone_deal_out_samples_and_find_the_heaviest_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pack of a large index takes long to describe: a plan does so for those it looks at."""
    digits = {"kind": "digits", "packing": True, "text_only": 0.3}
    made = with_steps(spec(TWO_ENCODERS, microbatches=4, mbs=4, seq=128, data=digits))
    (run, *_), found = walk(made), expected_steps(made)
    step, views = found.sampled[0], StepViews(found.layout, found.sampled[0])
    monkeypatch.setattr(DrawnRecords, "describe", lambda *_: pytest.fail("it is described"))
    assert found.heaviest
    of_run = StepViews(found.layout, run).encoder("vision", 1, 0).samples
    assert views.encoder("vision", 1, 0).samples == of_run
    assert step.num_records == run.num_records > made.batch.global_


def test_a_sample_is_described_once() -> None:
    step = expected_steps(with_steps(spec({"language": box()}))).sampled[0]
    assert step.samples[:1][0] is step.samples[0]


def test_what_is_known_of_data_serves_runs_of_other_lengths() -> None:
    made = spec({"language": box(0)}, mbs=2)
    for steps in (3, 30, 5):
        longer = with_steps(made, steps)
        assert_is_true(longer, expected_steps(longer))


def test_a_small_data_set_is_walked_through_64_times_and_one_step_is_always_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = {"kind": "synthetic", "samples": 4}
    made = with_steps(spec({"language": box(0)}, mbs=2, data=data), 1000)
    assert expected_steps(made).looked_at == 64 * 4 / 2
    monkeypatch.setattr("mimo_launch.data.order.known_order.MOST_PACKED", 1)
    assert expected_steps(with_steps(made, 999, packing=True)).looked_at == 1
