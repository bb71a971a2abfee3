"""Learning rates against values computed by hand."""

from itertools import pairwise
from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.specs import box, spec

from mimo_launch.optimizer.module_optimizers import learning_rate, rate_at
from mimo_launch.spec.optimizers import LrSchedule
from mimo_launch.verify.oracle_run import _module_rate

KINDS = ("constant", "cosine", "wsd", "linear", "inverse_sqrt")


def rates(kind: str, peak: float, warmup: int, steps: int, **keys) -> list[float]:
    """Learning rate of every step of a run."""
    schedule = LrSchedule(kind=kind, warmup=warmup, **keys)
    return [learning_rate(peak, schedule, warmup, step, steps) for step in range(steps)]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_linearly_and_reaches_the_peak_at_its_last_step(kind):
    assert rates(kind, peak=8.0, warmup=4, steps=20, decay=4)[:4] == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_warm_up_the_first_step_is_at_the_peak(kind):
    assert rates(kind, peak=8.0, warmup=0, steps=20, decay=4)[0] == 8.0


# Kind, peak, warm-up and further keys; the rate of each step.
BY_HAND: dict[str, tuple[str, float, int, dict[str, float], list[float]]] = {
    "constant stays at the peak": ("constant", 3.0, 2, {"min_lr": 1.0}, [1.5, 3, 3, 3, 3, 3]),
    "cosine falls from the peak to the floor at the last step": (
        "cosine", 5.0, 0, {"min_lr": 1.0}, [5.0, 3 + 2 * cos(pi / 4), 3.0, 3 - 2 * cos(pi / 4), 1.0]
    ),
    "cosine begins after the warm-up": ("cosine", 4.0, 2, {}, [2, 4, 4, 2, 0]),
    "wsd stays at the peak and falls linearly over its last steps": (
        "wsd", 9.0, 1, {"decay": 4, "min_lr": 1.0}, [9, 9, 9, 9, 7, 5, 3, 1]
    ),
    "wsd without decay stays at the peak": ("wsd", 9.0, 3, {}, [3, 6, 9, 9, 9]),
    "linear falls from the peak to the floor at the last step": (
        "linear", 5.0, 0, {"min_lr": 1.0}, [5, 4, 3, 2, 1]
    ),
    "linear begins after the warm-up": ("linear", 4.0, 2, {}, [2, 4, 4, 2, 0]),
    "inverse_sqrt falls with the root of the step, down to the floor": (
        "inverse_sqrt", 6.0, 1, {"min_lr": 3.0}, [6, 6 / 2**0.5, 6 / 3**0.5, 3, 3, 3]
    ),
    "inverse_sqrt begins at the end of the warm-up": (
        "inverse_sqrt", 8.0, 2, {}, [4, 8, 8 * (2 / 3) ** 0.5, 8 * 0.5**0.5]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_rates_are_those_by_hand(name):
    kind, peak, warmup, keys, wanted = BY_HAND[name]
    assert rates(kind, peak, warmup, len(wanted), **keys) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_floor_above_the_peak_does_not_raise_the_rate(kind):
    """A module with its own small `lr` shares `min_lr` with the others."""
    assert rates(kind, peak=1.0, warmup=0, steps=6, decay=3, min_lr=2.0) == [1.0] * 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 1), (3, 3), (5, 3), (2, 3)])
def test_short_runs_have_a_rate_at_every_step(kind, warmup, steps):
    found = rates(kind, peak=1.0, warmup=warmup, steps=steps, decay=1, min_lr=0.25)
    assert all(0 < rate <= 1 for rate in found)


@given(
    st.sampled_from(KINDS),
    st.integers(0, 20),
    st.integers(1, 60),
    st.integers(0, 20),
    st.floats(0, 1),
)
def test_after_the_warm_up_the_rate_never_rises_nor_passes_the_floor(
    kind, warmup, steps, decay, floor
):
    found = rates(kind, 1.0, warmup, steps, decay=decay, min_lr=floor)[warmup:]
    assert all(after <= before + 1e-12 for before, after in pairwise(found))
    assert all(floor - 1e-12 <= rate <= 1 for rate in found)


