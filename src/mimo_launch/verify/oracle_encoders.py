"""Encoders of the oracle: one image or clip at a time, whole.

Decides: what the rows of an image or a clip are; that a custom encoder with every axis at 1 is
right by definition: what differs between one rank and a layout, and between an image alone and
beside others, is what the proof shows.
Relies on: `oracle_layers`; the class itself of a custom encoder, and the packing of one image.
Leaves: where rows go, and what is made of them, to `oracle`.

Legend: N patches of an image or tokens of a clip, F frames, D width, r rows, L width of language.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mimo_launch.layers.attention_contexts import image_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.models.encoder_inputs import EncoderInput, pack, reader
from mimo_launch.spec.encoders import Activation
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    Model,
    Spec,
    TransformerEncoder,
    VitModel,
)
from mimo_launch.verify.oracle_layers import (
    Weights,
    attend,
    image_angles,
    layer_norm,
    linear,
    turned,
)


def encode(weights: Weights, encoder: str, model: Model, array: np.ndarray) -> Tensor:
    """Return the rows [r, L] of one image or clip alone. Raises: TypeError for another model."""
    if model.kind not in ENCODERS:
        raise TypeError(f"no oracle for encoder {encoder} of kind {model.kind}")
    return ENCODERS[model.kind](weights, encoder, model, array)


def _of_audio(weights: Weights, encoder: str, model: AudioModel, clip: np.ndarray) -> Tensor:
    x_ND = _blocks(weights, _hear(weights, encoder, clip), encoder, model, eps=1e-5)
    x_ND = layer_norm(weights, x_ND, f"{encoder}.norm", 1e-5)
    return _project(weights, _neighbours(x_ND, model.stack), encoder, model)


def _of_vit(weights: Weights, encoder: str, model: VitModel, image: np.ndarray) -> Tensor:
    x_ND = _see(weights, encoder, model, image)
    return _project(weights, x_ND, encoder, model, model.projector_activation)


ENCODERS: dict[str, Callable[..., Tensor]] = {"audio": _of_audio, "vit": _of_vit}


def _see(weights: Weights, encoder: str, model: VitModel, image: np.ndarray) -> Tensor:
    """Return what the projector takes of an image, [r, row width]."""
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
    x_ND, turn = linear(weights, patches, f"{encoder}.patch"), None
    if model.positions == "sincos":
        x_ND = x_ND + _sincos(height, width, model.hidden)
    elif model.positions == "learned":
        x_ND = x_ND + _table(weights, encoder, model, height, width)
    else:
        turn = image_angles(height, width, model.hidden // model.heads)
    if model.class_token:
        token = weights[f"{encoder}.class_token.weight"]
        if model.positions == "learned":
            token = token + weights[f"{encoder}.positions.weight"][0]
        x_ND = torch.cat([token.unsqueeze(0), x_ND])
    if model.pre_norm:
        x_ND = layer_norm(weights, x_ND, f"{encoder}.pre_norm", model.norm_eps)
    x_ND = _blocks(weights, x_ND, encoder, model, model.activation, turn, eps=model.norm_eps)
    if model.final_norm:
        x_ND = layer_norm(weights, x_ND, f"{encoder}.norm", model.norm_eps)
    x_ND = x_ND[int(model.class_token) :]
    return _pixel_shuffle(x_ND, width, model.shuffle) if model.shuffle > 1 else x_ND


def _table(weights: Weights, encoder: str, model: VitModel, height: int, width: int) -> Tensor:
    """Return the learned positions of an image, resized as an image would be: [N, D]."""
    if model.image is None:
        raise TypeError(f"no grid of positions for encoder {encoder}")
    table = weights[f"{encoder}.positions.weight"][int(model.class_token) :]
    as_image = table.T.reshape(1, model.hidden, *model.image)
    sized = F.interpolate(as_image, (height, width), mode="bicubic", align_corners=False)
    return sized[0].flatten(1).T


def _hear(weights: Weights, encoder: str, clip: np.ndarray) -> Tensor:
    """Return the tokens of a whole log-mel clip: [mels, frames] -> [frames / 2, D]."""
    x_DF = torch.from_numpy(clip).double()
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = (weights[f"{encoder}.{name}.{x}"] for x in ("weight", "bias"))
        x_DF = F.gelu(F.conv1d(x_DF, weight, bias, stride=stride, padding=1))
    return x_DF.T + weights[f"{encoder}.positions.weight"][: x_DF.shape[1]]


def _blocks(
    weights: Weights,
    x_ND: Tensor,
    encoder: str,
    model: TransformerEncoder,
    activation: Activation = "gelu",
    turn: Tensor | None = None,
    *,
    eps: float,
) -> Tensor:
    """Return the tokens behind the blocks; `turn` are rotary angles."""
    for i in range(model.layers):
        layer = f"{encoder}.layers.{i}"
        y = layer_norm(weights, x_ND, f"{layer}.attention_norm", eps)
        q, k, v = (
            linear(weights, y, f"{layer}.attention.{p}").view(len(y), model.heads, -1)
            for p in "qkv"
        )
        if turn is not None:
            q, k = turned(q, turn), turned(k, turn)
        x_ND = x_ND + linear(weights, attend(q, k, v, None), f"{layer}.attention.o")
        y = linear(weights, layer_norm(weights, x_ND, f"{layer}.mlp_norm", eps), f"{layer}.mlp.up")
        x_ND = x_ND + linear(weights, _activated(y, activation), f"{layer}.mlp.down")
    return x_ND


def _project(
    weights: Weights,
    x_ND: Tensor,
    encoder: str,
    model: TransformerEncoder,
    activation: Activation = "gelu",
) -> Tensor:
    if model.projector == "linear":
        return linear(weights, x_ND, f"{encoder}.projector.linear")
    hidden = _activated(linear(weights, x_ND, f"{encoder}.projector.up"), activation)
    return linear(weights, hidden, f"{encoder}.projector.down")


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


def keep_activations(spec: Spec) -> Spec:
    """Return a spec that recomputes nothing: a second forward would miss the weights from outside.

    See `OneRankEncoder`.
    """
    modules = {n: m.model_copy(update={"recompute": "none"}) for n, m in spec.modules.items()}
    return spec.model_copy(update={"modules": modules})


class OneRankEncoder:
    """A network of one stage, called with weights from outside."""

    def __init__(
        self, name: str, network: nn.Module, model: CustomModel, context: ParallelContext
    ) -> None:
        self.network, self.model, self.context = network, model, context
        path_of = {id(p): path for path, p in network.named_parameters()}
        # One segment or several, fused along dim 0, make a parameter.
        self.segments = {
            path_of[id(declared.parameter)]: [placed.name for placed in declared.placed]
            for declared in declared_parameters(name, network)
        }

    def rows(self, weights: Mapping[str, Tensor], array: np.ndarray) -> Tensor:
        """Return the rows [r, L] of one image, by the weights of all segments."""
        how, per_row = reader(self.model), self.model.patches_per_row
        cut = how.cut(array, dtype=self.context.compute_dtype, pinned=False)
        size = len(cut.values)
        held = range(size)
        packed = EncoderInput(
            mask=image_context([size], held, self.context.device, alone=True),
            sizes=(size // per_row,),
            patches=pack([cut], how, self.context, held),
            images=(self.model.input.size_in_rows(array.shape),),
        )
        values = {
            path: torch.cat([weights[name] for name in names])
            for path, names in self.segments.items()
        }
        rows: Tensor = functional_call(self.network, values, (None, packed))
        return rows
