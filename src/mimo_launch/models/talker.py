"""A talker as a stage: frames of codec tokens and language rows in, the loss of the codes out.

Decides: how codes and rows reach the tokens; that all codes of a frame are predicted together.
Relies on: `row_places` for the places of rows, `layers.vocab_parallel` for tables and heads.
Leaves: dividing the loss by N to the runtime.
Source: the talker of Qwen2.5-Omni (arXiv:2503.20215), where codes and rows share one width and one
map to the stream; sums of embeddings and a head for each codebook as in MusicGen
(arXiv:2306.05284).

Legend: K codebooks, N frames of this cp rank, n tokens of this rank, with its frames first, E width
of rows, D width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.kinds.talker import TalkerKind
from mimo_launch.layers.image_contexts import turned_in_order
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.vocab_parallel import (
    VocabEmbedding,
    greedy_choice,
    vocab_cross_entropy,
)
from mimo_launch.models.code_frames import CodeFrames, CodesCanvas, code_frames
from mimo_launch.models.row_places import with_rows
from mimo_launch.models.stage_interface import ListForward, ModelStage, RowsInput, StageLosses
from mimo_launch.spec.spec import TalkerModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechInput(RowsInput):
    """The input of a talker; the first and the last stage get frames of codes."""

    frames: CodeFrames | None

    @property
    def needed(self) -> CodeFrames:
        """The frames. Raises: ValueError on a stage between others."""
        if self.frames is None:
            raise ValueError("the first and the last stage of a talker need frames of codes")
        return self.frames


class TalkerStage(ModelStage):
    """Consecutive layers; the first stage embeds codes and rows, the last computes the loss."""

    kind: TalkerKind
    model: TalkerModel
    codes: VocabEmbedding
    project: WholeLinear
    norm: Norm
    heads: nn.ModuleList

    @property
    def part(self) -> range:
        """The codes with heads on this tp rank."""
        return self.context.part(self.model.vocab)

    def inputs(self, forward: ListForward) -> SpeechInput:
        """Return the input of a forward: frames to learn from, or those said so far."""
        frames = None
        if forward.canvas is not None:
            frames = forward.canvas.seen()
        elif forward.at_end:
            frames = code_frames(forward.patches())
        return SpeechInput.of(forward, frames=frames, **forward.arrived)

    def canvas(self, forward: ListForward, num_steps: int) -> CodesCanvas:
        """Return clips without codes, as long as the true ones; `num_steps` is for flows."""
        return CodesCanvas(forward, self.model)

    def forward(self, hidden: Tensor | None, packed: SpeechInput) -> Tensor | StageLosses:
        """Return the hidden state [n, D], or on the last stage the summed loss of its cp rank.

        The loss of a frame is the mean of the losses of its codes. Every tp rank of a replica
        returns the same value. Without gradients the last stage also returns the number of codes
        for which its most probable code is right; without labels it returns the most probable codes
        [N, K] instead.
        """
        x_nD = self._embed(packed) if hidden is None else hidden
        model = self.model
        mask = turned_in_order(
            packed.mask, model.head_size, model.rope_theta, x_nD.dtype, model.rope_scaling
        )
        for layer in self.layers.values():
            x_nD = layer(x_nD, mask)
        if not self.stage.is_last:
            return x_nD
        x_ND = self.context.enter(self.norm(x_nD[: len(packed.own)]))
        labels_NK = packed.needed.labels
        if labels_NK is None:
            return self._choices(x_ND)
        losses = (
            vocab_cross_entropy(head(x_ND), labels_NK[:, book], self.part, self.context).sum()
            for book, head in enumerate(self.heads)
        )
        loss = torch.stack(list(losses)).mean()
        if torch.is_grad_enabled():
            return StageLosses((loss,))
        return StageLosses((loss,), right=(self._choices(x_ND) == labels_NK).sum())

    def _choices(self, x_ND: Tensor) -> Tensor:
        """Return the most probable code of each codebook, [N, K]."""
        found = (greedy_choice(head(x_ND), self.part, self.context.tp) for head in self.heads)
        return torch.stack(list(found), dim=1)

    def _embed(self, packed: SpeechInput) -> Tensor:
        """Return the tokens [n, D] before the first layer."""
        tokens_NK = packed.needed.tokens
        # The tables of all codebooks form one table, one below the other.
        first_K = torch.arange(self.model.codebooks, device=tokens_NK.device) * self.model.vocab
        x_nE = F.pad(self.codes(tokens_NK + first_K), (0, 0, 0, packed.extra_tokens))
        # It reads one module.
        ((source, received),) = packed.rows.items()
        where = packed.row_places[source]
        embedded: Tensor = self.project(with_rows(x_nE, received, where, self.context))
        return embedded
