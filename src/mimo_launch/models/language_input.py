"""The input of a language stage: tokens, positions, documents, rows and labels.

Decides: the form of text, documents and places for a model; that text of multi-token prediction is
shifted before it is cut over cp, so that no rank needs another rank's tokens; that a token counts
in the balance of experts only if there is a token that far ahead.
Relies on: `layout.step_views` for the samples of a replica, so that every language stage knows them
without messages; `data.order.packing` for documents.
Leaves: reading to `train`, angles and the loss to `language_model`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.order.packing import has_ahead, labels_ahead, tokens_ahead
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.router import AuxLoss, RoutingContext
from mimo_launch.layers.sequence_contexts import Documents, places, zigzag_positions
from mimo_launch.layout.replica_views import LanguageView
from mimo_launch.layout.stages import Stage
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.stage_interface import StepInputs
from mimo_launch.models.text_positions import axis_positions
from mimo_launch.models.token_numbers import text_draws
from mimo_launch.spec.custom_loss import CustomLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForward:
    """One forward of a language stage on a microbatch.

    On the first stage, `rows` [r, width] are the rows that this rank received, by source module,
    and `row_places` their places among its tokens; on the last stage, `wanted` are the places of
    the rows that generators read. `written` are the tokens so far of greedy answers [B, all
    positions], while the last stage chooses them instead of computing a loss. `balance` adds up the
    losses of experts.
    """

    context: ParallelContext
    stage: Stage
    view: LanguageView
    samples: StepInputs
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    row_places: Mapping[str, RowPlaces] = field(default_factory=dict)
    wanted: Mapping[str, RowPlaces] = field(default_factory=dict)
    written: Tensor | None = None
    balance: AuxLoss | None = None


@dataclass(frozen=True, slots=True)
class TextAhead:
    """The text that one depth of multi-token prediction reads from a microbatch.

    tokens and labels [B, S] are shifted by the depth. routing: for the balance of its experts, if
    any.
    """

    tokens: Tensor
    labels: Tensor
    routing: RoutingContext | None


@dataclass(frozen=True, slots=True)
class LanguageInput:
    """One microbatch of `num_sequences` B on this rank.

    tokens and labels [B, S], on the first and the last stage: the S tokens of each sequence that
    this cp rank holds; without labels the last stage returns greedy answers. positions [S], or [3,
    B, S] with three axes. documents: the documents packed in samples, None if every sample is one.
    rows[encoder] [r, D]: the rows that this rank received, on the first stage only. wanted: the
    places of the rows that generators read, on the last stage only. routing: for the balance of
    experts, if any. images [B, all positions]: the image of each token, or the document of each
    token of a prompt, if these attend to each other; else -1. ahead: the text of each depth of
    multi-token prediction, in training. draws: for dropout. sources [sources of the step, B, S]:
    whether each token is of a source, on the last stage in training, if the data have several.
    labelled: for a user's loss. looked_up [B, S]: the tokens that tables of per-layer embeddings
    are read at, on the first stage, if the model has such tables.
    """

    num_sequences: int
    tokens: Tensor | None
    positions: Tensor
    documents: Documents | None
    labels: Tensor | None
    rows: Mapping[str, Tensor]
    row_places: Mapping[str, RowPlaces]
    wanted: Mapping[str, RowPlaces] = field(default_factory=dict)
    images: Tensor | None = None
    routing: RoutingContext | None = None
    ahead: tuple[TextAhead, ...] = ()
    draws: Draws | None = None
    sources: Tensor | None = None
    labelled: "Labelled | None" = None
    looked_up: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Labelled:
    """The learnt tokens of a microbatch on this rank, for a user's loss.

    `places` [M] are the places of labels among the tokens of this cp rank; `columns` are [M] or
    [M, width].
    """

    places: Tensor
    columns: Mapping[str, Tensor]


def read_labelled(forward: TextForward, loss: CustomLoss) -> Labelled:
    """Return the places of labels, and the columns that a loss reads there; no device is asked."""
    view, samples, context = forward.view, forward.samples, forward.context
    held = zigzag_positions(
        view.layout.seq, context.cp.index, context.cp.size, torch.device("cpu")
    ).numpy()
    labels = np.stack([samples.text(each)[1] for each in view.samples])[:, held].flatten()
    places = np.flatnonzero(labels != IGNORE_LABEL)
    found = [samples.columns(each) for each in view.samples if loss.columns]
    exact = torch.promote_types(context.compute_dtype, torch.float32)
    columns = {}
    for name, width in loss.columns.items():
        # A sample without readable records is padding.
        shape = (view.layout.seq, *(width,) * (width > 1))
        none = np.zeros(shape, np.int64 if name in loss.token_columns else np.float64)
        rows = np.stack([each.get(name, none) for each in found])[:, held]
        values = rows.reshape(-1, *rows.shape[2:])[places]
        made = to_device(values, context.device)
        columns[name] = made.to(exact) if made.is_floating_point() else made
    return Labelled(to_device(places, context.device), columns)


def language_input(forward: TextForward, kind: LanguageKind) -> LanguageInput:
    """Return the input of a language stage for a microbatch."""
    view, samples, balance = forward.view, forward.samples, forward.balance
    cp, device, module = forward.context.cp, forward.context.device, view.layout.language
    held = zigzag_positions(view.layout.seq, cp.index, cp.size, device)
    tokens, labels = forward.written, None
    if tokens is None and (forward.stage.is_first or forward.stage.is_last):
        text = read_text(view, samples, device)
        tokens, labels = text.tokens, text.labels
    looked_up = None
    if tokens is not None and kind.padding is not None:
        looked_up = tokens.masked_fill(read_is_row(view, device), kind.padding)
    documents = read_documents(view, samples, device)
    positions = held
    if kind.text.mrope is not None:
        # Every stage computes them from the data of the step. Rows of images that language sees
        # through a connector count like text.
        positions = read_positions(view, samples, module.image_sources, device)[:, :, held]
    elif kind.restarts_positions:
        positions = places(documents, view.layout.seq, device)[..., held]
    routing = None
    if balance is not None:
        routing = RoutingContext(token_shares(view, device)[:, held], balance)
    ahead: Iterator[TextAhead] = iter(())
    sources = None
    # An evaluation reports only the main loss.
    if forward.stage.is_last and labels is not None and not samples.data.heldout:
        ahead = read_ahead(view, samples, kind.depths, held, balance, device)
        sources = read_sources(view, device)
    return LanguageInput(
        num_sequences=len(view.samples),
        tokens=None if tokens is None else tokens[:, held],
        positions=positions,
        documents=documents,
        images=read_prompts(view, samples, device)
        if module.whole_prompts
        else read_images(view, module.whole_images, device),
        labels=None if labels is None else labels[:, held],
        rows=forward.rows,
        row_places=forward.row_places,
        wanted=forward.wanted,
        routing=routing,
        ahead=tuple(ahead),
        draws=text_draws(view, samples.data, held, forward.context),
        sources=None if sources is None else sources[:, :, held],
        looked_up=None if looked_up is None else looked_up[:, held],
    )


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens and labels of one microbatch, [B, S] over all positions."""

    tokens: Tensor
    labels: Tensor


