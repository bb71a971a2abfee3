"""Layers of a hybrid model: one norm, one mixer and a residual connection each.

Decides: which mixer each letter of the pattern means.
Relies on: `layers.mamba` and `layers.deltanet`, and the attention and MLP of transformer blocks.
Leaves: embedding, head and loss to `language_model`.
"""

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.deltanet import DeltaNet
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.mamba import Mamba
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.mlp import Mlp, MoeMlp, MoeShape
from mimo_launch.models.mtp import MtpDepth
from mimo_launch.models.transformer_block import (
    Layer,
    attention_of,
    experts_of,
    hybrid_shape,
    mlp_of,
    norm_of,
)
from mimo_launch.spec.hybrid import ATTENTION, DELTANET, EXPERTS, MAMBA, MLP, HybridModel


class HybridLayer(Layer):
    """The layer of a letter: its mixer is `mamba`, `deltanet`, `attention`, `mlp` or `moe`."""

    def __init__(
        self,
        context: ParallelContext,
        model: HybridModel,
        letter: str,
        experts: MoeShape | None,
        *,
        recompute: bool,
    ) -> None:
        """Build the layer. Raises: ValueError for a letter that the model has no layer for."""
        super().__init__(recompute=recompute)
        shape = hybrid_shape(model, experts)
        self.norm = norm_of(context, shape)
        # Each layer adds once to the stream.
        out_scale = model.layers**-0.5
        self.mamba: Mamba | None = None
        self.deltanet: DeltaNet | None = None
        self.attention: Attention | None = None
        self.mlp: Mlp | None = None
        self.moe: MoeMlp | None = None
        if letter == MAMBA and model.mamba is not None:
            self.mamba = Mamba(
                context, model.hidden, model.mamba, eps=model.norm_eps, out_scale=out_scale
            )
        elif letter == DELTANET and model.deltanet is not None:
            self.deltanet = DeltaNet(
                context, model.hidden, model.deltanet, eps=model.norm_eps, out_scale=out_scale
            )
        elif letter == ATTENTION:
            self.attention = attention_of(context, shape, out_scale)
        elif letter == MLP:
            self.mlp = mlp_of(context, shape, shape.mlp, out_scale)
        elif letter == EXPERTS and experts is not None:
            self.moe = experts_of(context, shape, experts, out_scale)
        else:
            raise ValueError(f"no layer of a hybrid model is a {letter}")

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        normed = self.norm(x_nD)
        mixed: Tensor
        if self.mamba is not None:
            mixed = self.mamba(normed, attention_context)
        elif self.deltanet is not None:
            mixed = self.deltanet(normed, attention_context)
        elif self.attention is not None:
            mixed = self.attention(normed, attention_context)
        elif self.moe is not None:
            mixed = self.moe(normed, attention_context)
        else:
            mixed = self.mlp(normed)  # type: ignore[misc]
        return x_nD + mixed


class HybridStage(LanguageStage):
    """A stage of layers given by the letters of a pattern."""

    model: HybridModel

    def make_layers(self, experts: MoeShape | None, *, recompute: bool) -> nn.ModuleDict:
        """Return the layers of the stage, named by their number in the whole model."""
        context, model = self.context, self.model
        return nn.ModuleDict(
            {
                str(i): HybridLayer(context, model, model.pattern[i], experts, recompute=recompute)
                for i in self.stage.layers
            }
        )

    def make_depths(self, experts: MoeShape | None, *, recompute: bool) -> Iterable[MtpDepth]:
        """Return the depths; each has a block of attention, then experts or an MLP."""
        shape = hybrid_shape(self.model, experts if EXPERTS in self.model.pattern else None)
        # A depth adds to the stream twice, a layer once.
        shape = replace(shape, layers=-(-self.model.layers // 2))
        depths = kind_of(self.model).depths if self.stage.is_last else 0
        return (MtpDepth(self.context, shape, recompute=recompute) for _ in range(depths))
