"""A talker as a stage: frames of codec tokens and language rows in, the loss of the codes out.

Decides: how codes and rows reach the tokens; that all codes of a frame are predicted together, or
the first one alone and the others by `code_predictor`.
Relies on: `row_places` for the places of rows, `layers.vocab_parallel` for tables and heads.
Leaves: dividing the loss by N to the runtime.
Source: the talker of Qwen2.5-Omni (arXiv:2503.20215), where codes and rows share one width and one
map to the stream; sums of embeddings and a head for each codebook as in MusicGen
(arXiv:2306.05284).

Legend: K codebooks, N frames of this cp rank, n tokens of this rank, with its frames first, E width
of rows, D width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.kinds.talker import ApartShape, RowMlpShape, TalkerKind
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layers.image_contexts import turned_in_order
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.vocab_parallel import (
    VocabEmbedding,
    greedy_choice,
    vocab_cross_entropy,
)
from mimo_launch.models.code_frames import CodeFrames, CodesCanvas, code_frames
from mimo_launch.models.code_predictor import CodePredictor
from mimo_launch.models.row_places import RowPlaces, all_rows, with_rows
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


class RowMlp(ShapedLayer[RowMlpShape]):
    """Two linear maps of rows, with SiLU between them: [r, E] -> [r, D]."""

    up: WholeLinear
    down: WholeLinear

    def forward(self, x_rE: Tensor) -> Tensor:
        """Return the map of each row."""
        made: Tensor = self.down(F.silu(self.up(x_rE)))
        return made


class ApartMaps(ShapedLayer[ApartShape]):
    """A map of states, and another one of embeddings of text: [r, E] -> [r, D]."""

    states: RowMlp
    text: RowMlp | None

    def forward(self, x_rE: Tensor, where: RowPlaces) -> Tensor:
        """Return the map of each row; rows of another module than language are states."""
        if where.apart is None or self.text is None:
            made: Tensor = self.states(x_rE)
            return made
        media, text = (x_rE.index_select(0, each) for each in where.apart)
        return where.joined(self.states(media), self.text(text))


class TalkerStage(ModelStage):
    """Consecutive layers; the first stage embeds codes and rows, the last computes the loss."""

    kind: TalkerKind
    model: TalkerModel
    codes: VocabEmbedding
    project: WholeLinear | ApartMaps
    norm: Norm
    heads: nn.ModuleList
    predictor: CodePredictor | None
    later: nn.ModuleList | None

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

        The loss of a frame is the mean of the losses of its codes; after the last frame a code
        predictor has nothing to say, which counts as right. Every tp rank of a replica
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
        x_nD = self.norm(x_nD[: len(packed.own)])
        labels_NK = packed.needed.labels
        if labels_NK is None:
            return self._said(x_nD)
        if self.predictor is not None:
            ends_N1 = labels_NK[:, :1] == self.model.end_code
            labels_NK = torch.cat(
                [labels_NK[:, :1], labels_NK[:, 1:].masked_fill(ends_N1, IGNORE_LABEL)], dim=1
            )
        logits = list(self._logits(x_nD, labels_NK.clamp(min=0)))
        losses = [
            vocab_cross_entropy(of_book, labels_NK[:, book], part, self.context).sum()
            for book, (of_book, part) in enumerate(logits)
        ]
        loss = torch.stack(losses).mean()
        if torch.is_grad_enabled():
            return StageLosses((loss,))
        right = (self._choices(logits) == labels_NK).sum()
        if self.predictor is not None:
            right = right + ends_N1.sum() * (self.model.codebooks - 1)
        return StageLosses((loss,), right=right)

    def _logits(self, x_nD: Tensor, codes_NK: Tensor) -> Iterator[tuple[Tensor, range]]:
        """Yield this rank's logits [N, v] of each codebook, and the codes that they are of.

        A code predictor reads the codes of a frame that come before the one that it predicts.
        """
        x_ND, sizes = self.context.enter(x_nD), iter(self.model.book_sizes)
        for head in self.heads:
            yield head(x_ND), self.context.part(next(sizes))
        if self.predictor is not None:
            states = self.predictor(x_nD, codes_NK[:, :-1], [self.codes, *self._later])
            for head, x_ND in zip(self.predictor.heads, states, strict=True):
                yield head(x_ND), self.context.part(next(sizes))

    def _choices(self, logits: Iterable[tuple[Tensor, range]]) -> Tensor:
        """Return the most probable code of each codebook, [N, K]."""
        found = (greedy_choice(of_book, part, self.context.tp) for of_book, part in logits)
        return torch.stack(list(found), dim=1)

    def _said(self, x_nD: Tensor) -> Tensor:
        """Return the most probable codes [N, K], each given those before it in its frame."""
        books = self.model.codebooks
        frames = len(x_nD) * (self.context.tp.size if self.context.sequence_parallel else 1)
        said_NK = torch.zeros((frames, books), dtype=torch.int64, device=x_nD.device)
        for _ in range(1 if self.predictor is None else books):
            # Codes after the one that is next do not change it.
            said_NK = self._choices(self._logits(x_nD, said_NK))
        return said_NK

    @property
    def _later(self) -> Iterator[VocabEmbedding]:
        """The tables of the codebooks after the first."""
        return (cast("VocabEmbedding", each) for each in self.later or ())

    def _embedded(self, tokens_NK: Tensor) -> Tensor:
        """Return the sum of the embeddings of each frame's codes, [n, E]."""
        model = self.model
        if self.later is None:
            # The tables of all codebooks form one table, one below the other.
            first_K = torch.arange(model.codebooks, device=tokens_NK.device) * model.vocab
            summed: Tensor = self.codes(tokens_NK + first_K)
            return summed
        # Only the first codebook has `start`; no rank has the id -1, which embeds as zeros.
        first_N, *others = tokens_NK.unbind(1)
        x_NE = self.codes.own_rows(first_N)
        for table, ids_N in zip(self._later, others, strict=True):
            x_NE = x_NE + table.own_rows(ids_N.masked_fill(first_N == model.start_code, -1))
        found: Tensor = self.context.leave(x_NE)
        return found

    def _embed(self, packed: SpeechInput) -> Tensor:
        """Return the tokens [n, D] before the first layer."""
        model, tokens_NK = self.model, packed.needed.tokens
        x_nE = F.pad(self._embedded(tokens_NK), (0, 0, 0, packed.extra_tokens))
        # It reads one module.
        ((source, received),) = packed.rows.items()
        where = packed.row_places[source]
        if model.maps_rows_alone:
            rows = all_rows(received, where, self.context).to(x_nE.dtype)
            rows = self.project(rows, where) if model.maps_text_apart else self.project(rows)
            return x_nE.index_add(0, where.places, rows.to(x_nE.dtype))
        embedded: Tensor = self.project(with_rows(x_nE, received, where, self.context))
        return embedded
