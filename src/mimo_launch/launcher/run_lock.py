"""The owner of a run folder: a locked file in the folder names the launcher that locked it.

Decides: the kernel's lock (flock) decides where it works. The file system may not pass locks on to
other machines, so a record from another machine is valid as long as its owner touches the file. A
launcher waits for a run that is being stopped; any other run that owns the folder is an error.
Relies on: /proc for the identity of a machine.
Leaves: the other files of the folder to `run_folder`.
"""

import fcntl
import json
import os
import secrets
import shlex
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from mimo_launch.launcher.signals import Interrupted, StopRequest
from mimo_launch.spec.files import parse_json

LOCK = "run.lock"
BEAT_SECONDS = 2.0
# Several beats: an owner on a busy machine may be late.
SILENT_SECONDS = 15.0
POLL_SECONDS = 0.25
# How long to retry: `is_in_use` holds the lock for a moment.
LOOK_SECONDS = 0.2
_MOST_BYTES = 1 << 16


class RunInUse(Exception):
    """Another launcher owns the run folder; the message names it and the remedy."""


class FolderLost(Exception):
    """The run folder no longer belongs to this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The launcher that locked a run folder.

    `machine` identifies one boot of one host; `stopping` says that the owner was asked to end.
    """

    host: str
    machine: str
    pid: int
    since: str
    command: str
    token: str
    stopping: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since}: {self.command})"


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class RunLock:
    """The lock of a run folder, held until it is closed or this process ends.

    `lost` is empty while the folder belongs to this run, and later says what happened to it.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd
        self._owner = Owner(
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(["mimo-launch", *sys.argv[1:]]),
            token=secrets.token_hex(8),
        )
        self.lost = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._write()
        _OPEN.add(self)
        self._thread.start()

    def check(self) -> str:
        """Check now whether the folder still belongs to this run; return `lost`."""
        try:
            owner = _owner(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self.lost = "it was deleted or moved away"
        except OSError:
            pass  # A file system that fails now says nothing about the folder.
        else:
            if owner is not None and owner.token != self._owner.token:
                self.lost = f"it belongs to {owner}"
        return self.lost

    def stopping(self) -> None:
        """Record that this run was asked to end, so that the next launcher waits for the folder."""
        if not self._owner.stopping:
            self._owner = replace(self._owner, stopping=True)
            with suppress(OSError):
                self._write()

    def move(self, run: Path) -> None:
        """Rename the folder, and the lock with it."""
        self._path.parent.rename(run)
        self._path = run / LOCK

    def close(self) -> None:
        """Release the folder."""
        if self._fd >= 0:
            self._closed.set()
            self._thread.join(BEAT_SECONDS)
            if not self.check():
                with suppress(OSError):
                    self._path.unlink()
            _OPEN.discard(self)
            self.forget()

    def forget(self) -> None:
        """Close the file but do not touch it, as a forked process must: it holds the lock, too."""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self) -> None:
        text = json.dumps(asdict(self._owner)).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and not self.check():
            with suppress(OSError):
                os.utime(self._fd)


_OPEN: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_OPEN):
        lock.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)


def is_in_use(run: Path) -> bool | None:
    """Return whether a launcher uses a run folder; None if one ended without releasing it.

    The kernel's lock decides if it is held, or if its owner was on this machine. (A process number
    proves nothing: it may belong to another namespace, or be reused.) Otherwise the time since the
    owner's last sign of life decides. Raises: OSError if the lock cannot be read.
    """
    try:
        # Without O_NONBLOCK, a FIFO of that name would block.
        with open(os.open(run / LOCK, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            owner = _read_owner(file)
            reaches = owner is not None and owner.machine == _machine()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # A file system without locks.
                reaches = False
            found = os.fstat(file.fileno())
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not found.st_nlink:  # The owner has just released the lock.
        return False
    return True if not reaches and time.time() - found.st_mtime < SILENT_SECONDS else None


def lock_run(run: Path, say: Callable[[str], None], stop: StopRequest | None = None) -> RunLock:
    """Lock a run folder and create it if it is missing; a stop signal ends the wait.

    Raises: RunInUse; Interrupted; OSError if the folder cannot be written.
    """
    waits = ""

    def wait(why: str) -> None:
        nonlocal waits
        if why != waits:
            say(why)
        waits = why
        if stop is not None and stop.signal:
            raise Interrupted(stop.signal)
        time.sleep(POLL_SECONDS)

    while True:
        found = _try(run, wait)
        if isinstance(found, RunLock):
            return found
        if found is None or not found.stopping:
            owner = "another process" if found is None else str(found)
            at = "" if found is None else f" (`kill {found.pid}` on {found.host} makes it save)"
            raise RunInUse(
                f"{run} is in use by {owner}\n"
                f"   = help: wait until that run has ended, or stop it{at}, or give this one "
                f"another name: --set name={run.name}-2"
            )
        wait(f"{run} is in use by {found}, which is being stopped; waiting until it has ended")


def _try(run: Path, wait: Callable[[str], None]) -> RunLock | Owner | None:
    """Return the lock, or else its owner; None if the owner is unknown."""
    run.mkdir(parents=True, exist_ok=True)
    path, lock = run / LOCK, None
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            reaches = _flock(fd)
        except BlockingIOError:
            return _owner(path)
        owner = _owner(path)
        reaches = reaches and (owner is None or owner.machine == _machine())
        if owner is not None and not reaches and _beats(path, owner, wait):
            return owner
        lock = RunLock(path, fd)
    except FileNotFoundError:
        return _try(run, wait)  # The owner deleted the file after we opened it.
    finally:
        if lock is None:
            os.close(fd)
    if lock.check():  # The owner deleted the file a moment later.
        lock.close()
        return _try(run, wait)
    return lock


def _flock(fd: int) -> bool:
    """Lock a file, or return False if its file system has no locks. Raises: BlockingIOError."""
    until = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_SECONDS / 10)
        except OSError:
            return False
        else:
            return True


def _beats(path: Path, owner: Owner, wait: Callable[[str], None]) -> bool:
    """Return whether an owner on another machine still touches its lock.

    Raises: FileNotFoundError.
    """
    before, until = _touch_time(path), time.monotonic() + SILENT_SECONDS
    while time.monotonic() < until:
        wait(
            f"{path.parent} was in use by {owner}; waiting {SILENT_SECONDS:.0f} s for a sign of it"
        )
        if _touch_time(path) != before:
            return True
    return False


def _touch_time(path: Path) -> int:
    """Return when a file was touched; opening it asks the file server, not a cache."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _owner(path: Path) -> Owner | None:
    """Return the owner that a lock file names; None if it is empty or not ours."""
    with path.open("rb") as file:
        return _read_owner(file)


def _read_owner(file: BinaryIO) -> Owner | None:
    try:
        return Owner(**parse_json(file.read(_MOST_BYTES).decode("utf-8")))
    except (ValueError, TypeError):
        return None
