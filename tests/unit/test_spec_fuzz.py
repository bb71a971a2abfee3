"""Whatever stands in a spec, the answer is findings with places, never a traceback."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.codes import all_codes
from mimo_launch.diag.text import render, to_json
from mimo_launch.spec.load import dump_spec, load_text, spec_from_data
from mimo_launch.spec.parse import read_spec

VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
EXTRA = [
    "eval.every=10",
    "nodes.gpus=8",
    "idle_ranks=8",
    "optimizer={betas: [0.9, 0.95], schedule: {kind: wsd, decay: 10}}",
    "modules.language.sequence_parallel=true",
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    7,
    1.5,
    1e400,
    "x",
    "0-3",
    "",
    [],
    [1],
    {},
    {"kind": "x"},
]


@cache
def complete() -> dict[str, Any]:
    """Return a valid spec as data with every section written out."""
    spec = load_text(VALID, overrides=EXTRA).spec
    assert spec is not None
    return dump_spec(spec)


def paths(data: Any, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items:
        found.append((*prefix, key))
        if isinstance(value, dict | list):
            found += paths(value, (*prefix, key))
    return found


def put(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(data))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return copy


def assert_sound(data: dict[str, Any]) -> None:
    partial, faults = read_spec(data)
    findings = (*faults, *check(partial))
    assert {item.code for item in findings} <= set(all_codes())
    assert all(item.headline and item.why and item.help for item in findings)
    if not faults:
        assert spec_from_data(dump_spec(partial)) == partial


def assert_drawn(data: dict[str, Any]) -> None:
    # JSON is YAML.
    checked = check_text(json.dumps(data, indent=1))
    errors = [item for item in checked.diagnostics if item.is_error]
    assert (checked.spec is None) == bool(errors)
    assert all(row["line"] for row in to_json(checked.diagnostics, checked.source))
    assert bool(render(checked.diagnostics, checked.source)) == bool(checked.diagnostics)


@pytest.mark.parametrize("path", paths(complete()), ids=lambda path: ".".join(map(str, path)))
def test_any_value_at_any_place(path: tuple[str | int, ...]) -> None:
    data = complete()
    for value in (*VALUES, ...):
        assert_sound(put(data, path, value))
    assert_drawn(put(data, path, "x"))
    assert_drawn(put(data, path, ...))


def test_the_complete_spec_is_sound() -> None:
    data = complete()
    assert len(paths(data)) > 60
    assert_sound(data)
    assert_drawn(data)
