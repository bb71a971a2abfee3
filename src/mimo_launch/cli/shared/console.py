"""Streams, colour, verbosity and screen width of one run of the command line.

Decides: answers go to stdout, everything else to stderr; what is coloured. Control characters in
names and messages from outside are escaped, never sent to the terminal. If the reader of the output
leaves, a command that only answers ends, but a run goes on. Lines wrap between words on a screen;
files and pipes get them unchanged.
Relies on: NO_COLOR (https://no-color.org), FORCE_COLOR and `--color`; COLUMNS and the terminal.
Leaves: bars to `bars`, which imports Rich: `--help` must not; wrapping findings to `diag.text`.
"""

import codecs
import errno
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO, cast

import typer

# Errors of a write when the pipe has no reader, the terminal is gone, or the stream is closed.
_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF)
# A painted text keeps its colours, except the code that hides text.
_CONTROL = re.compile(
    r"(?P<color>\x1b\[(?!(?:[\d;]*;)?8[;m])[\d;]*m)|[\x00-\x08\x0b-\x1f]|[\x7f-\x9f]"
)

PARTS_AT_ONCE = 2**12
# Without a screen: wide enough for the tables of a usual spec.
WIDTH_WITHOUT_SCREEN = 100


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Console:
    """The output of a command, which gets it from `console_of`.

    `needs_no_reader` says that the command goes on if no one reads its answers. `above` writes
    above the bar on the terminal, if there is one.
    """

    color: Color = Color.AUTO
    verbosity: int = 0
    needs_no_reader: bool = False
    above: Callable[[str], None] | None = None

    def answer_in_parts(self, parts: Iterator[str]) -> None:
        """Write the answer to stdout part by part, never holding all of it in memory.

        Raises: OSError as `answer`.
        """
        while some := "".join(islice(parts, PARTS_AT_ONCE)):
            self.answer(some, ends_line=False)
        self.answer("")

    def answer(self, text: str, *, ends_line: bool = True, painted: bool = False) -> None:
        """Write the answer to stdout; `painted` says that this program set its colours.

        Raises: OSError if that fails, unless there is no reader and the command needs none.
        """
        try:
            text = _encodable(text, sys.stdout, painted=painted)
            if not self._wrote_above(text, sys.stdout):
                # Without `color`, echo searches long texts for colours, which is much slower.
                typer.echo(text, nl=ends_line, color=not painted or self.colors(sys.stdout))
        except OSError as error:
            if not (self.needs_no_reader and give_up(sys.stdout, error)):
                raise

    def note(self, text: str, *, painted: bool = False) -> None:
        """Write diagnostics and remarks to stderr, if possible.

        `painted` says that this program set the colours of the text.
        """
        stream = sys.stderr
        try:
            text = _encodable(text, stream, painted=painted)
            if not self._wrote_above(text, stream):
                typer.echo(text, err=True, color=self.colors(stream))
        except OSError as error:
            give_up(stream, error)
        except ValueError:  # The stream was closed.
            pass

    def refuse(self, *errors: str, help_: str, code: int = 2) -> NoReturn:
        """Write errors and their remedy to stderr, and end the command. Raises: typer.Exit."""
        for error in errors:
            self.note(f"error: {error}")
        self.note(f"   = help: {help_}")
        raise typer.Exit(code)

    def write_file(self, path: Path, content: str | bytes, option: str = "") -> None:
        """Write the file that an option names, or refuse. Raises: typer.Exit."""
        try:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            self._not_written(path, error.strerror or str(error), option)

    def check_file(self, path: Path | None, option: str = "") -> None:
        """Refuse, before any work, a file that cannot be written. Raises: typer.Exit."""
        if path is None:
            return
        place = path if path.exists() else path.parent
        fault = errno.EISDIR if path.is_dir() else _fault_of(place)
        if fault is None and place != path and not place.is_dir():
            fault = errno.ENOTDIR
        if fault is not None:
            self._not_written(path, os.strerror(fault), option)

    def check_files(self, spec: Path, targets: Iterable[tuple[Path | None, str]]) -> None:
        """Refuse, before any work, files that cannot be written, and one over the spec or another.

        Each of the `targets` has the option that names it. Raises: typer.BadParameter; typer.Exit.
        """
        targets, taken = tuple(targets), {spec.resolve(): "the spec"}
        for path, option in targets:
            if path is None:
                continue
            if path.resolve() in taken:
                message = f"{path} would be written over {taken[path.resolve()]}"
                raise typer.BadParameter(message, param_hint=option)
            taken[path.resolve()] = f"the file of {option}"
        for path, option in targets:
            self.check_file(path, option)

    def check_folder(self, path: Path | None, option: str) -> None:
        """Refuse, before any work, a folder that cannot be made or written. Raises: typer.Exit."""
        if path is None:
            return
        place = next((each for each in (path, *path.parents) if each.exists()), path)
        fault = _fault_of(place) if place.is_dir() else errno.ENOTDIR
        if fault is not None:
            help_ = f"give {option} a folder that is yours"
            self.refuse(f"cannot make {path}: {os.strerror(fault)}", help_=help_, code=1)

    def _not_written(self, path: Path, why: str, option: str) -> NoReturn:
        named = f"give {option}" if option else "name"
        help_ = f"{named} a file in a folder that exists and is yours"
        self.refuse(f"cannot write {path}: {why}", help_=help_, code=1)

    def _wrote_above(self, text: str, stream: TextIO) -> bool:
        above = self.above
        if above is None or not stream.isatty():
            return False
        above(text)
        return True

    def colors(self, stream: IO[str], environ: Mapping[str, str] | None = None) -> bool:
        """Return whether to colour output to `stream`; `--color` overrides the environment."""
        environ = os.environ if environ is None else environ
        if self.color is not Color.AUTO:
            return self.color is Color.ALWAYS
        if environ.get("NO_COLOR"):
            return False
        if environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and environ.get("TERM") != "dumb"


