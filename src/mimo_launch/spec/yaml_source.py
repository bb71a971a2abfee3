"""YAML text -> plain data, with the place of every key and value.

Decides: what counts as readable YAML here (one mapping, no duplicate keys, text keys).
Relies on: `yaml_syntax` for nodes, `yaml_nodes` for values and marks.
Leaves: what the keys mean to `load`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.diag.places import Source
from mimo_launch.spec.files import MEGABYTE, read_small
from mimo_launch.spec.yaml_nodes import NodeReader
from mimo_launch.spec.yaml_syntax import compose, document_fault

# A spec has some kilobytes; whatever is larger is another file.
MAX_BYTES = MEGABYTE


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says: its data (None when unreadable), its places and its faults."""

    data: dict[str, Any] | None
    source: Source
    diagnostics: tuple[Diagnostic, ...]


def read_file(path: str | Path) -> Document:
    """Read a YAML file; every fault becomes a diagnostic."""
    name = str(path)
    try:
        raw = read_small(path, MAX_BYTES)
    except (OSError, ValueError) as error:  # A name may hold a NUL.
        strerror = error.strerror if isinstance(error, OSError) else None
        reason = strerror or str(error)
        reason = reason[:1].lower() + reason[1:]
        fault = Diagnostic(
            code="unreadable-file",
            headline=f"`{name}` cannot be read: {reason}",
            why="the spec is read from this file and from nowhere else",
            help="check the path; it is taken from the current folder unless it starts with `/`",
        )
        return Document(None, Source(name=name), (fault,))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        fault = Diagnostic(
            code="not-utf8",
            headline=f"byte 0x{raw[error.start]:02x} is not UTF-8 text",
            why="YAML files are UTF-8; this one has another encoding or is no text file",
            help=f"convert it: `iconv -f latin1 -t utf-8 {name}`",
            line=before.count(b"\n") + 1,
            column=len(before) - (before.rfind(b"\n") + 1) + 1,
        )
        return Document(None, Source(name=name), (fault,))
    return read_text(text, name)


def read_text(text: str, name: str = "<text>") -> Document:
    """Read YAML text; every fault becomes a diagnostic."""
    nodes, fault = compose(text)
    if fault is not None:
        return Document(None, Source(name=name, text=text), (fault,))
    fault = document_fault(nodes)
    if fault is not None:
        return Document(None, Source(name=name, text=text), (fault,))
    reader = NodeReader()
    data = reader.read(nodes[0])
    source = Source(name=name, text=text, marks=reader.marks)
    return Document(data, source, tuple(reader.diagnostics))


def parse_value(text: str) -> tuple[Any, str]:
    """Parse the value of a `--set` by the rules of the file; return (value, fault or "")."""
    nodes, fault = compose(text)
    if fault is not None:
        return None, fault.headline
    if not nodes:
        return None, ""
    reader = NodeReader()
    value = reader.read(nodes[0])
    if len(nodes) > 1:
        return None, "the value holds several YAML documents"
    return value, reader.diagnostics[0].headline if reader.diagnostics else ""
