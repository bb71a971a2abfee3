"""Turns YAML text into plain data, with the place of every key and value.

Decides: which YAML is accepted: one mapping, no duplicate keys, text keys; `<<` merges as usual.
Relies on: `yaml_syntax` for nodes and the meaning of plain words, `files` for files that are
not YAML.
Leaves: what the keys mean to `load`.
"""

import errno
import sys
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mimo_launch.diag.diagnostic import (
    Diagnostic,
    Mark,
    Related,
    SourceSpan,
    SpecSource,
    YamlPath,
    shortened,
)
from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.files import (
    MEGABYTE,
    STDIN_NAME,
    is_toml,
    not_utf8,
    read_small,
    spec_in,
    toml_fault,
)
from mimo_launch.spec.yaml_syntax import (
    MAX_DEPTH,
    MAX_VALUES,
    compose,
    document_fault,
    fault,
    place_of,
    scalar_value,
    template_in,
    variable_fault,
    variable_in,
)

# A spec has a few kilobytes; a larger file is something else.
MAX_BYTES = MEGABYTE
# The path that means the standard input.
STDIN = "-"


@frozen
class Document:
    """The content of a file: its data (None when unreadable), its places and its faults."""

    data: dict[str, Any] | None
    source: SpecSource
    diagnostics: tuple[Diagnostic, ...]


def read_file(path: str | Path) -> Document:
    """Read a YAML file; every fault becomes a diagnostic."""
    name = STDIN_NAME if str(path) == STDIN else str(path)
    try:
        raw = _stdin() if str(path) == STDIN else read_small(path, MAX_BYTES)
    except (OSError, ValueError) as error:  # A name may contain a NUL.
        strerror = error.strerror if isinstance(error, OSError) else None
        reason = strerror or str(error)
        reason = reason[:1].lower() + reason[1:]
        unreadable = Diagnostic(
            code="unreadable-file",
            headline=f"`{name}` cannot be read: {reason}",
            why="the spec is read from this file and from nowhere else",
            help=spec_in(Path(path))
            or "check the path; it is relative to the current folder unless it starts with `/`",
        )
        return Document(None, SpecSource(name=name), (unreadable,))
    text, not_text = not_utf8(raw, name)
    if not_text is not None:
        return Document(None, SpecSource(name=name), (not_text,))
    return read_text(text, name)


@cache
def _stdin() -> bytes:
    """Return the standard input, which can be read only once. Raises: OSError."""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES / MEGABYTE:g} MB")
    return raw


def read_text(text: str, name: str = "<text>") -> Document:
    """Read YAML text; every fault becomes a diagnostic."""
    nodes, found = compose(text)
    found = found or document_fault(nodes)
    if found is not None:
        found = toml_fault(name) if is_toml(text) else found
        return Document(None, SpecSource(name=name, text=text), (found,))
    reader = NodeReader()
    data = reader.read(nodes[0])
    source = SpecSource(name=name, text=text, marks=reader.marks)
    return Document(data, source, tuple(reader.diagnostics))


def parse_value(text: str) -> tuple[Any, str]:
    """Parse the value of a `--set` by the rules of the file; return (value, fault or "")."""
    nodes, found = compose(text)
    if found is not None:
        return None, found.headline
    if not nodes:
        return None, ""
    reader = NodeReader()
    value = reader.read(nodes[0])
    if len(nodes) > 1:
        return None, "the value holds several YAML documents"
    return value, reader.diagnostics[0].headline if reader.diagnostics else ""


_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class Unreadable(Enum):
    """What replaces a faulty value, so that no second fault is reported for it.

    A member of an enumeration stays itself when data are copied.
    """

    VALUE = "unreadable"


UNREADABLE = Unreadable.VALUE
_MAX_KEY = 256


