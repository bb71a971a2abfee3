"""How `plan` writes ranks and draws the schedule."""

from itertools import product

import pytest
from tests.support.reports import build_report
from tests.support.specs import box, spec

from mimo_launch.diag.quantities import as_ranges, counted, ranks_text
from mimo_launch.drawing.answer_text import facts_of
from mimo_launch.drawing.plan_tables import host_lines
from mimo_launch.drawing.rows import TimelineRow, Work
from mimo_launch.drawing.timeline import grid_lines, letters
from mimo_launch.estimate.workload import peak_tflops
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.values import PRECISIONS, PrecisionName


def test_ranks_as_text() -> None:
    assert ranks_text(()) == ""
    assert ranks_text((4,)) == "4"
    assert ranks_text((0, 1, 2, 3, 6)) == "0-3,6"
    assert ranks_text(range(0, 2048, 8)) == "0,8,..2040 (256 ranks)"
    assert as_ranges((0, 1, 2, 5, 7, 8)) == ((0, 2), (5, 5), (7, 8))


def test_one_of_a_thing_is_singular() -> None:
    assert [counted(n, "microbatch") for n in (0, 1, 1024)] == [
        "0 microbatches", "1 microbatch", "1,024 microbatches"
    ]  # fmt: skip
    report = build_report(Plan.of(spec({"language": box(0)})))
    assert " for 1 sample of " in facts_of(report)["step"]
    # One rank has no groups to make.
    assert not any("0 process groups" in line for line in host_lines(report.hosts))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_mfu_is_a_share_of_the_peak_in_the_precision_of_the_run(precision: PrecisionName) -> None:
    made = spec({"language": box(0)}, train={"steps": 1, "precision": precision})
    peak = peak_tflops("NVIDIA H200", PRECISIONS[precision])
    assert peak is not None
    report = build_report(Plan.of(made))
    assert report.answer.mfu == pytest.approx(report.estimates.tflops_per_gpu / peak)


def test_letters_are_unique_beginnings() -> None:
    assert letters(("vision", "audio")) == {"vision": "v", "audio": "a"}
    assert letters(("vision", "video")) == {"vision": "vis", "video": "vid"}
    # One name that begins another has no shorter form of its own.
    assert letters(("vis", "vision")) == {"vis": "vis", "vision": "visi"}


@pytest.mark.parametrize("width", [20, 60, 200])
def test_grid_fits_the_width(width: int) -> None:
    work = tuple(
        Work(action=f"language.0{kind}{i}", start=2 * i + j, stop=2 * i + j + 1)
        for i, (j, kind) in product(range(12), enumerate("FB"))
    )
    row = TimelineRow(role=("language.0",), ranks=(0,), bubble=0.0, work=work)
    lines = grid_lines((row,), (), 24.0, width)
    cells = [cell for line in lines if line.startswith("0 ") for cell in line.split()[2:]]
    drawn = [line for line in lines if line.startswith("0 ")]
    assert all(len(line) <= width for line in drawn)
    if width >= 60:
        assert cells == [f"{kind}{i}" for i, kind in product(range(12), "FB")]
