"""The speed of given models on fewer GPUs, and how few are enough.

Decides: which numbers of GPUs are tried, and that they share the plans of one search.
Relies on: `tune` for each of them.
Leaves: the curve on the screen to `cli`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.search.judge import Planned
from mimo_launch.search.tune import NoLayout, Wish, tune
from mimo_launch.spec.spec import Spec

# Numbers of GPUs on a curve of speed.
_MOST_COUNTS = 16


@frozen(kw_only=True)
class Speed:
    """The fastest layout on up to so many GPUs; None if none fits."""

    gpus: int
    best: tuple[Planned, Estimator] | None


def speeds(
    spec: Spec,
    wish: Wish,
    constants: Calibration | None = None,
    say: Callable[[int], None] = lambda gpus: None,
) -> list[Speed]:
    """Return the speed on whole hosts, or on fewer GPUs than a host has, up to the wished number.

    The plans are shared by all of these searches.
    """
    found: list[Speed] = []
    sizes = counts(wish.gpus, spec.nodes.gpus if spec.nodes else wish.gpus)
    for gpus in sizes:
        say(gpus)
        one = replace(wish, gpus=gpus, top=1, plans=wish.plans / len(sizes))
        try:
            best = next(iter(tune(spec, one, constants).found), None)
        except NoLayout:
            best = None
        # A layout on fewer GPUs may be the fastest still.
        if found and found[-1].best and (not best or found[-1].best[0].seconds < best[0].seconds):
            best = found[-1].best
        found.append(Speed(gpus=gpus, best=best))
    return found


def counts(gpus: int, per_host: int) -> list[int]:
    """Return numbers of GPUs up to one, whole hosts if there are several; not too many."""
    unit = per_host if gpus > per_host else 1
    step = unit * -(-gpus // (unit * _MOST_COUNTS))
    return [*range(step, gpus, step), gpus]


def smallest(found: Sequence[Speed], loss: float = 0.05) -> Speed | None:
    """Return the speed on the fewest GPUs that loses less than a share against the fastest."""
    fitting = [each for each in found if each.best is not None]
    least = min((each.best[0].seconds for each in fitting if each.best), default=0.0)
    return next(
        (each for each in fitting if each.best and least > (1 - loss) * each.best[0].seconds), None
    )
