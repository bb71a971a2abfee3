"""The one-rank run as a plain loop over samples and full tensors.

Decides: the correct loss, gradients and update.
Relies on: `oracle_parts` for initial weights, and on the data set; `oracle_encoders` for rows,
`oracle_generators` for the images and clips that generators make of rows. It shares no layer,
routing, schedule or scaling code with the product: rows go where the placeholder tokens are, the
loss is one division at the end, gradients come from autograd.
Leaves: judging the differences to `compare`.

Legend: S tokens of a sample, D width, H heads, K head size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.record_order import Sample
from mimo_launch.data.order.sample_order import records_of
from mimo_launch.data.random_draws import Split, noise_of
from mimo_launch.kinds.layer import ReadState
from mimo_launch.kinds.module_weights import reads_trained
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, placeholder_id, vocab_size
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.encoders import ConnectorModel
from mimo_launch.spec.spec import DecoderModel, HybridModel, LanguageModel, RopeScaling, Spec
from mimo_launch.verify.oracle_blocks import Load, RecordText, moved_biases
from mimo_launch.verify.oracle_encoders import connect, encode
from mimo_launch.verify.oracle_generators import Draw, generator_of
from mimo_launch.verify.oracle_language import (
    decoder_streams,
    hybrid_streams,
    norm_of,
    per_layer_vectors,
    streams_ahead,
)
from mimo_launch.verify.oracle_layers import (
    axis_angles,
    axis_ids,
    capped,
    frequencies,
    image_numbers,
    linear,
    places_in,
    prompt_numbers,
    text_angles,
)
from mimo_launch.verify.oracle_parts import parts_of


class Oracle:
    """Full weights in float64 and a training step over them."""

    def __init__(self, spec: Spec, *, randomise: bool) -> None:
        """Draw the same initial weights as every layout of the spec."""
        self.spec, self.dataset, model = spec, build_dataset(spec), spec.language.model
        if not isinstance(model, LanguageModel):
            raise TypeError(f"no oracle for a language model of kind {model.kind}")
        self.model: LanguageModel = model
        self.balance_loss = 0.0
        # The weight of each loss; its mean and the number of its terms in the last step.
        self.losses = {
            name: module.loss_weight
            for name, module in spec.modules.items()
            if kind_of(module.model).computes_loss
        }
        if (mtp := kind_of(model).mtp) is not None:
            for name in self._names_ahead:
                self.losses[name] = self.losses[LANGUAGE] * mtp.loss_weight / mtp.depth
        self.means: dict[str, float] = {}
        # Number of most probable codes that were right, over all records so far.
        self.right_codes = 0
        self.terms: dict[str, float] = {}
        # The stream of the last record by the number of layers before it.
        self.states: dict[int, Tensor] = {}
        self.loads: list[Load] = []
        parts = parts_of(spec, randomise=randomise)
        self.weights, self.custom, self.custom_decays = parts.weights, parts.networks, parts.decays
        self.own_loss = parts.losses.get(LANGUAGE)

    @property
    def _names_ahead(self) -> list[str]:
        """The losses of further tokens, by depth."""
        return [
            f"language.mtp{k if k > 1 else ''}" for k in range(1, kind_of(self.model).depths + 1)
        ]

    def loss_and_gradients(
        self, samples: Sequence[Sample], step: int = 0
    ) -> tuple[float, dict[str, Tensor]]:
        """Return the weighted sum of mean losses over a step, and its gradient by every weight.

        The gradient is of this sum plus, with experts, `balance_loss`. Each record of a pack is
        computed separately: only the balance of experts is over the whole pack.
        """
        trained = {name: w for name, w in self.weights.items() if w.requires_grad}
        self.loads = []
        sums = {name: torch.zeros((), dtype=torch.float64) for name in self.losses}
        terms: dict[str, float] = dict.fromkeys(self.losses, 0)
        for sample in samples:
            load = Load()
            for index in records_of(sample):
                for name, (loss, number) in self.record_losses("train", index, load, step).items():
                    sums[name], terms[name] = sums[name] + loss, terms[name] + number
            self.loads.append(load)
        # A run counts the balance in a backward: without one, nothing is balanced.
        balanced = set[str]().union(*(load.balanced for load in self.loads))
        balance, moe = torch.zeros((), dtype=torch.float64), kind_of(self.model).moe
        if moe is not None:
            balance = sum((load.loss(moe, balanced) for load in self.loads), balance) / len(samples)
        self.balance_loss = float(balance.detach())
        self.terms = terms
        means = {name: sums[name] / (terms[name] or 1) for name in sums}
        self.means = {name: float(mean.detach()) for name, mean in means.items()}
        loss = torch.stack([self.losses[name] * mean for name, mean in means.items()]).sum()
        if not any(terms.values()):
            self.loads = []  # This step moves no bias.
        if not any(terms.values()) or not (loss + balance).requires_grad:
            # There is no label, or no trained weight affects one (frozen language, no image).
            return float(loss), {name: torch.zeros_like(w) for name, w in trained.items()}
        grads = torch.autograd.grad(loss + balance, list(trained.values()), allow_unused=True)
        return float(loss.detach()), {
            name: torch.zeros_like(weight) if grad is None else grad
            for (name, weight), grad in zip(trained.items(), grads, strict=True)
        }

    def move_biases(self) -> None:
        """Move the biases of experts by the loads of the last step, where routers train."""
        moe = kind_of(self.model).moe
        if moe is not None and moe.bias_update_rate and self.spec.language.body_trains:
            moved = moved_biases(self.weights, self.loads, moe)
            self.weights |= {
                name: bias
                for name, bias in moved.items()
                if self.weights[name.replace(".expert_bias", ".weight")].requires_grad
            }

    def sgd_step(self, grads: dict[str, Tensor], lr: float, clip: float | None) -> None:
        """Update the weights by plain gradient descent, clipped by the norm over all weights."""
        norm = float(sum(g.square().sum() for g in grads.values())) ** 0.5
        scale = 1.0 if clip is None or norm <= clip else clip / norm
        with torch.no_grad():
            for name, grad in grads.items():
                self.weights[name] -= lr * scale * grad

    def record_losses(
        self, split: Split, index: int, load: Load, step: int
    ) -> dict[str, tuple[Tensor, float]]:
        """Return each loss of a record, summed over its terms, and the number of its terms."""
        if split == "train":
            with self.weights.drawing(step, index):
                return self._losses_of(split, index, load, step)
        return self._losses_of(split, index, load, step)

    def _losses_of(
        self, split: Split, index: int, load: Load, step: int
    ) -> dict[str, tuple[Tensor, float]]:
        tokens, targets = (torch.from_numpy(x) for x in self.dataset.text(split, index))
        x_SD = self.stream(split, index, tokens, load)
        found: dict[str, tuple[Tensor, float]] = {LANGUAGE: self._own_loss(split, index, x_SD)}
        if split == "train":
            text = self._text(split, index, load)
            ahead = streams_ahead(self.weights, self.model, x_SD, tokens, text, self.embedded)
            for name, (of_depth, at, has) in zip(self._names_ahead, ahead, strict=True):
                said = torch.where(has, targets[at], IGNORE_LABEL)
                found[name] = self._cross_entropy(of_depth, said)
        for name in self._generators:
            total, number = torch.zeros((), dtype=torch.float64), 0
            for array, span, read, draw in self._asked(split, index, name, x_SD, step):
                lost, right = self._lost(name, array, read, draw)
                total, number = total + lost, number + span.rows
                self.right_codes += right
            found[name] = total, number
        return found

    def _own_loss(self, split: Split, index: int, x_SD: Tensor) -> tuple[Tensor, float]:
        """Return the summed loss of language, which may be a user's, and what it counts."""
        labels, asked = (
            torch.from_numpy(self.dataset.text(split, index)[1]),
            self.spec.language.loss,
        )
        if self.own_loss is None or asked is None:
            return self._cross_entropy(x_SD, labels)
        has = labels != IGNORE_LABEL
        given = self.dataset.columns(split, index)
        columns = {name: torch.from_numpy(values)[has] for name, values in given.items()}
        hidden = x_SD[has]
        terms = self.own_loss.terms(self.weights, labels[has], columns, hidden, self.words(hidden))
        count = int(has.sum()) if asked.counts is None else float(columns[asked.counts].sum())
        return terms.sum(), count

    def _cross_entropy(self, x_SD: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        """Return the summed loss of a normed stream and the number of labels."""
        logits = self.words(x_SD)
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_LABEL, reduction="sum")
        return loss, int((labels != IGNORE_LABEL).sum())

    def made(self, index: int, num_steps: int) -> dict[str, list[np.ndarray]]:
        """Return the images and clips that each generator makes for a held-out record, in order.

        Flows take `num_steps` steps. Generators of users' own classes make nothing.
        """
        tokens = torch.from_numpy(self.dataset.text("heldout", index)[0])
        x_SD, found = self.stream("heldout", index, tokens, Load()), {}
        for name in self._generators:
            if name in self.custom:
                continue
            generator = generator_of(self.weights, name, self.spec.modules[name].model)
            found[name] = [
                generator.made(like, read, draw, num_steps)
                for like, _, read, draw in self._asked("heldout", index, name, x_SD, 0)
            ]
        return {name: arrays for name, arrays in found.items() if arrays}

    @property
    def _generators(self) -> list[str]:
        """The modules other than language with a loss, by name."""
        return [name for name in self.spec.modules if name in self.losses and name != LANGUAGE]

    def _asked(
        self, split: Split, index: int, name: str, x_SD: Tensor, step: int
    ) -> Iterator[tuple[np.ndarray, ImageSpan, Mapping[str, Tensor], Draw]]:
        """Yield each target of a generator in a record, its span, the rows read, and the noise.

        `x_SD` is the stream of language; rows are keyed by the module that sends them.
        """
        (source,) = self.spec.sources_of(name)
        spans = self.dataset.describe(split, index).spans.get(name, ())
        images = self.dataset.images(split, index, name)
        read = kind_of(self.spec.modules[name].model).reading.of_language
        sent_SD = x_SD if read.layer is None or source != LANGUAGE else self.states[read.layer]
        if read.text and source == LANGUAGE:
            tokens = torch.from_numpy(self.dataset.text(split, index)[0])
            sent_SD = self._with_text(sent_SD, tokens, read)
        seed, heldout = self.spec.train.seed, split == "heldout"
        for place, (image, span) in enumerate(zip(images, spans, strict=True)):
            first = span.position
            read_rD = self._sent(source, sent_SD[first : first + span.num_positions])
            draw = partial(noise_of, seed, step, index, place, heldout=heldout)
            yield image, span, {source: read_rD}, draw

    def _with_text(self, x_SD: Tensor, tokens: Tensor, read: ReadState) -> Tensor:
        """Return states with the embeddings of their tokens added, or in place of those of text.

        In the latter case a last column is 1 for states.
        """
        text_SD = self.embedded(tokens)
        if read.text == "added":
            return x_SD + text_SD
        rows = [placeholder_id(self.spec, each) for each in self.spec.sources_of(LANGUAGE)]
        is_row = torch.isin(tokens, torch.tensor(rows, dtype=tokens.dtype))[:, None]
        return torch.cat([torch.where(is_row, x_SD, text_SD), is_row.to(x_SD.dtype)], dim=1)

    def _sent(self, name: str, read_rD: Tensor) -> Tensor:
        """Return the rows that language, or a connector after it, makes of rows of language."""
        if name == LANGUAGE:
            return read_rD
        model = self.spec.modules[name].model
        if not isinstance(model, ConnectorModel):
            raise TypeError(f"{name}: a model of kind {model.kind} behind language sends no rows")
        read = {source: self._sent(source, read_rD) for source in self.spec.sources_of(name)}
        return connect(self.weights, name, model, read)

    def _lost(
        self, name: str, array: np.ndarray, read: Mapping[str, Tensor], draw: Draw
    ) -> tuple[Tensor, int]:
        """Return the loss of a generator for one image or clip, and its right codes."""
        if name in self.custom:
            return self.custom[name].loss(self.weights, array, read, draw), 0
        generator = generator_of(self.weights, name, self.spec.modules[name].model)
        return generator.loss(array, read, draw)

    def logits(self, split: Split, index: int, tokens: Tensor, load: Load) -> Tensor:
        """Return the logits at each token of a record, [S, words]; see `stream`."""
        return self.words(self.stream(split, index, tokens, load))

    def words(self, x_SD: Tensor) -> Tensor:
        """Return the logits [S, words] of a normed stream."""
        head = "language.embedding" if self.model.tied else "language.head"
        logits = linear(self.weights, x_SD, head)[:, : vocab_size(self.spec)]
        if not isinstance(self.model, DecoderModel):
            return logits
        return capped(logits * (self.model.logit_scale or 1.0), self.model.logit_softcap)

    def stream(self, split: Split, index: int, tokens: Tensor, load: Load) -> Tensor:
        """Return the stream of language after its last norm for each token of a record, [S, D].

        `tokens` may differ from the text of the record. Only that text defines where images are,
        because a generated token may be a placeholder.
        """
        given = torch.from_numpy(self.dataset.text(split, index)[0])
        x_SD, deep = self.embedded(tokens), dict[int, Tensor]()
        if reads_trained(self.spec, LANGUAGE) and not x_SD.requires_grad:
            # Routers that are frozen are balanced for what trains before them, with images or not.
            x_SD.requires_grad_()
        looked_up = tokens.clone()
        for encoder in self.spec.sources_of(LANGUAGE):
            images = self._rows_of_images(split, index, encoder)
            if images:
                x_SD = x_SD.clone()
                first, *others = torch.split(torch.cat(images), x_SD.shape[1], dim=1)
                is_row = given == placeholder_id(self.spec, encoder)
                x_SD[is_row] = first * self._scale_of_rows
                looked_up[is_row] = self._padding
                for layer, rows in enumerate(others):
                    added = deep.setdefault(layer, torch.zeros_like(x_SD)).clone()
                    added[is_row] = rows
                    deep[layer] = added
        self.weights.name_tokens(list(range(len(tokens))))
        model, text = self.model, self._text(split, index, load)
        text = replace(text, vectors=per_layer_vectors(self.weights, x_SD, looked_up, model))
        if isinstance(model, HybridModel):
            streams = [*hybrid_streams(self.weights, x_SD, model, text, deep)]
        elif isinstance(model, DecoderModel):
            streams = [*decoder_streams(self.weights, x_SD, model, text, deep)]
        else:
            raise TypeError(f"no oracle for a language model of kind {model.kind}")
        self.states |= {number: bare for number, (bare, _) in enumerate(streams, 1)}
        return norm_of(self.weights, model)(streams[-1][1], "language.norm")

    @property
    def _padding(self) -> int:
        """The token at which tables of per-layer embeddings are read for rows."""
        own = self.model.per_layer_embeddings if isinstance(self.model, DecoderModel) else None
        return 0 if own is None else own.padding

    def _text(self, split: Split, index: int, load: Load) -> RecordText:
        """Return the inputs of language layers for a record, besides the stream."""
        given = torch.from_numpy(self.dataset.text(split, index)[0])
        documents = torch.from_numpy(self.dataset.documents(split, index))
        described, model, kind = (
            self.dataset.describe(split, index),
            self.model,
            kind_of(self.model),
        )
        sizes = self._image_sizes(split, index)
        images = image_numbers(given, sizes) if kind.attending.whole_images else None
        prompts = None
        if kind.attending.whole_prompts:
            labels = self.dataset.text(split, index)[1]
            prompts = prompt_numbers(labels.tolist(), documents.tolist())
        is_text = torch.arange(len(given)) < described.num_tokens
        text = RecordText(documents, is_text, load, images, prompts)
        if model.rope_theta is None:
            return text

        def angles(theta: float, scaling: RopeScaling | None, size: int) -> Tensor:
            turns = frequencies(size, theta, scaling)
            if model.mrope is None:
                return text_angles(places_in(documents), turns)
            later = {
                placeholder_id(self.spec, name): [s.later for s in described.spans.get(name, ())]
                for name in self.spec.sources_of(LANGUAGE)
            }
            sounds = self._sounds(given, described)
            ids = axis_ids(given, documents, sizes, later, sounds, holding=self._holding)
            return axis_angles(ids, model.mrope, turns, interleaved=model.mrope_interleaved)

        window, local = kind.attending.sliding, None
        scaling = model.rope_scaling if isinstance(model, DecoderModel) else None
        if window is not None and (window.rope_theta is not None or window.head_dim is not None):
            size = model.rotary_size
            if window.head_dim is not None:
                size = int(window.head_dim * model.rotary_factor)
            local = (
                angles(model.rope_theta, scaling, size)
                if window.rope_theta is None
                else angles(window.rope_theta, None, size)
            )
        everywhere = angles(model.rope_theta, scaling, model.rotary_size)
        return replace(text, angles=everywhere, local_angles=local)

    def _sounds(self, given: Tensor, described: SampleData) -> dict[int, int]:
        """Return the numbers of the rows of each video's sound, by their places in the text.

        -1 is for text that has the position of the token before it.
        """
        names, tokens = self.spec.sources_of(LANGUAGE), given.tolist()
        rows = {placeholder_id(self.spec, each) for each in names}
        found: dict[int, int] = {}
        for span in (span for name in names for span in described.spans.get(name, ())):
            places = [place + i for place, number in span.parts for i in range(number)]
            found |= {place: row for row, place in enumerate(places)}
            if span.shares_bounds:
                first, last = places[0], places[-1]
                while tokens[first - 1] in rows:
                    first -= 1
                while tokens[last + 1] in rows:
                    last += 1
                found |= {first - 1: -1, last + 2: -1}
        return found

    @property
    def _holding(self) -> list[int]:
        """The placeholder tokens of encoders with a `video` setting that `holds_text`."""
        models = {name: self.spec.modules[name].model for name in self.spec.sources_of(LANGUAGE)}
        videos = {name: getattr(model, "video", None) for name, model in models.items()}
        held = (name for name, video in videos.items() if video and video.holds_text)
        return [placeholder_id(self.spec, name) for name in held]

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, [S, D]."""
        scale = self.model.embedding_scale if isinstance(self.model, DecoderModel) else None
        return self.weights["language.embedding.weight"][tokens] * (scale or 1.0)

    @property
    def _scale_of_rows(self) -> float:
        """The factor on rows of encoders."""
        if isinstance(self.model, DecoderModel) and self.model.scaled_rows:
            return self.model.embedding_scale or 1.0
        return 1.0

    def _rows_of_images(self, split: Split, index: int, encoder: str) -> list[Tensor]:
        """Return the rows that a module makes of each image of a record."""
        model, sources = self.spec.modules[encoder].model, self.spec.sources_of(encoder)
        if not isinstance(model, ConnectorModel):
            images = self.dataset.images(split, index, encoder)
            if encoder in self.custom:
                return [self.custom[encoder].rows(self.weights, image) for image in images]
            spans = self.dataset.describe(split, index).spans.get(encoder, ())
            found, first = [], 0
            for image, span in zip(images, spans, strict=True):
                found.append(encode(self.weights, encoder, model, image, span.shown, first=first))
                first += len(image) if kind_of(model).tokens.tiles is not None else 1
            return found
        read = [self._rows_of_images(split, index, source) for source in sources]
        return [
            connect(self.weights, encoder, model, dict(zip(sources, rows, strict=True)))
            for rows in zip(*read, strict=True)
        ]

    def _image_sizes(self, split: Split, index: int) -> dict[int, list[tuple[int, int]]]:
        """Return height and width in rows of a record's images, by their placeholder token."""
        return {
            placeholder_id(self.spec, name): [
                images.size_in_rows(image.shape)
                for image in self.dataset.images(split, index, name)
            ]
            for name, module in self.spec.encoders.items()
            if (images := kind_of(module.model).images) and name in self.spec.sources_of(LANGUAGE)
        }
