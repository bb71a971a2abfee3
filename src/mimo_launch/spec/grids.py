"""How the ranks of a module are factored, and a second time for its experts.

Decides: the axes, and what they default to.
Relies on: `base`.
Leaves: whether a grid fits a model and its ranks to `checks`.
"""

from pydantic import Field

from mimo_launch.spec.base import Dp, Places, Strict


class Grid(Strict):
    """How the ranks of one module are factored; the product must equal their number.

    `dp` is resolved before: the spec in memory, and every one that is saved, has its number.
    """

    tp: Places = Field(1, description="Tensor-parallel size: each layer's weights are split.")
    cp: Places = Field(1, description="Context-parallel size: the sequence is split.")
    pp: Places = Field(1, description="Pipeline size: the layers are split into stages.")
    dp: Dp = Field(
        1,
        description="Data-parallel size: the samples are split. `auto`, or -1: what the other "
        "sizes leave of the ranks.",
    )

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the grid fills."""
        return self.tp * self.cp * self.pp * self.dp


class ExpertGrid(Strict):
    """A second factorisation of the ranks of each pipeline stage, for the experts alone.

    What is left of those ranks holds replicas: ep * tp * replicas = tp * cp * dp of the module.
    """

    ep: Places = Field(1, description="Expert-parallel size: the experts of a layer are split.")
    tp: Places = Field(
        1, description="Tensor-parallel size of the experts: the width of each is split."
    )
