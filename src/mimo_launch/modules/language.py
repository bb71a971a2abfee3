"""The decoder as a stage: tokens and encoder rows in, loss or logits out.

Decides: how rows replace placeholder embeddings.
Relies on: `layout.shards` for the places of the rows this rank receives.
Leaves: dividing the loss by N to the runtime.

Legend: B sequences of S tokens in a microbatch, N = B * S tokens, D width, v vocabulary part.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mimo_launch.comm.autograd import gather_rows
from mimo_launch.modules.block import Block, BlockShape
from mimo_launch.parallel.attention import CausalMask, rotary
from mimo_launch.parallel.context import ParallelContext
from mimo_launch.parallel.layers import Norm, VocabEmbedding, VocabHead
from mimo_launch.parallel.loss import greedy_choice, mask_padding, vocab_cross_entropy
from mimo_launch.spec.model import DecoderModel


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of one encoder go in one microbatch, as this rank sees it.

    `sizes` are the rows each tp rank received; `places` are the indices of all rows (or, under
    sequence parallelism, of this rank's own) in this rank's token list, in row order.
    """

    sizes: tuple[int, ...]
    places: Tensor


class LanguageStage(nn.Module):
    """A whole decoder (pipeline stages come with pp > 1)."""

    def __init__(
        self, context: ParallelContext, model: DecoderModel, *, vocab: int, padded_vocab: int
    ) -> None:
        super().__init__()
        self.context, self.model, self.vocab = context, model, vocab
        self.embedding = VocabEmbedding(context, padded_vocab, model.hidden)
        shape = BlockShape(
            width=model.hidden,
            heads=model.heads,
            kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            mlp=model.mlp_width,
            layers=model.layers,
            norm="rms",
            gated=True,
            bias=False,
            qk_norm=model.qk_norm,
        )
        self.layers = nn.ModuleDict({str(i): Block(context, shape) for i in range(model.layers)})
        self.norm = Norm(context, model.hidden, "rms")
        self.head = VocabHead(context, padded_vocab, model.hidden)

    def forward(
        self,
        tokens_BS: Tensor,
        rows: Mapping[str, Tensor],
        placements: Mapping[str, Placement],
        labels_BS: Tensor | None,
    ) -> Tensor:
        """Return the summed loss of the labels, or without labels the greedy next tokens [B, S].

        Shapes: tokens and labels [B, S]; rows[encoder] [r, D], the rows this rank received. Every
        tp rank of a replica returns the same value. Gradient: of the sum of token losses, no mean.
        """
        batch, seq = tokens_BS.shape
        x_nD = self.embedding(tokens_BS.flatten())
        for encoder, received in rows.items():
            placement = placements[encoder]
            if not self.context.sequence_parallel:
                received = gather_rows(received, placement.sizes, self.context.tp)  # noqa: PLW2901
            x_nD = x_nD.index_copy(0, placement.places, received.to(x_nD.dtype))
        positions = torch.arange(seq, device=x_nD.device)
        cos, sin = rotary(positions, self.model.head_size, self.model.rope_theta, x_nD.dtype)
        mask = CausalMask(batch, cos, sin)
        for layer in self.layers.values():
            x_nD = layer(x_nD, mask)
        x_ND = self.context.enter(self.norm(x_nD))
        logits = mask_padding(self.head(x_ND), self.head.part, self.vocab)
        if labels_BS is None:
            return greedy_choice(logits, self.head.part, self.context.tp).view(batch, seq)
        losses = vocab_cross_entropy(logits, labels_BS.flatten(), self.head.part, self.context.tp)
        return losses.sum()
