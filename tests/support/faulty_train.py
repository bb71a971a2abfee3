"""`mimo-launch` with one fault in it: `python faulty_train.py FAULT RANK STEP ARGS...`.

Patches classes of the product, then runs its command line; forked workers inherit the patches. The
fault strikes `RANK` (-1 is every rank) when it comes to its step `STEP`, and only in the first
attempt of a run.

`Launcher` runs the same in a fork of this process, which has imported torch: that takes a second
instead of four.
"""

import ctypes
import importlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

LONG = 3600


class EndOfRun(Exception):
    """An error on purpose."""

    restartable = False


def own_error() -> NoReturn:
    raise ValueError("no such sample")


def final_error() -> NoReturn:
    raise EndOfRun("10 skipped steps in a row")


def odd_name() -> NoReturn:
    raise FileNotFoundError("no file \x1b[2J\x1b[31modd\udcff.jpg")


class Mute(Exception):
    """An error that fails when it is asked what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def mute_error() -> NoReturn:
    raise Mute


def exhaust_memory() -> NoReturn:
    """Ask for more than the process may have, as a model that is too large does."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(bytearray(16 << 20))


def talk() -> None:
    """Print and warn, with controls that would move a terminal's cursor."""
    importlib.reload(warnings)  # Warnings of pytest go elsewhere.
    warnings.simplefilter("default")
    rank = os.environ["RANK"]
    print(f"hello from rank {rank}\x1b[3A\x1b[31m\x07")
    warnings.warn(f"take care of rank {rank}", stacklevel=1)


def keep_interpreter() -> None:
    """Call a function that keeps the GIL, in a thread: the main one waits inside of torch."""
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(LONG,), daemon=True).start()


def beat_for_ever() -> NoReturn:
    """Give signs of work, as a phase that goes through endless data does."""
    struck = sys._getframe(2)
    while True:
        struck.f_locals["args"][0].progress.beat()
        time.sleep(0.05)


def nap() -> None:
    """Be busy for 3 s in which this process runs; one that is stopped naps on afterwards."""
    for _ in range(30):
        time.sleep(0.1)


def leave_processes() -> NoReturn:
    """Start a process, and one that has left its session and its parent; then fail."""
    subprocess.Popen(["sleep", str(LONG)])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(LONG)
        os._exit(0)
    raise ValueError("no such sample")


FAULTS: dict[str, Callable[[], Any]] = {
    "raise": own_error,
    "final": final_error,
    "surrogate": odd_name,
    "mute": mute_error,
    "memory": exhaust_memory,
    "exit0": lambda: os._exit(0),
    "exit3": lambda: os._exit(3),
    "leave": lambda: sys.exit(0),
    "segv": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(LONG),
    "loader": lambda: time.sleep(LONG),
    "group": lambda: time.sleep(LONG),
    "slow": lambda: None,
    "beats": beat_for_ever,
    "gil": keep_interpreter,
    "nap": nap,
    "children": leave_processes,
    "print": lambda: print("hello from this rank"),
    "talk": talk,
    "none": lambda: None,
}
EVERY_RANK = -1


def install(fault: str, rank: int, step: int) -> None:
    """Patch the product."""
    from mimo_launch.comm.process_groups import GridSet
    from mimo_launch.data.digits import DigitStrips
    from mimo_launch.runtime.executor import Executor

    calls = 0

    def strike(at: int) -> None:
        nonlocal calls
        if "RANK" not in os.environ:
            return  # The launcher, which looks at samples for its plan.
        calls += 1
        first = "/attempt-1/" not in os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        if first and rank in (EVERY_RANK, int(os.environ["RANK"])) and calls == at:
            FAULTS[fault]()

    def patch(owner: Any, name: str, at: int) -> None:
        real = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            strike(at)
            if fault == "slow":
                time.sleep(0.05)
            return real(*args, **kwargs)

        setattr(owner, name, struck)

    if fault == "group":
        patch(GridSet, "__init__", 1)
    elif fault == "loader":
        patch(DigitStrips, "facts", step)
    else:
        patch(Executor, "run", step)


def run(fault: str, rank: int, step: int, arguments: list[str]) -> NoReturn:
    """Run the command line with a fault, and exit with its code."""
    from mimo_launch.cli.app import main

    install(fault, rank, step)
    sys.argv = ["mimo-launch", *arguments]
    main()
    raise AssertionError


class Launcher:
    """A launcher with a fault in a process of its own, in `folder`, whose run is called `tiny`.

    What it prints goes to files called `name`, but for the descriptors in `closed`: their reader
    has left. With a `terminal` it goes there. `enter` is called in the new process before it runs.
    """

    def __init__(
        self,
        folder: Path,
        fault: str,
        rank: int,
        step: int,
        *arguments: str,
        name: str = "launcher",
        enter: Callable[[], None] = lambda: None,
        closed: tuple[int, ...] = (),
        terminal: "Terminal | None" = None,
    ) -> None:
        from mimo_launch.launcher.forking import import_for_workers

        import_for_workers()
        self._enter, self._closed, self._terminal = enter, closed, terminal
        self.folder, self.run = folder, folder / "runs" / "tiny"
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self._process = multiprocessing.get_context("fork").Process(
            target=self._main, args=(fault, rank, step, list(arguments))
        )
        self._process.start()
        self.pid = self._process.pid or 0

    def _main(self, fault: str, rank: int, step: int, arguments: list[str]) -> NoReturn:
        os.chdir(self.folder)
        if self._terminal is not None:
            self._terminal.enter()
        for number, path in ((1, self.out), (2, self.err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if self._terminal is None:
                os.dup2(file, number)
        for number in self._closed:
            reader, writer = os.pipe()
            os.dup2(writer, number)
            os.close(reader)
            os.close(writer)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        self._enter()
        run(fault, rank, step, arguments)

    def workers(self) -> list[int]:
        """Return the processes that it has started."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(child) for child in children.split()]

    def wait_for_step(self, step: int) -> None:
        """Wait until metrics of a step have been written."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.is_alive():
            if any(record.get("step", 0) >= step for record in self.metrics()):
                return
            time.sleep(0.02)
        raise AssertionError(f"no step {step}: {self.finish()}")

    def wait_to_read(self, text: str) -> None:
        """Wait until a text can be read on the terminal."""
        deadline = time.monotonic() + 60
        while self._terminal is not None and time.monotonic() < deadline:
            if text in self._terminal.seen():
                return
            time.sleep(0.1)
        self.finish(0)
        raise AssertionError(f"no {text!r} on the terminal")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the steps and evaluations written so far."""
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in records if "resumed_from" not in record]

    def finish(self, seconds: float = 60) -> tuple[int | None, str, str]:
        """Wait for the end; return exit code, stdout and stderr."""
        self._process.join(seconds)
        if self._process.is_alive():
            for pid in (*self.workers(), self.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.join()
        if self._terminal is not None:
            self._terminal.close()
        return self._process.exitcode, self.out.read_text(), self.err.read_text()


def gone(pid: int) -> bool:
    """Return whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