def read_text(view: LanguageView, inputs: StepInputs, device: torch.device) -> Text:
    """Return the text of one microbatch of one language replica."""
    texts = [inputs.text(sample) for sample in view.samples]
    tokens, labels = (to_device(np.stack(part), device) for part in zip(*texts, strict=True))
    return Text(tokens, labels)


def read_documents(
    view: LanguageView, inputs: StepInputs, device: torch.device
) -> Documents | None:
    """Return the documents of one microbatch; None if every sample is one document."""
    documents = np.stack([inputs.documents(sample) for sample in view.samples])
    if (documents == documents[:, :1]).all():
        return None
    return Documents(to_device(documents, device), document_lengths(documents))


def document_lengths(documents: np.ndarray) -> tuple[int, ...]:
    """Return the lengths of all documents, sample after sample, from their numbers [B, seq]."""
    ends = np.diff(documents, axis=1, append=documents[:, -1:] + 1).flatten().nonzero()[0] + 1
    return tuple(np.diff(ends, prepend=0).tolist())


def read_positions(
    view: LanguageView, inputs: StepInputs, encoders: Collection[str], device: torch.device
) -> Tensor:
    """Return time, height and width of the tokens of one microbatch, [3, B, S] over all positions.

    Rows of `encoders` are places in images, the sound of a video has the time of the video, all
    other tokens are text. Each document counts from 0.
    """
    found, seq = [], view.layout.seq
    for sample in view.samples:
        spans = view.data.samples[sample].spans
        shown = [image for name in encoders for image in spans.get(name, ())]
        sounds = [clip for name in view.layout.language.reads for clip in spans.get(name, ())]
        ids = axis_positions([*shown, *(clip for clip in sounds if clip.parts)], seq)
        documents = inputs.documents(sample)
        starts = np.where(np.diff(documents, prepend=documents[:1]), np.arange(seq), 0)
        # A document starts with text or with the corner of an image: its axes agree there.
        found.append(ids - ids[0, np.maximum.accumulate(starts)])
    return to_device(np.stack(found, axis=1), device)


