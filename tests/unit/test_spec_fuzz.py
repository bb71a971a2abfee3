"""Whatever stands in a spec, the answer is findings with places, never a traceback."""

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.diagnostic import all_codes, to_json
from mimo_launch.diag.text import render
from mimo_launch.plan.plan import Plan
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


HEADS = """
version: 1
name: heads
modules:
  vision:
    model: {kind: vit, layers: 2, hidden: 48, heads: 5, patch: 4}
    ranks: 0-7
    grid: {tp: 4, pp: 0, dp: 2}
  language:
    model: {kind: decoder, layers: 2, hidden: 64, heads: 4, vocab: digits}
    ranks: 0-7
    grid: {tp: 2, dp: 4}
schedule: {kind: 1f1b, microbatches: 2}
batch: {global: 16, seq: 108}
data: {kind: digits}
train: {steps: 2}
"""


def test_a_grid_is_not_proposed_where_a_size_of_it_is_wrong() -> None:
    """What is nearest to a grid cannot be said if one of its sizes is no size."""
    codes = [item.code for item in check_text(HEADS).diagnostics]
    assert codes == ["hidden-over-heads", "heads-over-tp", "bad-value"]


def test_fewer_ranks_are_never_none() -> None:
    """A grid of more ranks than its module has: a replica has none of them."""
    text = HEADS.replace("heads: 5", "heads: 4").replace(
        "ranks: 0-7\n    grid: {tp: 4, pp: 0, dp: 2}", "ranks: 0\n    grid: {dp: 1}"
    )
    text = text.replace("ranks: 0-7\n    grid: {tp: 2, dp: 4}", "ranks: 1-3\n    grid: {dp: 6}")
    found = check_text(text.replace("microbatches: 2", "microbatches: 64")).diagnostics
    assert {item.code for item in found} == {"batch-not-divisible", "grid-size-mismatch"}
    assert all("ranks: 1-0" not in (item.help or "") for item in found)


MANY = """
version: 1
name: many
modules:
  vision:
    model: {kind: vit, layers: 1, hidden: 48, heads: 4, patch: 4}
    ranks: 0-1
    grid: {dp: 2}
  language:
    model: {kind: decoder, layers: 4, hidden: 64, heads: 4, vocab: digits}
    ranks: 2-5
    grid: {pp: 2, dp: 2}
  merger:
    model: {kind: connector, layers: 1, hidden: 16, heads: 2}
    ranks: "0"
    reads: [vision]
schedule: {kind: interleaved, microbatches: 8000, virtual_stages: 2}
batch: {global: 16000, seq: 36}
data: {kind: digits}
train: {steps: 2}
"""


def test_programs_of_many_microbatches_are_made_in_linear_time() -> None:
    """Searches for what arrived, and for what a group waits for, were quadratic."""

    def seconds(microbatches: int) -> float:
        fewer = MANY.replace("8000", str(microbatches)).replace("16000", str(2 * microbatches))
        spec = check_text(fewer).spec
        assert spec is not None
        began = time.process_time()
        assert len(Plan.of(spec).work) == 6
        return time.process_time() - began

    # Eight times as many: 64 times as long where it is quadratic, whatever the machine.
    assert seconds(8000) < 24 * seconds(1000)


def test_a_decoder_that_is_not_called_language_is_no_encoder() -> None:
    """It reads rows and computes a loss, so it has no images of its own."""
    text = VALID.replace("  language:", "  speaker:").replace(
        "    model: {kind: decoder", "    reads: [vision]\n    model: {kind: decoder"
    )
    assert "  speaker:" in text
    assert "reads: [vision]" in text
    found = check_text(text)
    assert found.spec is None
    assert any(item.is_error for item in found.diagnostics)
