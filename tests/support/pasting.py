"""Pastes the lines that the help of a finding, or an advice, offers, as its reader would."""

import copy
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.yaml_source import parse_value, read_text

Path = tuple[Any, ...]
_OFFER = re.compile(
    r"(?P<verb>write|add|these fit:|delete|rename|did you mean|or these fit:)? ?"
    r"`(?P<code>[^`]+)`(?: (?:in|under|for) `(?P<section>[^`]+)`)?"
)
_JOINTS = ("", ",", ", or", " or", "to", " to", ", or ", ", ")


def offers(help_: str) -> list[tuple[str, str, str | None]]:
    """Return (verb, line or name, section) of each thing that a help offers to write."""
    found, verb, end = list[tuple[str, str, str | None]](), "", 0
    for match in _OFFER.finditer(help_):
        gap = help_[end : match.start()].rstrip()
        verb = match["verb"] or (verb if gap in _JOINTS else "")
        end = match.end()
        code = match["code"]
        is_line = re.fullmatch(r"\w+: .+", code) and "..." not in code and "PATTERN" not in code
        if verb in ("delete", "rename", "did you mean") or (
            verb and (is_line or re.fullmatch(r"[\d.]+", code))
        ):
            found.append((verb, code, match["section"]))
    return found


def pasted(text: str, item: Diagnostic) -> list[str]:
    """Return the text of the spec after each offer, as YAML that Python's JSON is, too."""
    if item.line is not None:
        return list(_pasted_in_line(text, item))
    data = read_text(text).data
    assert data is not None
    result, rename = [], ""
    if re.search(r"\bdelete (?:it|the line)\b", item.help):
        result.append(_deleted(data, item, str(item.path[-1])))
    for verb, code, section in offers(item.help):
        if verb == "rename":
            if rename:
                result.append(_renamed(data, (*item.path[:-1], rename), code))
            rename = code
        elif verb == "did you mean":
            key, new = item.path[-1], copy.deepcopy(data)
            if item.at_key:
                result.append(_renamed(data, item.path, code))
            else:
                _at(new, item.path[:-1])[key] = code
                result.append(new)
        elif "in its place" in item.help and section != code:
            result.append(_instead(data, item.path, code, section))
        elif verb == "delete":
            result.append(_deleted(data, item, code))
        elif re.fullmatch(r"[\d.]+", code):
            new = copy.deepcopy(data)
            _at(new, item.path[:-1])[item.path[-1]] = parse_value(code)[0]
            result.append(new)
        else:
            result.append(_written(data, item, code, section))
    return [_dump(each) for each in result if each is not None]


def _pasted_in_line(text: str, item: Diagnostic) -> Iterator[str]:
    """Replace the faulty word of the line by the line that the help offers."""
    lines = text.splitlines()
    assert item.line is not None
    for _, code, _ in offers(item.help):
        key = code.partition(":")[0]
        line = re.sub(rf"\b{key}:\S+", code, lines[item.line - 1])
        yield "\n".join([*lines[: item.line - 1], line, *lines[item.line :]])


def pasted_advice(text: str, lines: Iterable[str], *, deep: bool) -> str:
    """Return the text of a spec with lines of an advice, for each module and each other section.

    With `deep`, sizes of a grid that they do not name stay, too; else its line is replaced.
    """
    data, written = read_text(text).data, read_text("\n".join(lines)).data
    assert data is not None
    assert written is not None
    modules = {("modules", name): each for name, each in written.pop("modules", {}).items()}
    for path, section in (*modules.items(), *(((key,), each) for key, each in written.items())):
        place = _at(data, path[:-1])
        if not isinstance(section, dict):
            place[path[-1]] = section
            continue
        own = place.setdefault(path[-1], {})
        for key, value in section.items():
            both = deep and isinstance(value, dict) and isinstance(own.get(key), dict)
            own[key] = {**own[key], **value} if both else value
    return _dump(data)


def _dump(data: Any) -> str:
    return json.dumps(data, default=lambda _: None)


def _at(data: Any, path: Path) -> Any:
    for step in path:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return None
    return data


def _renamed(data: Any, path: Path, name: str) -> Any:
    """Rename a key, and keep its value and place."""
    new = copy.deepcopy(data)
    parent = _at(new, path[:-1])
    entries = [(name if key == path[-1] else key, value) for key, value in parent.items()]
    parent.clear()
    parent.update(entries)
    return new


def _instead(data: Any, path: Path, line: str, section: str | None) -> Any:
    """Write a line, into a section named by its path, in place of a key."""
    new = copy.deepcopy(data)
    here = _at(new, path[:-1])
    key, _, text = line.partition(": ")
    if section is None:
        new = _renamed(data, path, key)
        here = _at(new, path[:-1])
    else:
        del here[path[-1]]
        here = new
        for step in section.split("."):
            here = here.setdefault(step, {})
    here[key] = parse_value(text)[0]
    return new


def _deleted(data: Any, item: Diagnostic, key: str) -> Any:
    for place in (item.path, *(other.path for other in item.related)):
        for size in range(len(place), -1, -1):
            new = copy.deepcopy(data)
            section = _at(new, place[:size])
            if isinstance(section, dict) and key in section:
                del section[key]
                return new
    return None


def _written(data: Any, item: Diagnostic, line: str, section: str | None) -> Any:
    """Write `key: value` into the nearest section that has the key, or may have it."""
    key, _, text = line.partition(": ")
    value, fault = parse_value(text)
    assert not fault, line
    places = [item.path[:size] for size in range(len(item.path), -1, -1)]
    if section is not None:
        named = [(*place, section) for place in places] + [("modules", section)]
        places = named + [(*place, "model") for place in named]
    places += [other.path[:-1] for other in item.related] if section is None else []
    glued = item.at_key and str(item.path[-1]).startswith(f"{key}:")
    places = [item.path[:-1]] if glued else places
    for is_there in (True, False):
        for place in places:
            new = copy.deepcopy(data)
            parent = _at(new, place)
            if parent is None and not is_there and place and isinstance(_at(new, place[:-1]), dict):
                parent = _at(new, place[:-1])[place[-1]] = {}
            if not isinstance(parent, dict) or (is_there and key not in parent):
                continue
            parent[key] = value
            if glued:
                del _at(new, item.path[:-1])[item.path[-1]]
            if is_there or not _is_refused(new, (*place, key)):
                return new
    return None


def _is_refused(data: Any, path: Path) -> bool:
    """Return whether the spec has no such key there, or not with such a value."""
    return any(
        item.code in ("unknown-key", "wrong-type", "bad-value")
        and path[: len(item.path)] == item.path
        for item in check_text(_dump(data)).diagnostics
    )
