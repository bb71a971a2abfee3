"""What a step moves between ranks, in bytes: inside hosts, and between them.

Decides: that a ring passes every hop with all that it moves, and leaves each of its hosts once.
Relies on: `cost_model` and `communication_times` for what is exchanged, by whom and how often: they
are asked with links that answer with bytes in place of seconds.
Leaves: the time that it takes to `cost_model`.
"""

from dataclasses import replace
from functools import cached_property, partial

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.communication_times import LinkTimes, WeightTimes
from mimo_launch.estimate.cost_model import CostModel
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis

INFINITE = float("inf")


@frozen(kw_only=True)
class Traffic:
    """Bytes that all ranks together send in a step: to ranks of their host, and of others."""

    inside: float
    between: float


@frozen(slots=False)
class _Bytes(LinkTimes):
    """The bytes that a rank sends, on average over a group: to other hosts if `between`."""

    between: bool = False

    def collective(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the bytes of a ring all-gather or reduce-scatter of `size` bytes."""
        hops = self.hosts(ranks) if self.hosts(ranks) > 1 else 0
        share = (hops if self.between else len(ranks) - hops) / len(ranks)
        return size * (len(ranks) - 1) / len(ranks) * share

    def exchange(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the bytes of an all-to-all in which each rank sends `size` bytes in all."""
        inside = len(ranks) / self.hosts(ranks)
        share = (len(ranks) - inside) if self.between else inside - 1
        return size * share / len(ranks)

    def transfer(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the bytes of a transfer of `size` bytes."""
        return size if (self.hosts(ranks) > 1) == self.between else 0.0


@frozen(slots=False)
class _WeightBytes(WeightTimes):
    """The bytes of exchanges of weights and gradients."""

    between: bool = False

    @cached_property
    def links(self) -> LinkTimes:
        """Links that answer with bytes."""
        return _Bytes(self.spec, self.constants, self.between)


@frozen(slots=False)
class _StepBytes(CostModel):
    """The bytes of a step, where its base has seconds."""

    between: bool = False

    @cached_property
    def links(self) -> LinkTimes:
        """Links that answer with bytes."""
        return _Bytes(self.spec, self.constants, self.between)

    def total(self) -> float:
        """Return the bytes that all ranks send."""
        modules = sum(map(self._of_module, self.layout.modules))
        bridges = 0.0
        for bridge in self.layout.bridges.values():
            # Rows there, and gradients back if there are any, on every rank that makes rows.
            source = self.layout[bridge.source]
            ranks = source.stage_ranks(len(source.stages) - 1)
            ways = 1 + needs_backward(self.layout, source)
            bridges += ways * len(ranks) * sum(self._bridge(bridge))
        return modules + bridges

    def _of_module(self, module: ModuleLayout) -> float:
        sent, works = 0.0, self.work[module.name]
        times = _WeightBytes(self.spec, self.constants, module, self.between)
        for stage in module.stages:
            weights = stage_weights(self.spec, stage, module.grid.size(Axis.TP) - 1)
            forwards = self.forwards_of(module, stage)
            own = sum(forwards.exchanges(work)[0] for work in works)
            has_backward = needs_backward(self.layout, module, stage.index)
            once = (1 + has_backward) * len(works) if weights.full_sharding else 1
            own += once * sum(times.gather(weights))
            own += max(1, weights.full_sharding * len(works)) * sum(times.reduction(weights))
            own += times.sums_of_copies(weights)
            own += times.travel_of_matrices(weights)
            edges = 0.0 if stage.is_last else (1 + has_backward) * sum(self._edge(module))
            sent += (own + edges) * len(module.stage_ranks(stage.index))
        return sent


def traffic_of(model: CostModel) -> Traffic:
    """Return the bytes that the ranks of a step send."""
    constants = replace(model.constants, memory_bandwidth=INFINITE)
    made = partial(_StepBytes, model.spec, model.layout, model.step, constants)
    inside, between = (made(between=each).total() for each in (False, True))
    return Traffic(inside=inside, between=between)
