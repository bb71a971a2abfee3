"""State in the memory of the host: the same run, on every layout and in every checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec, numbers, run, run_anew
from tests.support.proof import failures, training_verdicts
from tests.support.specs import box, spec

from mimo_launch.comm.torch_internals import LocalKernels
from mimo_launch.optimizer import module_optimizers
from mimo_launch.spec.spec import Spec

USUAL = {"kind": "adamw", "lr": 5e-3, "weight_decay": 0.1, "clip": 1.0}
OFFLOAD = {"optimizer": {**USUAL, "offload": True}}


def made(vision: dict[str, Any], language: dict[str, Any], **optimizer: Any) -> Spec:
    modules = {"vision": vision, "language": language}
    return spec(
        modules, microbatches=2, mbs=2, optimizer={"offload": True, "clip": 0.5, **optimizer}
    )


def in_small_parts() -> None:
    """Moments of a few weights at a time are on the device."""
    module_optimizers.AT_ONCE = 100


def kept_on_device() -> None:
    """Moments are copied to the device, and not back."""

    def forget(self: Any) -> None:
        self._lent = ()

    LocalKernels._return_state = forget  # type: ignore[method-assign]


LAYOUTS: dict[str, Callable[[], Spec]] = {
    "tp 2": lambda: made(box(tp=2), box(tp=2)),
    "dp 2, fully sharded": lambda: made(box(dp=2, sharding="full"), box(dp=2, sharding="full")),
    "muon beside, fully sharded": lambda: made(
        box(dp=2, sharding="full"), box(dp=2, sharding="full"), kind="muon", lr=0.01
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_with_moments_on_the_host_is_that_of_one_rank(layout: str) -> None:
    assert not failures(training_verdicts(LAYOUTS[layout](), prepare=in_small_parts))


def test_moments_that_do_not_come_back_are_rejected() -> None:
    assert failures(training_verdicts(LAYOUTS["tp 2"](), prepare=kept_on_device))


def test_checkpoints_with_and_without_it_continue_each_other(tmp_path: Path) -> None:
    alone = numbers(run(make_spec("one rank", 5), tmp_path / "alone"))
    run(make_spec("colocated dp4, tp2 dp2", 3, **OFFLOAD), tmp_path / "run")
    went_on = numbers(run_anew(make_spec("pp2", 4), tmp_path / "run"))
    went_on |= numbers(run_anew(make_spec("one rank", 5, **OFFLOAD), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)
