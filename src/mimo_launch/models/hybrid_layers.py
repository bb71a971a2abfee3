"""Layers of a hybrid model: one norm, one mixer and a residual connection each.

Decides: which mixer a letter of the pattern stands for.
Relies on: `layers.mamba`, and on the same attention and MLP as the transformer block.
Leaves: embedding, head and loss to `language_model`.
"""

from functools import partial

from torch import Tensor, nn

from mimo_launch.layers.attention import Attention
from mimo_launch.layers.attention_contexts import AttentionContext
from mimo_launch.layers.linear import Norm
from mimo_launch.layers.mamba import Mamba
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.transformer_block import Layer, Mlp, MoeMlp, MoeShape
from mimo_launch.spec.language_models import ATTENTION, EXPERTS, MAMBA, MLP, HybridModel


class HybridLayer(Layer):
    """The layer of a letter. Its mixer is called `mamba`, `attention`, `mlp` or `moe`."""

    def __init__(
        self,
        context: ParallelContext,
        model: HybridModel,
        letter: str,
        experts: MoeShape | None,
        *,
        recompute: bool,
    ) -> None:
        """Raises: ValueError for a letter that no layer has."""
        super().__init__(recompute=recompute)
        self.norm = Norm(context, model.hidden, "rms", eps=model.norm_eps)
        # Each layer adds once to the stream.
        out_scale = model.layers**-0.5
        self.mamba: Mamba | None = None
        self.attention: Attention | None = None
        self.mlp: Mlp | None = None
        self.moe: MoeMlp | None = None

        mlp = partial(
            Mlp,
            context,
            model.hidden,
            out=model.hidden,
            gated=model.gated_mlp,
            bias=False,
            activation="squared_relu",
            out_scale=out_scale,
        )
        if letter == MAMBA and model.mamba is not None:
            self.mamba = Mamba(
                context, model.hidden, model.mamba, eps=model.norm_eps, out_scale=out_scale
            )
        elif letter == ATTENTION:
            self.attention = Attention(
                context,
                width=model.hidden,
                heads=model.heads,
                kv_heads=model.num_kv_heads,
                head_size=model.head_size,
                bias=False,
                qkv_bias=False,
                qk_norm=False,
                eps=model.norm_eps,
                out_scale=out_scale,
            )
        elif letter == MLP:
            self.mlp = mlp(model.mlp_width)
        elif letter == EXPERTS and experts is not None:
            shared = mlp(experts.model.shared) if experts.model.shared else None
            self.moe = MoeMlp(
                context,
                experts,
                model.hidden,
                gate=None,
                out_scale=out_scale,
                shared=shared,
            )
        else:
            raise ValueError(f"no layer of a hybrid model is a {letter}")

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        normed = self.norm(x_nD)
        mixed: Tensor
        if self.mamba is not None:
            mixed = self.mamba(normed, attention_context)
        elif self.attention is not None:
            mixed = self.attention(normed, attention_context)
        elif self.moe is not None:
            mixed = self.moe(normed, attention_context)
        else:
            mixed = self.mlp(normed)  # type: ignore[misc]
        return x_nD + mixed


class HybridStage(LanguageStage):
    """A stage of layers by the letters of a pattern."""

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
