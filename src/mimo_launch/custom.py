"""The parts of a custom encoder or generator, all importable from here.

Decides: the names that stay from release to release.
Relies on: `models` and `layers`, which define them.
Leaves: how they are used to docs/custom-encoders.md and docs/custom-generators.md.
"""

from mimo_launch.layers.attention import Attention
from mimo_launch.layers.linear import ColumnLinear, RowLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated
from mimo_launch.models.custom_encoder import EncoderFactory, EncoderStage
from mimo_launch.models.custom_generator import GeneratorFactory, GeneratorStage
from mimo_launch.models.encoder_inputs import EncoderInput, PatchTargets
from mimo_launch.models.projector import projector

__all__ = [
    "Attention",
    "ColumnLinear",
    "EncoderFactory",
    "EncoderInput",
    "EncoderStage",
    "GeneratorFactory",
    "GeneratorStage",
    "Norm",
    "ParallelContext",
    "PatchTargets",
    "RowLinear",
    "SegmentedModule",
    "projector",
    "replicated",
]