class Unread:
    """A wrapper that ignores errors after the reader of a stream has left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises: OSError, unless the reader has left."""
        try:
            return self._stream.write(text)
        except OSError as error:
            if not give_up(self._stream, error):
                raise
        return len(text)

    def flush(self) -> None:
        """Flush. Raises: OSError, unless the reader has left."""
        try:
            self._stream.flush()
        except OSError as error:
            if not give_up(self._stream, error):
                raise


def run_output() -> IO[str]:
    """Return stdout for the output of a run, which goes on if no one reads it."""
    return cast("IO[str]", Unread(sys.stdout))


def open_closed_streams() -> None:
    """Redirect stdout and stderr to nowhere if they were closed at the start, as with `2>&-`.

    Python then sets them to None, and the next open file would get their descriptor.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def escape_controls(text: str, *, painted: bool = False) -> str:
    """Escape the control characters of a text as JSON and Python do.

    Line ends stay, and so do colours if this program `painted` the text: text from outside in it
    has passed `diag.text.visible`.
    """
    if text.replace("\n", "").isprintable():
        return text  # This check is much faster than the search.

    def escaped(found: re.Match[str]) -> str:
        if painted and found["color"]:
            return found[0]
        if found["color"]:  # Only its first character is a control character.
            return f"\\x1b{found[0][1:]}"
        # `json.dumps` escapes all but characters above 0x7e; `\u` is valid JSON for those, too.
        number = ord(found[0])
        return f"\\x{number:02x}" if number < ord(" ") else f"\\u{number:04x}"

    return _CONTROL.sub(escaped, text)


def _encodable(text: str, stream: TextIO, *, painted: bool) -> str:
    """Return a text that a stream can encode: file names may contain bytes that are not text."""
    encoding, text = stream.encoding or "utf-8", escape_controls(text, painted=painted)
    return text.encode(encoding, _ESCAPES).decode(encoding)


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """Return escapes for what cannot be encoded; JSON has `u00e9` and no `xe9`."""
    import json

    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPES = "mimo_launch.json"
codecs.register_error(_ESCAPES, _as_json)


def give_up(stream: TextIO, error: OSError) -> bool:
    """Return whether the reader of `stream` has left; if so, redirect the stream to nowhere.

    Without that, flushing its buffer would cause an error at the end of the process.
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


def screen_width() -> int | None:
    """Return the columns of the screen; None if there is no screen and no COLUMNS."""
    return shutil.get_terminal_size((0, 0)).columns or None


def table_width() -> int:
    """Return the columns for tables: the width of the screen, or as many as tables need."""
    return screen_width() or WIDTH_WITHOUT_SCREEN


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream writes to; None if it is no terminal."""
    if not stream.isatty():
        return None
    try:
        shown = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        shown = 0
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else shown or None


def wrapped(line: str, indent: int = 0) -> str:
    """Return a line wrapped to the screen; further lines start with `indent` blanks."""
    width = screen_width()
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def reflowed(page: str) -> str:
    """Return a Markdown page, with paragraphs rewrapped if the screen is too narrow for it."""
    width = screen_width()
    if width is None or max(map(len, page.splitlines()), default=0) <= width:
        return page
    return "\n\n".join(
        # Code is indented, and stays unchanged.
        each if each.startswith(" ") else wrapped(" ".join(each.splitlines()))
        for each in page.split("\n\n")
    )


def _fault_of(place: Path) -> int | None:
    """Return the number of the error of writing to a path, None if it may be written."""
    if not place.exists():
        return errno.ENOENT
    return None if os.access(place, os.W_OK) else errno.EACCES
