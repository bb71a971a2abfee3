"""The small decoder inside each frame of a talker, for the codes after the first.

Decides: that frames are its sequences, whole on the ranks that hold them: cp does not cut it.
Relies on: blocks of `transformer_block`, cut over tp as those of the talker.
Leaves: the first code and all losses to `talker`.
Source: the code predictor of Qwen3-Omni (arXiv:2509.17765); `transformers` 5.24,
models/qwen3_omni_moe.

Legend: N frames of this cp rank, n of this rank, K codebooks, J = K - 1 codes that are read, D
width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.kinds.code_predictor import PredictorShape
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.vocab_parallel import VocabEmbedding


class CodePredictor(ShapedLayer[PredictorShape]):
    """Blocks over the state of a frame and its codes; each codebook after the first has a head."""

    blocks: nn.ModuleList
    norm: Norm
    heads: nn.ModuleList

    def __init__(self, context: ParallelContext, shape: PredictorShape) -> None:
        alone = replace(context, cp=SINGLE, fp8=None, dropout=0.0, attention_dropout=0.0)
        super().__init__(alone, shape)

    def forward(
        self, state_nD: Tensor, read_NJ: Tensor, tables: Sequence[VocabEmbedding]
    ) -> Sequence[Tensor]:
        """Return the states [N, D] that predict each code after the first, in order.

        `read_NJ` are the codes of each frame but the last, of which each has one of the `tables`.
        """
        frames, books = read_NJ.shape
        shards = self.context.tp.size if self.context.sequence_parallel else 1
        if not frames:
            # A frame that nothing learns keeps the backward going through every weight.
            state_nD, read_NJ = F.pad(state_nD, (0, 0, 0, 1)), read_NJ.new_zeros((shards, books))
        read = zip(tables, read_NJ.unbind(1), strict=False)
        code_NJD = torch.stack([table.own_rows(ids_N) for table, ids_N in read], dim=1)
        # Nothing reads the last table here, but both ends sum the gradients of all.
        code_NJD = code_NJD + tables[-1].own_rows(read_NJ[:0, 0]).sum()
        code_nJD = self.context.leave(code_NJD.flatten(0, 1)).view(len(state_nD), books, -1)
        x_nD = torch.cat([state_nD[:, None], code_nJD.to(state_nD.dtype)], dim=1).flatten(0, 1)
        places = torch.arange(books + 1, device=x_nD.device)
        inside = sequence_context(
            len(read_NJ), places, self.shape.rotary, x_nD.dtype, documents=None
        )
        for block in self.blocks:
            x_nD = block(x_nD, inside)
        x_ND = self.context.enter(self.norm(x_nD)).view(len(read_NJ), books + 1, -1)[:frames]
        return x_ND[:, 1:].unbind(1)
