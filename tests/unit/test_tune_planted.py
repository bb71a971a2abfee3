"""Faults planted in what `tune` reckons with: each is noticed by its promises about layouts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.poor_specs import B1, TEXT, job, module

from mimo_launch.estimate import memory
from mimo_launch.estimate.communication_times import LinkTimes
from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.tune import Layouts, Wish, tune
from mimo_launch.spec.spec import Spec


def two_hosts() -> Spec:
    """Return a 1B model on four GPUs of two hosts, which hold less than half of it."""
    made = job({"language": module(B1, 0, 3, dp=4)}, 16, 2, seq=2048, data=TEXT)
    assert made.nodes is not None
    return made.replace(nodes=made.nodes.replace(gpus=2, gpu_memory="14GB"))


def broken_promises(found: Layouts) -> list[str]:
    """Return what is not true of layouts, by plans without a fault."""
    broken = []
    for planned, estimator in found.found:
        estimates = Estimator.of(Plan.of(estimator.spec)).estimates()
        if estimates.step_seconds != pytest.approx(planned.seconds, rel=1e-6):
            broken.append("a layout takes the seconds of its plan")
        if max(row.total_bytes for row in estimates.ranks) > 0.9 * (estimates.gpu_memory or 0):
            broken.append("a layout fits")
    return broken


def without_collectives(patch: pytest.MonkeyPatch, constants: Calibration) -> Calibration:
    patch.setattr(LinkTimes, "collective", lambda *_: 0.0)
    return constants


def without_optimizer(patch: pytest.MonkeyPatch, constants: Calibration) -> Calibration:
    # In plans and in bounds, which would refuse what plans let in.
    patch.setattr(memory, "_moments", lambda *_: (0, 0))
    return constants


def with_half_the_network(_: pytest.MonkeyPatch, constants: Calibration) -> Calibration:
    return replace(constants, network_bandwidth=constants.network_bandwidth / 2)


Plant = Callable[[pytest.MonkeyPatch, Calibration], Calibration]


@pytest.mark.parametrize("plant", [without_collectives, without_optimizer, with_half_the_network])
def test_a_planted_fault_breaks_a_promise(plant: Plant) -> None:
    made = two_hosts()
    with pytest.MonkeyPatch.context() as patch:
        constants = plant(patch, constants_for(made.nodes))
        found = tune(made, Wish(gpus=4, plans=160, top=5), constants)
    assert broken_promises(found)


def test_without_a_fault_all_promises_are_kept() -> None:
    found = tune(two_hosts(), Wish(gpus=4, plans=160, top=5))
    assert len(found.found) > 1
    assert broken_promises(found) == []
