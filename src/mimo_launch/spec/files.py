"""Reads small files that other programs may have written; reports those that are not YAML in UTF-8.

Decides: that only regular files of a limited size are read: a FIFO would block the reader, a device
would never end; that JSON nested too deeply is an error; how TOML and other encodings are
recognised, and which command converts them to a new file, so that no file is lost.
Relies on: the standard library.
Leaves: YAML with faults to `yaml_syntax`, the meaning of the files to their readers.
"""

import errno
import json
import os
import re
import shlex
import stat
from contextlib import suppress
from itertools import count
from os.path import lexists
from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic

MEGABYTE = 10**6


def read_small(path: str | Path, most: int) -> bytes:
    """Return the bytes of a regular file no larger than `most`. Raises: OSError."""
    # Without O_NONBLOCK, opening a FIFO blocks until a process opens it for writing.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most / MEGABYTE:g} MB")
        return file.read(most)


def spec_in(folder: Path) -> str:
    """Return help that names a spec in a folder, best that of a run; "" if there is none."""
    with suppress(OSError, ValueError):
        found = sorted(folder.glob("*.yaml"), key=lambda file: (file.name != "spec.yaml", file))
        return f"name a file in it, such as `{found[0]}`" if found else ""
    return ""


def read_json(path: str | Path, most: int = 64 * MEGABYTE) -> Any:
    """Return the content of a JSON file. Raises: OSError; ValueError."""
    return parse_json(read_small(path, most).decode("utf-8"))


def parse_json(text: str) -> Any:
    """Return the content of a JSON text. Raises: ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects nested too deeply") from None


# The name of the standard input in messages.
STDIN_NAME = "<stdin>"


def not_utf8(raw: bytes, name: str) -> tuple[str, Diagnostic | None]:
    """Return the text of a file, or the finding that it has another encoding."""
    head = raw[:64]
    # Signs: the byte order mark, or zeros in half of the bytes.
    signs = {
        "utf-32": raw.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")),
        "utf-16": raw.startswith((b"\xff\xfe", b"\xfe\xff")),
        "utf-16le": len(head) > 1 and not any(head[1::2]),
        "utf-16be": len(head) > 0 and not any(head[::2]),
    }
    wide = next((encoding for encoding, is_it in signs.items() if is_it), None)
    if wide is not None:
        return "", Diagnostic(
            code="not-utf8",
            headline=f"the file is {wide.upper()} text",
            why="YAML files are UTF-8 here, as everywhere but on Windows",
            help=_conversion(name, f"iconv -f {wide} -t utf-8", "-utf8"),
            line=1,
        )
    try:
        return raw.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        return "", Diagnostic(
            code="not-utf8",
            headline=f"byte 0x{raw[error.start]:02x} is not UTF-8 text",
            why="YAML files are UTF-8; this one has another encoding or is not a text file",
            help=_conversion(name, "iconv -f latin1 -t utf-8", "-utf8"),
            line=before.count(b"\n") + 1,
            column=len(before) - (before.rfind(b"\n") + 1) + 1,
        )


def is_toml(text: str) -> bool:
    """Return whether a text that is not a YAML spec looks like TOML."""
    values = re.search(r"^\s*[\w.\"-]+\s*=\s*\S", text, re.MULTILINE)
    tables = re.search(r"^\s*\[\[?[\w.\"-]+\]\]?\s*(?:#.*)?$", text, re.MULTILINE)
    keys = re.search(r"^\s*[\w-]+:(?:\s|$)", text, re.MULTILINE)
    return values is not None and (tables is not None or keys is None)


def toml_fault(name: str) -> Diagnostic:
    """Report a file in TOML."""
    program = (
        "import sys, tomllib, yaml; "
        "yaml.safe_dump(tomllib.load(sys.stdin.buffer), sys.stdout, sort_keys=False)"
    )
    return Diagnostic(
        code="yaml-syntax",
        headline="this is TOML, not YAML",
        why="a spec is written in YAML: `key: value` lines, and sections by indentation",
        help=_conversion(name, f'python -c "{program}"'),
        line=1,
    )


def _conversion(name: str, command: str, ending: str = "") -> str:
    """Return help with a command that reads standard input and writes standard output."""
    if name.startswith("<"):  # Not a file: the standard input, or a text in memory.
        return f"pipe it through `{command}` first"
    old = Path(name)
    numbers = (f"-{number}" if number > 1 else "" for number in count(1))
    names = (old.with_name(f"{old.stem}{ending}{number}.yaml") for number in numbers)
    new = next(each for each in names if each != old and not lexists(each))
    return f"convert it: `{command} < {shlex.quote(name)} > {shlex.quote(str(new))}`"
