"""Estimates of a run by its own steps, against the samples that the run deals out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, make_step_data, steps_of
from mimo_launch.estimate.communication_times import WeightTimes
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.mean_of_steps import mean_of
from mimo_launch.estimate.memory_of_run import MemoryOfRun
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.rank_classes import RankClass
from mimo_launch.estimate.step_work import StepWork
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan.plan import Plan

VARIED = {"kind": "synthetic", "text_only": 0.2, "min_images": 1, "max_images": 3}


@pytest.mark.parametrize("packing", [False, True])
def test_the_work_of_every_forward_is_that_of_the_samples_that_a_run_deals_out(
    packing: bool,
) -> None:
    made = spec(
        {"vision": box(0, dp=2, model={"patch": 4}), "language": box(2, dp=2)},
        microbatches=2,
        mbs=2,
        data={**VARIED, "packing": packing},
    )
    found = Estimator.of(Plan.of(made))
    dataset, layout = build_dataset(made), build_layout(made)
    steps = steps_of(global_order(made, dataset), made.train.steps)
    sizes = set()
    for course, _ in found.simulated:
        work = course.model.step
        step = make_step_data(dataset, "train", steps[work.data.step], work.data.step)
        views = StepViews(layout, step)
        for replica, forward in product(range(2), range(2)):
            view = views.encoder("vision", replica, forward)
            own = work.forwards(layout["vision"], replica)[forward]
            assert own.rows == view.num_rows
            assert sorted(own.spans.elements()) == sorted(view.lengths)
            samples = [step.samples[n] for n in views.language(replica, forward).samples]
            held = work.forwards(layout.language, replica)[forward]
            assert held.spans.total() == sum(len(each.records) for each in samples)
            (bridge,) = layout.bridges.values()
            received = work.received(bridge, replica)[forward]
            assert received == sum(each.rows("vision") for each in samples)
            sizes.add(own.rows)
    assert len(sizes) > 1


def test_memory_is_that_of_the_largest_step_of_a_run_and_names_it() -> None:
    made = spec({"vision": box(0, model={"patch": 4}), "language": box(1)}, mbs=2, data=VARIED)
    found = Estimator.of(Plan.of(made))
    dataset = build_dataset(made)
    rows = [
        sum(
            make_step_data(dataset, "train", ids, number).samples[n].rows("vision")
            for n in range(2)
        )
        for number, ids in enumerate(steps_of(global_order(made, dataset), made.train.steps))
    ]
    (vision, language) = found.estimates().ranks
    assert vision.fullest_step == rows.index(max(rows))
    alone = replace(found, only=(found.expected.sampled, found.expected.sampled[:1]))
    assert vision.total_bytes >= alone.estimates().ranks[0].total_bytes
    assert (vision.fullest_rank, language.fullest_rank) == (0, 1)


def test_a_brief_look_has_the_memory_of_all_classes_of_ranks() -> None:
    """One class may need the most in another step than the next."""
    modules = {
        name: box(rank, model={"patch": 4}) for rank, name in enumerate(("vision", "glance"))
    }
    train = {"steps": 12, "seed": 3}
    made = spec({**modules, "language": box(2)}, mbs=2, data=VARIED, train=train)
    found = Estimator.of(Plan.of(made))
    whole, brief = found.estimates().ranks, found.brief.estimates().ranks
    assert len({each.fullest_step for each in whole}) == 3
    assert [each.memory for each in brief] == [each.memory for each in whole]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [sum, max], ids=["in all", "at once"])
def test_memory_is_no_less_than_that_of_the_replica_with_the_most(
    most: Callable[[Iterable[int]], int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica may have the most in a step, and another one the most in a forward."""
    made = spec(
        {"vision": box(0, dp=4, recompute="full"), "language": box(4, dp=4)},
        microbatches=3,
        data=VARIED,
        train={"steps": 1, "seed": seed},
    )
    found = Estimator.of(Plan.of(made)).estimates().ranks[0].total_bytes

    def fullest(self: MemoryOfRun, step: StepWork, alike: RankClass) -> Iterator[int]:
        module = self.layout[alike.role[0][0]]
        loads = {r: most(each.held for each in step.forwards_on(module, r)) for r in alike.ranks}
        yield max(loads, key=loads.__getitem__)

    monkeypatch.setattr(MemoryOfRun, "_fullest", fullest)
    assert found >= Estimator.of(Plan.of(made)).estimates().ranks[0].total_bytes


def test_the_time_of_a_step_is_the_mean_over_steps_and_waits_for_the_slowest_replica() -> None:
    made = spec(
        {"vision": box(0, dp=2, model={"patch": 4}), "language": box(2)},
        mbs=2,
        data=VARIED,
        train={"steps": 6},
    )
    found = Estimator.of(Plan.of(made))
    times = [(course.estimates({}, {}).step_seconds, n) for course, n in found.simulated]
    assert len(times) > 1
    mean = sum(seconds * n for seconds, n in times) / sum(n for _, n in times)
    assert found.estimates().step_seconds == pytest.approx(mean)
    work = found.simulated[0][0].model.step
    each = [work.forwards(found.layout["vision"], replica)[0].held for replica in range(2)]
    assert work.slowest(found.layout["vision"])[0].held == max(each)


