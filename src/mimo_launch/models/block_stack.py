"""The transformer blocks of a stage, by the library that provides their layers.

Decides: which library's blocks a stage is made of.
Relies on: `transformer_block` and `te_block`.
Leaves: single blocks to them.
"""

from dataclasses import replace

from torch import nn

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.stages import Stage
from mimo_launch.models.te_block import te_blocks
from mimo_launch.models.transformer_block import Block, BlockShape


def blocks(
    context: ParallelContext, shape: BlockShape, stage: Stage, *, recompute: bool
) -> nn.ModuleDict:
    """Return the blocks of a stage, named by their number in the whole model.

    Raises: BackendError where the backend cannot be used.
    """
    if context.backend == "transformer_engine":
        return te_blocks(context, shape, stage, recompute=recompute)
    numbers = range(stage.first_layer, stage.first_layer + stage.num_layers)
    return nn.ModuleDict(
        {str(i): Block(context, _of_layer(shape, i), recompute=recompute) for i in numbers}
    )


def _of_layer(shape: BlockShape, number: int) -> BlockShape:
    """Return the shape of one block of a model, not all of which may have experts."""
    if shape.moe is None or shape.moe.model.is_in(number):
        return shape
    return replace(shape, moe=None)
