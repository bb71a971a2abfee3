"""Lines of workers on their way to the console, and where the console writes them."""

import io
import os
import select
import signal
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console as RichConsole
from rich.console import ConsoleRenderable
from tests.support.terminal import COLUMNS, seen

from mimo_launch.cli.shared.bars import Bars
from mimo_launch.cli.shared.console import Console
from mimo_launch.launcher.forking import prepare_forks
from mimo_launch.launcher.worker_logs import CHUNK, Follower


def followed(path: Path, *pieces: bytes) -> list[str]:
    """Return what is told of a file that grows by `pieces`, seen one by one."""
    told: list[str] = []
    follower = Follower({path: told.append, path.with_name("never"): told.append})
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        for tail in follower._tails:
            tail.read(ended=False)
    follower.start()
    follower.stop()
    return told


def test_lines_are_passed_on_whole_and_once(tmp_path: Path) -> None:
    told = followed(tmp_path / "log", b"one\ntw", b"o\n", b"\nthr", "\u00e9".encode()[:1], b"\xa9e")
    assert told == ["one", "two", "", "thr\u00e9e"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\x1b[2J\x07red\x1b[0m\n", r"\x1b[2J\x07red\x1b[0m"),
        (b" 10%|#    |\r 50%|##   |\r100%|#####|\n", "100%|#####|"),
        (b"of windows\r\n", "of windows"),
        (b"no text: \xff\n", r"no text: \xff"),
        ("tab\t, \u4e2d\u6587, \U0001f600, turned \u202e\u2028\n".encode(),
         "tab\t, \u4e2d\u6587, \U0001f600, turned \\u202e\\u2028"),
    ],
)  # fmt: skip
def test_what_would_move_the_cursor_is_written_out(
    tmp_path: Path, written: bytes, shown: str
) -> None:
    assert followed(tmp_path / "log", written) == [shown]


def test_a_line_that_never_ends_is_shown_in_pieces(tmp_path: Path) -> None:
    told = followed(tmp_path / "log", b"x" * (3 * CHUNK))
    assert "".join(told) == "x" * (3 * CHUNK)
    assert max(map(len, told)) <= 2 * CHUNK


class Teletype(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr_too", [True, False])
def test_remarks_go_above_the_bar_or_to_the_file_that_stderr_is(
    monkeypatch: pytest.MonkeyPatch, *, stderr_too: bool
) -> None:
    screen, err = Teletype(), Teletype() if stderr_too else io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    console = Console()
    with Bars("bar", RichConsole(file=screen, force_terminal=True), console):
        console.note("a remark :cat: [bold]")
    console.note("afterwards")
    assert ("a remark :cat: [bold]" in screen.getvalue()) == stderr_too
    remark = "" if stderr_too else "a remark :cat: [bold]\n"
    assert err.getvalue() == f"{remark}afterwards\n"


class Interrupted(Bars):
    """Tries to draw in another thread after Rich has noted where the bar is."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        noted = super().process_renderables(renderables)
        if threading.current_thread() is threading.main_thread():
            drawing = threading.Thread(target=self.refresh)
            drawing.start()
            drawing.join(0.2)
        return noted


def test_a_line_above_the_bar_leaves_no_second_bar() -> None:
    screen = Teletype()
    rich = RichConsole(file=screen, force_terminal=True, width=COLUMNS)
    with Interrupted("bar", rich, Console()) as bars:
        bars.update("a longer\nbar")
        bars.print("a line")
    drawn = seen(screen.getvalue().replace("\n", "\r\n")).split("\n")
    assert drawn == ["a line", "a longer", "bar", ""]


def test_a_forked_process_prints_though_the_stream_of_its_parent_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread is in the middle of a write, with the lock of the stream, when the process forks."""
    prepare_forks()
    reader, writer = os.pipe()
    stream, much = os.fdopen(writer, "w"), 1 << 20
    monkeypatch.setattr(sys, "stdout", stream)
    full = threading.Thread(target=lambda: (stream.write("x" * much), stream.flush()))
    full.start()
    read = len(os.read(reader, 1))
    shown, written = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(written, 1)
        print("hello")
        os._exit(0)
    os.close(written)
    ready, _, _ = select.select([shown], [], [], 20)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while read < much:
        read += len(os.read(reader, 1 << 16))
    full.join()
    assert ready
    assert os.read(shown, 100) == b"hello\n"
    stream.close()
    for number in (reader, shown):
        os.close(number)
