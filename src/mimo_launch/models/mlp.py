"""The part of a block after attention: an MLP, plain or gated, or experts for each token.

Decides: which tokens of a replica each tp rank sends to the experts, and how their answers are
combined.
Relies on: `layers.router` and `layers.experts`; `layers` for linear maps that know their tp group.
Leaves: norms and residual connections to `transformer_block`.

Legend: N tokens of a replica's cp rank, n tokens of this tp rank, D width, k choices of a token.

tp ranks that hold the same tokens (without sequence parallelism) each route a part of them;
otherwise every token would travel once per tp rank.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.autograd_collectives import gather_rows, split_rows
from mimo_launch.kinds.layer import even_cut
from mimo_launch.kinds.mlp_shapes import MlpShape, MoeShape
from mimo_launch.layers.clipped import Clipped
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.experts import Dispatch, Experts, PlannedDispatch, from_experts, to_experts
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.linear import RegionInputs, RowLinear
from mimo_launch.layers.norms import Norm, TokenGate
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS, GATED
from mimo_launch.layers.recompute import Remake
from mimo_launch.layers.router import Choice, Router, TokenShares
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.xielu import Xielu


class Mlp(ShapedLayer[MlpShape]):
    """MLP, gated or with an activation, with its inner width cut over tp: [n, D] -> [n, D]."""

    inputs: RegionInputs[Any]
    activation: Xielu | None
    output: RowLinear | Clipped

    def __init__(self, context: ParallelContext, shape: MlpShape) -> None:
        super().__init__(context, shape)
        self.between = GATED[shape.gate] if shape.gate else ACTIVATIONS.get(shape.activation)

    def forward(
        self, x_nD: Tensor, draws: Draws | None = None, again: Remake | None = None
    ) -> Tensor:
        """Return the MLP of every token; see `RegionInputs.of_tokens`."""
        hidden = self.inputs.of_tokens(x_nD, draws, again)
        # Reuse the name: without a backward, this frees the input before the next product.
        if self.between is not None:
            hidden = self.context.fused(self.between, hidden)
        elif self.activation is not None:
            hidden = self.activation(hidden)
        out: Tensor = self.output(hidden, draws)
        return out


class MoeMlp(ShapedLayer[MoeShape]):
    """Experts for each token, and one MLP shared by all tokens if the model has it: [n, D]."""

    router: Router
    experts: Experts
    shared: Mlp | None
    shared_gate: TokenGate | None
    routed_norm: Norm | None
    routed_post_norm: Norm | None
    shared_post_norm: Norm | None

    def forward(
        self,
        x_nD: Tensor,
        attention_context: AttentionContext,
        again: Remake | None,
        stream_nD: Tensor,
    ) -> Tensor:
        """Return the weighted answers of every token's experts.

        x is the stream after the norm of the layer; norms of router and experts read the stream.
        Without a routing context the load is not balanced.
        """
        routing = None
        if isinstance(attention_context, SequenceContext):
            routing = attention_context.routing
        tokens = None if routing is None else self._tokens(routing.shares)
        own_nD, sizes = self._own(x_nD if self.routed_norm is None else stream_nD)
        choice = self.router(own_nD, tokens, None if routing is None else routing.loss)
        planned = PlannedDispatch(self.context, choice)
        # While the host waits for the sizes of the dispatch, the device computes this.
        shared = None if self.shared is None else self.shared(x_nD, attention_context.draws, again)
        if shared is not None and self.shared_gate is not None:
            shared = self.shared_gate(x_nD, shared)
        if shared is not None and self.shared_post_norm is not None:
            shared = self.shared_post_norm(shared)
        if self.routed_norm is not None:
            own_nD = self.routed_norm(own_nD)
        routed = self._answers(own_nD, choice, planned.dispatch())
        if self.routed_post_norm is not None:
            routed = self.routed_post_norm(routed)
        if sizes is not None:
            routed = gather_rows(routed, sizes, self.context.tp)
        return routed if shared is None else routed + shared

    def _own(self, x_nD: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """Return the tokens that this tp rank routes; if they are only a part, also all sizes."""
        tp = self.context.tp
        if tp.size == 1 or self.context.sequence_parallel:
            return x_nD, None
        sizes = tuple(len(even_cut(x_nD.shape[0], tp.size, index)) for index in range(tp.size))
        return split_rows(x_nD, sizes, tp), sizes

    def _tokens(self, shares_BS: Tensor) -> TokenShares:
        """Return the samples of this tp rank's tokens and the tokens' shares of them."""
        tp, (samples, positions) = self.context.tp, shares_BS.shape
        part = even_cut(samples * positions, tp.size, tp.index)
        places = torch.arange(part.start, part.stop, device=shares_BS.device)
        own = shares_BS.flatten()[part.start : part.stop]
        return TokenShares(samples, places // positions, own)

    def _answers(self, x_nD: Tensor, choice: Choice, dispatch: Dispatch) -> Tensor:
        # Weights are factors of what experts read, or of their answers.
        of_inputs = self.shape.moe.scale_inputs
        arrived = to_experts(x_nD, dispatch, self.context, choice.weights if of_inputs else None)
        answers = self.experts(arrived, dispatch.runs)
        weights = None if of_inputs else choice.weights
        return from_experts(answers, dispatch, self.context, weights)
