"""Seconds of every action of a step, from FLOPs, bytes and the constants of a device.

Decides: what overlaps and what does not; docs/estimates.md lists it.
Relies on: `estimate_flops`, `estimate_params` and `workload` for amounts, `calibration` for rates.
Leaves: the course of a step to `schedule.simulate`, the sum to `estimates`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mimo_launch.layout.layout import Layout, ModuleLayout, Stage
from mimo_launch.plan.calibration import Calibration
from mimo_launch.plan.estimate_flops import Flops, backward_flops, forward_flops
from mimo_launch.plan.estimate_memory import COMPUTED, STORED
from mimo_launch.plan.estimate_params import StageWeights, Weight, adds_in_products, stage_weights
from mimo_launch.plan.workload import Workload, layer_widths, row_bytes
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import component_of, partners
from mimo_launch.schedule.course import Costs
from mimo_launch.schedule.roles import exchanges
from mimo_launch.spec.model import Spec

MICRO, GIGA, TERA = 1e-6, 1e9, 1e12
# Passes of the optimizer over a shard, in numbers read or written: AdamW reads weight, gradient and
# two moments and writes all but the gradient; the norm reads each gradient once more.
_PASSES = {"adamw": 7 + 1, "sgd": 3 + 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds of one stage on one rank.

    `first` comes on top of the step's first forward; `reduction` follows the last backward while
    other work may go on; `update` is that of the optimizer.
    """

    forward: float
    backward: float
    first: float
    reduction: float
    update: float
    flops: float


