"""Which of several ranks is to blame, and what is known of each."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from mimo_launch.launcher import host_resources
from mimo_launch.launcher.host_messages import HostMessages
from mimo_launch.launcher.shared_progress import HostCells, WorkerCells
from mimo_launch.launcher.signals import JoinedStop, StopRequest
from mimo_launch.launcher.start_workers import Pump
from mimo_launch.launcher.verdict import FailureKind, RankState, from_json, judge, to_json
from mimo_launch.launcher.watchdog import LocalWorker, WorkerWatch
from mimo_launch.launcher.worker_errors import cause_of, read_error, write_error
from mimo_launch.launcher.worker_processes import (
    Exit,
    ExitWatch,
    StackFrame,
    parse_stack,
    process_state,
)
from mimo_launch.runtime.progress import Cause, Phase

WAITING = (StackFrame("/site/torch/distributed/distributed_c10d.py", 10, "all_reduce"),)
BUSY = (StackFrame("/home/me/data.py", 3, "read"), *WAITING)


def state(rank: int, **known: object) -> RankState:
    """A rank that waits in a collective of step 5."""
    usual = RankState(
        rank=rank, phase=Phase.PROGRAM, step=5, position=3, size=10, process="S", frames=WAITING
    )
    return replace(usual, **known)


def failed(rank: int, cause: Cause, at: float) -> RankState:
    return state(rank, cause=cause, error_time=at, message="an error")


def killed(rank: int, at: float) -> RankState:
    return state(rank, end=Exit(9, "SIGKILL", 0), ended=at, process="")


LATE = failed(0, Cause.TIMEOUT, 9.0)
LEFT = state(3, end=Exit(0, "", 0), ended=10.0, process="")
FINISHED = state(0, phase=Phase.FINISHED, end=Exit(0, "", 0), ended=10.0, process="")
SLOWER = [state(0, frames=BUSY, position=9), state(1, frames=BUSY, position=9, size=20)]
DEAF = state(1, deaf=9.0)
STAYS = state(1, phase=Phase.FINISHED, frames=())
FAILURES = [failed(0, Cause.OWN, 12.0), killed(1, 10.0), failed(2, Cause.OWN, 11.0)]
LOST = failed(0, Cause.LOST, 9.0)
# What is known of all ranks, which one is blamed, and for what.
VERDICTS: dict[str, tuple[list[RankState], int, FailureKind]] = {
    "one that was killed, though the peers that lost it reported first": (
        [LOST, killed(1, 10.0), failed(2, Cause.TIMEOUT, 9.5)], 1, FailureKind.DIED,
    ),
    "the earliest of several that failed": (FAILURES, 1, FailureKind.DIED),
    "the earliest in whatever order": (FAILURES[::-1], 1, FailureKind.DIED),
    "one that leaves early with status 0": ([LOST, LEFT], 3, FailureKind.DIED),
    "none that finished, but one that failed": (
        [failed(0, Cause.OWN, 11.0), replace(LEFT, phase=Phase.FINISHED)], 0, FailureKind.RAISED,
    ),
    "one that is stopped, before one that computes": (
        [LATE, state(1, frames=BUSY), state(2, process="T")], 2, FailureKind.STOPPED,
    ),
    "the one outside of communication, though another is further behind": (
        [LATE, state(1, step=4), state(2, frames=BUSY)], 2, FailureKind.STUCK,
    ),
    "of several busy ones the one furthest behind": (SLOWER, 1, FailureKind.STUCK),
    "of several busy ones the one that still reads": (
        [*SLOWER, state(2, frames=BUSY, phase=Phase.READING, position=0)], 2, FailureKind.STUCK,
    ),
    "of several that wait the one furthest behind": (
        [state(0), state(1, step=4), state(2)], 1, FailureKind.BEHIND,
    ),
    # Its main thread seems to wait as all others do, and another one is further behind.
    "one whose threads do not get the interpreter": (
        [LATE, DEAF, state(2, step=4), state(3, deaf=2.0, step=4)], 1, FailureKind.STUCK,
    ),
    "one that is stopped, before one whose threads do not get the interpreter": (
        [LATE, DEAF, state(2, process="T")], 2, FailureKind.STOPPED,
    ),
    "one that never began": (
        [state(0), state(1, phase=Phase.STARTING, step=0, frames=())], 1, FailureKind.STUCK,
    ),
    "the first that lost a connection to a living one": (
        [state(0, frames=BUSY), failed(1, Cause.LOST, 9.0), failed(2, Cause.LOST, 8.0)],
        2, FailureKind.LOST,
    ),
    "the one that others wait for, though a peer of one that was late was lost first": (
        [failed(0, Cause.LOST, 8.0), failed(1, Cause.TIMEOUT, 9.0), state(2, frames=BUSY)],
        2, FailureKind.STUCK,
    ),
    "one that finished and does not leave as others do": (
        [FINISHED, STAYS], 1, FailureKind.LINGERS,
    ),
    "one that finished and was stopped meanwhile": (
        [FINISHED, replace(STAYS, process="T")], 1, FailureKind.STOPPED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_of_several_ranks_the_one_to_blame_is(name: str) -> None:
    states, rank, kind = VERDICTS[name]
    verdict = judge(states)
    assert (verdict.rank, verdict.kind) == (rank, kind)


def test_waits_that_time_out_because_the_whole_job_was_frozen_are_nobodys_fault() -> None:
    late = [LATE, state(1, frames=BUSY)]
    assert judge(late, frozen=True).kind is FailureKind.FROZEN
    assert judge([*late, killed(2, 10.0)], frozen=True).rank == 2
    assert judge([state(0), state(1, frames=BUSY)], frozen=True).kind is FailureKind.STUCK


class Watched(NamedTuple):
    """Sleeping workers, and what a launcher knows of them."""

    processes: list[subprocess.Popen[bytes]]
    cells: HostCells
    exits: ExitWatch
    workers: list[LocalWorker]

    def watch(self, timeout: float) -> WorkerWatch:
        return WorkerWatch(self.cells, self.workers, self.exits, host=0, timeout=timeout)


@contextmanager
def sleeping(folder: Path, number: int = 1) -> Iterator[Watched]:
    processes = [subprocess.Popen(["sleep", "30"]) for _ in range(number)]
    workers = [
        LocalWorker(rank=rank, local_rank=rank, pid=process.pid, folder=folder)
        for rank, process in enumerate(processes)
    ]
    with ExitWatch({worker.rank: worker.pid for worker in workers}) as exits:
        yield Watched(processes, HostCells(number), exits, workers)
        for process in processes:
            process.kill()
    for process in processes:
        process.wait()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the watch, which a test turns."""
    found = [1000.0]
    monkeypatch.setattr("mimo_launch.launcher.watchdog.time.monotonic", lambda: found[0])
    return found


