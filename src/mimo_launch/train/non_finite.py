"""Finds the rank where a loss or gradient was first not finite, and ends runs with too many.

Decides: which rank is named, by causality; how many bad steps a run may have; that the weights of
all ranks are checked when such a run ends.
Relies on: each rank's flags for its own losses and gradients, before any sum mixes them.
Leaves: skipping the step to `step`.

Causality: a loss comes before every gradient; gradients flow from the loss to earlier stages of
language and on to the encoders. FSDP's sums carry a NaN to all replicas, so only the gradients
before the sums show where it arose. If a rank's part of a sum is bad although every term was
finite, that rank is named last: its numbers come from all samples of the step.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from mimo_launch.comm.finite_flags import not_finite
from mimo_launch.comm.objects import gather_objects
from mimo_launch.diag.quantities import named_ranks, some
from mimo_launch.layers.parameter_segments import local_segments
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.optimizer.step_metrics import NonFiniteFlags, PendingFlags
from mimo_launch.runtime.progress import EndOfRun
from mimo_launch.spec.base import Axis
from mimo_launch.train.events import NonFinite
from mimo_launch.train.rank_session import RankSession


class NonFiniteRun(EndOfRun):
    """Too many steps had a non-finite loss or gradient.

    `in_weights` says that weights hold a NaN or an infinity.
    """

    def __init__(self, message: str, *, in_weights: bool = False) -> None:
        super().__init__(message)
        self.in_weights = in_weights

    def with_checkpoint(self, newest: str | None) -> "NonFiniteRun":
        """Return this error with the newest checkpoint that has only finite weights."""
        found = "none" if newest is None else f"{newest}; to resume there, delete later ones"
        return NonFiniteRun(f"{self}\nnewest checkpoint with finite weights: {found}")


class NoUpdate(EndOfRun):
    """Every step of a run was skipped, although its numbers were finite."""


_ADVICE = (
    "Look at these samples. If others are named each time, try a lower `optimizer.lr`, a longer "
    "warmup, `optimizer.clip` or `train.precision: fp32`. `train.max_skipped` allows more."
)
_ADVICE_ON_WEIGHTS = (
    "Every sample that meets such a weight fails: `optimizer.lr` is too high, or that rank, its "
    "memory or a kernel is at fault."
)
_MOST_LISTED = 8


def find_origin(layout: Layout, data: StepData, seen: PendingFlags) -> NonFinite:
    """Return the origin of the bad numbers of a step, the same on all ranks.

    Ranks: collective over the world, only after a step that all ranks know to be bad.
    """
    return blame(layout, data, gather_objects(seen.read()))


def blame(layout: Layout, data: StepData, ranks: list[NonFiniteFlags]) -> NonFinite:
    """Return the origin, given the flags of all ranks."""
    losses = [(rank, seen.losses) for rank, seen in enumerate(ranks) if seen.losses]
    if losses:
        rank, forwards = losses[0]
        module = layout[forwards[0][0]]
        views = StepViews(layout, data)
        replica = module.grid.index(Axis.DP, rank)
        positions = [
            sample
            for name, index in forwards
            if name == module.name
            for sample in views.samples_at(module, replica, index)
        ]
        return _origin("loss", rank, module.name, data, positions)
    # From the losses backward: gradients come from the modules that read this one.
    depth: dict[str, int] = {}
    for module in reversed(layout.modules):
        readers = [bridge.target for bridge in layout.bridges_from(module.name)]
        depth[module.name] = max((depth[reader] + 1 for reader in readers), default=0)
    gradients = [
        (depth[module.name], number, -stage, rank)
        for rank, seen in enumerate(ranks)
        for number, module in enumerate(layout.modules)
        for name, stage in seen.gradients
        if name == module.name
    ]
    if gradients:
        _, number, _, rank = min(gradients)
        module = layout.modules[number]
        return _origin(
            "gradient", rank, module.name, data, StepViews(layout, data).samples_of(module, rank)
        )
    # No term was bad: a sum overflowed, or the memory or arithmetic of a rank is faulty.
    _, rank, name = max(
        (square if math.isfinite(square) else math.inf, -rank, name)
        for rank, seen in enumerate(ranks)
        for name, square in seen.squares.items()
    )
    return _origin("gradient", -rank, name, data, range(len(data.samples)))


def _origin(
    what: Literal["loss", "gradient"],
    rank: int,
    module: str,
    data: StepData,
    positions: Iterable[int],
) -> NonFinite:
    records = (record for position in positions for record in data.samples[position].records)
    # A record without tokens could not be read, so it is not the cause.
    ids = tuple(record.id for record in records if record.num_tokens)
    return NonFinite(step=data.step + 1, what=what, rank=rank, module=module, samples=ids)


class NonFiniteWatch:
    """Counts bad steps in a row, and ends a run that has too many of them."""

    def __init__(
        self, max_skipped: int, weights: Callable[[], Mapping[str, Sequence[int]]] = dict
    ) -> None:
        """Watch a run; `weights` returns the non-finite weights with their ranks when it ends."""
        self._max, self._in_a_row, self._weights = max_skipped, 0, weights
        self._last: NonFinite | None = None

    def good(self) -> None:
        """Note a step that changed the weights; a step without labels is neither good nor bad."""
        self._in_a_row = 0

    def bad(self, origin: NonFinite) -> None:
        """Note a bad step. Raises: NonFiniteRun if there are too many in a row."""
        self._in_a_row, self._last = self._in_a_row + 1, origin
        if self._in_a_row >= self._max:
            what = f"{self._in_a_row} steps in a row were skipped"
            raise _failure(what, origin, self._weights())

    def finish(self, steps: int, skipped: int) -> None:
        """Judge a whole run. Raises: NonFiniteRun or NoUpdate if no step changed a weight."""
        if skipped < steps:
            return
        if self._last is None:
            raise NoUpdate(
                f"all {steps} steps were skipped, so no weight has changed: none of them had a "
                "label. `bad_samples` in metrics.jsonl counts samples that could not be read."
            )
        what = f"all {steps} steps were skipped, {self._in_a_row} of them"
        raise _failure(what, self._last, self._weights())


def bad_weights(session: RankSession) -> dict[str, list[int]]:
    """Return the weights that hold a NaN or an infinity, each with the ranks where it does.

    Ranks: collective over the world. Waits for the device.
    """
    parts = [
        (part.name, part.local)
        for name in session.modules
        for part in local_segments(session.declared(name), lambda weight: weight.detach())
    ]
    found: dict[str, list[int]] = {}
    for rank, names in enumerate(gather_objects(sorted(set(not_finite(parts))))):
        for name in names:
            found.setdefault(name, []).append(rank)
    return found


def _failure(what: str, last: NonFinite, weights: Mapping[str, Sequence[int]]) -> NonFiniteRun:
    advice = _ADVICE
    if weights:
        held = [f"{name} ({named_ranks(ranks)})" for name, ranks in weights.items()]
        advice = f"not finite: {some(held, _MOST_LISTED, sep=', ')}\n{_ADVICE_ON_WEIGHTS}"
    return NonFiniteRun(
        f"{what} because a loss or a gradient was not finite\n"
        f"the last one: step {last.step}, {last.what} of {last.module} on rank {last.rank}, "
        f"samples {some(last.samples, _MOST_LISTED, sep=', ')}\n{advice}",
        in_weights=bool(weights),
    )
