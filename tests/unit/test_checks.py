"""Checks that need two keys at once: each rule, its edge, and how they work together.

The fixtures in tests/fixtures/errors prove one failing spec per code; here are the limits between
right and wrong, and what is skipped.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from tests.support.specs import layout_specs

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text, load_and_check
from mimo_launch.spec.load import dump_spec, load_text, spec_from_data
from mimo_launch.spec.spec import Spec

FIXTURES = Path(__file__).parents[1] / "fixtures"
VALID = (FIXTURES / "valid.yaml").read_text(encoding="utf-8")


def spec_with(*overrides: str) -> Spec:
    loaded = load_text(VALID, overrides=overrides)
    assert loaded.spec is not None, loaded.diagnostics
    return loaded.spec


def codes(*overrides: str, world: int | None = None) -> list[str]:
    return sorted(item.code for item in check(spec_with(*overrides), world=world))


def only(*overrides: str, world: int | None = None) -> Any:
    (found,) = check(spec_with(*overrides), world=world)
    return found


TOPOLOGIES = sorted((FIXTURES.parents[1] / "topologies").rglob("*.yaml"))
VISION, LANGUAGE = "modules.vision", "modules.language"


def layout(vision: tuple[str, int, int], language: tuple[str, int, int]) -> list[str]:
    """Return overrides that place two modules: (ranks, tp, dp) each."""
    return [
        f"modules.{name}.{key}={value}"
        for name, (ranks, tp, dp) in (("vision", vision), ("language", language))
        for key, value in (("ranks", ranks), ("grid", f"{{tp: {tp}, dp: {dp}}}"))
    ]


def test_ten_mistakes_are_ten_findings_at_their_line_and_column() -> None:
    path = FIXTURES / "ten_mistakes.yaml"
    wanted = [
        (number, int(mark[1]), mark[2])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (mark := re.search(r"# <- (\d+) ([a-z0-9-]+)$", line))
    ]
    checked = load_and_check(path)
    got = []
    for item in checked.diagnostics:
        span = checked.source.place_of(item).span
        assert span is not None
        got.append((span.line, span.column, item.code))
    assert got == wanted
    assert len({code for _, _, code in wanted}) == 10


def test_a_language_only_spec_is_legal() -> None:
    data = dump_spec(spec_with())
    del data["modules"]["vision"]
    data["modules"]["language"]["ranks"] = "0-3"
    assert check(spec_from_data(data)) == ()


def test_a_misspelt_language_is_told() -> None:
    (found,) = check_text(VALID.replace("  language:", "  languages:")).diagnostics
    assert found.help == "rename `languages` to `language`"
    found = check_text(VALID.replace("  language:", "  llm:")).diagnostics[0]
    assert (found.code, found.help) == (
        "no-language-module",
        "rename `llm` to `language`",
    )


def test_sizes_that_fit_are_shown() -> None:
    found = only(f"{LANGUAGE}.grid.dp=1")
    assert found.headline == "`language`: tp 2 * cp 1 * pp 1 * dp 1 = 2, but it has 4 ranks"
    assert found.help == "these fit: `dp: 2`, `tp: 4`, `ranks: 4-5`"


@pytest.mark.parametrize(
    ("vision", "language", "idle", "expected"),
    [
        (("0-3", 1, 4), ("4-7", 2, 2), None, []),
        (("0-3", 1, 4), ("0-3", 2, 2), None, []),
        (("0-3", 1, 4), ("2-5", 2, 2), None, []),
        (("0-3", 1, 4), ("6-9", 2, 2), None, ["unlisted-idle-rank"]),
        (("0-3", 1, 4), ("6-9", 2, 2), "4-5", []),
        (("0-3", 1, 4), ("6-9", 2, 2), "4", ["unlisted-idle-rank"]),
        (("1-4", 1, 4), ("1-4", 2, 2), "0", []),
        (("1-4", 1, 4), ("6-9", 2, 2), None, ["unlisted-idle-rank"] * 2),
        (("0-3", 1, 4), ("4-7", 2, 2), "8-9", []),
        (("0-3", 1, 4), ("4-7", 2, 2), "9", ["unlisted-idle-rank"]),
        (("0-3", 1, 4), ("4-7", 2, 2), "3", ["idle-rank-in-use"]),
        (("0-3", 1, 4), ("4-7", 2, 2), "3-4", ["idle-rank-in-use"] * 2),
    ],
)
def test_holes_and_idle_ranks(
    vision: Any, language: Any, idle: str | None, expected: list[str]
) -> None:
    extra = [f"idle_ranks={idle}"] if idle else []
    assert codes(*layout(vision, language), *extra) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("tp, cp, dp, pp", []),
        ("cp, tp, pp, dp", []),
        ("pp, cp, dp, tp", []),
        ("tp, dp, cp, pp", ["cp-after-dp"]),
        ("dp, tp, pp, cp", ["cp-after-dp"]),
        ("tp, cp, dp", ["order-not-permutation"]),
        ("tp, cp, cp, pp", ["order-not-permutation"]),
        ("tp, cp, dp, pp, pp", ["order-not-permutation"]),
        ("", ["order-not-permutation"]),
    ],
)
def test_order(order: str, expected: list[str]) -> None:
    assert codes(f"{LANGUAGE}.order=[{order}]") == expected


def test_the_order_shown_is_legal() -> None:
    fixed = only(f"{LANGUAGE}.order=[dp, tp, pp, cp]").help
    assert fixed == "write `order: [cp, dp, tp, pp]`"


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (8, []),
        (4, ["ranks-beyond-world"]),
        (2, ["ranks-beyond-world"] * 2),
        (16, ["world-size-mismatch"]),
    ],
)
def test_the_job_has_the_ranks_of_the_spec(world: int, expected: list[str]) -> None:
    assert codes(world=world) == expected


def test_idle_ranks_count_for_the_world() -> None:
    idle = "idle_ranks=8-9"
    assert codes(idle, world=10) == []
    assert codes(idle, world=8) == ["world-size-mismatch"]


def test_a_check_that_needs_a_part_at_fault_is_skipped() -> None:
    """A grid of unknown size is neither too large nor too small."""
    text = VALID.replace("{tp: 2, dp: 2}", "{tp: x, dp: 2}").replace("global: 32", "global: 31")
    got = [item.code for item in check_text(text).diagnostics]
    assert got == ["wrong-type", "batch-not-divisible"]
    text = text.replace("dp: 2}", "dp: y}")
    assert [item.code for item in check_text(text).diagnostics] == ["wrong-type", "bad-value"]


def test_a_fault_in_one_module_leaves_the_checks_of_others() -> None:
    text = VALID.replace("kind: vit", "kind: vitt").replace(
        "hidden: 64, heads: 4, vocab", "hidden: 64, heads: 5, vocab"
    )
    got = {item.code for item in check_text(text).diagnostics}
    assert got == {"unknown-kind", "hidden-over-heads", "heads-over-tp"}


def test_a_consequence_is_not_reported_again() -> None:
    """A wrong grid makes statements about its shares moot, a wrong batch those about groups."""
    assert codes(f"{VISION}.grid.dp=3") == ["grid-size-mismatch"]
    assert codes("batch.global=31") == ["batch-not-divisible"]
    assert codes(f"{VISION}.ranks=0-2") == ["grid-size-mismatch"]


def test_warnings_alone_leave_a_spec_valid() -> None:
    checked = check_text(VALID + "optimizer: {schedule: {warmup: 500}}\n")
    assert [item.is_error for item in checked.diagnostics] == [False]
    assert checked.spec is not None


def test_large_worlds_are_checked_quickly() -> None:
    import time

    start = time.perf_counter()
    ranks = layout(("0-4095", 1, 4096), ("4096-12287", 8, 1024))
    data = ["batch.global=8192", "nodes.gpus=8", f"{LANGUAGE}.model.heads=8"]
    assert codes(*ranks, *data) == []
    assert codes(f"{VISION}.ranks=0-262143") == ["grid-size-mismatch"]
    assert time.perf_counter() - start < 2


def told(text: str) -> list[tuple[str, str]]:
    checked = check_text(text)
    return sorted((item.code, item.headline) for item in checked.diagnostics)


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_a_spec_that_is_saved_with_every_default_has_the_same_findings(path: Path) -> None:
    """As `validate runs/NAME/spec.yaml` has it: nobody wrote those settings."""
    loaded = load_text(path.read_text(encoding="utf-8")).spec
    assert loaded is not None
    saved = yaml.safe_dump(dump_spec(loaded), sort_keys=False)
    assert told(saved) == told(path.read_text(encoding="utf-8"))


@settings(max_examples=60, deadline=None)
@given(layout_specs(supported_only=False))
def test_defaults_that_are_written_are_never_without_effect(made: Spec) -> None:
    found = told(yaml.safe_dump(dump_spec(made), sort_keys=False))
    assert found == sorted((item.code, item.headline) for item in check(made))


@pytest.mark.parametrize(
    "setting",
    [
        "optimizer={kind: sgd, betas: [0.9, 0.95], eps: 1.0e-8}",
        "modules.language.balance=linked",
    ],
)
def test_a_default_that_is_written_is_no_finding(setting: str) -> None:
    assert check_text(VALID, overrides=[setting]).diagnostics == ()


@pytest.mark.parametrize(
    ("gpu", "memory", "expected"),
    [
        ("h100-80gb", "93.4GB", []),
        ("h100-80gb", "93.5GB", ["gpu-memory-beyond-gpu"]),
        ("h200-141gb", "141GB", []),
        ("h200-141gb", "20GB", []),
        ("a100-40gb", "80GB", ["gpu-memory-beyond-gpu"]),
    ],
)
def test_a_gpu_has_no_more_memory_than_its_data_sheet_says(
    gpu: str, memory: str, expected: list[str]
) -> None:
    nodes = f"nodes={{gpus: 8, gpu: {gpu}, gpu_memory: {memory}}}"
    assert codes(nodes) == expected
    assert codes(nodes.replace(f"gpu: {gpu}, ", "")) == []
    if expected:
        assert only(nodes).help.startswith("delete `gpu_memory`, or name another GPU: `gpu: h200")
