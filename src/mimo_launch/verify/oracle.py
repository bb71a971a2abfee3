"""The one-rank run as a plain loop over samples and full tensors.

Decides: the correct loss, gradients and update.
Relies on: names, shapes and initial values of the weights, and on the data set; `oracle_encoders`
for rows, `oracle_generators` for the images and clips that generators make of rows.
It shares no layer, routing, schedule or scaling code with the product: rows go where the
placeholder tokens are, the loss is one division at the end, gradients come from autograd.
Leaves: judging the differences to `compare`.

Legend: S tokens of a sample, D width, H heads, K head size.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.random_draws import Split, noise_of
from mimo_launch.data.sample_order import Sample, records_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import Shown
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, placeholder_id, vocab_size
from mimo_launch.layers.initial_weights import initial_values
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.build import build_network, keep_activations
from mimo_launch.models.custom_stages import plain_values, whole_stage
from mimo_launch.models.encoder_inputs import reader
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import (
    ConnectorModel,
    DecoderModel,
    HybridModel,
    LanguageModel,
    RopeScaling,
    Spec,
)
from mimo_launch.verify.oracle_blocks import Load, RecordText, moved_biases
from mimo_launch.verify.oracle_custom import OneRankEncoder
from mimo_launch.verify.oracle_encoders import connect, encode
from mimo_launch.verify.oracle_generators import Draw, generator_of
from mimo_launch.verify.oracle_language import decoder_layers, hybrid_layers
from mimo_launch.verify.oracle_layers import (
    axis_angles,
    axis_ids,
    capped,
    frequencies,
    image_numbers,
    linear,
    rms_norm,
    text_angles,
)
from mimo_launch.verify.oracle_mtp import losses_ahead


class _Seen(NamedTuple):
    """The text of a record and its tokens' angles; `local_angles` are for layers with windows."""

    text: RecordText
    angles: Tensor | None
    local_angles: Tensor | None = None


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
        self.terms: dict[str, int] = {}
        self.loads: list[Load] = []
        self.weights: dict[str, Tensor] = {}
        self.custom: dict[str, OneRankEncoder] = {}
        # Only for custom encoders: their classes define which parameters decay.
        self.custom_decays: dict[str, bool] = {}
        context = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
        for name, module in spec.modules.items():
            whole = whole_stage(spec, name)
            # A second forward would use the weights of the network, not the oracle's.
            network = build_network(keep_activations(spec), whole, context)
            given = plain_values(spec, name, network)
            if kind_of(module.model).is_custom:
                self.custom[name] = OneRankEncoder(name, network, reader(module.model), context)
            for declared in declared_parameters(name, network):
                for placed in declared.placed:
                    values = initial_values(
                        placed.name,
                        placed.segment,
                        spec.train.seed,
                        randomise=randomise,
                        given=given.get(placed.name),
                    )
                    is_projector = placed.name.startswith(f"{name}.projector.")
                    trains = placed.segment.trains and (
                        module.frozen is False
                        or (module.frozen == "except_projector" and is_projector)
                    )
                    self.weights[placed.name] = values.requires_grad_(trains)
                    if name in self.custom:
                        self.custom_decays[placed.name] = declared.decays(
                            embeddings=spec.optimizer.decay.embeddings
                        )

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
        terms = dict.fromkeys(self.losses, 0)
        balance, moe = torch.zeros((), dtype=torch.float64), kind_of(self.model).moe
        for sample in samples:
            load = Load()
            for index in records_of(sample):
                for name, (loss, number) in self.record_losses("train", index, load, step).items():
                    sums[name], terms[name] = sums[name] + loss, terms[name] + number
            if moe is not None:
                balance = balance + load.loss(moe) / len(samples)
                self.loads.append(load)
        self.balance_loss = float(balance.detach())
        self.terms = terms
        means = {name: sums[name] / max(1, terms[name]) for name in sums}
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
        """Move the biases of experts by the loads of the last step, if language trains."""
        moe = kind_of(self.model).moe
        if moe is not None and moe.bias_update_rate and self.spec.language.frozen is False:
            self.weights |= moved_biases(self.weights, self.loads, moe)

    def sgd_step(self, grads: dict[str, Tensor], lr: float, clip: float | None) -> None:
        """Update the weights by plain gradient descent, clipped by the norm over all weights."""
        norm = float(sum(g.square().sum() for g in grads.values())) ** 0.5
        scale = 1.0 if clip is None or norm <= clip else clip / norm
        with torch.no_grad():
            for name, grad in grads.items():
                self.weights[name] -= lr * scale * grad

    def record_losses(
        self, split: Split, index: int, load: Load, step: int
    ) -> dict[str, tuple[Tensor, int]]:
        """Return each loss of a record, summed over its terms, and the number of its terms."""
        tokens, targets = (torch.from_numpy(x) for x in self.dataset.text(split, index))
        x_SD = self.stream(split, index, tokens, load)
        logits = self.words(x_SD)
        loss = F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL, reduction="sum")
        found = {LANGUAGE: (loss, int((targets != IGNORE_LABEL).sum()))}
        if split == "train":
            found |= zip(self._names_ahead, self._losses_ahead(index, x_SD, load), strict=True)
        for name in self._generators:
            total, number = loss.new_zeros(()), 0
            for array, span, read, draw in self._asked(split, index, name, x_SD, step):
                lost, right = self._lost(name, array, read, draw)
                total, number = total + lost, number + span.rows
                self.right_codes += right
            found[name] = total, number
        return found

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
        sent_SD = x_SD
        if kind_of(self.spec.modules[name].model).reads_text and source == LANGUAGE:
            tokens = torch.from_numpy(self.dataset.text(split, index)[0])
            sent_SD = x_SD + self._embedded(tokens)
        seed, heldout = self.spec.train.seed, split == "heldout"
        for place, (image, span) in enumerate(zip(images, spans, strict=True)):
            first = span.position
            read_rD = self._sent(source, sent_SD[first : first + span.num_positions])
            draw = partial(noise_of, seed, step, index, place, heldout=heldout)
            yield image, span, {source: read_rD}, draw

    def _losses_ahead(self, index: int, x_SD: Tensor, load: Load) -> list[tuple[Tensor, int]]:
        """Return the summed loss and label count of each MTP depth, from a normed stream."""
        model, seen = self.model, self._seen("train", index, load)
        tokens, labels = (torch.from_numpy(x) for x in self.dataset.text("train", index))
        angles, text = (seen.angles, seen.local_angles), seen.text
        return [
            *losses_ahead(
                self.weights, model, x_SD, tokens, labels, text, angles, self._embedded, self.words
            )
        ]

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
        cap = self.model.logit_softcap if isinstance(self.model, DecoderModel) else None
        return capped(linear(self.weights, x_SD, head)[:, : vocab_size(self.spec)], cap)

    def stream(self, split: Split, index: int, tokens: Tensor, load: Load) -> Tensor:
        """Return the stream of language after its last norm for each token of a record, [S, D].

        `tokens` may differ from the text of the record. Only that text defines where images are,
        because a generated token may be a placeholder.
        """
        given = torch.from_numpy(self.dataset.text(split, index)[0])
        x_SD, deep = self._embedded(tokens), dict[int, Tensor]()
        for encoder in self.spec.sources_of(LANGUAGE):
            images = self._rows_of_images(split, index, encoder)
            if images:
                x_SD = x_SD.clone()
                first, *others = torch.split(torch.cat(images), x_SD.shape[1], dim=1)
                is_row = given == placeholder_id(self.spec, encoder)
                x_SD[is_row] = first
                for layer, rows in enumerate(others):
                    added = deep.setdefault(layer, torch.zeros_like(x_SD)).clone()
                    added[is_row] = rows
                    deep[layer] = added
        model, seen = self.model, self._seen(split, index, load)
        if isinstance(model, HybridModel):
            x_SD = hybrid_layers(self.weights, x_SD, model, seen.text, seen.angles, deep)
        elif isinstance(model, DecoderModel) and seen.angles is not None:
            x_SD = decoder_layers(
                *(self.weights, x_SD, model, seen.text, seen.angles, deep),
                local_angles=seen.local_angles,
            )
        else:
            raise TypeError(f"no oracle for a language model of kind {model.kind}")
        offset = model.norm_offset
        return rms_norm(self.weights, x_SD, "language.norm", model.norm_eps, offset=offset)

    def _seen(self, split: Split, index: int, load: Load) -> "_Seen":
        """Return the inputs of language layers for a record, besides the stream."""
        given = torch.from_numpy(self.dataset.text(split, index)[0])
        documents = torch.from_numpy(self.dataset.documents(split, index))
        model, numbers = self.model, None
        if kind_of(model).bidirectional_images:
            numbers = image_numbers(given, self._image_sizes(split, index))
        number = self.dataset.describe(split, index).num_tokens
        text = RecordText(documents, torch.arange(len(given)) < number, load, numbers)
        sizes = {} if model.mrope is None else self._image_sizes(split, index)
        spans = self.dataset.describe(split, index).spans
        later = {
            placeholder_id(self.spec, name): [span.later for span in spans.get(name, ())]
            for name in self.spec.sources_of(LANGUAGE)
        }

        def angles(theta: float, scaling: RopeScaling | None) -> Tensor:
            turns = frequencies(model.rotary_size, theta, scaling)
            return self._angles(model, turns, given, documents, sizes, later)

        if model.rope_theta is None:
            return _Seen(text, None)
        everywhere, local = angles(model.rope_theta, kind_of(model).rope_scaling), None
        window = kind_of(model).sliding_window
        if window is not None and window.rope_theta is not None:
            local = angles(window.rope_theta, None)
        return _Seen(text, everywhere, local)

    @property
    def _holding(self) -> list[int]:
        """The placeholder tokens of encoders with a `video` setting that `holds_text`."""
        models = {name: self.spec.modules[name].model for name in self.spec.sources_of(LANGUAGE)}
        videos = {name: getattr(model, "video", None) for name, model in models.items()}
        held = (name for name, video in videos.items() if video and video.holds_text)
        return [placeholder_id(self.spec, name) for name in held]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, [S, D]."""
        scale = self.model.embedding_scale if isinstance(self.model, DecoderModel) else None
        return self.weights["language.embedding.weight"][tokens] * (scale or 1.0)

    def _rows_of_images(self, split: Split, index: int, encoder: str) -> list[Tensor]:
        """Return the rows that a module makes of each image of a record."""
        model, sources = self.spec.modules[encoder].model, self.spec.sources_of(encoder)
        if not isinstance(model, ConnectorModel):
            images = self.dataset.images(split, index, encoder)
            spans = self.dataset.describe(split, index).spans.get(encoder, ())
            pairs = zip(images, spans, strict=True)
            return [self._rows(encoder, image, span.shown) for image, span in pairs]
        read = [self._rows_of_images(split, index, source) for source in sources]
        return [
            connect(self.weights, encoder, model, dict(zip(sources, rows, strict=True)))
            for rows in zip(*read, strict=True)
        ]

    def _rows(self, encoder: str, array: np.ndarray, shown: Shown) -> Tensor:
        if encoder in self.custom:
            return self.custom[encoder].rows(self.weights, array)
        return encode(self.weights, encoder, self.spec.modules[encoder].model, array, shown)

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

    def _angles(
        self,
        model: LanguageModel,
        turns: Sequence[float],
        tokens: Tensor,
        documents: Tensor,
        sizes: dict[int, list[tuple[int, int]]],
        later: dict[int, list[int | None]],
    ) -> Tensor:
        """Return the angles of the rotary embedding for each token, [S, R/2]."""
        if model.mrope is None:
            return text_angles(len(tokens), turns)
        ids = axis_ids(tokens, documents, sizes, later, holding=self._holding)
        return axis_angles(ids, model.mrope, turns, interleaved=model.mrope_interleaved)
