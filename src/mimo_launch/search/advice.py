"""Finds changes that make a step faster, near the layout that a spec has.

Decides: where the search starts, how small it is, which changes are kept, and which one answers
which loss.
Relies on: `search` for the search, `placements` for the layouts it starts from.
Leaves: the words of losses to `wastes`, the words of changes to `changes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mimo_launch.checks.all_checks import idle_settings
from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Point
from mimo_launch.search.changes import FEWER, Change, Settings, changed, kind_between
from mimo_launch.search.judge import Judge, Planned
from mimo_launch.search.ladders import lighter
from mimo_launch.search.placements import placements, smaller_worlds
from mimo_launch.search.search import INFINITE, Search
from mimo_launch.search.team import Team, processes_here
from mimo_launch.search.wastes import Waste, wastes, work_of
from mimo_launch.spec.fields import field_at
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec

# A change that saves less is not offered: estimates are not that exact.
LEAST_GAIN = 0.02
# A setting that gains less than this is left out in the end; a part of all plans is kept for that.
LEAST_SETTING = 0.003
FOR_SIMPLER = 0.15
# For a spec that does not fit, several changes are offered, each with many settings at first.
FOR_SIMPLER_THAT_FIT = 0.4
# On fewer GPUs a step may take longer: by this share, if this share of the GPUs is saved.
MOST_LOSS, LEAST_SAVED = 0.05, 0.2
# Up to so many ranks, one process makes all plans: further ones would work out shared stages again.
_ALONE = 16
# Plans of more ranks or layers take longer, so fewer are made.
_MOST_PLANS = ((16, 80), (1024, 160), (4096, 100))
_PLANS_OF_MANY = 9
_LAYERS_PER_PLAN = 200
# Shares of the plans: for layouts next to the present one; kept from bounds of placements; and, of
# those that are kept to simplify, for bounds on each smaller number of GPUs.
_FOR_NEAR, _FOR_PLANS, _FOR_FEWER = 0.4, 0.5, 0.5
MAX_WASTES = 3


@dataclass
class Changes:
    """Changes of the spec of `base`, which has these estimates."""

    base: Estimator
    estimates: Estimates
    fits: bool
    search: Search

    @classmethod
    def of(cls, base: Estimator, estimates: Estimates, gpu_memory: int) -> "Changes":
        """Return a new search; changes may need as much memory as a spec that fits."""
        world = base.layout.world_size
        most = next((n for size, n in _MOST_PLANS if world <= size), _PLANS_OF_MANY)
        stages = (stage for module in base.layout.modules for stage in module.stages)
        layers = sum(stage.num_layers for stage in stages)
        fits = _needed(estimates) <= gpu_memory
        judge = Judge(base, memory_limit(estimates, gpu_memory))

        def longest(ranks: int) -> float:
            before = estimates.step_seconds if fits else INFINITE
            few = _leaves_many_out(ranks, world)
            return (1 + MOST_LOSS) * before if few else before / (1 + LEAST_GAIN)

        search = Search(
            judge=judge,
            left=most / max(1.0, layers / _LAYERS_PER_PLAN),
            most=longest,
            step=LEAST_SETTING,
            ways=tuple(_numerics(base.spec)),
            of_each_kind=True,
            # Other processes would work out anew what layouts of a small job have in common.
            team=Team(judge, processes_here() if world > _ALONE else 1),
        )
        return cls(base, estimates, fits, search)

    def run(self) -> list[Planned]:
        """Return the changes that make a step faster, the best first; then those to fewer GPUs.

        These may make it a little slower.
        """
        self._seek()
        found = [each for each in self.search.best if self.gain(each) >= self._least_gain(each)]
        return sorted(found, key=lambda each: each.change.kind == FEWER)

    def _least_gain(self, planned: Planned) -> float:
        few = _leaves_many_out(_world(planned), self.base.layout.world_size)
        return -MOST_LOSS if few else LEAST_GAIN

    def that_fit(self) -> list[Planned]:
        """Return changes of a spec that does not fit itself, the fastest first.

        There is one of each kind, without settings that neither make it fit nor faster.
        """
        self._seek(FOR_SIMPLER_THAT_FIT)
        kinds: dict[str, Planned] = {}
        for each in self.search.best:
            kinds.setdefault(each.change.kind, each)
        return _fastest(self.simplest(each, LEAST_GAIN) for each in kinds.values())

    def simplest(self, planned: Planned, loss: float = LEAST_SETTING) -> Planned:
        """Return a change without settings that hardly make it faster, or no longer do anything.

        In return a step may take longer by a share of `loss`.
        """
        most, before = (1 + loss) * planned.estimates.step_seconds, None
        while planned is not before:  # Without one setting another may no longer be needed.
            before = planned
            for path in before.change.settings:
                own = planned.change
                fewer = {key: value for key, value in own.settings.items() if key != path}
                shorter = changed(self.base.spec, own.kind, fewer)
                planned = self._if_as_fast(shorter, most) or planned
        # Settings that do nothing need no other plan, for which there may be no time left.
        active = self._without_idle(planned.change)
        return planned if active is None else replace(planned, change=active)

    def _if_as_fast(self, change: Change | None, most: float) -> Planned | None:
        """Plan a change; return it if it fits and a step takes at most `most` seconds."""
        if change is None:
            return None
        found = self.search.same(change)
        return found if found is not None and found.estimates.step_seconds <= most else None

    def _without_idle(self, change: Change) -> Change | None:
        """Return a change that resets the settings that no longer do anything."""
        spec, data = self.base.spec, dump_spec(change.spec)
        settings = dict(change.settings)
        for path in idle_settings(change.spec) - idle_settings(spec):
            if (field := field_at(path, data)) is not None:
                settings[".".join(map(str, path))] = field.get_default(call_default_factory=True)
        return changed(spec, change.kind, settings)

    def gain(self, planned: Planned) -> float:
        """Return the share by which a change raises the speed."""
        return self.estimates.step_seconds / planned.estimates.step_seconds - 1

    def _seek(self, for_simpler: float = FOR_SIMPLER) -> None:
        with self.search.team:
            self._seek_together(for_simpler)

    def _seek_together(self, for_simpler: float) -> None:
        search, spec = self.search, self.base.spec
        reserve, start = search.left * for_simpler, Point.of(spec)
        if not self.fits:
            search.look(lighter(spec, start), are_lighter=True)
        search.grow(start)
        search.drain(search.left * (1 - _FOR_NEAR), alone=True)
        work, sizes = work_of(self.base.layout, self.estimates), smaller_worlds(spec)
        search.look(placements(spec, start, work, world_size(spec)), {}, search.left * _FOR_PLANS)
        ends = search.left - reserve * _FOR_FEWER
        for size in sizes:
            search.look(placements(spec, start, work, size), {}, max(ends, reserve))
            ends -= reserve * _FOR_FEWER
        for best in search.best[:1]:
            search.grow(Point.of(best.change.spec))
        search.drain(reserve)


def memory_limit(estimates: Estimates, gpu_memory: int) -> int:
    """Return the bytes that a change may need: not more than leaves room, or than a spec that fits.

    `estimates` are those of the spec before the change.
    """
    needed, limit = _needed(estimates), int((1 - TOLERANCE) * gpu_memory)
    return max(limit, needed) if needed <= gpu_memory else limit


def _needed(estimates: Estimates) -> int:
    return max((row.total_bytes for row in estimates.ranks), default=0)


def _leaves_many_out(ranks: int, world: int) -> bool:
    """Return whether so many ranks of a world are few enough for a step to take longer."""
    return ranks <= (1 - LEAST_SAVED) * world


def _numerics(spec: Spec) -> Iterator[Settings]:
    """Yield settings outside of the layout that make the same step faster."""
    if not spec.train.numbers.is_mixed:
        yield {"train.precision": "bf16"}


def _fastest(found: Iterable[Planned]) -> list[Planned]:
    return sorted(found, key=lambda each: each.estimates.step_seconds)


@frozen
class Advice:
    """A loss, and the change that answers it; None if no change makes it smaller."""

    waste: Waste
    planned: Planned | None


def advise(changes: Changes, lost: list[Waste], constants: Calibration) -> list[Advice]:
    """Return the largest losses, each with the change that helps most; the best change first.

    No two of them have a change of the same kind, or the same change. A change to fewer GPUs comes
    after those for all: from there, no further change leads back to more.
    """
    found, shown = changes.run(), lost[:MAX_WASTES]
    taken: set[str] = set()
    answers: dict[int, Planned] = {}
    world, spec = changes.base.layout.world_size, changes.base.spec
    for planned in found:
        if planned.change.kind in taken or len(answers) == len(shown):
            continue
        after = wastes(planned.change.spec, planned.estimates, constants, _world(planned))
        left = [number for number in range(len(shown)) if number not in answers]
        saved = {
            number: world * _lost(changes.estimates, [shown[number]], shown[number])
            - _world(planned) * _lost(planned.estimates, after, shown[number])
            for number in left
        }
        number = max(left, key=lambda each: saved[each])
        if saved[number] <= 0 and answers:
            continue
        taken.add(planned.change.kind)
        simplest = changes.simplest(planned)
        # Simplified, a change can be of a kind that is already offered.
        kinds = [kind_between(spec, each.change.spec) for each in answers.values()]
        if kind_between(spec, simplest.change.spec) not in kinds:
            answers[number] = simplest
    advice = [Advice(waste, answers.get(number)) for number, waste in enumerate(shown)]

    def order(each: Advice) -> tuple[int, float]:
        if each.planned is None:
            return 2, 0.0
        return each.planned.change.kind == FEWER, -changes.gain(each.planned)

    return sorted(advice, key=order)


def _world(planned: Planned) -> int:
    return world_size(planned.change.spec)


def _lost(estimates: Estimates, among: Iterable[Waste], like: Waste) -> float:
    """Return the seconds of a mean GPU that the modules of `like` lose to its kind of loss."""
    of_same: Iterator[Waste] = (
        each
        for each in among
        if each.kind == like.kind and (not like.modules or set(each.modules) & set(like.modules))
    )
    return estimates.step_seconds * sum(each.of_all for each in of_same)
