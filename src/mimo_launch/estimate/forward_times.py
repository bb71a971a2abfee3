"""Seconds of a forward of a stage and of its backward, for any work.

Decides: which exchanges and copies run beside the kernels of a stage, and which between them; what
is worked out once for all work of as many tokens.
Relies on: `kernel_times` for computing, `communication_times` for collectives.
Leaves: weights, and which forwards a step has, to `cost_model`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import field
from itertools import chain

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.activations import Activations
from mimo_launch.estimate.communication_times import GIGA, MICRO, LinkTimes
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.kernel_times import Shared, StageKernels, sizes_of
from mimo_launch.estimate.workload import backward_path, flops_of_layers, gathered_numbers
from mimo_launch.kinds.block_shapes import parts_of
from mimo_launch.kinds.layer import Widths, Workload
from mimo_launch.kinds.registry import kind_of, layer_of
from mimo_launch.kinds.weights import widths_of
from mimo_launch.layout.layout import Layout, ModuleLayout, bytes_of_regions
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec


@frozen(kw_only=True)
class StageTimes:
    """Seconds of a forward and its backward; of their exchanges; of the forward that runs again.

    In `offloading` both wait for copies of activations to the host, and back.
    """

    ahead: float
    back: float
    communication: float
    all_to_all: float
    recomputation: float
    offloading: float


@frozen(kw_only=True)
class _Beside:
    """What a forward and its backward do beside kernels.

    `between` are the seconds of exchanges in one direction, `travel` those of them to experts and
    back. `again` are both of a forward that runs again, None if none of its products does. Each
    layer moves its activations to the host, or back, in `moved` seconds.
    """

    between: float
    travel: float
    again: tuple[float, float] | None
    moved: tuple[float, ...]


@frozen(slots=False)
class ForwardTimes:
    """The seconds of forwards of one stage, on the tp rank with the largest part.

    Microbatches of packed documents differ in their attention only: what else a forward does is
    kept by the sizes of its work.
    """

    spec: Spec
    layout: Layout
    module: ModuleLayout
    stage: Stage
    constants: Calibration
    links: LinkTimes
    _known: dict[Hashable, StageTimes] = field(default_factory=dict, init=False)
    _beside: dict[Hashable, _Beside] = field(default_factory=dict, init=False)
    _products: dict[bool, bool] = field(default_factory=dict, init=False)
    _shared: Shared = field(default_factory=Shared, init=False)

    def of(self, work: Workload) -> StageTimes:
        """Return the seconds of one forward and its backward."""
        if work.key not in self._known:
            self._known[work.key] = self._times(work)
        return self._known[work.key]

    def exchanges(self, work: Workload) -> tuple[float, float]:
        """Return the seconds of exchanges in both directions, and of those to experts and back."""
        beside = self._beside_of(work)
        if beside.again is None:
            return beside.between, beside.travel
        between, travel = beside.again
        return 2 * beside.between + between, 2 * beside.travel + travel

    def _times(self, work: Workload) -> StageTimes:
        place = self.spec, self.layout, self.module, self.stage, work, self.constants
        kernels, beside = StageKernels(*place, self._shared), self._beside_of(work)
        ahead = kernels.forward() + beside.between
        back, again, waited = kernels.backward(), 0.0, 0.0
        if beside.again is not None:
            again = kernels.repeated()
            back += again + beside.between + beside.again[0]
        if beside.moved:
            # Engines of their own copy beside the layers; those of the first layer of a backward
            # come before it.
            alone = ahead + back
            ahead = max(ahead, sum(beside.moved))
            back = max(back, sum(beside.moved)) + max(beside.moved)
            waited = ahead + back - alone
        overhead, (communication, travel) = self.constants.action_overhead, self.exchanges(work)
        return StageTimes(
            ahead=ahead + overhead * MICRO,
            back=back + overhead * MICRO,
            communication=communication + waited,
            all_to_all=travel,
            recomputation=again,
            offloading=waited,
        )

    def _beside_of(self, work: Workload) -> _Beside:
        sizes = sizes_of(self.layout, self.module, work)
        if sizes not in self._beside:
            self._beside[sizes] = self._beside_kernels(work)
        return self._beside[sizes]

    def _beside_kernels(self, work: Workload) -> _Beside:
        travel = self._travel(work)
        return _Beside(
            between=self._collectives(work) + travel,
            travel=travel,
            again=self._between_again(work) if self._multiplies(work) else None,
            moved=self._moved(work),
        )

    def _multiplies(self, work: Workload) -> bool:
        """Return whether layers of a backward multiply by weights, the same for any tokens."""
        has_tokens = work.tokens > 0
        if has_tokens not in self._products:
            layers = backward_path(self.spec, self.layout, self.module, self.stage).layers
            found = flops_of_layers(self.spec, self.module, layers, work).values()
            self._products[has_tokens] = any(flops.linear for flops in found)
        return self._products[has_tokens]

    def _moved(self, work: Workload) -> tuple[float, ...]:
        """Return the seconds in which what each layer keeps goes to the host, or comes back."""
        if not self.spec.modules[self.module.name].offloads:
            return ()
        tp = self.module.grid.size(Axis.TP) - 1
        sizes = Activations(
            self.spec, self.layout, self.module, self.stage, work, tp
        ).offloaded_by_layers()
        return tuple(size / self.constants.host_bandwidth / GIGA for size in sizes)

    def _between_again(self, work: Workload) -> tuple[float, float]:
        """Return the seconds of exchanges that run again in a backward, and of those to experts."""
        own = self.spec.modules[self.module.name]
        if own.recompute == "none":
            return 0.0, 0.0
        parts, travel = own.recomputed_parts, self._travel(work)
        if own.recomputes:
            return self._collectives(work) + travel, travel
        path, found = backward_path(self.spec, self.layout, self.module, self.stage), list[Widths]()
        for part, _, shape in chain.from_iterable(
            parts_of(layer_of(own.model, number)) for number in path.layers
        ):
            if part in parts:
                found.append(widths_of(shape))
            elif "norms" in parts and self.module.sequence_parallel:
                # The normed stream is gathered again.
                found.append(Widths(regions=widths_of(shape).regions / 2))
        travel = travel if "mlp" in parts else 0.0
        return self._exchanged(work, found) + travel, travel

    def _collectives(self, work: Workload) -> float:
        """Return the seconds of the tp and cp collectives inside a stage in one direction."""
        number = self.spec.train.numbers.computed.bytes
        kind = kind_of(self.spec.modules[self.module.name].model)
        numbers = kind.numbers(self.stage.layers, is_last=self.stage.is_last)
        layers = [kind.layer_widths(number) for number in numbers]
        # Embedding, projector and head are half a region each.
        seconds = self._exchanged(work, layers, (self.stage.is_first + self.stage.is_last) / 2)
        if gathered := gathered_numbers(self.spec, self.module, self.stage, work):
            grid = self.module.grid
            size, rank = gathered * number, grid.ranks.start
            seconds += self.links.collective(grid.group_of(rank, Axis.CP), size)
            if self.module.sequence_parallel:
                own = size / grid.size(Axis.CP)
                seconds += self.links.collective(grid.group_of(rank, Axis.TP), own)
        return seconds

    def _exchanged(self, work: Workload, layers: Sequence[Widths], ends: float = 0.0) -> float:
        """Return the seconds of the collectives in layers of these widths, and in other regions."""
        grid, rank = self.module.grid, self.module.grid.ranks.start
        stream = self.spec.modules[self.module.name].model.hidden
        number = self.spec.train.numbers.computed.bytes
        # A tp region has a gather at its start and a reduce-scatter at its end, of all tokens, or
        # one all-reduce, which takes as long.
        tokens, tp = work.held * stream * number, grid.group_of(rank, Axis.TP)
        regions = ends + (1 - self._hidden(tp)) * sum(layer.regions for layer in layers)
        seconds = 2 * regions * self.links.collective(tp, tokens)
        held, cp = work.held / grid.size(Axis.TP) * number, grid.group_of(rank, Axis.CP)
        for layer in layers:
            if layer.exchanges:  # Tokens for heads, and back.
                seconds += self.links.exchange(cp, held * layer.exchanges)
            if layer.gathers:
                seconds += self.links.collective(cp, held * len(cp) * layer.gathers)
        return seconds

    def _hidden(self, tp: tuple[int, ...]) -> float:
        """Return the share of the exchanges in layers that costs their tp ranks no time."""
        copied = self.module.is_language and self.spec.language.adapter is None
        if not copied or self.links.hosts(tp) > 1 or not bytes_of_regions(self.spec, self.layout):
            return 0.0
        # A rank's own tokens are 1/tp of those that its products multiply beside copies.
        return self.constants.copy_overlap * 2 / len(tp)

    def _travel(self, work: Workload) -> float:
        """Return the seconds of dispatch to experts and back, in one forward or backward."""
        if self.module.experts is None:
            return 0.0
        model, width = (
            self.spec.modules[self.module.name].model,
            self.spec.train.numbers.computed.bytes,
        )
        # Each rank of a tp group sends a part of its tokens.
        sent = work.held * model.hidden * width // self.module.grid.size(Axis.TP)
        first = self.module.grid.ranks.start
        ep, split = (self.module.experts.group_of(first, a) for a in (Axis.EP, Axis.EXPERT_TP))
        seconds = 0.0
        kind = kind_of(model)
        for number in kind.numbers(self.stage.layers, is_last=self.stage.is_last):
            if kind.moe is not None and kind.has_experts(number):
                size = kind.moe.top_k * sent
                # Ranks that split an expert gather each other's tokens, and sum the results.
                gathered = self.links.collective(split, len(split) * size)
                seconds += 2 * (self.links.exchange(ep, size) + gathered)
        return seconds
