"""Seconds of collectives and transfers, and of gathering, reducing and updating weights.

Decides: which ranks communicate over the network, and in how many hops; the bytes of gathering
weights, of accumulating and reducing their gradients, and of updating them.
Relies on: `device_constants` for latencies and bandwidths; `parameters` for the weights of a stage
and its FSDP units.
Leaves: the bytes of activations, and which times overlap, to `cost_model`.
"""

from collections import Counter
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, log2

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.parameters import StageWeights, adds_in_products
from mimo_launch.estimate.weight_cut import WeightCut
from mimo_launch.kinds.weights import Parameter
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.spec.base import Axis
from mimo_launch.spec.optimizers import UpdateRule, rule_for
from mimo_launch.spec.spec import Spec

MICRO, MILLI, GIGA, TERA = 1e-6, 1e-3, 1e9, 1e12
# Short messages travel with a flag beside each word and in small chunks (NCCL's protocol LL).
_SHORT_BANDWIDTH = 0.25


@frozen(slots=False)
class LinkTimes:
    """Times of messages between ranks of a job."""

    spec: Spec
    constants: Calibration

    def collective(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds of a ring all-gather or reduce-scatter of `size` bytes.

        A message passes all ranks, one hop after another. As NCCL does, this takes the faster of
        two protocols: one with slow hops, one with fast hops and a quarter of the bandwidth. Rings
        leave a host through the adapters of all of its ranks.
        """
        if len(ranks) == 1:
            return 0.0
        given, hosts = self.constants, self.hosts(ranks)
        bandwidth = given.collective_bandwidth
        if hosts > 1:
            bandwidth = min(bandwidth, len(ranks) / hosts * given.network_bandwidth)
        moving = size * (len(ranks) - 1) / len(ranks) / bandwidth / GIGA
        inside, across = len(ranks) - hosts, hosts - 1
        large = (inside * given.hop_latency + across * given.network_hop_latency) * MICRO
        short = inside * given.short_hop_latency + across * given.short_network_hop_latency
        return given.collective_latency * MICRO + min(
            large + moving, short * MICRO + moving / _SHORT_BANDWIDTH
        )

    def exchange(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds of an all-to-all in which each rank sends `size` bytes in all.

        Each of its messages is a short hop. The part for other hosts leaves through the adapter of
        the rank, while the rest moves inside the host.
        """
        if len(ranks) == 1:
            return 0.0
        given, hosts = self.constants, self.hosts(ranks)
        inside = len(ranks) / hosts - 1
        across = len(ranks) - 1 - inside
        hops = inside * given.short_hop_latency + across * given.short_network_hop_latency
        moving = max(inside / given.collective_bandwidth, across / given.network_bandwidth)
        return (given.collective_latency + hops) * MICRO + size / len(ranks) * moving / GIGA

    def sum_of_metrics(self, num_ranks: int) -> float:
        """Return the seconds of an all-reduce of a few numbers over the first ranks of a job.

        They go up a tree of hosts and down again, and through all ranks of a host.
        """
        per_host = min(num_ranks, self.spec.nodes.gpus if self.spec.nodes else num_ranks)
        across = log2(ceil(num_ranks / per_host)) * self.constants.network_hop_latency
        hops = 2 * ((per_host - 1) * self.constants.short_hop_latency + across)
        return (self.constants.collective_latency + hops) * MICRO

    def transfer(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds of a transfer of `size` bytes between two of these ranks."""
        bandwidth, hop = self.constants.p2p_bandwidth, 0.0
        if self.hosts(ranks) > 1:
            bandwidth, hop = self.constants.network_bandwidth, self.constants.network_hop_latency
        return (self.constants.p2p_latency + hop) * MICRO + size / bandwidth / GIGA

    def hosts(self, ranks: tuple[int, ...]) -> int:
        """Return the number of hosts of some ranks."""
        return _num_hosts(ranks, self.spec.nodes.gpus if self.spec.nodes else None)


@lru_cache(maxsize=64)
def _num_hosts(ranks: tuple[int, ...], per_host: int | None) -> int:
    """Return the number of hosts of ranks; all are on one if `per_host` is unknown.

    Kept: the stages of a plan ask for the same groups of thousands of ranks again and again.
    """
    return 1 if per_host is None else len({rank // per_host for rank in ranks})


@frozen(slots=False)
class WeightTimes:
    """Times of operations on the weights of a stage of a module on one rank."""

    spec: Spec
    constants: Calibration
    module: ModuleLayout

    @cached_property
    def links(self) -> LinkTimes:
        """The seconds of single collectives."""
        return LinkTimes(self.spec, self.constants)

    def gather(self, weights: StageWeights) -> list[float]:
        """Return the seconds to gather each FSDP unit, the root last, without `gather_copies`."""
        cut = WeightCut.of(self.spec, self.module)
        return [
            self.links.collective(self._replicas(unit), cut.gathered(unit))
            for unit in weights.units
        ]

    def gather_copies(self, weights: StageWeights) -> float:
        """Return the seconds of copies for a gather of all units: own shards in, weights out."""
        cut, size = WeightCut.of(self.spec, self.module), 0.0
        for unit in weights.units:
            gathered = cut.gathered(unit)
            shards = sum(cut.held(each) for each in unit if not cut.is_whole(each))
            size += shards + gathered / len(self._replicas(unit)) + 2 * gathered
        return size / self.constants.memory_bandwidth / GIGA

    def reduction(self, weights: StageWeights) -> list[float]:
        """Return the seconds to reduce the gradients of each unit, without `reduction_copies`."""
        number, seconds = self.spec.train.numbers.stored.bytes, []
        for unit, trained in zip(weights.units, weights.trained_units, strict=True):
            size = trained.total() * number
            seconds.append(self.links.collective(self._replicas(unit), size) if size else 0.0)
        return seconds

    def reduction_copies(self, weights: StageWeights, forwards: int) -> float:
        """Return the seconds of passes over gradients for one reduction of all units.

        They go into a buffer. With full sharding they come from one of several `forwards`, and
        their shards are added to earlier ones.
        """
        numbers, full = self.spec.train.numbers, weights.full_sharding
        read = numbers.computed.bytes if full else numbers.stored.bytes
        own = 0.0
        if full and forwards > 1:
            own = sum(
                trained.total() / len(self._replicas(unit))
                for unit, trained in zip(weights.units, weights.trained_units, strict=True)
            )
        # The pass over shards reads both and writes the sum.
        size = weights.trained * (read + numbers.stored.bytes) + 3 * own * numbers.stored.bytes
        return size / self.constants.memory_bandwidth / GIGA

    def sums_of_copies(self, weights: StageWeights) -> float:
        """Return the seconds to sum the shards of gradients over the copies of the weights."""
        axes = self.module.sharding.replicate
        if not axes:
            return 0.0
        copies = self.module.grid.group_of(self.module.grid.ranks.start, *axes)
        # Experts have replicas of their own.
        own = sum(each.numel for each in weights.all() if each.trains and not each.experts)
        size = own * self.spec.train.numbers.stored.bytes / len(self._of_others)
        return 2 * self.links.collective(copies, size)

    def accumulation(self, weights: StageWeights, forwards: int) -> float:
        """Return the seconds to add a microbatch's gradients to earlier ones, if any."""
        if forwards == 1:
            return 0.0
        numbers = self.spec.train.numbers
        fused = 0
        if adds_in_products(self.spec, self.module.name):
            # The rates of products for gradients of weights include it.
            fused = sum(each.numel for each in weights.all() if each.trains and each.in_product)
        # A separate pass reads the sum and the gradient and writes the sum.
        size = (weights.trained - fused) * (2 * numbers.stored.bytes + numbers.computed.bytes)
        return size / self.constants.memory_bandwidth / GIGA

    def update(self, weights: StageWeights) -> float:
        """Return the seconds that the optimizer takes to update this rank's shards."""
        seconds = 0.0
        for rule in self.module.rules:
            takes = [each for each in (False, True) if self._rule(is_matrix=each) is rule]
            own = sum(
                sum(trained[each] for each in takes) / len(self._replicas(unit))
                for unit, trained in zip(weights.units, weights.trained_units, strict=True)
            )
            size = own * self.spec.train.numbers.stored.bytes
            seconds += rule.passes * size / self.constants.memory_bandwidth / GIGA
            if self.spec.offloads_moments(self.module.name) and rule.may_offload:
                # The moments come from the host, and go back.
                moved = 2 * len(rule.state) * size
                seconds += moved / self.constants.host_bandwidth / GIGA
            if rule.whole_matrices:
                seconds += sum(self._whole(rule, unit) for unit in weights.units)
        return seconds + self.travel_of_matrices(weights)

    def travel_of_matrices(self, weights: StageWeights) -> float:
        """Return the seconds to gather the matrices that an update needs whole, and to return them.

        Parts travel over shards first, then over tp.
        """
        rules = [rule for rule in self.module.rules if rule.whole_matrices]
        seconds, number = 0.0, self.spec.train.numbers.computed.bytes
        for rule, unit in product(rules, weights.units):
            if size := sum(each.numel for each in self._of_rule(rule, unit)) * number:
                shards = self._replicas(unit)
                seconds += 2 * self.links.collective(shards, size / len(shards))
                seconds += 2 * self.links.collective(self._cut(unit), size / len(shards))
        return seconds

    def _whole(self, rule: UpdateRule, unit: tuple[Parameter, ...]) -> float:
        """Return the seconds to work on a share of whole matrices."""
        seconds, own = 0.0, self._of_rule(rule, unit)
        if not own:
            return seconds
        for shape, times in Counter(shape for each in own for shape in each.matrices).items():
            if rule.flops is not None:
                flops = times * rule.flops(self.spec.optimizer, *shape)
                small, large = sorted(shape)
                seconds += self.constants.seconds_of("product", flops, small, large, small)
        speed = self.constants.speed(self.spec.train.numbers)
        return seconds / speed / len(self._replicas(unit)) / len(self._cut(unit))

    def _of_rule(self, rule: UpdateRule, unit: tuple[Parameter, ...]) -> list[Parameter]:
        return [each for each in unit if each.trains and self._rule(is_matrix=each.matrix) is rule]

    def _rule(self, *, is_matrix: bool) -> UpdateRule:
        return rule_for(self.module.rules, is_matrix=is_matrix)

    def _replicas(self, unit: tuple[Parameter, ...]) -> tuple[int, ...]:
        """Return the ranks over which the weights of an FSDP unit are sharded."""
        is_of_experts = bool(unit) and unit[0].experts > 0
        return self._of_experts if is_of_experts else self._of_others

    def _cut(self, unit: tuple[Parameter, ...]) -> tuple[int, ...]:
        """Return the ranks that cut the matrices of an FSDP unit."""
        first = self.module.grid.ranks.start
        if unit[0].experts and self.module.experts is not None:
            return self.module.experts.group_of(first, Axis.EXPERT_TP)
        return self.module.grid.group_of(first, Axis.TP)

    @cached_property
    def _of_experts(self) -> tuple[int, ...]:
        experts, first = self.module.experts, self.module.grid.ranks.start
        return self._of_others if experts is None else experts.group_of(first, Axis.EXPERT_DP)

    @cached_property
    def _of_others(self) -> tuple[int, ...]:
        return self.module.grid.group_of(self.module.grid.ranks.start, *self.module.sharding.shard)