def read_images(
    view: LanguageView, encoders: Collection[str], device: torch.device
) -> Tensor | None:
    """Return the image number of each token of one microbatch, [B, S] over all positions.

    Text tokens have -1. Return None if there are no images of `encoders`.
    """
    numbers = np.full((len(view.samples), view.layout.seq), -1, dtype=np.int64)
    for row, sample in zip(numbers, view.samples, strict=True):
        spans = view.data.samples[sample].spans
        for number, span in enumerate(each for name in encoders for each in spans.get(name, ())):
            for line in span.lines:
                row[line.position : line.position + line.num_positions] = number
    return to_device(numbers, device) if (numbers >= 0).any() else None


def read_is_row(view: LanguageView, device: torch.device) -> Tensor:
    """Return whether each token of one microbatch stands for a row, [B, S] over all positions."""
    found = np.zeros((len(view.samples), view.layout.seq), dtype=np.bool_)
    for row, sample in zip(found, view.samples, strict=True):
        spans = view.data.samples[sample].spans
        for span in (each for name in view.layout.language.reads for each in spans.get(name, ())):
            for line in span.lines:
                row[line.position : line.position + line.num_positions] = True
    return to_device(found, device)


def read_prompts(view: LanguageView, inputs: StepInputs, device: torch.device) -> Tensor | None:
    """Return the document of each token of a prompt of one microbatch, [B, S] over all positions.

    A prompt ends where the first label of its document is. All else, and documents without labels,
    have -1. Return None if there are no prompts.
    """
    numbers = np.full((len(view.samples), view.layout.seq), -1, dtype=np.int64)
    for row, sample in zip(numbers, view.samples, strict=True):
        documents, (_, labels) = inputs.documents(sample), inputs.text(sample)
        ending, at = np.unique(documents[labels != IGNORE_LABEL], return_index=True)
        ends = np.flatnonzero(labels != IGNORE_LABEL)[at]
        for number, end in zip(ending, ends, strict=True):
            row[: end + 1][documents[: end + 1] == number] = number
    return to_device(numbers, device) if (numbers >= 0).any() else None


def token_shares(view: LanguageView, device: torch.device) -> Tensor:
    """Return 1/T for each of the T tokens of a sample and 0 for its padding, in float64.

    Shape: [B, S] over all positions of one microbatch. A record of a pack that could not be read
    leaves a gap without tokens.
    """
    tokens = is_token(view)
    return to_device(tokens / np.maximum(1, tokens.sum(axis=1, keepdims=True)), device)


def is_token(view: LanguageView) -> np.ndarray:
    """Return the mask of the positions of one microbatch that are not padding: bool [B, seq]."""
    samples = [view.data.samples[index] for index in view.samples]
    found = np.zeros((len(samples), view.layout.seq), dtype=np.bool_)
    for row, sample in zip(found, samples, strict=True):
        for record in sample.records:
            row[record.first : record.first + record.num_tokens] = True
    return found


def read_sources(view: LanguageView, device: torch.device) -> Tensor | None:
    """Return whether each token is of each source of the step, [sources, B, S]; None without."""
    names = tuple(view.data.labels_by_source)
    if not names:
        return None
    found = np.zeros((len(names), len(view.samples), view.layout.seq), dtype=np.bool_)
    for row, index in enumerate(view.samples):
        for record in view.data.samples[index].records:
            if record.source:
                here = slice(record.first, record.first + record.num_tokens)
                found[names.index(record.source), row, here] = True
    return to_device(found, device)


def read_ahead(
    view: LanguageView,
    inputs: StepInputs,
    depths: int,
    held: Tensor,
    aux_loss: AuxLoss | None,
    device: torch.device,
) -> Iterator[TextAhead]:
    """Yield the text of each depth, from 1 on, at the positions `held` of each sequence."""
    texts = [inputs.text(sample) for sample in view.samples]
    tokens, labels = (np.stack(part) for part in zip(*texts, strict=True))
    documents = np.stack([inputs.documents(sample) for sample in view.samples])
    is_real = is_token(view)
    for depth in range(1, depths + 1):
        has = has_ahead(documents, depth)
        routing = None
        if aux_loss is not None:
            counts = is_real & has & np.roll(is_real, -depth, axis=1)
            shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
            routing = RoutingContext(to_device(shares, device)[:, held], aux_loss)
        yield TextAhead(
            to_device(tokens_ahead(tokens, has, depth), device)[:, held],
            to_device(labels_ahead(labels, has, depth), device)[:, held],
            routing,
        )
