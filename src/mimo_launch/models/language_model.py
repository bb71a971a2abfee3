"""A language model as a stage: tokens and encoder rows in, loss or logits out.

Decides: how rows replace placeholder embeddings.
Relies on: `layout.row_owners` for the places of the rows that this rank receives.
Leaves: dividing the loss by N to the runtime.

Legend: B sequences of S tokens in a microbatch, N = B * S tokens, n tokens of this rank, D width, r
rows of an encoder, V vocabulary, v this rank's part of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import gather_rows
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import Ends, ReadState, Sight, even_cut
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import soft_capped, widened
from mimo_launch.layers.sequence_contexts import (
    KeysValues,
    SequenceContext,
    in_window,
    query_factors,
    sequence_context,
    with_images,
    zigzag_positions,
)
from mimo_launch.layers.vocab_parallel import (
    VocabEmbedding,
    VocabHead,
    greedy_choice,
    mask_padding,
    vocab_cross_entropy,
)
from mimo_launch.layout.stages import Stage
from mimo_launch.models.custom_loss import (
    LabelledTokens,
    build_loss,
    cast_network,
    terms_of,
    without_memory,
)
from mimo_launch.models.language_input import (
    Labelled,
    LanguageInput,
    TextForward,
    language_input,
    read_labelled,
)
from mimo_launch.models.per_layer import PerLayerInputs
from mimo_launch.models.row_places import RowPlaces, all_rows, rows_at
from mimo_launch.models.stage_interface import ModelStage, StageLosses
from mimo_launch.models.transformer_block import MtpDepth
from mimo_launch.spec.custom_loss import CustomLoss
from mimo_launch.spec.module import Recompute
from mimo_launch.spec.spec import LanguageModel, Spec


class LanguageStage(ModelStage):
    """Consecutive layers; the first stage embeds tokens, the last stage computes the loss."""

    kind: LanguageKind
    model: LanguageModel
    embedding: VocabEmbedding
    per_layer: PerLayerInputs | None
    norm: Norm
    head: VocabHead

    def __init__(
        self,
        context: ParallelContext,
        kind: LanguageKind,
        stage: Stage,
        ends: Ends,
        *,
        recompute: Recompute,
    ) -> None:
        # If the last stage needs the embedding, it and the first stage hold it, by the same name.
        super().__init__(context, kind, stage, ends, recompute=recompute)
        self.sights = {number: kind.sight(number) for number in stage.layers}
        self.key_sources = {number: kind.key_source(number) for number in stage.layers}
        numbers = kind.numbers(stage.layers, is_last=stage.is_last)[len(stage.layers) :]
        self.mtp = nn.ModuleList(
            MtpDepth(context.bare, kind.depth(number), recompute=recompute) for number in numbers
        )

        # A user's loss, and its section of the spec.
        self.loss: nn.Module | None = None
        self.asked: CustomLoss | None = None

    @classmethod
    def build(cls, spec: Spec, stage: Stage, context: ParallelContext) -> Self:
        """Return the layers of one stage with unset weights, and the user's loss, if any."""
        made = super().build(spec, stage, context)
        if stage.is_last and (asked := spec.language.loss) is not None:
            made.asked = asked
            with without_memory():
                made.loss = loss = build_loss(spec, context)
            cast_network(loss, context)
        return made

    def inputs(self, forward: TextForward) -> LanguageInput:
        """Return the input of a forward."""
        made = language_input(forward, self.kind)
        if self.asked is None or made.labels is None:
            return made
        return replace(made, labelled=read_labelled(forward, self.asked))

    def forward(self, hidden: Tensor | None, batch: LanguageInput) -> Tensor | StageLosses:
        """Return the hidden state [n, D], or on the last stage the summed losses of the labels.

        The first loss covers the next tokens; one more follows for each text of `batch.ahead`.
        Without labels the last stage returns the greedy next tokens [B, S]. Every tp rank of a
        replica returns the same value. Gradient: of the sum of token losses, not the mean. If
        generators read the last norm's output, the last stage also returns, by generator, the rows
        [r, D] that this rank sends.
        """
        states: dict[int | None, Tensor] = {}
        vectors: Mapping[int, Tensor] = {}
        if hidden is None:
            x_nD, deep = self._embed(batch)
            vectors = self._vectors(batch, x_nD)
        else:
            x_nD, *deep = torch.split(hidden, self.model.hidden, dim=1)
            # States that generators read come last.
            behind = [each for each in self.ends.kept_layers if each <= self.stage.layers.start]
            states.update(zip(behind, deep[len(deep) - len(behind) :], strict=True))
            deep = deep[: len(deep) - len(behind)]
        contexts = self._contexts(batch, x_nD.dtype)
        held: dict[int, KeysValues] = {}
        for number, layer in self.layers.items():
            sequences = contexts[self.sights[int(number)]]
            context = replace(sequences, vectors=vectors.get(int(number)))
            x_nD = self._after_layer(int(number), layer, x_nD, context, held)
            if (done := int(number) + 1) in self.ends.kept_layers:
                states[done] = x_nD
            if deep:
                x_nD = x_nD + deep.pop(0)
        if not self.stage.is_last:
            on = [x_nD, *deep, *states.values()]
            return torch.cat(on, dim=1) if len(on) > 1 else x_nD
        normed_nD = self.norm(x_nD)
        if batch.labels is None:
            logits, part = self._logits(self.context.enter(normed_nD))
            return greedy_choice(logits, part, self.context.tp).view(batch.num_sequences, -1)
        if self.loss is None or batch.labelled is None:
            loss_N = self._token_losses(normed_nD, batch.labels)
        else:
            loss_N = self._own_losses(self.loss, normed_nD, batch, batch.labelled)
        losses, by_source = [loss_N.sum()], None
        if batch.sources is not None:
            by_source = (loss_N.detach().double() * batch.sources.flatten(1)).sum(dim=1)
        if self.mtp:
            last = self.sights[self.stage.layers.stop - 1]
            losses += self._losses_ahead(normed_nD, batch, contexts[last])
        rows = {
            reader: self._sent(reader, {None: normed_nD, **states}, where, batch)
            for reader, where in batch.wanted.items()
        }
        return StageLosses(tuple(losses), rows, by_source=by_source)

    def _vectors(self, batch: LanguageInput, x_nD: Tensor) -> Mapping[int, Tensor]:
        """Return the per-layer embeddings of each layer, if the model has any."""
        if self.per_layer is None or batch.looked_up is None:
            return {}
        return dict(enumerate(self.per_layer(batch.looked_up.flatten(), x_nD)))

    def _after_layer(
        self,
        number: int,
        layer: nn.Module,
        x_nD: Tensor,
        context: SequenceContext,
        held: dict[int, KeysValues],
    ) -> Tensor:
        """Return the stream after a layer; `held` has keys of earlier layers, and gets its own."""
        source = self.key_sources[number]
        made = layer(x_nD, replace(context, held=held[source]) if source in held else context)
        if isinstance(made, tuple):
            made, held[number] = made
        out: Tensor = made
        return out

    def _losses_ahead(
        self, x_nD: Tensor, batch: LanguageInput, sequences: SequenceContext
    ) -> Iterator[Tensor]:
        """Yield the loss of each depth; the first depth reads the output layer's input."""
        for depth, text in zip(self.mtp, batch.ahead, strict=False):
            token_nD = self._embedded(text.tokens).to(x_nD.dtype)
            x_nD = depth(x_nD, token_nD, replace(sequences, routing=text.routing))
            yield self._token_losses(x_nD, text.labels).sum()

    def _contexts(self, batch: LanguageInput, dtype: torch.dtype) -> dict[Sight, SequenceContext]:
        """Return the attention context of each kind of layer."""
        cp, positions = self.context.cp, batch.positions
        seq = positions.shape[-1] * cp.size
        held = zigzag_positions(seq, cp.index, cp.size, positions.device)
        sequences, documents = batch.num_sequences, batch.documents
        sights = dict.fromkeys(self.sights.values())
        # Layers that rotate alike share the angles, those with one window a mask.
        turned = {
            rotary: sequence_context(
                sequences, positions, rotary, dtype, documents=documents, routing=batch.routing
            )
            for rotary in dict.fromkeys([None, *(sight.rotary for sight in sights)])
        }
        plain = turned[None]
        seen = {sight.window: in_window(plain, sight.window, seq) for sight in sights}
        if batch.images is not None:
            given = batch.images, cp.index, cp.size, dtype
            attending = self.kind.attending
            seen |= {
                window: with_images(seen[window], *given, whole=attending.whole_prompts)
                for window in {
                    sight.window
                    for number, sight in self.sights.items()
                    if attending.sees_later(number)
                }
            }
        return {
            sight: replace(
                seen[sight.window],
                cos=turned[sight.rotary].cos,
                sin=turned[sight.rotary].sin,
                factors=query_factors(sight.growth, documents, held, seq, dtype),
                draws=batch.draws,
            )
            for sight in sights
        }

    def _sent(
        self,
        reader: str,
        states: Mapping[int | None, Tensor],
        where: RowPlaces,
        batch: LanguageInput,
    ) -> Tensor:
        """Return the rows [r, D] that this rank sends to a generator, from its states by layer."""
        read = dict(self.ends.readers).get(reader, ReadState())
        x_nD = states[read.layer]
        if read.text is None:
            return rows_at(x_nD, where, self.context)
        if batch.tokens is None:
            raise ValueError("the last stage of language needs tokens for generators of speech")
        text_nD = self._embedded(batch.tokens).to(x_nD.dtype)
        if read.text == "added":
            return rows_at(x_nD + text_nD, where, self.context)
        return rows_at(x_nD, where, self.context, text_nD)

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [n, D] of tokens."""
        return _scaled(self.embedding(tokens.flatten()), self.kind.embedding_scale)

    def _token_losses(self, normed_nD: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss of each label, [N]; 0 where there is none."""
        logits, part = self._logits(self.context.enter(normed_nD))
        return vocab_cross_entropy(logits, labels_BS.flatten(), part, self.context)

    def _own_losses(
        self, loss: nn.Module, normed_nD: Tensor, batch: LanguageInput, labelled: Labelled
    ) -> Tensor:
        """Return the user's loss of each label, [N]; 0 where there is none."""
        if batch.labels is None:
            raise ValueError("a loss needs labels")
        context, places = self.context, labelled.places
        labels_M = batch.labels.flatten()[places]
        # A loss may read each several times; logits are gathered once.

        @cache
        def part() -> tuple[Tensor, range]:
            return self._logits(context.enter(normed_nD)[places])

        @cache
        def hidden() -> Tensor:
            # Every tp rank computes the whole loss: gradients are complete, and not summed.
            whole = normed_nD
            if context.sequence_parallel:
                whole = gather_rows(normed_nD, (len(normed_nD),) * context.tp.size, context.tp)
            return whole[places]

        @cache
        def logits() -> Tensor:
            logits_Mv, _ = part()
            sizes = tuple(
                len(even_cut(self.ends.vocab, context.tp.size, index))
                for index in range(context.tp.size)
            )
            logits_VM = gather_rows(logits_Mv.t().contiguous(), sizes, context.tp)
            return widened(logits_VM[: self.ends.words].t())

        @cache
        def cross_entropy() -> Tensor:
            logits_Mv, words = part()
            return vocab_cross_entropy(logits_Mv, labels_M, words, context)

        tokens = LabelledTokens(labels_M, labelled.columns, hidden, logits, cross_entropy)
        terms_M = widened(terms_of(loss, tokens))
        loss_N = terms_M.new_zeros(batch.labels.numel()).index_copy(0, places, terms_M)
        # Every weight gets a gradient, if only of 0: ranks reduce the same ones.
        is_used = part.cache_info().currsize > 0
        logits_0v = (part() if is_used else self._logits(context.enter(normed_nD)[:0]))[0][:0]
        unused = [logits_0v, normed_nD[:0], *(each.flatten()[:0] for each in loss.parameters())]
        return loss_N + torch.stack([each.sum().to(loss_N.dtype) for each in unused]).sum()

    def _logits(self, x_ND: Tensor) -> tuple[Tensor, range]:
        """Return this rank's logits [N, v] and their range of token ids."""
        if self.model.tied:
            part, logits = self.embedding.part, F.linear(x_ND, self.embedding.weight)
        else:
            part, logits = self.head.part, self.head(x_ND)
        if self.kind.logit_scale is not None:
            logits = logits * self.kind.logit_scale
        if self.kind.logit_cap is not None:
            logits = self.context.fused(soft_capped, logits, self.kind.logit_cap)
        return mask_padding(logits, part, self.ends.words), part

    def _embed(self, batch: LanguageInput) -> tuple[Tensor, list[Tensor]]:
        """Return token embeddings in which rows replace their placeholders.

        The second result is added after each of the first layers: rows at the same places, 0
        elsewhere.
        """
        if batch.tokens is None:
            raise ValueError("the first stage of language needs tokens")
        x_nD = self._embedded(batch.tokens)
        deep = [torch.zeros_like(x_nD) for _ in range(self.ends.deep_rows)]
        for encoder, received in batch.rows.items():
            where = batch.row_places[encoder]
            rows = all_rows(received, where, self.context).to(x_nD.dtype)
            first, *others = torch.split(rows, self.model.hidden, dim=1)
            x_nD = x_nD.index_copy(0, where.places, _scaled(first, self.kind.row_scale))
            for layer, each in enumerate(others):
                deep[layer] = deep[layer].index_copy(0, where.places, each)
        return x_nD, deep


def _scaled(x_nD: Tensor, scale: float | None) -> Tensor:
    """Return x times a scale, which is first rounded to the dtype of x, as in Gemma."""
    if scale is None:
        return x_nD
    return x_nD * torch.full((), scale, dtype=x_nD.dtype, device=x_nD.device)