def test_the_typical_step_is_near_the_mean_over_all_steps_and_not_over_their_kinds() -> None:
    made = spec(
        {"vision": box(0, model={"patch": 4}), "language": box(1)}, data=VARIED, train={"steps": 6}
    )
    found = Estimator.of(Plan.of(made))
    steps = [each for each, _ in found.simulated]
    short, *_, long = sorted(steps, key=lambda each: each.simulation.makespan)
    assert short.simulation.makespan < long.simulation.makespan
    one, other = short.model.step.data, long.model.step.data
    for rare, usual in ((one, other), (other, one)):
        mixed = replace(found, only=((rare, usual, usual, usual), found.expected.heaviest))
        assert [number for _, number in mixed.simulated] == [1, 3]
        assert mixed.typical.model.step.data is usual


@pytest.mark.parametrize("cp", [1, 2])
def test_work_that_is_kept_for_a_layout_is_not_that_of_one_with_longer_lists(cp: int) -> None:
    """Under sequence parallelism the lists of patches and of class tokens are padded for tp."""

    def plan(**grid: Any) -> Plan:
        vit = {"hidden": 64, "heads": 8, "class_token": True}
        vision = box(0, model=vit, cp=cp, **grid)
        language = box(0, model={"hidden": 64, "heads": 8}, cp=cp, tp=grid.get("tp", 1))
        data = {"kind": "synthetic", "max_images": 1, "max_patches": 5, "text_only": 0.3}
        return Plan.of(spec({"vision": vision, "language": language}, seq=96, data=data))

    alone, split = plan(), plan(tp=8 // cp, sequence_parallel=True)
    shared = Estimator.of(alone).brief
    assert shared.model.work["vision"]
    found = shared.on(split).model.work["vision"]
    assert found == Estimator.of(split).model.work["vision"]
    assert found[0].held > shared.model.work["vision"][0].held


def test_a_share_of_the_run_is_its_time_in_the_time_of_all_steps() -> None:
    """Two steps as planned, and one that takes four times as long, in which all wait."""
    made = spec({"vision": box(0), "language": box(1)})
    one = Estimator.of(Plan.of(made)).estimates()
    rows = [
        replace(
            row,
            computing=0.0,
            waiting=1.0,
            tflop=4 * row.tflop,
            bubble=1.0,
            stages=tuple(replace(each, forward_ms=4 * each.forward_ms) for each in row.stages),
        )
        for row in one.ranks
    ]
    tokens = one.tokens_per_second_per_gpu
    slow = replace(
        one,
        step_seconds=4 * one.step_seconds,
        tokens_per_second_per_gpu=tokens / 4,
        ranks=tuple(rows),
    )
    found = mean_of([(one, 2), (slow, 1)])
    assert found.step_seconds == pytest.approx(2 * one.step_seconds)
    # Three steps hold as many tokens each, in six times the time of one.
    assert found.tokens_per_second_per_gpu == pytest.approx(tokens / 2)
    for row, before in zip(found.ranks, one.ranks, strict=True):
        assert before.computing > 0
        assert row.computing == pytest.approx(before.computing / 3)
        assert row.waiting == pytest.approx((before.waiting + 2) / 3)
        assert row.tflop == pytest.approx(2 * before.tflop)
        assert row.bubble == pytest.approx((2 * before.bubble + 1) / 3)
        times = [[each.forward_ms for each in of.stages] for of in (row, before)]
        assert times[0] == pytest.approx([2 * each for each in times[1]])


def test_sums_over_copies_of_shards_are_of_all_weights_but_those_of_experts() -> None:
    """Experts are sharded over all of their replicas, of which none has a copy."""

    def seconds(hidden: int, width: int) -> float:
        moe = {"experts": 4, "top_k": 2, "width": width}
        model = {"hidden": hidden, "moe": moe}
        made = spec({"language": box(0, dp=4, sharding="full", shard_over=2, model=model)})
        language = build_layout(made).language
        weights = stage_weights(made, language.stages[0], 0)
        return WeightTimes(made, Calibration(), language).sums_of_copies(weights)

    assert seconds(64, 4096) == seconds(64, 64)
    assert seconds(128, 64) > seconds(64, 64) > 0


def test_what_is_frozen_takes_nothing_from_the_time_to_add_gradients() -> None:
    """Products add gradients of their own weights; a pass adds those of biases and norms."""

    def seconds(layers: int, frozen: str | bool) -> float:
        vision = box(0, frozen=frozen, model={"layers": layers})
        made = spec({"vision": vision, "language": box(1)}, train={"steps": 1, "precision": "bf16"})
        module = build_layout(made)["vision"]
        weights = stage_weights(made, module.stages[0], 0)
        return WeightTimes(made, Calibration(), module).accumulation(weights, 2)

    projector = seconds(1, "except_projector")
    assert seconds(8, "except_projector") == projector > 0
    assert projector < seconds(1, False) < seconds(8, False)
