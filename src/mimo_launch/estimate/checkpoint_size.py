"""The size of one checkpoint, whatever the layout.

Decides: which numbers a checkpoint holds: all weights, and the moments of those that train.
Relies on: `parameters`, asked for a module that stands on one rank: its tensors are whole.
Leaves: what files add to them, a few kilobytes per rank.
"""

from mimo_launch.estimate.memory import MOMENTS, STORED
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.model import Grid, Spec


def checkpoint_bytes(spec: Spec) -> int:
    """Return the bytes of the tensors in one checkpoint of a run."""
    update = {"grid": Grid(), "experts": None}
    modules = {name: each.model_copy(update=update) for name, each in spec.modules.items()}
    alone = spec.model_copy(update={"modules": modules})
    moments, numbers = MOMENTS[spec.optimizer.kind], 0
    for name, module in modules.items():
        stage = Stage(name, 0, 0, module.model.layers, is_first=True, is_last=True)
        weights = stage_weights(alone, stage, 0)
        numbers += weights.numel + moments * weights.trained
    return numbers * STORED[spec.train.precision]
