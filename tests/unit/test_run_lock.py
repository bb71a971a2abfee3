"""Who owns a run folder: one launcher at a time, on any host, as long as it lives."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mimo_launch.launcher import run_lock
from mimo_launch.launcher.run_lock import LOCK, RunInUse, RunLock, is_in_use, lock_run
from mimo_launch.launcher.signals import Interrupted, StopRequest

FORK = multiprocessing.get_context("fork")


def own(run: Path, then: Callable[[RunLock], None]) -> "multiprocessing.process.BaseProcess":
    """Lock a folder in a process of its own, which does something and then sleeps."""

    def hold() -> None:
        lock = lock_run(run, print)
        then(lock)
        (run / "ready").touch()
        time.sleep(30)

    process = FORK.Process(target=hold)
    process.start()
    deadline = time.monotonic() + 10
    while not (run / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def foreign(run: Path, **other: object) -> None:
    """Leave the record of an owner on another machine."""
    with lock_run(run, print) as lock:
        owner = replace(lock._owner, host="far", machine="another", pid=77, **other)
        record = {name: getattr(owner, name) for name in owner.__slots__}
    (run / LOCK).write_text(json.dumps(record))


def test_a_folder_in_use_is_refused_with_its_owner_and_a_way_out(tmp_path: Path) -> None:
    """Also from a process that the owner has forked; a killed owner is in nobody's way."""
    process = own(tmp_path / "tiny", lambda lock: (os.fork() or time.sleep(30)) and None)
    with pytest.raises(RunInUse) as refused:
        lock_run(tmp_path / "tiny", print)
    words = str(refused.value)
    assert f"is in use by process {process.pid} on {socket.gethostname()} (since 2" in words
    assert f"`kill {process.pid}` on" in words
    assert "--set name=tiny-2" in words
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.join()
    with lock_run(tmp_path / "tiny", print) as lock:
        assert not lock.check()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    assert not (tmp_path / "tiny" / LOCK).exists()


def test_a_run_that_is_being_stopped_is_waited_for(tmp_path: Path) -> None:
    """As when a job is queued again while the old one saves; a signal ends the wait."""
    said: list[str] = []
    process = own(tmp_path, RunLock.stopping)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            lock_run(tmp_path, said.append, stop)
    assert len(said) == 1
    assert "which is being stopped; waiting until it has ended" in said[0]

    def end(why: str) -> None:
        process.kill()

    lock_run(tmp_path, end).close()
    process.join()


@pytest.mark.parametrize("locks", [True, False])
def test_an_owner_on_another_machine_counts_while_it_gives_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """Where the file system carries no locks between machines, or has none at all."""

    def none(fd: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    if not locks:
        monkeypatch.setattr(run_lock.fcntl, "flock", none)
    monkeypatch.setattr(run_lock, "SILENT_SECONDS", 0.4)
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.05)
    foreign(tmp_path)
    said: list[str] = []
    lock_run(tmp_path, said.append).close()
    assert "was in use by process 77 on far (since" in said[0]
    assert "waiting 0 s for a sign of it" in said[0]
    foreign(tmp_path)

    def touch(why: str) -> None:
        os.utime(tmp_path / LOCK)

    with pytest.raises(RunInUse, match="process 77 on far"):
        lock_run(tmp_path, touch)


def test_an_owner_touches_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.02)
    with lock_run(tmp_path, print):
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 5
        while (tmp_path / LOCK).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / LOCK).stat().st_mtime > 0


def test_a_folder_that_is_no_longer_this_runs_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted, replaced, or taken over by another machine that heard nothing of us."""
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.02)
    run = tmp_path / "tiny"
    lock = lock_run(run, print)
    assert lock.check() == ""
    shutil.rmtree(run)
    deadline = time.monotonic() + 5
    while not lock.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lock.lost == "it was deleted or moved away"
    with lock_run(run, print) as second:
        assert f"it belongs to process {os.getpid()} on" in lock.check()
        assert second.check() == ""
        lock.close()
        assert second.check() == ""


def renumber(run: Path, pid: int) -> None:
    """Give the owner of a lock another number, as seen from another pid namespace."""
    record = json.loads((run / LOCK).read_text())
    (run / LOCK).write_text(json.dumps({**record, "pid": pid}))


@pytest.mark.parametrize("pid", [None, 2**22 + 1], ids=["here", "elsewhere"])
def test_whether_a_launcher_is_there_is_told_by_its_lock_not_by_the_number_of_its_process(
    tmp_path: Path, pid: int | None
) -> None:
    """In use by one of another pid namespace; not by a zombie, nor by one that got its number."""
    assert is_in_use(tmp_path) is False
    process = own(tmp_path, lambda lock: None)
    if pid is not None:
        renumber(tmp_path, pid)
    assert is_in_use(tmp_path) is True
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It stays a zombie.
    assert is_in_use(tmp_path) is None
    process.join()
    renumber(tmp_path, os.getpid())
    assert is_in_use(tmp_path) is None


def test_where_no_lock_can_tell_the_sign_of_life_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, or where the file system has no locks."""
    for locks in (True, False):
        run = tmp_path / f"{locks}"
        if locks:
            foreign(run)
        else:
            lock_run(run, print)

            def none(fd: int, how: int) -> None:
                raise OSError(38, "Function not implemented")

            monkeypatch.setattr(run_lock.fcntl, "flock", none)
        os.utime(run / LOCK, (time.time() + 600,) * 2)
        assert is_in_use(run) is True
        os.utime(run / LOCK, (time.time() - 600,) * 2)
        assert is_in_use(run) is None


def test_looking_whether_a_folder_is_in_use_is_in_no_launchers_way(tmp_path: Path) -> None:
    """A look holds the lock for a moment."""
    (tmp_path / LOCK).touch()
    look = (tmp_path / LOCK).open("rb")
    run_lock.fcntl.flock(look, run_lock.fcntl.LOCK_SH)
    threading.Timer(0.05, look.close).start()
    lock_run(tmp_path, print).close()


def test_a_lock_that_is_no_record_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("[" * 10_000)
    os.utime(tmp_path / LOCK, (0, 0))
    assert is_in_use(tmp_path) is None
