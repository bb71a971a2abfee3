"""Layers of a hybrid model: one norm, one mixer and a residual connection each.

Decides: that a layer adds its mixer's output to the stream.
Relies on: `kinds.hybrid` for the mixer of each letter; `layers` for the mixers.
Leaves: embedding, head and loss to `language_model`.
"""

from torch import Tensor, nn

from mimo_launch.kinds.hybrid import HybridKind, MixedShape
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.norms import Norm
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.mlp import Mlp
from mimo_launch.models.transformer_block import Layer


class HybridLayer(Layer[MixedShape]):
    """The layer of a letter: its mixer is `mamba`, `deltanet`, `attention`, `mlp` or `moe`."""

    norm: Norm

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        mixer, normed = self.get_submodule(self.shape.name), self.norm(x_nD)
        mixed: Tensor = (
            mixer(normed) if isinstance(mixer, Mlp) else mixer(normed, attention_context)
        )
        return x_nD + mixed


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
