"""The part of each weight of a module that one rank holds between steps, and what it gathers.

Decides: in which type a rank holds a weight, and which weights it holds whole, without a shard.
Relies on: what `models.fsdp` does; the numbers of the run.
Leaves: gradients and moments to `memory`, times to `communication_times`.
"""

from collections.abc import Iterable

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.weights import Parameter
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.values import NumberType, Precision


@frozen
class WeightCut:
    """How many ranks share the weights of a module, and those of its experts.

    `copies` of the shards lie on other ranks, not of experts. `full`: weights are gathered for each
    forward and backward.
    """

    numbers: Precision
    over: int
    of_experts: int
    copies: int
    full: bool

    @classmethod
    def of(cls, spec: Spec, module: ModuleLayout) -> "WeightCut":
        """Return the cut of a module."""
        shards, grid = module.num_shards, module.grid
        experts = module.experts.size(Axis.EXPERT_DP) if module.experts else 1
        copies = grid.size(Axis.DP) * grid.size(Axis.CP) // shards
        return cls(spec.train.numbers, shards, experts, copies, module.sharding.every_backward)

    def parts(self, weight: Parameter) -> int:
        """Return how many ranks share a weight."""
        return self.of_experts if weight.experts else self.over

    def elements(self, some: Iterable[Parameter]) -> int:
        """Return the elements of one rank's shards."""
        return sum(each.shard(self.parts(each)) for each in some)

    def held(self, weight: Parameter) -> int:
        """Return the bytes of a weight that one rank holds between steps."""
        parts = 1 if self.is_whole(weight) else self.parts(weight)
        return weight.bytes(self._type(weight).bytes, parts)

    def gathered(self, some: Iterable[Parameter]) -> int:
        """Return the bytes of gathered weights."""
        number = self.numbers.computed.bytes
        return sum(each.bytes(number) for each in some if not self.is_whole(each))

    def is_whole(self, weight: Parameter) -> bool:
        """Return whether ranks hold a weight as they compute with it, and never gather it.

        Packed ones are gathered in full sharding alone.
        """
        if weight.packed is not None:
            return not self.full
        is_alone = self.parts(weight) == 1 and (weight.experts > 0 or self.copies == 1)
        return is_alone and not weight.trains and self._type(weight) == self.numbers.computed

    def _type(self, weight: Parameter) -> NumberType:
        return self.numbers.held(trains=weight.trains, ndim=len(weight.shape))