def test_time_in_which_the_launcher_did_not_run_does_not_count(
    tmp_path: Path, now: list[float]
) -> None:
    """As after Ctrl-Z and fg; a worker that then stays still is an alarm all the same."""
    with sleeping(tmp_path) as watched:
        watch = watched.watch(timeout=3)
        now[0] += 500
        assert not watch.alarm()
        assert watch.frozen_s == 500
        alarms = []
        for _ in range(8):
            now[0] += 0.5
            alarms.append(watch.alarm())
        assert alarms == [False] * 4 + [True] * 4
        assert watch.frozen_s == 0


def test_a_worker_whose_threads_get_no_interpreter_is_deaf_within_a_short_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sleeping(tmp_path) as watched:
        WorkerCells(watched.cells.shared, 0).progress.alive()
        later = time.monotonic_ns() + 3 * 10**9
        monkeypatch.setattr("mimo_launch.launcher.watchdog.time.monotonic_ns", lambda: later)
        deaf = [watched.watch(timeout).examine()[0].deaf for timeout in (2, 10)]
    assert deaf == [pytest.approx(3, abs=0.1), 0]


def test_signs_of_work_do_not_keep_a_run_that_was_asked_to_stop(
    tmp_path: Path, now: list[float]
) -> None:
    """Unless they are those of a save."""
    with sleeping(tmp_path) as watched:
        progress = WorkerCells(watched.cells.shared, 0).progress
        watch = watched.watch(timeout=3)

        def alarms(seconds: int) -> bool:
            found = False
            for _ in range(seconds):
                now[0] += 1
                progress.beat()
                found = watch.alarm()
            return found

        progress.enter(Phase.EVALUATING, 5)
        assert not alarms(10)
        watched.cells.ask_to_stop(signal.SIGTERM)
        assert not alarms(3)
        assert alarms(3)
        progress.enter(Phase.SAVING)
        assert not alarms(10)


