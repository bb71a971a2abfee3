"""Which rank is blamed for numbers that are not finite, given what every rank saw."""

from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_data import SampleData, StepData
from mimo_launch.optimizer.step_metrics import NonFiniteFlags, note_flags
from mimo_launch.train.events import NonFinite
from mimo_launch.train.non_finite import (
    NonFiniteRun,
    NonFiniteWatch,
    NoUpdate,
    blame,
)

# Vision dp 2 on ranks 0-1, audio on 2, language dp 2 pp 2 on 3-6: sample 0-3 and 4-7 per replica.
MADE = spec(
    {"vision": box(0, dp=2), "audio": box(2), "language": box(3, dp=2, pp=2)},
    microbatches=2,
    mbs=2,
)
LAYOUT = build_layout(MADE)
DATA = StepData(4, tuple(SampleData(100 + i, 8, 4) for i in range(8)))
FIRST, SECOND, ALL = range(100, 104), range(104, 108), range(100, 108)


def blamed(
    *seen: tuple[int, NonFiniteFlags], data: StepData = DATA
) -> tuple[str, int, str, list[int]]:
    ranks = [dict(seen).get(rank, NonFiniteFlags(squares={"vision": 1.0})) for rank in range(7)]
    found = blame(LAYOUT, data, ranks)
    assert found.step == 5
    return found.what, found.rank, found.module, list(found.samples)


def gradient(*places: tuple[str, int]) -> NonFiniteFlags:
    return NonFiniteFlags(gradients=places)


def test_a_loss_comes_before_every_gradient() -> None:
    found = blamed((3, gradient(("language", 0))), (6, NonFiniteFlags(losses=(("language", 1),))))
    assert found == ("loss", 6, "language", [106, 107])


def test_all_bad_microbatches_of_the_first_rank_are_named() -> None:
    found = blamed(
        (
            5,
            NonFiniteFlags(
                losses=(
                    ("language", 0),
                    ("language", 1),
                )
            ),
        ),
        (6, NonFiniteFlags(losses=(("language", 0),))),
    )
    assert found == ("loss", 5, "language", list(FIRST))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # The last stage of language, then its first, then the encoders in the order written.
        ([(0, ("vision", 0)), (3, ("language", 0)), (6, ("language", 1))], (6, "language", SECOND)),
        ([(0, ("vision", 0)), (3, ("language", 0))], (3, "language", FIRST)),
        ([(1, ("vision", 0)), (2, ("audio", 0))], (1, "vision", None)),
        ([(2, ("audio", 0))], (2, "audio", ALL)),
    ],
)
def test_gradients_flow_from_the_loss_to_the_encoders(
    seen: list[tuple[int, tuple[str, int]]], expected: tuple[int, str, range | None]
) -> None:
    what, rank, module, samples = blamed(*((r, gradient(place)) for r, place in seen))
    assert (what, rank, module) == ("gradient", *expected[:2])
    # Vision's second replica encodes the second half of each microbatch of both replicas.
    assert samples == list(expected[2] or (104, 105, 106, 107))


def test_gradients_flow_from_generators_to_language_and_through_chains_of_encoders() -> None:
    made = spec(
        {
            "vision": box(0),
            "merger": box(1, model={"kind": "connector"}, reads=["vision"]),
            "language": box(2),
            "drawer": box(3, model={"kind": "flow"}, reads=["language"]),
        },
        mbs=8,
    )
    order = ["drawer", "language", "merger", "vision"]
    for first in range(len(order)):
        places = [gradient((name, 0)) for name in order[first:]]
        ranks = [NonFiniteFlags()] * first + places
        assert blame(build_layout(made), DATA, ranks[::-1]).module == order[first]


def test_of_two_ways_to_the_loss_the_longer_one_says_which_module_is_nearer() -> None:
    made = spec(
        {
            "vision": box(0),
            "merger": box(1, model={"kind": "connector"}, reads=["vision"]),
            "language": box(2, reads=["vision", "merger"]),
        },
        mbs=8,
    )
    ranks = [gradient((name, 0)) for name in ("vision", "merger")] + [NonFiniteFlags()]
    assert blame(build_layout(made), DATA, ranks).module == "merger"


def test_a_loss_of_one_module_is_not_one_of_the_samples_of_another() -> None:
    modules = {"language": box(0), "drawer": box(0, model={"kind": "flow"}, reads=["language"])}
    layout = build_layout(spec(modules, microbatches=2, mbs=4))
    for (name, index), other in ((("drawer", 0), "language"), (("language", 1), "drawer")):
        seen = NonFiniteFlags(losses=((name, index), (other, 1 - index)))
        found = blame(layout, DATA, [seen])
        assert (found.module, list(found.samples)) == (name, list((FIRST, SECOND)[index]))


@pytest.mark.parametrize("square", [inf, nan])
def test_a_bad_part_of_a_sum_may_come_from_any_sample(square: float) -> None:
    found = blamed(
        (1, NonFiniteFlags(squares={"vision": square})),
        (4, NonFiniteFlags(squares={"language": 9})),
    )
    assert found == ("gradient", 1, "vision", list(ALL))


def test_each_module_of_a_rank_has_its_own_squares_whatever_the_one_before_has() -> None:
    """Vision's terms of a sum over tp are bad on this rank, so its squares do not matter."""
    bad, fine = FiniteFlag(torch.device("cpu")), FiniteFlag(torch.device("cpu"))
    bad.show(torch.tensor(nan))
    flags = {"vision": bad, "language": fine}
    modules = {n: SimpleNamespace(before_dp_sum={}, before_tp_sum=f) for n, f in flags.items()}
    squares = {"vision": torch.tensor(nan), "language": torch.tensor(9.0)}
    found = note_flags(modules, {}, squares, torch.device("cpu")).read()  # type: ignore[arg-type]
    assert found.squares == {"vision": inf, "language": 9.0}


def test_a_sum_that_overflows_is_blamed_on_its_largest_part() -> None:
    found = blamed((4, NonFiniteFlags(squares={"language": 1e308})))
    assert found == ("gradient", 4, "language", list(ALL))


def test_a_sample_that_was_left_out_is_not_blamed() -> None:
    samples = list(DATA.samples)
    samples[6] = SampleData(106, 0, 0)
    found = blamed(
        (6, NonFiniteFlags(losses=(("language", 1),))), data=replace(DATA, samples=tuple(samples))
    )
    assert found == ("loss", 6, "language", [107])


def origin(*samples: int) -> NonFinite:
    return NonFinite(step=7, what="gradient", rank=3, module="vision", samples=samples)


def test_a_good_step_starts_the_count_again_and_one_without_labels_does_not() -> None:
    watch = NonFiniteWatch(2)
    watch.bad(origin(1))
    watch.good()
    watch.bad(origin(1))
    with pytest.raises(NonFiniteRun, match="2 steps in a row") as caught:
        watch.bad(origin(*range(20)))
    text = str(caught.value)
    assert (
        "step 7, gradient of vision on rank 3, samples 0, 1, 2, 3, 4, 5, 6, 7, and 12 more" in text
    )
    assert not caught.value.restartable


def test_a_run_is_judged_by_whether_any_step_counted() -> None:
    watch = NonFiniteWatch(9)
    watch.bad(origin(1))
    watch.finish(steps=3, skipped=2)
    with pytest.raises(NonFiniteRun, match="all 3 steps were skipped, 1 of them because"):
        watch.finish(steps=3, skipped=3)
    with pytest.raises(NoUpdate, match="all 3 steps were skipped"):
        NonFiniteWatch(9).finish(steps=3, skipped=3)
