"""A run says what its plan expects of it, and how it compares, where both are about the same."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.histories import USAGE
from tests.support.reports import build_report
from tests.support.specs import box, spec
from tests.unit.test_metrics_file import started, step

from mimo_launch.cli.launch.prepare import Start, forecast_of, prepare
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.lines import other_lines
from mimo_launch.launcher.rank_tasks import Training
from mimo_launch.plan.plan import Plan
from mimo_launch.train.events import (
    Event,
    LargestStepComes,
    PlanCompared,
    RunFinished,
    RunStopped,
    StepFinished,
)
from mimo_launch.train.plan_watch import Forecast, Machine, PlanWatch

H100 = "NVIDIA H100 80GB HBM3"
FORECAST = Forecast(
    gpus=("NVIDIA H100 80GB", H100),
    step_seconds=2.0,
    needed_bytes=80_000_000_000,
    allocated_bytes=70_000_000_000,
    rank=2,
    step=5,
    tight_below=88_000_000_000,
    gpu_memory=None,
)
MACHINE = Machine(gpu=H100, memory=84_900_000_000, steps_late=1)
END = RunFinished(steps=8, seconds=1.0, skipped=0, peak_memory=69_000_000_000)


def heard(
    *,
    forecast: Forecast = FORECAST,
    machine: Machine = MACHINE,
    first: int = 0,
    last: int = 8,
    end: Event = END,
) -> list[Event]:
    """Return what a run tells; its steps take 9 s twice, and then 2.1, 2.2 and 2.3 s in turn."""
    told: list[Event] = []
    watch = PlanWatch(forecast, machine, told.append)
    watch(started(first))
    for number in range(first + 1, last + 1):
        seconds = 9.0 if number <= first + 2 else (2.1, 2.2, 2.3)[(number - first) % 3]
        watch(step(number, usage=replace(USAGE, step_s=seconds)))
    watch(end)
    return told


def test_the_largest_step_is_told_before_it_starts_and_once() -> None:
    """The numbers of a step are read when the next one has started: step 6 starts after step 4."""
    told = heard()
    place = next(n for n, each in enumerate(told) if isinstance(each, LargestStepComes))
    before = told[place - 1]
    assert isinstance(before, StepFinished)
    assert before.step == 4
    assert sum(isinstance(each, LargestStepComes) for each in told) == 1
    assert other_lines(told[place]) == [
        "note: step 6 comes, the largest of the plan: about 80.0 GB of 84.9 GB on rank 2"
    ]


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_the_first_steps_is_told_at_the_start(largest: int) -> None:
    told = heard(forecast=replace(FORECAST, step=largest))
    assert isinstance(told[1], LargestStepComes)


@pytest.mark.parametrize(
    ("forecast", "machine", "first", "tells"),
    [
        (FORECAST, MACHINE, 5, True),
        (FORECAST, MACHINE, 6, False),
        (replace(FORECAST, step=None), MACHINE, 0, False),
        (FORECAST, replace(MACHINE, memory=150_000_000_000), 0, False),
        (
            replace(FORECAST, gpu_memory=85_000_000_000),
            replace(MACHINE, memory=150_000_000_000),
            0,
            True,
        ),
        (replace(FORECAST, gpu_memory=150_000_000_000), MACHINE, 0, True),
    ],
    ids=[
        *("resumed before it", "resumed after it", "unknown"),
        *("a larger GPU", "a part of it", "a smaller GPU than allowed"),
    ],
)
def test_only_a_step_that_leaves_little_room_here_is_told(
    forecast: Forecast, machine: Machine, first: int, tells: bool
) -> None:
    told = heard(forecast=forecast, machine=machine, first=first)
    assert any(isinstance(each, LargestStepComes) for each in told) is tells


def test_a_run_is_compared_with_its_plan_before_it_is_done() -> None:
    *_, compared, end = heard()
    assert end is END
    assert compared == PlanCompared(
        step=8,
        estimated_step_s=2.0,
        measured_step_s=2.2,
        estimated_memory=70_000_000_000,
        measured_memory=69_000_000_000,
    )
    assert other_lines(compared) == [
        "against the plan: a step takes 2.20 s (estimated 2.00 s), the fullest GPU holds 69.0 GB "
        "of tensors (estimated 70.0 GB)"
    ]


def test_only_what_can_be_compared_is() -> None:
    """On another GPU its seconds, and before or after the largest step its memory, say nothing."""
    elsewhere = replace(MACHINE, gpu="NVIDIA H200")
    (compared,) = comparisons(heard(machine=elsewhere))
    assert (compared.measured_step_s, compared.estimated_step_s) == (None, None)
    assert compared.measured_memory is not None
    stopped = RunStopped(step=5, signal=15, checkpoint=None, peak_memory=1)
    (compared,) = comparisons(heard(last=5, end=stopped))
    assert (compared.step, compared.measured_step_s) == (5, 2.2)
    assert (compared.measured_memory, compared.estimated_memory) == (None, None)
    (compared,) = comparisons(heard(first=6, last=12))
    assert compared.measured_memory is None
    assert not comparisons(heard(machine=elsewhere, first=6, last=12))
    short = RunStopped(step=4, signal=15, checkpoint=None)
    assert not comparisons(heard(last=4, end=short)), "two steps after those that compile"


def test_the_task_of_a_run_gets_the_forecast_of_its_plan(tmp_path: Path) -> None:
    made = spec({"vision": box(0, model={"patch": 4}), "language": box(1)}, mbs=2)
    request = Start(
        plan=Plan.of(made),
        task=Training(),
        file=tmp_path / "spec.yaml",
        runs=tmp_path,
        say=lambda line: None,
        show=lambda plain: nullcontext(lambda event: None),
        device="cpu",
        num_workers=2,
    )
    prepared = prepare(request, Console())
    assert not isinstance(prepared, int)
    ready, folder = prepared
    folder.lock.close()
    assert isinstance(ready.task, Training)
    assert ready.task.forecast == forecast_of(build_report(Plan.of(made)), made)
    assert ready.job.task is ready.task


def comparisons(told: list[Event]) -> list[PlanCompared]:
    return [each for each in told if isinstance(each, PlanCompared)]


@pytest.mark.parametrize(
    ("nodes", "gpus", "gpu_memory"),
    [
        (None, ("NVIDIA H200", "NVIDIA H200"), None),
        ({"gpus": 2, "gpu": "h100-80gb"}, ("NVIDIA H100 80GB", H100), None),
        ({"gpus": 2, "gpu": "h100-80gb", "gpu_memory": "40GB"}, ("NVIDIA H100 80GB", H100), "40"),
        ({"gpus": 2, "gpu_memory": "40GB"}, (), "40"),
    ],
)
def test_a_forecast_is_for_the_gpu_and_the_memory_of_the_spec(
    nodes: dict | None, gpus: tuple[str, ...], gpu_memory: str | None
) -> None:
    made = spec({"vision": box(0, model={"patch": 4}), "language": box(1)}, mbs=2, nodes=nodes)
    report = build_report(Plan.of(made), advice=False)
    found = forecast_of(report, made)
    assert found.gpus == gpus
    fit = report.answer.fit
    assert (found.needed_bytes, found.rank, found.step) == (fit.needed_bytes, fit.rank, fit.step)
    assert found.allocated_bytes < found.needed_bytes
    assert (found.gpu_memory is None) is (gpu_memory is None)
