"""Seeks the best layout of a spec blindly: random points of the whole space, and climbs from them.

It shares the spec, the checks and the estimates with the product, and nothing of `search` or
`layout.space`. Every module has its own first rank, number of ranks, grid and settings.

    python -m tests.support.blind_search 60

prints, for each planning task, the step as it is, after one, two and three advices, the best step
that 60 seconds of blind search find, and the share of the best that advice reaches.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from time import process_time
from typing import Any

from tests.support.planning_tasks import TASKS
from tests.support.poor_specs import followed

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import Spec

# The values of each gene; a module has all but the last four by itself.
OF_MODULE = {
    "start": (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    "size": tuple(range(1, 17)) + tuple(range(18, 257, 2)),
    "tp": (1, 2, 3, 4, 8),
    "cp": (1, 2, 4, 8),
    "pp": (1, 2, 3, 4, 5, 6, 8, 12, 16),
    "sequence_parallel": (False, True),
    "recompute": ("none", "full"),
    "sharding": ("optimizer", "full"),
    "ep": (1, 2, 4, 8, 16, 32, 64),
}
OF_STEP = {
    "microbatches": (*(2**n for n in range(10)), 3, 6, 12, 24, 48),
    "at_once": (None, 1, 2, 4, 8, 16),
    "drawn_at_once": (None, 1, 2, 4, 8, 16),
    "order": (("1f1b", 1), ("bubble_filling", 1), *(("interleaved", n) for n in (2, 3, 4, 5))),
}
MOST_FORWARDS = 3000
Genes = dict[tuple[str, str], Any]


def own_seconds(estimator: Estimator) -> float:
    """Return the seconds that language computes in a mean step: those of its busiest stage."""
    language, total, number = estimator.layout.language, 0.0, 0
    for step, alike in estimator.simulated:
        spent = []
        for stage in language.stages:
            cost = step.model.stages[LANGUAGE, stage.index]
            trains = needs_backward(estimator.layout, language, stage.index)
            spent.append(sum(map(sum, [cost.forwards, cost.backwards][: 1 + trains])))
        total, number = total + alike * max(spent), number + alike
    return total / number


class BlindSearch:
    """The fastest layout that fits, among all that were planned."""

    def __init__(self, spec: Spec, seed: int = 0) -> None:
        self.spec, self.random, self.world = spec, Random(seed), world_size(spec)
        self.seen: dict[str, float] = {}
        self.memory = spec.nodes.memory if spec.nodes else None

    def best(self, seconds: float) -> tuple[float, int]:
        """Return the least seconds of a step, and the number of plans, in so much CPU time."""
        stop, best = process_time() + seconds, float("inf")
        while process_time() < stop:
            start = self._drawn()
            now = self.step(start)
            tries = 0
            while process_time() < stop and tries < 150:
                other = dict(start)
                for _ in range(self.random.choice((1, 1, 2, 2, 3))):
                    self._mutate(other)
                after, tries = self.step(other), tries + 1
                if after < now or (after == now == float("inf")):
                    tries = tries if after == now else 0
                    start, now = other, after
            best = min(best, now)
        return best, sum(each < float("inf") for each in self.seen.values())

    def every(
        self, fixed: Mapping[str, Sequence[Any]], than: float = float("inf")
    ) -> list[tuple[float, Spec]]:
        """Return every accepted layout that fits, with these values of some genes, by seconds.

        Layouts in which language alone computes for more than `than` seconds are left out.
        """
        values = {**OF_MODULE, **OF_STEP, "start": range(self.world), **fixed}
        others = [name for name in self.spec.modules if name != LANGUAGE]
        ways, found = [self._ways(name, values) for name in others], list[tuple[float, Spec]]()
        for step, own in product(
            product(*(values[key] for key in OF_STEP)), self._ways(LANGUAGE, values)
        ):
            genes: Genes = {("", key): each for key, each in zip(OF_STEP, step, strict=True)} | own
            if than < float("inf") and self._least(genes) > than:
                continue
            for rest in product(*ways):
                for each in rest:
                    genes |= each
                made = self.made(genes) if self.are_together(genes) else None
                if made is not None and (seconds := self._step_of(made)) < float("inf"):
                    found.append((seconds, made))
        return sorted(found, key=lambda pair: pair[0])

    def _ways(self, name: str, values: Mapping[str, Sequence[Any]]) -> list[Genes]:
        """Return every placement of a module that some layout may have."""
        sizes = {**values, "size": range(1, self.world + 1)}
        every = product(*(sizes[key] for key in OF_MODULE))
        found = (dict(zip(OF_MODULE, each, strict=True)) for each in every)
        return [
            {(name, key): each for key, each in own.items()}
            for own in found
            if self.divides(own) and self.cuts(name, own)
        ]

    def divides(self, own: Mapping[str, Any]) -> bool:
        """Return whether a grid fills its ranks, and has no setting that does nothing."""
        rest = own["size"] % (own["tp"] * own["cp"] * own["pp"])
        in_world = own["start"] + own["size"] <= self.world
        return not rest and in_world and (own["tp"] > 1 or not own["sequence_parallel"])

    def cuts(self, name: str, own: Mapping[str, int]) -> bool:
        """Return whether a grid leaves a layer to each stage and whole heads to each rank."""
        model = self.spec.modules[name].model
        heads: int | None = getattr(model, "heads", None)
        return own["pp"] <= model.layers and not (heads and heads % own["tp"])

    def are_together(self, genes: Genes) -> bool:
        """Return whether all ranks up to the last one have a module."""
        firsts = {name: genes[name, "start"] for name in self.spec.modules}
        ends = 0
        for name in sorted(firsts, key=lambda each: firsts[each]):
            if firsts[name] > ends:
                return False
            ends = max(ends, firsts[name] + genes[name, "size"])
        return True

    def _least(self, genes: Genes) -> float:
        """Return the seconds that language alone computes; 0 if none of some layouts is legal."""
        first, size = (genes[LANGUAGE, key] for key in ("start", "size"))
        ends = first + size
        plain = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "sequence_parallel": False}
        plain |= {"recompute": "none", "sharding": "optimizer"}
        for start, stop in ((first, ends), (0, 1), (0, self.world), (0, first), (ends, self.world)):
            place = {**plain, "start": start, "size": stop - start}
            for name in (each for each in self.spec.modules if each != LANGUAGE):
                genes = genes | {(name, key): each for key, each in place.items()}
            made = self.made(genes) if stop > start and self.are_together(genes) else None
            if made is not None and is_legal(made, files=False):
                return own_seconds(Estimator.of(Plan.of(made)))
        return 0.0

    def _drawn(self) -> Genes:
        """Return a random point: modules on all ranks, or anywhere."""
        genes: Genes = {("", name): self.random.choice(some) for name, some in OF_STEP.items()}
        shared = self.random.random() < 0.5
        for module in self.spec.modules:
            for name, some in OF_MODULE.items():
                genes[module, name] = self.random.choice(some)
            if shared:
                genes |= {(module, "start"): 0, (module, "size"): self.world}
            if module != LANGUAGE:
                genes |= {(module, "pp"): 1, (module, "cp"): 1, (module, "tp"): 1}
        return genes

    def _mutate(self, genes: Genes) -> None:
        key = self.random.choice(list(genes))
        some = list(OF_MODULE.get(key[1]) or OF_STEP[key[1]])
        if key[1] == "size":
            some += [self.world] * 20
        genes[key] = self.random.choice(some)

    def step(self, genes: Genes) -> float:
        """Return the seconds of a step; infinite if the point is illegal or does not fit."""
        made = self.made(genes)
        return float("inf") if made is None else self._step_of(made)

    def _step_of(self, made: Spec) -> float:
        if not is_legal(made, files=False) or world_size(made) > self.world:
            return float("inf")
        text = made.model_dump_json()
        if text not in self.seen:
            self.seen[text] = self._planned(made)
        return self.seen[text]

    def _planned(self, made: Spec) -> float:
        plan = Plan.of(made)
        layout = plan.layout
        forwards = sum(len(each.stages) * layout.num_groups(each) for each in layout.modules)
        if forwards > MOST_FORWARDS:
            return float("inf")
        estimator = Estimator.of(plan)
        limit = float("inf") if self.memory is None else 0.9 * self.memory
        if estimator.least_bytes > limit:
            return float("inf")
        if any(estimator.memory(each).total > limit for each in estimator.classes):
            return float("inf")
        return estimator.estimates().step_seconds

    def made(self, genes: Genes) -> Spec | None:
        """Return the spec of a point; None if its grids do not fill its ranks."""
        data = dump_spec(self.spec)
        data.pop("idle_ranks", None)
        for name, module in self.spec.modules.items():
            own = {key: genes[name, key] for key in OF_MODULE}
            dp, rest = divmod(own["size"], own["tp"] * own["cp"] * own["pp"])
            if rest or not dp or own["start"] + own["size"] > self.world:
                return None
            written = data["modules"][name]
            last = own["start"] + own["size"] - 1
            written["ranks"] = f"{own['start']}-{last}" if own["size"] > 1 else str(last)
            written["grid"] = {"tp": own["tp"], "cp": own["cp"], "pp": own["pp"], "dp": dp}
            for key in ("recompute", "sharding"):
                written[key] = own[key]
            written["sequence_parallel"] = own["sequence_parallel"] and own["tp"] > 1
            if kind_of(module.model).moe is not None:
                written["experts"] = {"ep": own["ep"]}
        kind, virtual = genes["", "order"]
        if data["modules"][LANGUAGE]["grid"]["pp"] == 1:
            kind, virtual = "1f1b", 1
        data["schedule"] = {
            "microbatches": genes["", "microbatches"],
            "kind": kind,
            "virtual_stages": virtual,
        }
        if self.spec.encoders and genes["", "at_once"]:
            data["schedule"]["encoder_microbatches"] = genes["", "at_once"]
        if self.spec.generators and genes["", "drawn_at_once"]:
            data["schedule"]["generator_microbatches"] = genes["", "drawn_at_once"]
        try:
            return spec_from_data(data)
        except ValueError:
            return None


def main(seconds: float, names: list[str]) -> None:
    for task, spec in TASKS.items():
        if names and not any(task.startswith(name) for name in names):
            continue
        steps = [each.step_seconds for each in followed(spec, 3)]
        best, plans = BlindSearch(spec).best(seconds)
        steps += [steps[-1]] * (4 - len(steps))
        shown = " | ".join(f"{each:.3f}" for each in [*steps, best])
        print(
            f"| {task} | {shown} | {min(steps[-1], best) / steps[-1]:.0%} | {plans} |", flush=True
        )


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