def test_steps_after_the_run_stay_at_the_last_rate():
    """A resumed run may be asked for more steps than its schedule knows."""
    schedule = LrSchedule(kind="cosine", min_lr=1.0)
    assert learning_rate(5.0, schedule, 0, 7, 5) == pytest.approx(1.0)
    schedule = LrSchedule(kind="wsd", decay=2, min_lr=1.0)
    assert learning_rate(5.0, schedule, 0, 7, 5) == pytest.approx(1.0)


@pytest.mark.parametrize(("warmup", "first"), [(None, 4.0), (0, 8.0), (4, 2.0)])
def test_a_module_may_have_a_warm_up_of_its_own(warmup: int | None, first: float) -> None:
    made = spec(
        {"vision": box(0, optimizer={"warmup": warmup}), "language": box(1)},
        optimizer={"lr": 8.0, "schedule": {"kind": "constant", "warmup": 2}},
        train={"steps": 8, "precision": "fp64"},
    )
    assert [rate_at(made, step, "vision") for step in (0, 7)] == [first, 8.0]
    assert rate_at(made, 0) == rate_at(made, 0, "language") == 4.0


@pytest.mark.parametrize(
    ("steps", "warmup", "decay", "counted"),
    [
        (1000, "3%", "20%", (30, 200)),
        (100, "0.5%", "12.5%", (1, 12)),
        (5, "50%", "50%", (3, 2)),
        (100, "0%", "100 %", (0, 100)),
        (100, "7%", 9, (7, 9)),
        (10**9, "0.1%", "29%", (10**6, 290_000_000)),
    ],
)
def test_a_percentage_is_of_the_steps_of_the_run_and_both_always_fit(
    steps: int, warmup: str | int, decay: str | int, counted: tuple[int, int]
) -> None:
    schedule = LrSchedule(kind="wsd", warmup=warmup, decay=decay)
    assert (schedule.warmup_steps(steps), schedule.decay_steps(steps)) == counted


def test_rates_of_percentages_are_those_of_their_steps() -> None:
    def made(common: str | int, own: str | int, decay: str | int) -> list[float]:
        found = spec(
            {"vision": box(0, optimizer={"warmup": own}), "language": box(1)},
            optimizer={"lr": 8.0, "schedule": {"kind": "wsd", "warmup": common, "decay": decay}},
            train={"steps": 40, "precision": "fp64"},
        )
        return [rate_at(found, step, name) for name in ("vision", "language") for step in range(40)]

    assert made("10%", "25%", "30%") == made(4, 10, 12)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 60),
    *[st.integers(0, 20) | st.integers(0, 400).map(lambda tenths: f"{tenths / 10}%")] * 2,
    st.floats(0, 1.2),
)
def test_the_oracle_finds_the_same_rates_by_its_own_formula(
    kind: str, steps: int, warmup: int | str, decay: int | str, floor: float
) -> None:
    schedule = {"kind": kind, "warmup": warmup, "decay": decay, "min_lr": floor}
    made = spec(
        {"vision": box(0), "language": box(1)},
        optimizer={"lr": 1.0, "schedule": schedule},
        train={"steps": steps, "precision": "fp64"},
    )
    for step in range(steps):
        assert _module_rate(made, "vision", step + 1) == pytest.approx(rate_at(made, step), 1e-12)


def test_a_percentage_above_the_run_or_without_a_number_is_refused() -> None:
    for wrong in ("101%", "%", "-1%", "3", "3 percent", "1e1%", -1, 1.5, True):
        with pytest.raises(ValueError, match="warmup"):
            LrSchedule(warmup=wrong)  # type: ignore[arg-type]
