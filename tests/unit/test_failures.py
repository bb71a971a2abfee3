"""Which of several failed ranks is blamed."""

import subprocess
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from mimo_launch.launcher.exits import Exit, ExitWatch
from mimo_launch.launcher.local import _failure, _Pump
from mimo_launch.train.events import StepFinished, as_record

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:3"


@dataclass(frozen=True)
class Failure:
    """As torch elastic reports one."""

    exitcode: int
    message: str
    timestamp: int


def test_a_killed_rank_is_blamed_before_the_peers_that_lost_it() -> None:
    """The agent saw only a peer's error; the kernel says who ended first."""
    failures = {0: Failure(1, LOST, 10)}
    exits = [Exit(1, 9, "SIGKILL"), Exit(0, 1, "")]
    found = _failure(failures, exits, Path("logs"))
    assert (found.rank, found.message) == (1, "killed by SIGKILL")


def test_the_first_to_leave_is_blamed_with_its_own_words() -> None:
    failures = {0: Failure(1, LOST, 10), 3: Failure(1, "ValueError: no such sample", 11)}
    found = _failure(failures, [Exit(3, 1, ""), Exit(0, 1, "")], Path("logs"))
    assert (found.rank, found.message) == (3, "ValueError: no such sample")


def test_without_an_account_of_exits_time_decides() -> None:
    failures = {0: Failure(1, "ValueError: b", 11), 2: Failure(1, "ValueError: a", 10)}
    assert _failure(failures, [], Path("logs")).rank == 2


def test_the_watch_notes_who_ended_first_and_how() -> None:
    """Real processes: one leaves with a status, then one is killed, one ends well."""
    commands = ["sleep 0.3; exit 3", "sleep 30", "exit 0"]
    processes = [subprocess.Popen(["sh", "-c", command]) for command in commands]
    with ExitWatch([process.pid for process in processes]) as watch:
        deadline = time.monotonic() + 10
        while not watch.failures and time.monotonic() < deadline:
            time.sleep(0.01)
        processes[1].kill()
        while len(watch.failures) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    for process in processes:
        process.wait()
    assert watch.failures == [Exit(0, 3, ""), Exit(1, 9, "SIGKILL")]


def test_a_listener_that_fails_does_not_stop_the_pipe() -> None:
    """Far more events than a pipe holds pass; the error is kept."""

    def broken(event: object) -> None:
        raise SystemExit(1)

    reader, writer = Pipe(duplex=False)
    pump = _Pump(reader, broken)
    pump.start()
    for _ in range(5000):
        writer.send("an event of some length")
    writer.send(None)
    pump.join(timeout=10)
    assert not pump.is_alive()
    assert isinstance(pump.error, SystemExit)


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
