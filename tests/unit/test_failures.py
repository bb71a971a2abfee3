"""Which of several failed ranks is blamed."""

from dataclasses import dataclass

from mimo_launch.launcher.local import _first_to_fail
from mimo_launch.train.events import StepFinished, as_record

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:3"


@dataclass(frozen=True)
class Failure:
    """As torch elastic reports one."""

    exitcode: int
    message: str
    timestamp: int


def test_a_killed_rank_is_blamed_before_the_peers_that_lost_it() -> None:
    """The kill is noticed a second after the peers' errors."""
    failures = {
        0: Failure(1, LOST, 10),
        1: Failure(-9, "Signal 9 (SIGKILL) received by PID 5", 11),
        2: Failure(1, LOST, 10),
    }
    assert _first_to_fail(failures) == 1


def test_the_rank_with_an_error_of_its_own_is_blamed_before_lost_peers() -> None:
    failures = {0: Failure(1, LOST, 10), 3: Failure(1, "ValueError: no such sample", 11)}
    assert _first_to_fail(failures) == 3


def test_among_equals_the_first_in_time_is_blamed() -> None:
    failures = {0: Failure(1, "ValueError: b", 11), 2: Failure(1, "ValueError: a", 10)}
    assert _first_to_fail(failures) == 2


def test_a_number_that_is_not_finite_is_null_in_the_metrics() -> None:
    event = StepFinished(
        step=1,
        loss=float("nan"),
        grad_norm=float("inf"),
        grad_norms={"vision": float("nan"), "language": 1.0},
        lr=0.1,
        lrs={},
        tokens=3,
        tokens_per_s=2.0,
        skipped=True,
    )
    record = as_record(event)
    assert (record["loss"], record["grad_norm"]) == (None, None)
    assert record["grad_norms"] == {"vision": None, "language": 1.0}
