"""Generators of the oracle: one image or clip at a time, whole.

Decides: the velocity of a flow and its loss, and the picture that it makes of noise, in Euler steps
(arXiv:2209.03003, section 2); what a talker makes of codes, its loss, and the codes that it says by
itself.
Relies on: `oracle_blocks`, `oracle_layers`, and `oracle_language` for the layers of a talker.
Leaves: the rows that a generator reads to `oracle`; users' own generators to `oracle_custom`.

Legend: N patches or frames, P numbers of a patch, D width, r rows of width E, S tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.data.random_draws import Noise
from mimo_launch.spec.spec import FlowModel, Model, TalkerModel
from mimo_launch.verify.oracle_blocks import Load, RecordText, blocks
from mimo_launch.verify.oracle_encoders import patches_of, sincos
from mimo_launch.verify.oracle_language import decoder_layers
from mimo_launch.verify.oracle_layers import (
    Weights,
    frequencies,
    layer_norm,
    linear,
    rms_norm,
    text_angles,
)

# Draws noise of a shape, and a time.
Draw = Callable[[tuple[int, int]], Noise]


def velocity_loss(
    weights: Weights,
    name: str,
    model: Model,
    image: np.ndarray,
    read: Mapping[str, Tensor],
    draw: Draw,
) -> tuple[Tensor, int]:
    """Return the loss of a flow for one image, summed over its patches, and 0.

    `read` are the rows that it reads of a module. Raises: TypeError for another model.
    """
    flow = _flow(name, model)
    patches_NP, size = patches_of(image, flow.patch)
    noise, time = draw((len(patches_NP), patches_NP.shape[1]))
    noise_NP = torch.from_numpy(noise).double()
    mixed_NP = (1 - time) * noise_NP + time * patches_NP
    velocity = _velocity(weights, name, flow, mixed_NP, time, size, read)
    return (velocity - (patches_NP - noise_NP)).square().mean(dim=1).sum(), 0


def made_of_noise(
    weights: Weights,
    name: str,
    model: Model,
    like: np.ndarray,
    read: Mapping[str, Tensor],
    draw: Draw,
    num_steps: int,
) -> np.ndarray:
    """Return the picture that a flow makes in so many steps, of the shape of `like`.

    Raises: TypeError for another model.
    """
    flow = _flow(name, model)
    patches_NP, size = patches_of(like, flow.patch)
    x_NP = torch.from_numpy(draw((len(patches_NP), patches_NP.shape[1])).values).double()
    for step in range(num_steps):
        time = step / num_steps
        x_NP = x_NP + _velocity(weights, name, flow, x_NP, time, size, read) / num_steps
    picture, side = np.empty(like.shape), flow.patch
    for number, patch_P in enumerate(x_NP):
        top, left = (side * place for place in divmod(number, size[1]))
        picture[:, top : top + side, left : left + side] = patch_P.reshape(-1, side, side)
    return picture


def _velocity(
    weights: Weights,
    name: str,
    model: FlowModel,
    x_NP: Tensor,
    time: float,
    size: tuple[int, int],
    read: Mapping[str, Tensor],
) -> Tensor:
    """Return the velocities [N, P] of the patches of an image of `size` in patches."""
    x_ND = linear(weights, x_NP, f"{name}.patch") + sincos(*size, model.hidden)
    x_ND = x_ND + _embedded_time(weights, name, model, time)
    rows = [linear(weights, rows, f"{name}.reads.{source}") for source, rows in read.items()]
    x_ND = blocks(weights, torch.cat([x_ND, *rows]), name, model, eps=1e-5)[: len(x_NP)]
    return linear(weights, layer_norm(weights, x_ND, f"{name}.norm", 1e-5), f"{name}.velocity")


def _embedded_time(weights: Weights, name: str, model: FlowModel, time: float) -> Tensor:
    half = model.hidden // 2
    angles = [1000 * time * 10000.0 ** (-i / half) for i in range(half)]
    waves = [math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles]
    waves += [0.0] * (model.hidden - 2 * half)
    x_D = linear(weights, torch.tensor(waves, dtype=torch.float64), f"{name}.time.up")
    return linear(weights, x_D * torch.sigmoid(x_D), f"{name}.time.down")


def speech_loss(
    weights: Weights,
    name: str,
    model: Model,
    codes: np.ndarray,
    read: Mapping[str, Tensor],
    draw: Draw,
) -> tuple[Tensor, int]:
    """Return the loss of a talker for one clip, summed over its rows, and its right codes.

    `codes` are [codebooks, frames]. A talker draws no noise. Raises: TypeError for another model.
    """
    talker, books = _talker(name, model), len(codes)
    clip = [[talker.start_code] * books, *codes.T.tolist(), [talker.end_code] * books]
    losses, right = [], 0
    logits = _logits(weights, name, talker, clip[:-1], read)
    for of_book, said in zip(logits, torch.tensor(clip[1:]).T, strict=True):
        losses.append(F.cross_entropy(of_book, said, reduction="sum"))
        right += int((of_book.argmax(dim=1) == said).sum())
    return torch.stack(losses).mean(), right


def said_from_start(
    weights: Weights,
    name: str,
    model: Model,
    like: np.ndarray,
    read: Mapping[str, Tensor],
    draw: Draw,
    num_steps: int,
) -> np.ndarray:
    """Return the clip [codebooks, frames] that a talker says, frame by frame the likeliest codes.

    It ends in front of the first code of the end, and after as many frames as `like` has. Raises:
    TypeError for another model.
    """
    talker, books = _talker(name, model), len(like)
    frames = [[talker.start_code] * books]
    while len(frames) <= like.shape[1]:
        logits = _logits(weights, name, talker, frames, read)
        frames.append([int(of_book[-1].argmax()) for of_book in logits])
        if talker.end_code in frames[-1]:
            del frames[-1]
            break
    return np.array(frames[1:], dtype=np.int64).reshape(-1, books).T


def _logits(
    weights: Weights,
    name: str,
    model: TalkerModel,
    frames: Sequence[Sequence[int]],
    read: Mapping[str, Tensor],
) -> list[Tensor]:
    """Return for each codebook the logits [N, codes] after each frame."""
    (read_rE,) = read.values()
    table = weights[f"{name}.codes.weight"]
    seen = [
        torch.stack([table[book * model.vocab + code] for book, code in enumerate(frame)]).sum(0)
        for frame in frames
    ]
    x_SD = linear(weights, torch.cat([read_rE, torch.stack(seen)]), f"{name}.project")
    text = RecordText(torch.zeros(len(x_SD)), torch.ones(len(x_SD)) > 0, Load())
    turns = frequencies(model.head_size, model.rope_theta, model.rope_scaling)
    angles = text_angles(len(x_SD), turns)
    x_SD = decoder_layers(weights, x_SD, model, text, angles, name=name)
    x_ND = rms_norm(weights, x_SD[len(read_rE) :], f"{name}.norm", model.norm_eps)
    return [linear(weights, x_ND, f"{name}.heads.{book}") for book in range(len(frames[0]))]


def _flow(name: str, model: Model) -> FlowModel:
    if not isinstance(model, FlowModel):
        raise TypeError(f"no oracle for generator {name} of kind {model.kind}")
    return model


def _talker(name: str, model: Model) -> TalkerModel:
    if not isinstance(model, TalkerModel):
        raise TypeError(f"no oracle for talker {name} of kind {model.kind}")
    return model


LOSSES = {"flow": velocity_loss, "talker": speech_loss}
MAKERS = {"flow": made_of_noise, "talker": said_from_start}
