"""The layers of a stage: transformer blocks, layers of hybrids, depths of multi-token prediction.

Decides: the order of a block's layers; which library's blocks a stage uses; what a depth reads, and
that with full recomputation of activations the whole depth is recomputed.
Relies on: `layers` for layers that know their tp group, `mlp`.
Leaves: the rest of a model to `vision_encoder` and `language_model`, sharding the experts over
their replicas to `fsdp`, tokens and labels further ahead to `language_input`.
Source of depths: DeepSeek-V3 (arXiv:2412.19437, section 2.2). As in its published weights, the
embedding comes before the state in the product's input, and the state is taken after the norm that
precedes a head.

Legend: n tokens of this tp rank, N tokens of its replica's cp rank, D width.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mimo_launch.kinds.block_shapes import BlockShape, DepthShape, MixedShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.dropout import Draws, Dropout, dropout
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.norms import LayerScalar, LayerScale, Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import Remake, recomputed, remake
from mimo_launch.layers.sequence_contexts import KeysValues, SequenceContext
from mimo_launch.layers.shaped_layer import S, ShapedLayer, built
from mimo_launch.models.mlp import Mlp, MoeMlp
from mimo_launch.models.per_layer import PerLayerGate
from mimo_launch.models.te_block import te_blocks
from mimo_launch.spec.module import Recompute

T = TypeVar("T")


class Layer(ShapedLayer[S]):
    """One of a stage's layers; it keeps nothing of the parts that it recomputes but their inputs.

    Parts are functions of the stream: a mixer or an MLP with its norms. With `norms`, the products
    after a norm of the stream do not keep it.
    """

    recompute: Recompute = "none"

    def forward(
        self, x_nD: Tensor, attention_context: AttentionContext
    ) -> Tensor | tuple[Tensor, KeysValues]:
        """Return the layer's output for every token; also keys and values that it gives."""
        if self.recompute != "full":
            return self._compute(x_nD, attention_context)
        out: Tensor | tuple[Tensor, KeysValues] = recomputed(
            self._compute,
            x_nD,
            attention_context,
            apart=self.stands_apart and not attention_context.has_gradients,
        )
        return out

    @property
    def stands_apart(self) -> bool:
        """Whether no other layer gets a gradient from inside of it, and it has no FSDP unit."""
        return False

    def _part(self, part: str, compute: Callable[..., T], *args: Any) -> T:
        """Return the result of a part."""
        out: T = recomputed(compute, *args) if part in self.recompute else compute(*args)
        return out

    def _again(self, part: str, norm: Norm, x_nD: Tensor) -> Remake | None:
        """Return how to make the normed input of a part again, if it is not kept."""
        alone = "norms" in self.recompute and part not in self.recompute
        return remake(norm, x_nD) if alone else None

    def _compute(
        self, x_nD: Tensor, attention_context: AttentionContext
    ) -> Tensor | tuple[Tensor, KeysValues]:
        raise NotImplementedError


