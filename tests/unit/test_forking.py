"""A child that answers, dies, hangs, or leaves processes behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mimo_launch.launcher import forking as asking
from mimo_launch.launcher.forking import ChildDied, ChildSilent, ask_child, keep_kernels
from mimo_launch.launcher.signals import Interrupted, StopRequest

KERNELS = "TORCHINDUCTOR_CACHE_DIR"


def forever() -> None:
    while True:
        time.sleep(0.01)


def test_an_answer_of_any_size_is_returned_and_changes_nothing_here() -> None:
    here: list[int] = []
    assert ask_child(lambda: here.append(1) or "x" * 1_000_000) == "x" * 1_000_000
    assert here == []
    assert ask_child(lambda: None) is None


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(7), "exit code 7"),
        (lambda: sys.exit(7), "exit code 7"),
        (lambda: sys.exit(0), "exit code 0"),
        (lambda: os._exit(0), "exit code 0"),
        (lambda: 1 / 0, "exit code 1"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    ],
)
def test_a_child_that_ends_without_an_answer_is_said(end, words: str) -> None:
    with pytest.raises(ChildDied, match=rf"^ended the process \({words}\)$"):
        ask_child(end)


def test_what_a_child_leaves_behind_holds_no_answer() -> None:
    """A process or a thread of its own, as libraries start them when they are imported."""

    def question() -> int:
        threading.Thread(target=forever).start()
        child = os.fork()
        if not child:
            forever()
        return child

    begin = time.monotonic()
    left = ask_child(question)
    os.kill(left, signal.SIGKILL)
    assert time.monotonic() - begin < 5


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has closed all its files."""
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 2.0)
    found, told = os.pipe()

    def question() -> None:
        os.write(told, str(os.getpid()).encode())
        os.closerange(3, 100)
        forever()

    with pytest.raises(ChildSilent, match=r"^did not end within 2 s"):
        ask_child(question)
    child = int(os.read(found, 20))
    for each in (found, told):
        os.close(each)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_stop_signal_ends_the_wait_at_once() -> None:
    """The child ignores it: Ctrl-C on a terminal reaches both."""
    begin = time.monotonic()
    with StopRequest() as stop:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        with pytest.raises(Interrupted):
            ask_child(forever, stop)
    timer.join()
    assert time.monotonic() - begin < 5


def test_no_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ask_child(lambda: None)
    with pytest.raises(ChildDied):
        ask_child(lambda: os._exit(1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_compiled_kernels_are_kept_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The import of torch would set the variable to a temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(KERNELS, raising=False)
    told = "from mimo_launch.launcher.forking import import_for_workers; import os;"
    told += f"import_for_workers(); print(os.environ[{KERNELS!r}])"
    done = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "mimo-launch" / "kernels")


def test_compiled_kernels_are_kept_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(KERNELS, "/elsewhere")
    keep_kernels()
    assert os.environ[KERNELS] == "/elsewhere"


def test_kernels_stay_where_torch_keeps_them_if_the_cache_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.delenv(KERNELS, raising=False)
    keep_kernels()
    assert KERNELS not in os.environ
