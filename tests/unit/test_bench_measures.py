"""What `bench` says of steps that are made up here: its estimate, and what was skipped."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.docs.files_page import ROOT

from mimo_launch.bench import measure_steps
from mimo_launch.bench.measure_steps import bench, measure
from mimo_launch.bench.result import BenchOptions
from mimo_launch.bench.time_shares import Measured
from mimo_launch.comm.step_clock import Section
from mimo_launch.comm.world import device_name, peak_resident
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

CPU = torch.device("cpu")


def photographs() -> Spec:
    made = load_spec(ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml").spec
    assert made is not None
    return made


def options(constants: Calibration, *, with_loader: bool = False) -> BenchOptions:
    return BenchOptions(
        warmup=2, steps=1, with_loader=with_loader, calibration=constants, command=""
    )


def test_steps_are_compared_with_the_estimate_of_steps_that_read_as_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading takes Python so long that steps wait for it; samples in memory take none."""
    made = photographs()
    plan = Plan.of(made)
    session: Any = SimpleNamespace(spec=made, layout=plan.layout, plan=plan, rank=0, device=CPU)
    slow = replace(Calibration(), device=device_name(CPU), text_overhead=1e8)
    noted = [(Section.STEP, 0.0, 1.0)]
    own = Measured(
        host="a", began=0.0, noted=noted, allocated=None, used=None, resident=1, skipped=0
    )
    samples = SimpleNamespace(data_of=lambda step: nominal_step_data(made))
    monkeypatch.setattr(measure_steps, "measure", lambda *_: ([own], samples))
    found = {}
    for with_loader in (True, False):
        result = bench(session, options(slow, with_loader=with_loader), print, lambda: 0)
        assert not isinstance(result, int)
        found[with_loader] = result.estimated_step_s
    assert found[True] == Estimator.of(plan, slow).estimates().step_seconds
    assert found[False] == Estimator.of(plan, slow.without_reading).estimates().step_seconds
    assert found[True] > 10 * found[False]


def test_steps_that_the_warmup_skipped_are_not_among_those_that_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(session: Any, runner: Any, hooks: Any, steps: int) -> int:
        runner.state.skipped += steps
        return 0

    clock = SimpleNamespace(start=lambda: 0.0, stop=list)
    session: Any = SimpleNamespace(
        spec=photographs(),
        device=CPU,
        executor=SimpleNamespace(clock=clock),
        progress=SimpleNamespace(enter=lambda *_: None),
    )
    reader = nullcontext(SimpleNamespace())
    for name, fake in {
        "build_dataset": lambda spec: None,
        "global_order": lambda *_: None,
        "StepReader": lambda *_, **__: reader,
        "Rotation": lambda *_: SimpleNamespace(readings=lambda steps: []),
        "StepRunner": lambda *given, last: SimpleNamespace(state=given[3]),
        "gather_objects": lambda own: [own],
        "reset_peak": lambda device: None,
        "_run": run,
    }.items():
        monkeypatch.setattr(measure_steps, name, fake)
    monkeypatch.setattr(measure_steps.dist, "barrier", lambda: None)
    found = measure(session, options(Calibration()), print, lambda: 0)
    assert not isinstance(found, int)
    assert [each.skipped for each in found[0]] == [1]


def test_resident_memory_is_in_bytes_as_the_kernel_counts_it() -> None:
    """A process may inherit a larger peak from what it was started by."""
    said = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert said is not None
    assert peak_resident() >= 0.99 * 1024 * int(said[1])
