"""Seeks the best layout of a spec: thousands of plans, which `plan` has no time for.

It climbs from several layouts, by one or two random changes at a time, over everything that a
layout has: ranks, grids, experts, microbatches, schedule, recomputing, sharding, sequence
parallelism. All encoders are treated alike.

    python -m tests.support.wide_search 1500 "16, 8B"

prints the best layout of the poor specs whose names start so, after some 1,500 plans each.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from typing import Any

from tests.support.poor_specs import POOR, fits, followed, seconds, with_settings

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import divisors
from mimo_launch.search.changes import changed
from mimo_launch.spec.base import LANGUAGE, rank_text
from mimo_launch.spec.spec import Spec

# Longer programs take too long.
MOST_ACTIONS = 12_000
INFINITE = float("inf")


@dataclass(frozen=True)
class Layout:
    """What may differ; encoders have `left` ranks of their own, or share all if it is 0."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    left: int = 0
    microbatches: int = 1
    at_once: int | None = None
    schedule: tuple[str, int] = ("1f1b", 1)
    sequence_parallel: bool = False
    ep: int = 1
    recompute: str = "none"
    sharding: str = "optimizer"
    encoder_tp: int = 1
    encoder_recompute: str = "none"
    encoder_sharding: str = "optimizer"


@dataclass
class WideSearch:
    """The best layouts of a spec, among as many as were planned."""

    spec: Spec
    random: Random = field(default_factory=lambda: Random(0))
    seen: dict[Layout, float] = field(default_factory=dict)
    planned: int = 0

    def best(self, plans: int) -> tuple[float, Spec | None]:
        """Return the least seconds that were found, and the spec."""
        starts = sorted({*self._grids(), self._now(self.spec)}, key=self._seconds)[:4]
        advised = followed(self.spec, 3)
        made = self.spec
        for each in advised[:-1]:
            change = each.losses[0].change
            made = made if change is None else with_settings(made, change.settings)
        for start in (self._now(made), *starts):
            self._climb(start, self.planned + plans // 5)
        layout = min(self.seen, key=lambda each: self.seen[each])
        return self.seen[layout], self.applied(layout)

    def _now(self, spec: Spec) -> Layout:
        """Return the layout of a spec, as far as one is described here."""
        language, schedule = spec.language, spec.schedule
        others = [spec.modules[name] for name in spec.encoders]
        first = others[0] if others else language
        return Layout(
            tp=language.grid.tp,
            cp=language.grid.cp,
            pp=language.grid.pp,
            left=world_size(spec) - language.grid.num_ranks,
            microbatches=schedule.microbatches,
            at_once=schedule.encoder_microbatches,
            schedule=(schedule.kind, schedule.virtual_stages),
            sequence_parallel=language.sequence_parallel,
            ep=language.experts.ep if language.experts else 1,
            recompute=language.recompute,
            sharding=language.sharding,
            encoder_tp=first.grid.tp,
            encoder_recompute=first.recompute,
            encoder_sharding=first.sharding,
        )

    def _grids(self) -> Iterator[Layout]:
        """Yield plain layouts on all ranks."""
        world, batch = world_size(self.spec), self.spec.batch.global_
        cuts = (1, 2, 4) if self.spec.batch.seq > 8192 else (1,)
        for tp, pp, cp in product((1, 2, 4, 8), (1, 2, 4, 8, 16), cuts):
            unit = tp * pp * cp
            if world % unit or batch % (world // unit):
                continue
            share = batch // (world // unit)
            some = min(divisors(share), key=lambda each: abs(each - (4 * pp if pp > 1 else 1)))
            for number, recompute in product({some, share}, ("none", "full")):
                at_once = pp if number % pp == 0 else None
                made = Layout(tp, cp, pp, 0, number, at_once, ep=8 if self._experts else 1)
                yield replace(
                    made,
                    sequence_parallel=tp > 1,
                    recompute=recompute,
                    encoder_recompute=recompute,
                )

    @property
    def _experts(self) -> int:
        moe = kind_of(self.spec.language.model).moe
        return moe.experts if moe else 0

    def applied(self, layout: Layout) -> Spec | None:
        """Return the spec with a layout; None if that is none."""
        world, batch = world_size(self.spec), self.spec.batch.global_
        own, unit = world - layout.left, layout.tp * layout.cp * layout.pp
        if own <= 0 or own % unit or batch % (own // unit):
            return None
        kind, virtual = layout.schedule if layout.pp > 1 else ("1f1b", 1)
        grid = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp, "dp": own // unit}
        language = f"modules.{LANGUAGE}"
        settings: dict[str, Any] = {
            "idle_ranks": None,
            f"{language}.ranks": rank_text(range(layout.left, world)),
            f"{language}.grid": grid,
            f"{language}.recompute": layout.recompute,
            f"{language}.sharding": layout.sharding,
            f"{language}.sequence_parallel": layout.sequence_parallel and layout.tp > 1,
            "schedule.kind": kind,
            "schedule.virtual_stages": virtual,
            "schedule.microbatches": layout.microbatches,
            "schedule.encoder_microbatches": layout.at_once if self.spec.encoders else None,
        }
        if self._experts:
            settings[f"{language}.experts"] = {"ep": layout.ep, "tp": 1}
        rest = range(layout.left or world)
        for name in self.spec.encoders:
            if len(rest) % layout.encoder_tp:
                return None
            dp = len(rest) // layout.encoder_tp
            settings[f"modules.{name}.ranks"] = rank_text(rest)
            settings[f"modules.{name}.grid"] = {"tp": layout.encoder_tp, "cp": 1, "pp": 1, "dp": dp}
            settings[f"modules.{name}.recompute"] = layout.encoder_recompute
            settings[f"modules.{name}.sharding"] = layout.encoder_sharding
        found = changed(self.spec, "any", settings)
        return self.spec if found is None else found.spec

    def _seconds(self, layout: Layout) -> float:
        """Return the estimate of a step; infinite if the layout is illegal or does not fit."""
        if layout not in self.seen:
            ways = 1 if layout.schedule[0] == "1f1b" else 4
            actions = layout.pp * layout.schedule[1] * layout.microbatches * ways
            spec = self.applied(layout) if actions <= MOST_ACTIONS else None
            is_fit = spec is not None and fits(spec)
            self.planned += is_fit
            self.seen[layout] = seconds(spec) if spec is not None and is_fit else INFINITE
        return self.seen[layout]

    def _climb(self, layout: Layout, stop: int) -> None:
        """Change a layout as long as that makes it faster, until so many were planned."""
        while self.planned < stop:
            before, moves = layout, list(self._moves(layout))
            self.random.shuffle(moves)
            for move in moves:
                other = self._moved(layout, *move)
                for more in (other, self._moved(other, *self.random.choice(moves))):
                    if self._seconds(more) < self._seconds(layout):
                        layout = more
            if layout == before:
                break

    def _moves(self, layout: Layout) -> Iterator[tuple[str, Any]]:
        world, batch = world_size(self.spec), self.spec.batch.global_
        parts = [n for n in divisors(world) if n < world]
        parts += [3 * n for n in divisors(world // 4) if 3 * n < world]
        kinds = [("1f1b", 1), ("bubble_filling", 1), *(("interleaved", n) for n in (2, 3, 4, 5))]
        values: dict[str, Any] = {
            "tp": (1, 2, 4, 8, 16),
            "cp": (1, 2, 4, 8),
            "pp": (1, 2, 4, 8, 16, 32),
            "microbatches": divisors(batch),
            "schedule": kinds,
            "sequence_parallel": (False, True),
            "recompute": ("none", "full"),
            "sharding": ("optimizer", "full"),
        }
        if self._experts:
            values["ep"] = divisors(self._experts)
        if self.spec.encoders:
            values |= {
                "left": (0, *parts),
                "at_once": (None, *divisors(layout.microbatches)),
                "encoder_tp": (1, 2, 4, 8),
                "encoder_recompute": ("none", "full"),
                "encoder_sharding": ("optimizer", "full"),
            }
        for name, some in values.items():
            yield from ((name, value) for value in some)

    def _moved(self, layout: Layout, name: str, value: Any) -> Layout:
        """Return a layout with another value, and the nearest microbatches that go with it."""
        made = replace(layout, **{name: value})
        own, unit = world_size(self.spec) - made.left, made.tp * made.cp * made.pp
        dp = own // unit
        if dp and self.spec.batch.global_ % dp == 0:
            legal = divisors(self.spec.batch.global_ // dp)
            near = min(legal, key=lambda each: abs(each - made.microbatches))
            made = replace(made, microbatches=near)
        if made.at_once and made.microbatches % made.at_once:
            made = replace(made, at_once=None)
        return made


def main(plans: int, names: list[str]) -> None:
    for poor, spec in POOR.items():
        if any(poor.startswith(name) for name in names):
            search = WideSearch(spec)
            least, best = search.best(plans)
            print(f"{poor}: {least:.4g} s after {search.planned} plans", flush=True)
            print(f"    {search._now(best or spec)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
