"""Checks of how samples are shared out: fan-in, fan-out and groups of microbatches."""

import re
from pathlib import Path

import pytest
from tests.support.pasting import offers

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.load import load_text

VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")


def findings(*overrides: str) -> tuple[Diagnostic, ...]:
    loaded = load_text(VALID, overrides=overrides)
    assert loaded.spec is not None, loaded.diagnostics
    return check(loaded.spec)


def codes(*overrides: str) -> list[str]:
    return [item.code for item in findings(*overrides)]


def layout(vision: tuple[str, int, int], language: tuple[str, int, int]) -> list[str]:
    """Return overrides that place two modules: (ranks, tp, dp) each."""
    return [
        f"modules.{name}.{key}={value}"
        for name, (ranks, tp, dp) in (("vision", vision), ("language", language))
        for key, value in (("ranks", ranks), ("grid", f"{{tp: {tp}, dp: {dp}}}"))
    ]


SHARED = layout(("0-3", 1, 4), ("0-3", 4, 1))
APART = layout(("0-3", 1, 4), ("4", 1, 1))


@pytest.mark.parametrize(
    ("overrides", "expected", "help_"),
    [
        # One language replica, 16 microbatches of 2 samples, 4 encoder replicas.
        ([*APART, "schedule.microbatches=8"], [], ""),
        (
            [*APART, "schedule.microbatches=16"],
            ["encoder-share-uneven"],
            "write `encoder_microbatches: 2` in `schedule`, or `microbatches: 8`, or "
            "`grid: {pp: 2, dp: 2}` for `vision`; `global: 64` is another batch",
        ),
        ([*APART, "schedule={microbatches: 16, encoder_microbatches: 2}"], [], ""),
        (
            [*APART, "schedule={microbatches: 16, encoder_microbatches: 3}"],
            ["encoder-microbatches-uneven"],
            "write `encoder_microbatches: 2`",
        ),
        ([*SHARED, "schedule.microbatches=16"], [], ""),
        (
            [*SHARED, "schedule={microbatches: 16, encoder_microbatches: 1}"],
            ["encoder-share-uneven"],
            "write `encoder_microbatches: 2` in `schedule`, or `microbatches: 8`, or ",
        ),
        ([*SHARED, "schedule={microbatches: 16, encoder_microbatches: 2}"], [], ""),
        (
            [*SHARED, "schedule={microbatches: 16, encoder_microbatches: 3}"],
            ["encoder-microbatches-uneven"],
            "write `encoder_microbatches: 2`",
        ),
        # All groups that divide are larger: the smallest of them.
        (
            [*SHARED, "schedule={microbatches: 32, encoder_microbatches: 3}"],
            ["encoder-microbatches-uneven"],
            "write `encoder_microbatches: 4`",
        ),
        # Fan-in over shared ranks with one sample per replica and fewer of them than encoders.
        (
            [*SHARED, "schedule.microbatches=2", "batch.global=2"],
            ["encoder-share-uneven"],
            "write `grid: {pp: 2, dp: 2}` for `vision`; `global: 4` is another batch",
        ),
        # dp sizes that do not divide each other are legal when the samples split.
        (
            [*layout(("0-2", 1, 3), ("3-4", 1, 2)), "batch.global=24"],
            ["unrelated-dp-sizes"],
            "",
        ),
        (
            layout(("0-2", 1, 3), ("3-4", 1, 2)),
            ["encoder-share-uneven"],
            "write `ranks: 0-1` for `vision` with `grid: {dp: 2}`; `global: 36` (the ",
        ),
        # Fan-out 1:3.
        (
            [*layout(("0", 1, 1), ("1-3", 1, 3)), "batch.global=24"],
            [],
            "",
        ),
    ],
)  # fmt: skip
def test_fan_in_and_fan_out(overrides: list[str], expected: list[str], help_: str) -> None:
    found = findings(*overrides)
    assert [item.code for item in found] == expected
    if help_:
        assert found[0].help.startswith(help_)


def test_lines_offered_for_a_batch_leave_it_as_it_is() -> None:
    """Another batch is named behind them, as what it is, also where nothing else helps."""
    (found,) = findings(*APART, "schedule.microbatches=16")
    assert [code for _, code, _ in offers(found.help) if "global" in code] == []
    found = findings(*layout(("0", 1, 1), ("1-2", 1, 2)), "batch.global=7")[0]
    assert found.help.endswith("`: another batch, with which a run learns otherwise")


def test_groups_of_microbatches_become_smaller_rather_than_one() -> None:
    (found,) = findings(*SHARED, "schedule={microbatches: 16, encoder_microbatches: 12}")
    assert found.help == "write `encoder_microbatches: 8`"


@pytest.mark.parametrize("overrides", [APART, SHARED, layout(("0-2", 1, 3), ("3-4", 1, 2))])
def test_the_batch_shown_is_the_smallest_legal_one_above(overrides: list[str]) -> None:
    """Trying every batch finds the same as the formula."""
    schedule = "schedule={microbatches: 6, encoder_microbatches: 1}"
    for size in range(1, 40):
        found = findings(*overrides, schedule, f"batch.global={size}")
        errors = [item for item in found if item.is_error]
        shown = re.search(r"`global: (\d+)`", errors[0].help) if errors else None
        if errors and errors[0].code == "encoder-share-uneven" and shown:
            legal = [
                each
                for each in range(size, int(shown[1]) + 1)
                if "encoder-share-uneven" not in codes(*overrides, schedule, f"batch.global={each}")
                and "batch-not-divisible" not in codes(*overrides, schedule, f"batch.global={each}")
            ]
            assert legal == [int(shown[1])]