def test_a_thread_makes_progress_only_in_its_phase_and_its_sign_of_life_is_none() -> None:
    """Else a save beside a training that hangs would look like progress of the training."""
    cells = HostCells(1)
    progress = WorkerCells(cells.shared, 0).progress
    progress.enter(Phase.PROGRAM, 5)
    entered = cells.read(0)
    progress.beat(Phase.SAVING)
    assert cells.read(0) == entered
    progress.alive()
    heard = cells.read(0)
    assert heard.alive > entered.changed
    assert replace(heard, alive=0) == entered
    progress.beat(Phase.PROGRAM)
    assert cells.read(0).changed > entered.changed


def test_a_phase_begins_at_its_start_however_far_a_rank_was_in_its_program() -> None:
    """Else ranks with programs of different lengths would seem not to wait for each other."""
    cells = HostCells(1)
    progress = WorkerCells(cells.shared, 0).progress
    progress.enter(Phase.PROGRAM, 5)
    progress.at(7)
    assert (cells.read(0).phase, cells.read(0).position) == (Phase.PROGRAM, 7)
    progress.enter(Phase.READING, 6)
    found = cells.read(0)
    assert (found.phase, found.step, found.position) == (Phase.READING, 6, 0)


def test_a_host_that_does_not_answer_is_blamed_for_lost_peers_only() -> None:
    lost = failed(0, Cause.LOST, 9.0)
    assert judge([lost], absent=[4, 5]).kind is FailureKind.ABSENT
    assert judge([lost, failed(1, Cause.OWN, 8.0)], absent=[4, 5]).rank == 1


def test_a_finished_rank_that_does_not_leave_is_an_alarm_in_the_end(tmp_path: Path) -> None:
    """Only after the timeout; one that has left is none."""
    with sleeping(tmp_path) as watched:
        WorkerCells(watched.cells.shared, 0).progress.finished(0)
        assert not watched.watch(timeout=30).alarm()
        assert watched.watch(timeout=0).alarm()
        watched.exits.exits[0] = Exit(0, "", 0)
        assert not watched.watch(timeout=0).alarm()


def test_a_killed_rank_is_seen_though_it_ends_later_than_its_connections(tmp_path: Path) -> None:
    """A process on a GPU may take seconds to end; its peers lose it at once."""
    with sleeping(tmp_path, 2) as watched:
        WorkerCells(watched.cells.shared, 0).progress.failed(Cause.LOST)
        watch = watched.watch(timeout=30)
        assert watch.failed()
        threading.Timer(0.8, watched.processes[1].kill).start()
        lost, killed = watch.examine()
        assert (lost.end, killed.end and killed.end.killed_by) == (None, "SIGKILL")


class Store:
    """A store of torch that has what node 1 said."""

    def __init__(self, facts: dict[str, object]) -> None:
        self.kept = {"node/1": json.dumps(facts)}

    def check(self, names: list[str]) -> bool:
        return all(name in self.kept for name in names)

    def get(self, name: str) -> str:
        return self.kept[name]

    def set(self, name: str, value: str) -> None:
        self.kept[name] = value


def test_reports_are_not_passed_on_to_other_hosts() -> None:
    """Facts of an attempt have its number behind their name."""
    store = Store({"report 1": ["large", False], "done 1": True, "beat": 1})
    messages = HostMessages(store, 0, 3)
    messages._exchange({"beat": 1})
    assert json.loads(store.kept["all"])["1"] == {"done 1": True, "beat": 1}
    assert messages.said(1, "report 1") == ["large", False]