@dataclass(frozen=True)
class CostModel:
    """Times the work of a layout. `work` is one forward of each module, by name."""

    spec: Spec
    layout: Layout
    work: Mapping[str, Workload]
    constants: Calibration

    def costs(self) -> Costs:
        """Return the seconds of every action, as the simulator takes them."""
        exact: dict[tuple[str, int | None, Kind], float] = {}
        first: dict[tuple[str, int | None], float] = {}
        for module in self.layout.modules:
            for stage in module.stages:
                cost = self.stage(module, stage)
                exact[module.name, stage.index, Kind.FORWARD] = cost.forward
                exact[module.name, stage.index, Kind.BACKWARD] = cost.backward
                first[module.name, stage.index] = cost.first
                for kind in (Kind.SEND_F, Kind.SEND_B):
                    exact[module.name, stage.index, kind] = self._edge(module)
        for encoder in self.layout.encoders:
            seconds = self._bridge(encoder)
            for kind in (Kind.SEND_F, Kind.SEND_B, Kind.EXCHANGE_F, Kind.EXCHANGE_B):
                exact[encoder.name, None, kind] = seconds
        return Costs(exact=exact, first=first)

    def stage(self, module: ModuleLayout, stage: Stage) -> StageCost:
        """Return the seconds of a stage, on the tp rank with the largest part."""
        weights = stage_weights(self.spec, stage, module.grid.size("tp") - 1)
        forward = forward_flops(self.spec, stage, self.work[module.name])
        backward = backward_flops(self.spec, self.layout, module, stage, forward)
        overhead = self.constants.action_overhead * MICRO
        ahead = self._computing(module, forward) + self._layers(module, stage) + overhead
        back = self._computing(module, backward) + overhead
        if backward.linear:
            back += self._layers(module, stage)
            if self.spec.modules[module.name].recompute == "full":
                again = Flops(linear=forward.linear, attention=forward.attention)
                back += self._computing(module, again) + self._layers(module, stage)
        gather, reduction = self._gather(module, weights), self._reduction(module, weights)
        first = 0.0
        if weights.full_sharding:
            # Every action gathers its weights and every backward reduces; both run beside it.
            ahead, back = max(ahead, sum(gather)), max(back, sum(gather) + sum(reduction))
            late = reduction[-1] if weights.trained else 0.0
        else:
            back += self._accumulation(module, weights)
            first = gather[-1] + max(0.0, sum(gather[:-1]) - ahead)
            late = reduction[-1] + max(0.0, sum(reduction[:-1]) - back)
        flops = (forward.total + backward.total) * self.work[module.name].forwards
        return StageCost(
            forward=ahead,
            backward=back,
            first=first,
            reduction=late,
            update=self._update(module, weights),
            flops=flops / _parts(module),
        )

    def _computing(self, module: ModuleLayout, flops: Flops) -> float:
        rates, spec = self.constants, self.spec
        linear, attention = (
            (rates.language_linear, rates.language_attention)
            if module.is_language
            else (rates.vision_linear, rates.vision_attention)
        )
        seconds = flops.linear / linear + flops.attention / attention + flops.head / rates.head
        seconds += (flops.patch + flops.projector) / rates.matmul
        speed = {"bf16": 1.0, "fp32": rates.fp32_speed, "fp64": rates.fp64_speed}
        return seconds / speed[spec.train.precision] / TERA / _parts(module)

    def _collective(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds in which a ring gathers, or reduces and scatters, `size` bytes."""
        if len(ranks) == 1:
            return 0.0
        bandwidth = self._between(ranks, self.constants.collective_bandwidth)
        share = (len(ranks) - 1) / len(ranks)
        return self.constants.collective_latency * MICRO + size * share / bandwidth

    def _between(self, ranks: tuple[int, ...], inside: float) -> float:
        """Return the bytes per second between ranks; `inside` is for those of one host, in GB."""
        nodes = self.spec.nodes
        crosses = nodes is not None and min(ranks) // nodes.gpus != max(ranks) // nodes.gpus
        return (self.constants.network_bandwidth if crosses else inside) * GIGA

    def _layers(self, module: ModuleLayout, stage: Stage) -> float:
        """Return what the collectives inside the layers of a stage take in one direction."""
        grid, rank = module.grid, module.grid.ranks.start
        work, stream = self.work[module.name], self.spec.modules[module.name].model.hidden
        number = COMPUTED[self.spec.train.precision]
        # A region is opened and closed: a gather and a reduce-scatter of all tokens, or one
        # all-reduce, which is as much. Embedding, projector and head are half each.
        tokens = work.held * stream * number
        layers = layer_widths(self.spec.modules[module.name].model, stage)
        regions = sum(layer.regions for layer in layers) + (stage.is_first + stage.is_last) / 2
        seconds = 2 * regions * self._collective(grid.group_of(rank, "tp"), tokens)
        for layer in layers:
            if layer.mamba is not None:
                # Tokens for heads, there and back: (cp - 1) / cp of what a rank holds.
                features = 2 * layer.query + 2 * layer.key + layer.heads
            else:
                features = grid.size("cp") * 2 * layer.key
            if layer.experts is not None:
                seconds += self._exchange(module, layer.experts.top_k, tokens)
            traded = work.held * features / grid.size("tp") * number
            if traded:
                seconds += self._collective(grid.group_of(rank, "cp"), traded)
        return seconds

    def _exchange(self, module: ModuleLayout, top_k: int, stream: int) -> float:
        """Return the seconds in which tokens travel to their experts and answers come back.

        `stream` are the bytes of the tokens of a tp group, each of whose ranks sends a part.
        """
        if module.experts is None:
            return 0.0
        size = top_k * stream // module.grid.size("tp")
        there = self._collective(module.experts.groups("ep")[0], size)
        # Ranks that split an expert gather what each of them got, and sum the answers.
        split = module.experts.groups("tp")[0]
        return 2 * (there + self._collective(split, len(split) * size))

    def _gather(self, module: ModuleLayout, weights: StageWeights) -> list[float]:
        """Return the seconds in which each FSDP unit is gathered, the root last."""
        number, seconds = COMPUTED[self.spec.train.precision], []
        for unit in weights.units():
            group = _replicas(module, unit)
            size = sum(weight.numel for weight in unit) * number
            # Copied in and out of the buffer.
            copies = 4 * size / self.constants.memory_bandwidth / GIGA
            seconds.append(self._collective(group, size) + copies)
        return seconds

    def _reduction(self, module: ModuleLayout, weights: StageWeights) -> list[float]:
        """Return the seconds in which the gradients of each unit are reduced, the root last."""
        number, seconds = STORED[self.spec.train.precision], []
        for unit in weights.units():
            group = _replicas(module, unit)
            size = sum(weight.numel for weight in unit if weight.trains) * number
            copies = 2 * size / self.constants.memory_bandwidth / GIGA
            seconds.append((self._collective(group, size) + copies) if size else 0.0)
        return seconds

    def _accumulation(self, module: ModuleLayout, weights: StageWeights) -> float:
        """Return the seconds of adding a microbatch's gradients to those before."""
        if self.work[module.name].forwards == 1:
            return 0.0
        precision = self.spec.train.precision
        stored, computed = STORED[precision], COMPUTED[precision]
        fused = 0
        if adds_in_products(self.spec, module.name):
            fused = sum(each.numel for each in weights.all() if each.trains and each.in_product)
        # A pass reads the sum and the gradient and writes the sum. A product reads the sum, and
        # writes it where it would write the gradient.
        size = (weights.trained - fused) * (2 * stored + computed)
        size += fused * (2 * stored - computed)
        return size / self.constants.memory_bandwidth / GIGA

    def _update(self, module: ModuleLayout, weights: StageWeights) -> float:
        own = sum(
            sum(weight.numel for weight in unit if weight.trains) / len(_replicas(module, unit))
            for unit in weights.units()
        )
        size = own * STORED[self.spec.train.precision]
        passes = _PASSES[self.spec.optimizer.kind]
        return passes * size / self.constants.memory_bandwidth / GIGA

    def _edge(self, module: ModuleLayout) -> float:
        """Return the seconds of one activation from a stage to the next."""
        grid, rank = module.grid, module.grid.ranks.start
        if grid.size("pp") == 1:
            return 0.0
        size = self.spec.modules[module.name].model.hidden
        shared = grid.size("tp") if module.sequence_parallel else 1
        tokens = self.work[module.name].held // shared
        return self._transfer(
            grid.group_of(rank, "pp")[:2], tokens * size * COMPUTED[self.spec.train.precision]
        )

    def _transfer(self, ranks: tuple[int, ...], size: float) -> float:
        bandwidth = self._between(ranks, self.constants.p2p_bandwidth)
        return self.constants.p2p_latency * MICRO + size / bandwidth

    def _bridge(self, encoder: ModuleLayout) -> float:
        """Return the seconds in which the rows of one group cross a bridge, one way."""
        width = self.spec.language.model.hidden * COMPUTED[self.spec.train.precision]
        size = max(row_bytes(self.layout, encoder, self.work[encoder.name], width))
        last = len(encoder.stages) - 1
        rank = encoder.stage_ranks(last)[0]
        if exchanges(self.layout, encoder):
            ranks = component_of(self.layout, rank, encoder.name)
        else:
            ends = partners(self.layout, rank, Action(encoder.name, None, Kind.SEND_F, 0))
            ranks = (rank, *ends)
        others = set(ranks) - {rank}
        # Rows that stay on their rank are copied.
        copy = 2 * size / self.constants.memory_bandwidth / GIGA
        return copy + (self._transfer(ranks, size) if others else 0.0)


def _replicas(module: ModuleLayout, unit: tuple[Weight, ...]) -> tuple[int, ...]:
    """Return the ranks that share out the weights of an FSDP unit."""
    if module.experts is not None and unit and unit[0].of_experts:
        return module.experts.groups("dp")[0]
    return module.grid.group_of(module.grid.ranks.start, "dp", "cp")


def _parts(module: ModuleLayout) -> int:
    """Return the ranks that share the work of a replica's stage."""
    return module.grid.size("tp") * module.grid.size("cp")