class Block(Layer[BlockShape]):
    """Transformer block; norms come before its layers, or act on what these add to the stream.

    Its layers follow each other, or both read the block's input.
    """

    attention_norm: Norm | None
    attention: Attention
    mlp_norm: Norm | None
    post_attention_norm: Norm | None
    post_mlp_norm: Norm | None
    attention_scale: LayerScale | None
    mlp_scale: LayerScale | None
    mlp: Mlp | MoeMlp
    per_layer: PerLayerGate | None
    layer_scalar: LayerScalar | None

    def __init__(self, context: ParallelContext, shape: BlockShape) -> None:
        super().__init__(context, shape)
        self.drop_attention = dropout(context.dropout, context.fused)
        self.drop_mlp = dropout(context.dropout, context.fused)

    @property
    def stands_apart(self) -> bool:
        """Whether no other layer gets a gradient from inside of it, and it has no FSDP unit."""
        return isinstance(self.mlp, Mlp) and self.shape.attention.sharing != "gives"

    def _compute(
        self, x_nD: Tensor, attention_context: AttentionContext
    ) -> Tensor | tuple[Tensor, KeysValues]:
        attended, held = self._part("attention", self._attended, x_nD, attention_context)
        out = self._after_attention(x_nD, attended, attention_context)
        if self.per_layer is not None:
            out = out + self._of_vectors(self.per_layer, out, attention_context)
        out = out if self.layer_scalar is None else self.layer_scalar(out)
        return out if held is None else (out, held)

    def _of_vectors(self, gate: PerLayerGate, x_nD: Tensor, context: AttentionContext) -> Tensor:
        """Return what the per-layer embeddings of the layer add to the stream.

        Raises: ValueError if they are not there.
        """
        if not isinstance(context, SequenceContext) or context.vectors is None:
            raise ValueError("a layer needs its per-layer embeddings")
        out: Tensor = gate(x_nD, context.vectors, context.draws)
        return out

    def _after_attention(
        self, x_nD: Tensor, attended: Tensor, attention_context: AttentionContext
    ) -> Tensor:
        """Return the stream after attention, which adds `attended`, and MLP."""
        if self.shape.parallel:
            change = self._part("mlp", self._of_stream, x_nD, attention_context)
            return x_nD + attended + change
        if "mlp" in self.recompute:
            x_nD = x_nD + attended
            return x_nD + self._part("mlp", self._of_stream, x_nD, attention_context)
        again = None
        if self.mlp_norm is None:
            x_nD = normed = x_nD + attended
        else:
            x_nD, normed = self.mlp_norm.after(x_nD, attended)
            again = self._again("mlp", self.mlp_norm, x_nD)
        out: Tensor = x_nD + self._changed(x_nD, normed, attention_context, again)
        return out

    def _attended(
        self, x_nD: Tensor, attention_context: AttentionContext
    ) -> tuple[Tensor, KeysValues | None]:
        """Return what attention adds to the stream, and keys and values that it gives."""
        normed, again = x_nD, None
        if self.attention_norm is not None:
            normed = self.attention_norm(x_nD)
            again = self._again("attention", self.attention_norm, x_nD)
        found = self.attention(normed, attention_context, again)
        attended, held = found if isinstance(found, tuple) else (found, None)
        if self.post_attention_norm is not None:
            attended = self.post_attention_norm(attended)
        if self.attention_scale is not None:
            attended = self.attention_scale(attended)
        return self._added(attended, self.drop_attention, attention_context.draws), held

    def _of_stream(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return what the MLP adds to the stream, from the stream.

        A norm that attention reads, too, is made anew, so that either part can be made again alone.
        """
        normed, again = x_nD, None
        norm = self.attention_norm if self.shape.parallel else self.mlp_norm
        if norm is not None:
            normed = norm(x_nD)
            again = self._again("mlp", norm, x_nD)
        return self._changed(x_nD, normed, attention_context, again)

    def _changed(
        self,
        x_nD: Tensor,
        normed_nD: Tensor,
        attention_context: AttentionContext,
        again: Remake | None,
    ) -> Tensor:
        """Return what the MLP adds to the stream, from the stream before and after its norm."""
        change: Tensor = (
            self.mlp(normed_nD, attention_context, again, x_nD)
            if isinstance(self.mlp, MoeMlp)
            else self.mlp(normed_nD, attention_context.draws, again)
        )
        if self.post_mlp_norm is not None:
            change = self.post_mlp_norm(change)
        if self.mlp_scale is not None:
            change = self.mlp_scale(change)
        return self._added(change, self.drop_mlp, attention_context.draws)

    def _added(self, change_nD: Tensor, drop: Dropout | None, draws: Draws | None) -> Tensor:
        """Return what a layer adds to the stream: less what it drops, times the model's factor."""
        if drop is not None and draws is not None:
            change_nD = drop(change_nD, draws.own)
        factor = self.shape.residual_scale
        return change_nD if factor is None else change_nD * factor


class HybridLayer(Layer[MixedShape]):
    """The layer of a letter: its mixer is `mamba`, `deltanet`, `short_conv`, `attention`, ..."""

    norm: Norm

    def __init__(self, context: ParallelContext, shape: MixedShape) -> None:
        super().__init__(context, shape)
        self.drop = dropout(context.dropout, context.fused)

    @property
    def stands_apart(self) -> bool:
        """Whether no other layer gets a gradient from inside of it, and it has no FSDP unit."""
        return not isinstance(self.get_submodule(self.shape.name), MoeMlp)

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        return x_nD + self._part(self.shape.part, self._mixed, x_nD, attention_context)

    def _mixed(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return what the mixer adds to the stream."""
        mixer, normed = self.get_submodule(self.shape.name), self.norm(x_nD)
        again = self._again(self.shape.part, self.norm, x_nD)
        draws = attention_context.draws
        given = (draws if isinstance(mixer, Mlp) else attention_context, again)
        mixed: Tensor = mixer(normed, *given, *((x_nD,) if isinstance(mixer, MoeMlp) else ()))
        return mixed if self.drop is None or draws is None else self.drop(mixed, draws.own)


class MtpDepth(ShapedLayer[DepthShape]):
    """One depth: [n, D] from the depth before and embeddings -> [n, D] for the output layer."""

    token_norm: Norm
    hidden_norm: Norm
    project: RowLinear
    block: Block
    norm: Norm

    def __init__(
        self, context: ParallelContext, shape: DepthShape, *, recompute: Recompute
    ) -> None:
        super().__init__(context, shape)
        self.recompute, self.part = recompute, context.part(2 * shape.block.width)
        if recompute != "full":
            self.block.recompute = recompute

    def forward(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        """Return each token's state, from its state at the depth before and the token ahead."""
        if self.recompute != "full":
            return self._compute(x_nD, token_nD, sequences)
        apart = self.block.stands_apart and not sequences.has_gradients
        out: Tensor = recomputed(self._compute, x_nD, token_nD, sequences, apart=apart)
        return out

    def _compute(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        both = torch.cat([self.token_norm(token_nD), self.hidden_norm(x_nD)], dim=1)
        # Each tp rank multiplies its part of the input features.
        mine = self.context.enter(both)[:, self.part.start : self.part.stop]
        out: Tensor = self.norm(self.block(self.project(mine, sequences.draws), sequences))
        return out


def blocks(
    context: ParallelContext, shapes: Mapping[int, LayerShape], *, recompute: Recompute
) -> nn.ModuleDict:
    """Return the layers of a stage, by their number in the whole model.

    Raises: BackendError if the backend cannot be used.
    """
    if context.backend == "transformer_engine":
        return te_blocks(context, shapes, recompute=recompute)
    made = nn.ModuleDict()
    for number, shape in shapes.items():
        layer: Layer[Any] = built(context.of_layer(number), shape)
        layer.recompute = recompute
        made[str(number)] = layer
    return made