def test_a_rank_that_others_started_ignores_the_signal_that_is_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler signals every process, and torchrun its ranks once more."""
    left, now = [], [100.0]
    monkeypatch.setattr("mimo_launch.launcher.signals.os._exit", left.append)
    monkeypatch.setattr("mimo_launch.launcher.signals.time.monotonic", lambda: now[0])
    told: list[tuple[int, bool]] = []
    stop = JoinedStop(lambda number, at_once: told.append((number, at_once)))
    stop.note(signal.SIGTERM)
    now[0] += 4
    stop.note(signal.SIGTERM)
    assert (stop(), left) == (signal.SIGTERM, [])
    now[0] += 2
    stop.note(signal.SIGTERM)
    assert left == [143]
    assert told == [(signal.SIGTERM, False), (signal.SIGTERM, True)]


def test_a_second_hangup_is_no_second_wish() -> None:
    """The kernel and the shell both send one when a terminal goes."""
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (stop.signal, stop.at_once) == (signal.SIGHUP, False)
        signal.raise_signal(signal.SIGINT)
        assert stop.at_once


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.signal == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_end_on_purpose_is_final() -> None:
    assert judge([failed(0, Cause.FINAL, 9.0)]).final
    assert not judge([failed(0, Cause.OWN, 9.0)]).final


class Deliberate(Exception):
    """An end on purpose."""

    restartable = False


def chained(cause: BaseException) -> Exception:
    error = ValueError("the step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no such sample"), Cause.OWN),
        (RuntimeError("shapes do not fit"), Cause.OWN),
        (MemoryError(), Cause.OWN),
        (OSError("Connection reset by peer"), Cause.OWN),
        (RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"), Cause.LOST),
        (RuntimeError("[x] Timed out waiting 4000ms for recv operation"), Cause.TIMEOUT),
        (dist.DistNetworkError("The client socket has failed to connect"), Cause.LOST),
        (dist.DistStoreError("wait timeout after 5000ms, keys: /x"), Cause.TIMEOUT),
        (chained(dist.DistBackendError("broken")), Cause.LOST),
        (Deliberate("enough"), Cause.FINAL),
        (chained(Deliberate("enough")), Cause.FINAL),
    ],
)
def test_errors_that_peers_explain_are_told_from_others(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause


def test_an_error_file_is_read_back_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    write_error(ValueError("no such sample"), tmp_path / "error.json")
    assert read_error(tmp_path / "error.json") == "ValueError: no such sample"
    # As torchrun reads it, which an earlier worker may have to satisfy.
    failure = ProcessFailure(0, 1, 1, str(tmp_path / "error.json"))
    assert "ValueError: no such sample" in failure.message["message"]
    assert read_error(tmp_path / "none.json") == ""
    (tmp_path / "half.json").write_text('{"mess')
    assert read_error(tmp_path / "half.json") == ""


DUMP = """Thread 0x00007f0000000002 (most recent call first):
  File "/lib/threading.py", line 324 in wait
  File "/lib/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0000000001 (most recent call first):
  File "/home/me/data.py", line 12 in read
  File "/site/torch/distributed/x.py", line 2 in outer
