"""The transformer blocks of a stage, by the library that provides their layers.

Decides: which library's blocks a stage uses.
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

    Raises: BackendError if the backend cannot be used.
    """
    if context.backend == "transformer_engine":
        return te_blocks(context, shape, stage, recompute=recompute)
    made = nn.ModuleDict()
    for number in range(stage.first_layer, stage.first_layer + stage.num_layers):
        # A model with experts may have layers without them.
        has_experts = shape.moe is not None and shape.moe.model.is_in(number)
        own = shape if has_experts else replace(shape, moe=None)
        made[str(number)] = Block(context, own, recompute=recompute)
    return made
