"""Reports files that are not YAML in UTF-8, with the command that converts them.

Decides: how TOML and other encodings are recognised; that a command reads the old file and writes
a new one, so that no file is lost.
Relies on: the tools of the shell, and Python's reader of TOML.
Leaves: YAML with faults to `yaml_syntax`.
"""

import re
import shlex
from itertools import count
from os.path import lexists
from pathlib import Path

from mimo_launch.diag.diagnostic import Diagnostic

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
