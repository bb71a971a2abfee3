"""What `tune` lists and `plan` answers: of plans as they are made up here, in which order."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from tests.support.specs import box, spec

from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.tune_bench import ranked_again
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.plan.plan import Plan
from mimo_launch.search import answer, fewer_gpus, tune
from mimo_launch.search.advice import LEAST_GAIN
from mimo_launch.search.answer import LostTime, OfferedChange, what_fits
from mimo_launch.search.changes import Change
from mimo_launch.search.fewer_gpus import speeds
from mimo_launch.search.judge import Judge, Planned
from mimo_launch.search.layout_rows import LayoutRow, layout_rows
from mimo_launch.search.tune import Wish
from mimo_launch.search.wastes import Waste
from mimo_launch.spec.spec import Spec

PIPE = spec(
    {"language": box(0, pp=2, model={"layers": 4, "vocab": 4096})},
    microbatches=4,
    data={"kind": "synthetic", "min_text": 2, "max_text": 20},
    seq=32,
)


def planned(made: Spec, **changed: Any) -> tuple[Planned, Estimator]:
    estimator = Estimator.of(Plan.of(made))
    estimates = replace(estimator.estimates(), **changed)
    return Planned(Change("", {}, made), estimates), estimator


def rows_of(*found: tuple[Planned, Estimator]) -> list[LayoutRow]:
    return list(layout_rows(found))


def test_a_row_counts_tokens_without_padding_and_the_fullest_ranks() -> None:
    one, estimator = planned(PIPE)
    (row,) = rows_of((one, estimator))
    tokens = estimator.expected.tokens / PIPE.train.steps
    assert tokens < 0.9 * PIPE.batch.global_ * PIPE.batch.seq
    assert row.tokens_per_second == pytest.approx(tokens / one.seconds)
    first, last = (each.total_bytes for each in one.estimates.ranks)
    assert row.memory == {"language": max(first, last)}
    estimates = replace(one.estimates, ranks=one.estimates.ranks[::-1])
    (row,) = rows_of((replace(one, estimates=estimates), estimator))
    assert first != last
    assert row.memory == {"language": max(first, last)}


def test_a_row_says_which_bubble_it_gives_up_against_the_next() -> None:
    fast, slow = (planned(PIPE, step_seconds=each, bubble=0.1) for each in (1.0, 1.2))
    idle = planned(PIPE, step_seconds=1.0, bubble=0.4)
    assert rows_of(fast, slow)[0].gives_up == "20% faster than the next, and gives up nothing"
    assert rows_of(idle, slow)[0].gives_up == "20% faster than the next, with 30% more bubble"
    busy = planned(PIPE, step_seconds=1.2, bubble=0.4)
    assert rows_of(fast, busy)[0].gives_up == "20% faster than the next, and gives up nothing"


def test_a_layout_that_does_not_fit_over_the_whole_run_is_not_listed() -> None:
    one, estimator = planned(PIPE)
    most = max(each.total_bytes for each in one.estimates.ranks)
    found = [Judge(estimator, limit).whole(PIPE) for limit in (most - 1, most)]
    assert found == [None, one.estimates]


def test_a_plainer_layout_is_listed_unless_it_is_slower() -> None:
    made = spec({"language": box(0, dp=4, shard_over=2)}, mbs=2)
    found, estimator = planned(made, step_seconds=1.0)
    for seconds, is_listed in ((1.001, True), (1.01, False)):
        plain = Planned(found.change, replace(found.estimates, step_seconds=seconds))
        search: Any = SimpleNamespace(judge=Judge(estimator, 10**12), same=lambda _, p=plain: p)
        assert (tune._plainer(search, found) is plain) == is_listed


def test_a_curve_of_speed_keeps_the_fastest_of_fewer_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {1: 4.0, 2: 2.0, 3: 3.0}

    def tuned(made: Spec, wish: Wish, constants: object) -> Any:
        if wish.gpus not in steps:
            raise tune.NoLayout("", "")
        return SimpleNamespace(found=[planned(PIPE, step_seconds=steps[wish.gpus])])

    monkeypatch.setattr(fewer_gpus, "tune", tuned)
    found = speeds(PIPE, Wish(gpus=4))
    assert [each.best and each.best[0].seconds for each in found] == [4.0, 2.0, 2.0, 2.0]


def test_layouts_that_ran_are_ranked_by_what_they_took_and_others_by_what_that_says() -> None:
    """Each row has its own measurement, although one before it did not run."""
    rows = rows_of(*(planned(PIPE, step_seconds=each) for each in (1.0, 1.1, 1.2, 1.3)))

    def ranked(*seconds: float | None) -> list[tuple[int, float | None]]:
        left = iter(seconds)
        runs: Any = SimpleNamespace(seconds=lambda file, console: next(left))
        console: Any = None
        found = ranked_again(rows, [Path()] * 4, len(seconds), runs, console)
        return [(row.number, row.measured_seconds) for row in found]

    assert ranked(9.0, 2.2) == [(2, 2.2), (3, None), (4, None), (1, 9.0)]
    assert ranked(None, 2.2, 1.0) == [(3, 1.0), (1, None), (4, None), (2, 2.2)]


def test_where_no_layout_runs_the_command_fails(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(planned(PIPE, step_seconds=1.0))
    runs: Any = SimpleNamespace(seconds=lambda file, console: None)
    with pytest.raises(typer.Exit) as ended:
        ranked_again(rows, [Path("01.yaml")], 1, runs, Console())
    assert ended.value.exit_code == 1
    assert "no layout ran" in capsys.readouterr().err


WASTE = Waste(kind="pads", modules=("language",), ranks=(0,), share=0.5, of_all=0.5, text="pads")


def offered(gain: float) -> OfferedChange:
    return OfferedChange(text=str(gain), settings={}, step_seconds=1.0, gain=gain, needed_bytes=1)


@pytest.mark.parametrize(("seconds", "fuller", "gain"), [(1.0, 1.0, None), (1.5, 1.8, 0.2)])
def test_packing_is_offered_if_a_step_then_holds_more_tokens_in_its_time(
    seconds: float, fuller: float, gain: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, estimator = planned(PIPE, step_seconds=1.0)
    packs, _ = planned(PIPE, step_seconds=seconds)
    given = SimpleNamespace(planned=packs, fuller=fuller)
    monkeypatch.setattr(answer, "padding_waste", lambda *_: WASTE)
    monkeypatch.setattr(answer, "packed", lambda *_: given)
    monkeypatch.setattr(answer, "fp8_change", lambda *_: None)
    (loss,) = answer._other_losses(estimator, one.estimates, seeks=True)
    assert (loss.change and loss.change.gain) == (gain and pytest.approx(gain))


@pytest.mark.parametrize(("fp8", "kinds"), [(None, ["waits", "precision"]), ({}, None)])
def test_fp8_is_offered_after_all_that_computes_the_same_and_bf16_by_what_it_gains(
    fp8: object, kinds: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = {} if fp8 is None else {"backend": "transformer_engine", "fp8": fp8}
    made = spec({"language": box(0, **engine)}, train={"precision": "bf16"})
    one, estimator = planned(made)
    waits, numbers = (
        LostTime.answered(replace(WASTE, kind=kind), offered(gain))
        for kind, gain in (("waits", 2 * LEAST_GAIN), ("precision", 0.5))
    )

    def others(estimator: Estimator, estimates: Estimates, *, seeks: bool) -> Iterable[LostTime]:
        yield numbers

    monkeypatch.setattr(answer, "_other_losses", others)
    found = answer._with_others([waits], estimator, one.estimates, seeks=True)
    assert [each.kind for each in found] == (kinds or ["precision", "waits"])


def test_packing_that_makes_a_job_fit_stands_where_its_speed_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, estimator = planned(PIPE)
    search = SimpleNamespace(judge=SimpleNamespace(limit=1), compared=0, tried={})
    near = SimpleNamespace(that_fit=list, search=search)
    monkeypatch.setattr(answer, "Changes", SimpleNamespace(of=lambda *_: near))
    monkeypatch.setattr(answer, "in_order", lambda _: [0.5, 0.1])
    monkeypatch.setattr(answer, "packed", lambda *_: SimpleNamespace(planned=one, fuller=1.3))
    monkeypatch.setattr(OfferedChange, "of", lambda gain, *_: offered(gain))
    gains = [each.gain for each in what_fits(estimator).changes]
    assert gains == [0.5, pytest.approx(0.3), 0.1]
