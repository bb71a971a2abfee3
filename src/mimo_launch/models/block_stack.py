"""The transformer blocks of a stage, by the library that provides their layers.

Decides: which library's blocks a stage uses.
Relies on: `transformer_block` and `te_block`.
Leaves: single blocks to them.
"""

from collections.abc import Mapping

from torch import nn

from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.te_block import te_blocks
from mimo_launch.models.transformer_block import Block


def blocks(
    context: ParallelContext, shapes: Mapping[int, BlockShape], *, recompute: bool
) -> nn.ModuleDict:
    """Return the blocks of a stage, by their number in the whole model.

    Raises: BackendError if the backend cannot be used.
    """
    if context.backend == "transformer_engine":
        return te_blocks(context, shapes, recompute=recompute)
    made = {str(i): Block(context, shape, recompute=recompute) for i, shape in shapes.items()}
    return nn.ModuleDict(made)
