"""Bounds of the time and memory of a layout that need no plan: no program, no simulation.

Decides: what a step takes at least, from the work of the busiest ranks and the longest chain
through a pipeline; what a rank holds at least at one moment of a step.
Relies on: the seconds and bytes of single stages, by `estimate`; they are kept for all layouts that
cut a module alike.
Leaves: which layouts are planned to `advice`.

A layout with a bound above the best plan cannot be better. Bounds are near the estimates: what they
leave out are transfers, reductions and ranks that wait for others in the middle of a step.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from mimo_launch.estimate.cost_model import StageCost
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import StageMemory, stage_memory
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Model, Spec

Made = TypeVar("Made")


@dataclass
class Bounds:
    """Bounds for layouts of the same models and data; stages that were costed are kept.

    `costed` counts the stages that were not kept yet: they take nearly all of the time.
    """

    costed: int = 0
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def seconds(self, estimator: Estimator) -> float:
        """Return what a step of a legal spec takes at least."""

        def cost(module: ModuleLayout, stage: Stage) -> StageCost:
            return estimator.model.stage(module, stage)

        return _seconds(estimator.layout, self._of_stages(estimator, cost))

    def bytes(self, estimator: Estimator) -> int:
        """Return what the fullest rank of a legal spec holds at least."""
        spec, layout = estimator.spec, estimator.layout

        def held(module: ModuleLayout, stage: Stage) -> StageMemory:
            work = min(estimator.model.work[module.name], key=lambda each: each.held)
            return stage_memory(spec, layout, module, stage, work, 0)

        return _bytes(layout, self._of_stages(estimator, held))

    def _of_stages(
        self, estimator: Estimator, made: Callable[[ModuleLayout, Stage], Made]
    ) -> dict[str, tuple[Made, ...]]:
        """Return what is made of each stage, by module; stages that are alike share it."""
        found = {}
        for module in estimator.layout.modules:
            alike = (made.__name__, *_key(estimator, module))
            parts = []
            for stage in module.stages:
                key = (*alike, *_shape(estimator.spec, stage))
                if key not in self._made:
                    self.costed += 1
                    self._made[key] = made(module, stage)
                parts.append(self._made[key])
            found[module.name] = tuple(parts)
        return found


def _shape(spec: Spec, stage: Stage) -> tuple[Hashable, ...]:
    """Return what the costs of a stage depend on besides its module."""
    layers = _alike(spec.modules[stage.module].model)[stage.first_layer :][: stage.num_layers]
    units = tuple(len(unit) for unit in stage.units)
    return layers, units, stage.lanes, stage.is_first, stage.is_last


@lru_cache(maxsize=64)
def _alike(model: Model) -> tuple[int, ...]:
    """Return a number for each layer of a model, the same for layers of the same sizes."""
    kind, numbers = kind_of(model), dict[Hashable, int]()
    return tuple(
        numbers.setdefault(
            (kind.layer_widths(n), kind.layer_kind(n), kind.attending.in_windows(n)), n
        )
        for n in range(model.layers)
    )


def _key(estimator: Estimator, module: ModuleLayout) -> tuple[Hashable, ...]:
    """Return what the costs of all stages of a module depend on."""
    spec, layout = estimator.spec, estimator.layout
    own, samples = spec.modules[module.name], layout.samples
    per_host = spec.nodes.gpus if spec.nodes else layout.world_size
    return (
        own.replace(ranks=str(own.rank_range.start % per_host)),
        samples.replicas * samples.microbatch_size * module.group_size,
        layout.num_groups(module),
        spec.train.precision,
    )


def _seconds(layout: Layout, parts: Mapping[str, tuple[StageCost, ...]]) -> float:
    """Return what a step takes at least."""
    busiest = update = 0.0
    for role in dict.fromkeys(layout.roles):
        costs = [parts[name][stage] for name, stage in role]
        times = [layout.num_groups(layout[name]) for name, _ in role]
        running = sum(n * (sum(c.mean)) for n, c in zip(times, costs, strict=True))
        starting = sum(n * sum(c.starting) for n, c in zip(times, costs, strict=True))
        busiest = max(busiest, running, starting)
        update = max(update, sum(cost.update for cost in costs))
    return max(busiest, _chain(layout, parts)) + update


def _chain(layout: Layout, parts: Mapping[str, tuple[StageCost, ...]]) -> float:
    """Return the longest chain: encoders, the pipeline of language, and back."""
    language, found = layout.language, 0.0
    costs = parts[language.name]
    shared = [each for each in layout.encoders if each.in_phases]
    fills = layout.schedule == "bubble_filling"
    # A pipeline drains between two groups of encoders that share its ranks.
    phases = layout.num_groups(shared[0]) if shared and layout.is_star and not fills else 1
    number = layout.samples.microbatches // phases
    if len(costs) == language.grid.size(Axis.PP):
        before = 0.0
        for cost in costs:
            both = sum(cost.mean)
            found, before = max(found, before + number * both), before + both
    found *= phases
    for some in (shared, [each for each in layout.encoders if not each.in_phases]):
        ways = [sum(sum(cost.mean) for cost in parts[each.name]) for each in some]
        found += max(ways, default=0.0) * (phases if some is shared else 1)
    return found


def _bytes(layout: Layout, held: Mapping[str, tuple[StageMemory, ...]]) -> int:
    """Return what the fullest rank holds at least in the first backward of language."""
    found = 0
    depth, language = layout.language.grid.size(Axis.PP), layout.language
    for role in dict.fromkeys(layout.roles):
        total = extra = 0
        for name, stage in role:
            own = held[name][stage]
            total += own.weights + own.moments
            if name != language.name:
                extra = max(extra, own.kept)
                continue
            number = layout.samples.microbatches
            if len(language.stages) == depth and layout.schedule != "gpipe":
                number = min(number, depth - stage)
            elif len(language.stages) > depth:
                number = 1
            extra += own.gathered + number * own.kept + own.backward_extra
        found = max(found, total + extra)
    return found