@dataclass(slots=True)
class NodeReader:
    """Walks nodes depth first and collects values, marks and faults."""

    marks: dict[YamlPath, Mark] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _open: list[yaml.Node] = field(default_factory=list)
    _num_nodes: int = 0
    _num_duplicates: int = 0
    _is_full: bool = False

    def read(self, node: yaml.Node, path: YamlPath = (), key: SourceSpan | None = None) -> Any:
        """Return the data below `node`; faulty parts become UNREADABLE."""
        self.marks[path] = Mark(key, _span(node))
        self._num_nodes += 1
        refusal = self._refusal(node)
        if refusal is not None:
            if refusal:
                self._fault(node, refusal)
            return UNREADABLE
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
            if (variable := template_in(node)) is not None:
                at = place_of(node.start_mark)
                self.diagnostics.append(variable_fault(variable, path, variable, at))
                return UNREADABLE
            return self._mapping(node, path)
        finally:
            self._open.pop()

    def _refusal(self, node: yaml.Node) -> str | None:
        """Return why a node is refused, "" if that was reported before, None if it is read."""
        if self._num_nodes > MAX_VALUES:
            is_first, self._is_full = not self._is_full, True
            words = f"with its aliases written out the file has more than {MAX_VALUES:,} values"
            return words if is_first else ""
        if len(self._open) > MAX_DEPTH:
            return "aliases nest lists or mappings too deeply"
        if any(node is other for other in self._open):
            return "an alias that contains itself"
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            return f"the tag `{node.tag}` is not used here"
        return None

    def _scalar(self, node: yaml.ScalarNode, path: YamlPath) -> Any:
        try:
            value = scalar_value(node)
            # Prose may mention a variable.
            if isinstance(value, str) and " " not in value and variable_in(value):
                at = place_of(node.start_mark)
                self.diagnostics.append(variable_fault(variable_in(value), path, value, at))
                return UNREADABLE
            return value
        except ValueError as error:
            self._fault(node, str(error))
            return UNREADABLE

    def _mapping(self, node: yaml.Node, path: YamlPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._merge(value_node, merged)
                continue
            key = self._key(key_node)
            if key is None:
                continue
            if key in first:
                self._duplicate(key, key_node, first[key])
                continue
            first[key] = key_node
            result[key] = self.read(value_node, (*path, key), _span(key_node))
        for key, (key_node, value_node) in merged.items():
            if key not in result:
                result[key] = self.read(value_node, (*path, key), _span(key_node))
        return result

    def _merge(self, node: yaml.Node, merged: dict[str, Any]) -> None:
        """Collect the keys of `<<: *name`; keys written here, and earlier merges, win."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for each in nodes:
            self._num_nodes += 1
            if self._num_nodes > MAX_VALUES:
                return  # The next node that is read reports it.
            if (
                not isinstance(each, yaml.MappingNode)
                or any(each is other for other in self._open)
                or len(self._open) > MAX_DEPTH
            ):
                self._fault(node, "`<<` takes an alias of a mapping, or a list of such aliases")
                continue
            self._num_nodes += len(each.value)
            self._open.append(each)
            for key_node, value_node in each.value:
                if key_node.tag != _MERGE and (key := self._key(key_node)) is not None:
                    merged.setdefault(key, (key_node, value_node))
            # Its own keys win over those that it merges, wherever its `<<` stands.
            for key_node, value_node in each.value:
                if key_node.tag == _MERGE:
                    self._merge(value_node, merged)
            self._open.pop()

    def _key(self, node: yaml.Node) -> str | None:
        if isinstance(node, yaml.ScalarNode):
            try:
                key = scalar_value(node)
            except ValueError:
                key = None
            if isinstance(key, str) and len(key) <= _MAX_KEY:
                return key
        is_word = isinstance(node, yaml.ScalarNode)
        text = f"`{shortened(node.value)}`" if is_word else "a list or mapping"
        why = "keys are text such as `modules`; nothing else can be a setting"
        help_ = "write a name before the `:`, or quote the key"
        at = place_of(node.start_mark)
        self.diagnostics.append(
            fault(at, f"{text} is used as a key", why, help_, code="key-not-text")
        )
        return None

    def _duplicate(self, key: str, node: yaml.Node, first: yaml.Node) -> None:
        """Report a repeated key at its second place, and show the first one."""
        here, there = (DUPLICATES, self._num_duplicates), (DUPLICATES, self._num_duplicates + 1)
        self._num_duplicates += 2
        self.marks[here] = Mark(None, _span(node))
        self.marks[there] = Mark(None, _span(first))
        self.diagnostics.append(
            Diagnostic(
                code="duplicate-key",
                headline=f"`{key}` is written twice in one mapping",
                path=here,
                why="only one of the two values could be used, and which one would be a guess",
                help=f"delete one of the two `{key}:` entries, or give it its right name",
                related=(Related(path=there, label="first written here"),),
            )
        )

    def _fault(self, node: yaml.Node, headline: str) -> None:
        why = "only plain mappings, lists, text, numbers, booleans and null are read"
        at = place_of(node.start_mark)
        self.diagnostics.append(fault(at, headline, why, "write the value out"))


# Both places of a repeated key share one YAML path, so they get their own marks under this root.
DUPLICATES = "<duplicate>"


def _span(node: yaml.Node) -> SourceSpan:
    """Return the place of a node; one that spans lines is marked by its first character."""
    start, end = node.start_mark, node.end_mark
    length = end.column - start.column if end.line == start.line else 1
    return SourceSpan(start.line + 1, start.column + 1, max(1, length))
