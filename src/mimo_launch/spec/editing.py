"""Writes settings into the text of a spec and keeps the rest of the text.

Decides: where a value is written: over the old one, or as the last key of its section. If places
that share a value (aliases, `<<`) come to differ, it writes the value out.
Relies on: `yaml_syntax` for nodes and their places in the text. Each text is read again, so an edit
with another meaning is never returned.
Leaves: which settings to `search`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.fields import value_at
from mimo_launch.spec.overrides import apply_overrides
from mimo_launch.spec.wording import flow
from mimo_launch.spec.yaml_source import NodeReader, read_file
from mimo_launch.spec.yaml_syntax import compose

# More edits than any change needs, shared values included.
_MOST_EDITS = 200


def tree_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted path as the sections of a spec."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def lines_of(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield sections as lines of a spec, one for each module and each other section."""
    modules = tree.get("modules")
    if modules:
        yield "modules:"
        yield from (f"  {name}: {flow(module)}" for name, module in modules.items())
    yield from (f"{key}: {flow(value)}" for key, value in tree.items() if key != "modules")


def merge(data: Any, tree: Any) -> Any:
    """Return data with the values of a tree; other keys keep their values."""
    if not isinstance(data, dict) or not isinstance(tree, dict):
        return tree
    return {**data, **{key: merge(data.get(key), value) for key, value in tree.items()}}


def with_settings(path: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Return the text of a readable spec, with overrides and settings written into it."""
    document = apply_overrides(read_file(path), overrides)
    return edit(document.source.text, merge(document.data, tree_of(settings)))


def edit(text: str, wanted: dict[str, Any]) -> str:
    """Return a text that reads as `wanted`, with as few edits of `text` as possible.

    If edits do not lead there, the text is written anew from `wanted`.
    """
    done: YamlPath | None = None
    for _ in range(_MOST_EDITS):
        nodes, fault = compose(text)
        if fault is not None:
            break
        path = _first_difference(NodeReader().read(nodes[0]), wanted)
        if path is None:
            return text
        if path in (done, ()):
            break
        done = path
        start, stop, new = _edit_for(text, nodes[0], path, wanted)
        text = text[:start] + new + text[stop:]
    return "\n".join(lines_of(wanted)) + "\n"


def _first_difference(data: Any, wanted: Any, path: YamlPath = ()) -> YamlPath | None:
    """Return the path of the first value that differs, or of a section with an extra key."""
    if not isinstance(data, dict) or not isinstance(wanted, dict) or data.keys() - wanted.keys():
        return None if flow(data) == flow(wanted) else path
    for key, value in wanted.items():
        if key not in data:
            return (*path, key)
        if (found := _first_difference(data[key], value, (*path, key))) is not None:
            return found
    return None


def _edit_for(
    text: str, node: yaml.Node, path: YamlPath, wanted: dict[str, Any]
) -> tuple[int, int, str]:
    """Return start and end of a part of the text, and the text to write there for a value."""
    for size, key in enumerate(path, 1):
        value = flow(value_at(path[:size], wanted))
        found = next((pair for pair in node.value if pair[0].value == key), None)
        if found is None:
            return _add_line(text, node, f"{key}: {value}")
        name, node = found
        after = name.end_mark.index
        # The node of an alias is the node of its anchor, further up in the text.
        if node.start_mark.index < after:
            alias = re.compile(r"[\s:]*\*[^\s,\]}]+").match(text, after)
            return after, alias.end() if alias else after, f": {value}"
    start, stop = node.start_mark.index, _end(text, node)
    # A space separates value and key; the items of a list may be below the key.
    is_below = start == stop or node.start_mark.column <= name.start_mark.column
    anchor = re.compile(r"&\S+\s+").match(text, start, stop)
    return anchor.end() if anchor else start, stop, " " * is_below + value


def _add_line(text: str, section: yaml.Node, line: str) -> tuple[int, int, str]:
    """Return the edit that adds a line at the end of a section."""
    if not _is_block(section):
        before = text[: text.rindex("}", 0, section.end_mark.index)].rstrip()
        if "#" in before[before.rfind("\n") + 1 :]:  # Perhaps a comment, which would swallow it.
            first = section.value[0][0].start_mark.index if section.value else len(before)
            return first, first, f"{line}, "
        return len(before), len(before), line if before[-1] in "{," else f", {line}"
    (first, _), *_ = section.value
    # A comment after the last value stays there.
    stop = _end(text, section)
    stop += len(text[stop:].partition("\n")[0].removesuffix("\r"))
    end = "\r\n" if "\r\n" in text else "\n"
    return stop, stop, f"{end}{' ' * first.start_mark.column}{line}"


def _end(text: str, node: yaml.Node) -> int:
    """Return where a node ends; PyYAML marks the end of a block where the next node begins."""
    stop: int = node.end_mark.index
    if not _is_block(node):
        return stop
    lines = text[:stop].splitlines(keepends=True)
    while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
        lines.pop()
    return len("".join(lines).rstrip())


def _is_block(node: yaml.Node) -> bool:
    if isinstance(node, yaml.ScalarNode):
        return node.style in ("|", ">")
    return isinstance(node, yaml.CollectionNode) and not node.flow_style
