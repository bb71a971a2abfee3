"""Streams, colour and verbosity of one run of the command line, and bars at the bottom.

Decides: answers go to stdout, everything else to stderr, and which of them are coloured. Control
characters in names and messages of others are shown, never sent to the terminal.
A reader that has left ends a command that only answers, but not a run. Under a bar streams are left
as they are (workers that are forked and files that stderr goes to would get what is drawn); what
the console says meanwhile appears above.
Relies on: Rich; NO_COLOR (https://no-color.org), FORCE_COLOR and `--color`.
Leaves: what is drawn to its users.
"""

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, TextIO, cast

import typer
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

# What a write says when the pipe has no reader, the terminal is gone, or the stream is closed.
_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF)
# Colours stay, but for the one that hides text.
_CONTROL = re.compile(
    r"(?P<color>\x1b\[(?!(?:[\d;]*;)?8[;m])[\d;]*m)|[\x00-\x08\x0b-\x1f]|[\x7f-\x9f]"
)


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Console:
    """Where a command writes; commands get it by `console_of`.

    `needs_no_reader` says that the command is worth more than its answers. `above` writes above
    what is drawn on the terminal, if anything is.
    """

    color: Color = Color.AUTO
    verbosity: int = 0
    needs_no_reader: bool = False
    above: Callable[[str], None] | None = None

    def answer(self, text: str) -> None:
        """Write what the user asked for to stdout.

        Raises: OSError if it cannot be written, unless nobody reads and nobody needs to.
        """
        try:
            if not self._wrote_above(text, sys.stdout):
                typer.echo(_encodable(text, sys.stdout))
        except OSError as error:
            if not (self.needs_no_reader and give_up(sys.stdout, error)):
                raise

    def note(self, text: str) -> None:
        """Write diagnostics and remarks to stderr, as far as that is possible."""
        stream = sys.stderr
        try:
            if not self._wrote_above(text, stream):
                typer.echo(_encodable(text, stream), err=True, color=self.colors(stream))
        except OSError as error:
            give_up(stream, error)
        except ValueError:  # The stream was closed.
            pass

    def _wrote_above(self, text: str, stream: TextIO) -> bool:
        above = self.above
        if above is None or not stream.isatty():
            return False
        above(_encodable(text, stream))
        return True

    def colors(self, stream: IO[str], environ: Mapping[str, str] | None = None) -> bool:
        """Return whether to colour what goes to `stream`; the flag wins over the environment."""
        environ = os.environ if environ is None else environ
        if self.color is not Color.AUTO:
            return self.color is Color.ALWAYS
        if environ.get("NO_COLOR"):
            return False
        if environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and environ.get("TERM") != "dumb"


class Unread:
    """A stream like another one, but one that does not mind when nobody reads it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises: OSError for other reasons than a reader that has left."""
        try:
            return self._stream.write(text)
        except OSError as error:
            if not give_up(self._stream, error):
                raise
        return len(text)

    def flush(self) -> None:
        """Flush. Raises: OSError for other reasons than a reader that has left."""
        try:
            self._stream.flush()
        except OSError as error:
            if not give_up(self._stream, error):
                raise


def run_output() -> IO[str]:
    """Return stdout for what a run shows, which goes on when nobody reads it."""
    return cast("IO[str]", Unread(sys.stdout))


def open_closed_streams() -> None:
    """Let stdout and stderr go nowhere if they were closed at the start, as with `2>&-`.

    Python has None for them then, and the next file that is opened gets their descriptor.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def escape_controls(text: str) -> str:
    """Return a text whose control characters are written as JSON and Python write them.

    Ends of lines and our colours stay; `diag.text.visible` is for single lines of others.
    """
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    if found["color"]:
        return found[0]
    # In an answer that is JSON only those above 0x7e are left as they are.
    number = ord(found[0])
    return f"\\x{number:02x}" if number < ord(" ") else f"\\u{number:04x}"


def _encodable(text: str, stream: TextIO) -> str:
    """Return a text as a stream can write it: names of files may have bytes that are no text."""
    encoding, text = stream.encoding or "utf-8", escape_controls(text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def give_up(stream: TextIO, error: OSError) -> bool:
    """Return whether nobody reads `stream` any more; what is written from now on goes nowhere.

    What is left in its buffer would otherwise be an error at the end of the process.
    """
    if error.errno not in _NO_READER:
        return False
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return True


def console_of(ctx: typer.Context) -> Console:
    """Return the console of the running command."""
    console = ctx.find_object(Console)
    return console if console is not None else Console()


def rich_on(stream: IO[str], console: Console) -> RichConsole:
    """Return what draws on a stream, in colours if the command has them there."""
    return RichConsole(file=stream, no_color=not console.colors(stream))


class Bars(Live):
    """Draws `what` on `rich` until it is left; lines of `console` for a terminal go above it."""

    def __init__(
        self, what: RenderableType, rich: RichConsole, console: Console, *, transient: bool = False
    ) -> None:
        super().__init__(
            what,
            console=rich,
            transient=transient,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._speaker = console

    def start(self, refresh: bool = False) -> None:
        """Begin to draw."""
        super().start(refresh)
        self._speaker.above = self._above

    def stop(self) -> None:
        """Draw no more."""
        self._speaker.above = None
        super().stop()

    def _above(self, line: str) -> None:
        self.console.print(Text(line))
