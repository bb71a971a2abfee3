"""Layers of a hybrid model: one norm, one mixer and a residual connection each.

Decides: which class makes each mixer.
Relies on: `kinds.hybrid` for the mixer of each letter; `layers` for the mixers.
Leaves: embedding, head and loss to `language_model`.
"""

from torch import Tensor, nn

from mimo_launch.kinds.hybrid import HybridKind, MixedShape
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.kinds.recurrent import RecurrentShape
from mimo_launch.kinds.shapes import AttentionShape, MlpShape, MoeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.deltanet import DeltaNet
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.mamba import Mamba
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recurrent import RecurrentMixer
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.mlp import Mlp, mlp
from mimo_launch.models.transformer_block import Layer


class HybridLayer(Layer):
    """The layer of a letter: its mixer is `mamba`, `deltanet`, `attention`, `mlp` or `moe`."""

    def __init__(self, context: ParallelContext, shape: MixedShape, *, recompute: bool) -> None:
        super().__init__(recompute=recompute)
        self.norm, self.mixer = Norm(context, shape.norm), shape.name
        self.add_module(shape.name, _mixer(context, shape.mixer))

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        mixer, normed = self.get_submodule(self.mixer), self.norm(x_nD)
        mixed: Tensor = (
            mixer(normed) if isinstance(mixer, Mlp) else mixer(normed, attention_context)
        )
        return x_nD + mixed


def _mixer(context: ParallelContext, shape: LayerShape) -> nn.Module:
    """Return a mixer. Raises: TypeError for a shape of which no mixer is made."""
    if isinstance(shape, RecurrentShape):
        mixers: dict[LayerKind, type[RecurrentMixer]] = {
            LayerKind.MAMBA: Mamba,
            LayerKind.DELTANET: DeltaNet,
        }
        return mixers[shape.facts.kind](context, shape)
    if isinstance(shape, AttentionShape):
        return Attention(context, shape)
    if isinstance(shape, MlpShape | MoeShape):
        return mlp(context, shape)
    raise TypeError(f"no mixer of a hybrid model is a {type(shape).__name__}")


class HybridStage(LanguageStage):
    """A stage of layers given by the letters of a pattern."""

    kind: HybridKind

    def make_layers(self, *, recompute: bool) -> nn.ModuleDict:
        """Return the layers of the stage, named by their number in the whole model."""
        return nn.ModuleDict(
            {
                str(i): HybridLayer(self.context, self.kind.mixed(i), recompute=recompute)
                for i in self.stage.layers
            }
        )
