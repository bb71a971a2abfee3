"""The one-rank run as a plain loop over samples and full tensors.

Decides: what the right loss, gradients and update are.
Relies on: names, shapes and initial values of the weights, and on the data set. It shares no layer,
routing, schedule or scaling code with the product: rows go where the placeholder tokens are, the
loss is one division at the end, gradients are autograd's.
Leaves: judging the differences to `compare`.

Legend: S tokens of a sample, N patches of an image, D width, H heads, K head size.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layout.tokens import IGNORE_LABEL, placeholder_id, vocab_size
from mimo_launch.modules.build import build_network
from mimo_launch.modules.own import plain_values, whole_stage
from mimo_launch.parallel.context import ParallelContext
from mimo_launch.parallel.init import initial_values
from mimo_launch.parallel.segments import declared_parameters
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    DecoderModel,
    Spec,
    TransformerEncoder,
    VitModel,
    image_input,
)
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.verify.own import OneRankEncoder, keep_activations
from mimo_launch.verify.rotary import axis_angles, axis_ids, image_angles, text_angles, turned


class Oracle:
    """Full weights in float64 and a training step over them."""

    def __init__(self, spec: Spec, *, randomise: bool) -> None:
        """Draw the same initial weights as every layout of the spec."""
        self.spec, self.dataset = spec, build_dataset(spec)
        self.weights: dict[str, Tensor] = {}
        self.own: dict[str, OneRankEncoder] = {}
        context = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
        for name, module in spec.modules.items():
            whole = whole_stage(spec, name)
            network = build_network(keep_activations(spec), whole, context)
            given = plain_values(spec, name, network)
            if isinstance(module.model, CustomModel):
                self.own[name] = OneRankEncoder(name, network, module.model, context)
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

    def loss_and_gradients(self, ids: Sequence[int]) -> tuple[float, dict[str, Tensor]]:
        """Return the mean loss over all labels of the samples and its gradient by every weight."""
        trained = {name: w for name, w in self.weights.items() if w.requires_grad}
        total, labels = torch.zeros((), dtype=torch.float64), 0
        for index in ids:
            tokens, targets = (torch.from_numpy(x) for x in self.dataset.text("train", index))
            total = total + self._sample_loss(index, tokens, targets)
            labels += int((targets != IGNORE_LABEL).sum())
        if not total.requires_grad:
            # No label, or nothing that trains reaches one (frozen language, no image).
            mean = float(total) / max(1, labels)
            return mean, {name: torch.zeros_like(w) for name, w in trained.items()}
        loss = total / labels
        grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return float(loss.detach()), {
            name: torch.zeros_like(weight) if grad is None else grad
            for (name, weight), grad in zip(trained.items(), grads, strict=True)
        }

    def sgd_step(self, grads: dict[str, Tensor], lr: float, clip: float | None) -> None:
        """Update the weights by plain gradient descent, clipped by the norm over all weights."""
        norm = float(sum(g.square().sum() for g in grads.values())) ** 0.5
        scale = 1.0 if clip is None or norm <= clip else clip / norm
        with torch.no_grad():
            for name, grad in grads.items():
                self.weights[name] -= lr * scale * grad

    def _sample_loss(self, index: int, tokens: Tensor, targets: Tensor) -> Tensor:
        x_SD = self.weights["language.embedding.weight"][tokens]
        for encoder in self.spec.encoders:
            images = self.dataset.images("train", index, encoder)
            if images:
                rows = torch.cat([self._encode(encoder, image) for image in images])
                x_SD = x_SD.clone()
                x_SD[tokens == placeholder_id(self.spec, encoder)] = rows
        documents = torch.from_numpy(self.dataset.documents("train", index))
        angles = self._angles(index, tokens, documents)
        logits = self._decode(x_SD, documents, angles)[:, : vocab_size(self.spec)]
        return F.cross_entropy(logits, targets, ignore_index=IGNORE_LABEL, reduction="sum")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def _rms_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        scaled = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        return scaled * self.weights[f"{name}.weight"]

    def _encode(self, encoder: str, image: np.ndarray) -> Tensor:
        model = self.spec.modules[encoder].model
        if isinstance(model, AudioModel):
            x_ND = self._layers(self._hear(encoder, image), encoder, model, None)
            return self._project(_neighbours(x_ND, model.stack), encoder, model)
        if encoder in self.own:
            return self.own[encoder].rows(self.weights, image)
        if not isinstance(model, VitModel):
            raise TypeError(f"no oracle for encoder {encoder} of kind {model.kind}")
        side = model.patch
        pixels = torch.from_numpy(image).double()
        height, width = pixels.shape[1] // side, pixels.shape[2] // side
        patches = torch.stack(
            [
                pixels[:, y * side : (y + 1) * side, x * side : (x + 1) * side]
                .unsqueeze(1)
                .repeat(1, model.temporal_patch, 1, 1)
                .flatten()
                for y in range(height)
                for x in range(width)
            ]
        )
        x_ND, turn = self._linear(patches, f"{encoder}.patch"), None
        if model.positions == "sincos":
            x_ND = x_ND + _sincos(height, width, model.hidden)
        elif model.positions == "learned":
            x_ND = x_ND + self._table(encoder, model, height, width)
        else:
            turn = image_angles(height, width, model.hidden // model.heads)
        if model.class_token:
            token = self.weights[f"{encoder}.class_token.weight"]
            if model.positions == "learned":
                token = token + self.weights[f"{encoder}.positions.weight"][0]
            x_ND = torch.cat([token.unsqueeze(0), x_ND])
        if model.pre_norm:
            x_ND = self._layer_norm(x_ND, f"{encoder}.pre_norm", model.norm_eps)
        x_ND = self._layers(x_ND, encoder, model, turn)[int(model.class_token) :]
        if model.shuffle > 1:
            x_ND = _pixel_shuffle(x_ND, width, model.shuffle)
        return self._project(x_ND, encoder, model)

    def _table(self, encoder: str, model: VitModel, height: int, width: int) -> Tensor:
        """Return the learned positions of an image, resized as an image would be: [N, D]."""
        if model.image is None:
            raise TypeError(f"no grid of positions for encoder {encoder}")
        table = self.weights[f"{encoder}.positions.weight"][int(model.class_token) :]
        as_image = table.T.reshape(1, model.hidden, *model.image)
        sized = F.interpolate(as_image, (height, width), mode="bicubic", align_corners=False)
        return sized[0].flatten(1).T

    def _hear(self, encoder: str, clip: np.ndarray) -> Tensor:
        """Return the tokens of a whole log-mel clip: [mels, frames] -> [frames / 2, D]."""
        x_DF = torch.from_numpy(clip).double()
        for name, stride in (("conv1", 1), ("conv2", 2)):
            weight, bias = (self.weights[f"{encoder}.{name}.{x}"] for x in ("weight", "bias"))
            x_DF = F.gelu(F.conv1d(x_DF, weight, bias, stride=stride, padding=1))
        return x_DF.T + self.weights[f"{encoder}.positions.weight"][: x_DF.shape[1]]

    def _layers(
        self, x_ND: Tensor, encoder: str, model: TransformerEncoder, turn: Tensor | None
    ) -> Tensor:
        """Return the tokens behind the blocks and the last norm; `turn` are rotary angles."""
        eps = model.norm_eps if isinstance(model, VitModel) else 1e-5
        activation = model.activation if isinstance(model, VitModel) else "gelu"
        for i in range(model.layers):
            layer = f"{encoder}.layers.{i}"
            y = self._layer_norm(x_ND, f"{layer}.attention_norm", eps)
            q, k, v = (
                self._linear(y, f"{layer}.attention.{p}").view(len(y), model.heads, -1)
                for p in "qkv"
            )
            if turn is not None:
                q, k = turned(q, turn), turned(k, turn)
            x_ND = x_ND + self._linear(_attend(q, k, v, None), f"{layer}.attention.o")
            y = self._linear(self._layer_norm(x_ND, f"{layer}.mlp_norm", eps), f"{layer}.mlp.up")
            x_ND = x_ND + self._linear(_activated(y, activation), f"{layer}.mlp.down")
        if isinstance(model, VitModel) and not model.final_norm:
            return x_ND
        return self._layer_norm(x_ND, f"{encoder}.norm", eps)

    def _project(self, x_ND: Tensor, encoder: str, model: TransformerEncoder) -> Tensor:
        if model.projector == "linear":
            return self._linear(x_ND, f"{encoder}.projector.linear")
        activation = model.projector_activation if isinstance(model, VitModel) else "gelu"
        hidden = _activated(self._linear(x_ND, f"{encoder}.projector.up"), activation)
        return self._linear(hidden, f"{encoder}.projector.down")

    def _angles(self, index: int, tokens: Tensor, documents: Tensor) -> Tensor:
        """Return the angles of the decoder's rotary embedding for each token, [S, K/2]."""
        model = self.spec.language.model
        if not isinstance(model, DecoderModel):
            raise TypeError(f"no oracle for a language model of kind {model.kind}")
        if model.mrope is None:
            return text_angles(len(tokens), model.head_size, model.rope_theta)
        sizes = {
            placeholder_id(self.spec, name): [
                (image.shape[1] // images.row_side, image.shape[2] // images.row_side)
                for image in self.dataset.images("train", index, name)
            ]
            for name, module in self.spec.encoders.items()
            if (images := image_input(module.model))
        }
        ids = axis_ids(tokens, documents, sizes)
        return axis_angles(ids, model.mrope, model.head_size, model.rope_theta)

    def _decode(self, x_SD: Tensor, documents: Tensor, angles: Tensor) -> Tensor:
        model = self.spec.language.model
        if not isinstance(model, DecoderModel):
            raise TypeError(f"no oracle for a language model of kind {model.kind}")
        heads, kv_heads, eps = model.heads, model.num_kv_heads, model.norm_eps
        for i in range(model.layers):
            layer = f"language.layers.{i}"
            y = self._rms_norm(x_SD, f"{layer}.attention_norm", eps)
            q = self._linear(y, f"{layer}.attention.q").view(len(y), heads, -1)
            k = self._linear(y, f"{layer}.attention.k").view(len(y), kv_heads, -1)
            v = self._linear(y, f"{layer}.attention.v").view(len(y), kv_heads, -1)
            if model.qk_norm:
                q = self._rms_norm(q, f"{layer}.attention.q_norm", eps)
                k = self._rms_norm(k, f"{layer}.attention.k_norm", eps)
            q, k = turned(q, angles), turned(k, angles)
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
            attended = _attend(q, k, v, documents)
            x_SD = x_SD + self._linear(attended, f"{layer}.attention.o")
            y = self._rms_norm(x_SD, f"{layer}.mlp_norm", eps)
            gate = F.silu(self._linear(y, f"{layer}.mlp.gate"))
            x_SD = x_SD + self._linear(
                gate * self._linear(y, f"{layer}.mlp.up"), f"{layer}.mlp.down"
            )
        head = "language.embedding" if model.tied else "language.head"
        return self._linear(self._rms_norm(x_SD, "language.norm", eps), head)


def _neighbours(x_ND: Tensor, stack: int) -> Tensor:
    """Join `stack` tokens that follow each other: [N, D] -> [N / stack, stack * D]."""
    return torch.stack([torch.cat(list(x_ND[i : i + stack])) for i in range(0, len(x_ND), stack)])


def _activated(x: Tensor, activation: str) -> Tensor:
    """Return an activation from its definition: of a normal variable, by tanh, by a sigmoid."""
    if activation == "gelu":
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x / (1 + torch.exp(-1.702 * x))


def _pixel_shuffle(x_ND: Tensor, width: int, side: int) -> Tensor:
    """Join the patches of each square, row by row, as Idefics3 and InternVL do.

    Image of any height, `width` patches wide: [N, D] -> [N / side^2, side^2 * D].
    """
    height, joined = len(x_ND) // width, []
    for top in range(0, height, side):
        for left in range(0, width, side):
            square = [
                x_ND[y * width + x]
                for y in range(top, top + side)
                for x in range(left, left + side)
            ]
            joined.append(torch.cat(square))
    return torch.stack(joined)


def _attend(q_SHK: Tensor, k_SHK: Tensor, v_SHK: Tensor, documents: Tensor | None) -> Tensor:
    """Attend to everything, or with documents to what precedes a token in its own."""
    scores = torch.einsum("shk,thk->hst", q_SHK, k_SHK) / q_SHK.shape[-1] ** 0.5
    if documents is not None:
        size = scores.shape[-1]
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        hidden |= documents[:, None] != documents
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hst,thk->shk", scores.softmax(dim=-1), v_SHK).flatten(1)


def _sincos(height: int, width: int, size: int) -> Tensor:
    """Return 2-D sine-cosine embeddings: y sine, y cosine, x sine, x cosine."""
    quarter = size // 4
    rows = []
    for y in range(height):
        for x in range(width):
            angles = [
                [place / 10000.0 ** (i / max(1, quarter - 1)) for i in range(quarter)]
                for place in (y, x)
            ]
            parts = [f(a) for axis in angles for f in (np.sin, np.cos) for a in axis]
            rows.append(parts)
    return torch.tensor(np.array(rows), dtype=torch.float64)
