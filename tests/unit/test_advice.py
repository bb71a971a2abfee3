"""What `plan` advises: losses in words, and changes that were planned."""

import os

import pytest
from tests.support.poor_specs import POOR, all_layouts, fits, seconds

from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.answer import PlanAnswer, answer_of
from mimo_launch.search.changes import Settings, changed
from mimo_launch.spec.spec import Grid, Spec

# The best of all layouts that `all_layouts` yields, as the sweep finds it.
BEST_OF_8 = {
    "modules.vision.ranks": "0-7",
    "modules.vision.grid": {"dp": 8},
    "modules.language.ranks": "0-7",
    "modules.language.grid": {"dp": 8},
    "modules.language.sharding": "optimizer",
    "schedule.microbatches": 1,
}


def answer(made: Spec, **options: bool) -> PlanAnswer:
    estimator = Estimator.of(Plan.of(made))
    return answer_of(estimator, estimator.estimates(), **options)


def with_settings(made: Spec, settings: Settings) -> Spec:
    """Return a spec with settings, whose grids may leave axes of one rank out."""
    whole = {
        path: Grid(**value).model_dump() if path.endswith(".grid") else value
        for path, value in settings.items()
    }
    found = changed(made, "", {}, whole)
    return made if found is None else found.spec


def followed(made: Spec, times: int) -> Spec:
    """Return a spec after its first advice, so many times."""
    for _ in range(times):
        losses = answer(made).losses
        if losses and losses[0].change is not None:
            made = with_settings(made, losses[0].change.settings)
    return made


def test_offers_are_legal_fit_and_gain_most_of_what_the_best_layout_gains() -> None:
    made = POOR[8]
    given = answer(made)
    offers = [loss.change for loss in given.losses if loss.change is not None]
    assert offers
    for offer in offers:
        other = with_settings(made, offer.settings)
        assert not any(found.is_error for found in check(other))
        assert fits(other)
        assert seconds(other) == pytest.approx(offer.step_seconds)
        assert offer.gain == pytest.approx(given.step_seconds / offer.step_seconds - 1)
    assert offers[0].gain == max(offer.gain for offer in offers)
    best = seconds(with_settings(made, BEST_OF_8))
    saved, possible = (given.step_seconds - each for each in (offers[0].step_seconds, best))
    assert saved >= 0.8 * possible > 0


def test_losses_name_modules_ranks_and_numbers() -> None:
    given = answer(POOR[8], seeks=False)
    assert all(loss.change is None for loss in given.losses)
    first = given.losses[0]
    assert first.what.startswith("vision waits ")
    assert first.what.endswith("% on 4 GPUs")
    assert first.ranks == (0, 1, 2, 3)
    assert first.of_all == pytest.approx(first.share / 2)
    time = given.time
    parts = (time.computing, time.communicating, time.waiting, time.updating)
    assert sum(parts) == pytest.approx(given.step_seconds)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", POOR)
def test_the_first_advice_three_times_gains_most_of_what_a_wide_search_finds(ranks: int) -> None:
    made = POOR[ranks]
    start, reached = seconds(made), seconds(followed(made, 3))
    most = int(os.environ.get("ADVICE_LAYOUTS", "400"))
    layouts = list(all_layouts(made))[:: max(1, 4 * ranks // most)]
    wide = [seconds(each.spec) for each in layouts if fits(each.spec)]
    best = min([*wide, reached])
    print(f"{ranks} GPUs: {start:.3g} s, advice {reached:.3g} s, best of {len(wide)}: {best:.3g} s")
    assert start - reached >= 0.8 * (start - best)