"""


def test_the_stack_of_the_main_thread_is_taken() -> None:
    frames = parse_stack(DUMP, head="main thread 0x00007f0000000001\n")
    assert [str(frame) for frame in frames] == ["read (data.py:12)", "outer (x.py:2)"]
    assert parse_stack(DUMP) == frames
    other = parse_stack(DUMP, head="main thread 0x00007f0000000002\n")
    assert [frame.function for frame in other] == ["wait", "_bootstrap"]
    assert parse_stack("") == ()


def test_states_survive_the_way_to_another_host() -> None:
    states = [killed(1, 10.0), failed(2, Cause.OWN, 11.0), state(3)]
    assert from_json(to_json(states)) == states


def test_a_worker_writes_what_its_launcher_reads() -> None:
    cells = HostCells(2)
    mine = WorkerCells(cells.shared, 1)
    mine.progress.enter(Phase.PROGRAM, 7)
    mine.progress.at(4)
    seen = cells.read(1)
    assert (seen.phase, seen.step, seen.position, seen.error_time) == (Phase.PROGRAM, 7, 4, 0)
    assert cells.read(0).phase is Phase.STARTING
    mine.progress.failed(Cause.LOST)
    assert cells.read(1).error_time >= seen.changed > 0
    assert cells.read(1).cause is Cause.LOST
    assert (cells.message(0), cells.message(1)) == ("", "")
    mine.say("ValueError: " + "é" * 2000)
    assert cells.message(1).startswith("ValueError: éé")
    assert cells.message(0) == ""
    mine.say("OSError: odd\udcff.jpg")
    assert cells.message(1).startswith("OSError: odd\\udcff.jpg")
    assert mine.stop() == 0
    cells.ask_to_stop(15)
    assert mine.stop() == 15
    mine.note_signal(15, False)
    assert not cells.asked_to_end
    mine.note_signal(15, True)
    WorkerCells(cells.shared, 0).note_signal(15, False)
    assert cells.asked_to_end


def test_the_watch_notes_who_ended_first_and_how() -> None:
    """Real processes: one leaves with a status, then one is killed, one ends well."""
    commands = ["sleep 0.3; exit 3", "sleep 30", "exit 0"]
    processes = [subprocess.Popen(["sh", "-c", command]) for command in commands]
    with ExitWatch({rank: process.pid for rank, process in enumerate(processes)}) as watch:
        deadline = time.monotonic() + 10
        while len(watch.exits) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        processes[1].kill()
        while len(watch.exits) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    for process in processes:
        process.wait()
    ends = [(rank, end.status, end.killed_by) for rank, end in watch.exits.items()]
    assert ends == [(2, 0, ""), (0, 3, ""), (1, 9, "SIGKILL")]


@pytest.mark.parametrize("reaps", [True, False], ids=["reaped", "not yet reaped"])
@pytest.mark.parametrize(
    ("command", "end"), [("exit 3", (3, "")), ("kill -9 $$", (9, "SIGKILL")), ("exit 0", (0, ""))]
)
def test_the_end_of_a_process_of_another_parent_is_seen(
    command: str, end: tuple[int, str], reaps: bool
) -> None:
    """Once that parent has reaped it, only kernels from 6.15 on know how it ended."""
    child = f"sh -c 'sleep 0.2; {command}' & echo $!; {'wait' if reaps else ':'}; sleep 1"
    with subprocess.Popen(["sh", "-c", child], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        with ExitWatch({}) as watch:
            watch.add(5, int(parent.stdout.readline()))
            deadline = time.monotonic() + 10
            while not watch.exits and time.monotonic() < deadline:
                time.sleep(0.01)
        parent.kill()
    found = watch.exits[5]
    is_known = not reaps or found.status is not None
    assert (found.status, found.killed_by) == (end if is_known else (None, ""))


def test_a_stopped_process_is_seen() -> None:
    process = subprocess.Popen(["sleep", "30"])
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert process_state(process.pid) == "T"
    process.kill()
    process.wait()
    assert process_state(process.pid) == ""


def test_a_listener_that_fails_does_not_stop_the_pipe() -> None:
    """Far more events than a pipe holds pass; the error is kept."""

    def broken(event: object) -> None:
        raise SystemExit(1)

    reader, writer = Pipe(duplex=False)
    pump = Pump(reader, broken)
    pump.start()
    for _ in range(5000):
        writer.send("an event of some length")
    writer.close()
    pump.join(timeout=10)
    assert not pump.is_alive()
    assert isinstance(pump.error, SystemExit)


def test_kills_for_want_of_memory_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the form of both versions of cgroups; a file that is missing counts nothing."""
    two, one = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    two.write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    one.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    monkeypatch.setattr(host_resources, "_files", lambda *names: [two, one, tmp_path / "missing"])
    assert host_resources.oom_kills() == 6
