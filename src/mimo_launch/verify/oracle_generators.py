"""Generators of the oracle: one image or clip at a time, whole.

Decides: the velocity of a flow and its loss, and the image that it makes from noise in Euler steps
(arXiv:2209.03003, section 2); the logits of a talker, its loss, and the codes that it generates.
Relies on: `oracle_blocks`, `oracle_layers`, and `oracle_language` for the layers of a talker.
Leaves: the rows that a generator reads to `oracle`; users' own generators to `oracle_parts`.

Legend: N patches or frames, P numbers of a patch, D width, r rows of width E, S tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.data.random_draws import Noise
from mimo_launch.spec.encoders import FlowModel
from mimo_launch.spec.spec import Model, TalkerModel
from mimo_launch.verify.oracle_blocks import Load, RecordText, blocks
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_encoders import patches_of, sincos
from mimo_launch.verify.oracle_language import decoder_layers
from mimo_launch.verify.oracle_layers import (
    frequencies,
    layer_norm,
    linear,
    rms_norm,
    text_angles,
)

# Draws noise of a shape, and a time.
Draw = Callable[[tuple[int, int]], Noise]


@dataclass(frozen=True, slots=True)
class OneRankFlow:
    """A flow: `read` are the rows of each module that it reads, `draw` draws noise and a time."""

    weights: Weights
    name: str
    model: FlowModel

    def loss(self, image: np.ndarray, read: Mapping[str, Tensor], draw: Draw) -> tuple[Tensor, int]:
        """Return the loss of an image, summed over its patches, and 0."""
        patches_NP, size = patches_of(image, self.model.patch)
        noise, time = draw((len(patches_NP), patches_NP.shape[1]))
        noise_NP = torch.from_numpy(noise).double()
        mixed_NP = (1 - time) * noise_NP + time * patches_NP
        velocity = self._velocity(mixed_NP, time, size, read)
        return (velocity - (patches_NP - noise_NP)).square().mean(dim=1).sum(), 0

    def made(
        self, like: np.ndarray, read: Mapping[str, Tensor], draw: Draw, num_steps: int
    ) -> np.ndarray:
        """Return the image that the flow makes in `num_steps` steps, with the shape of `like`."""
        side = self.model.patch
        patches_NP, size = patches_of(like, side)
        x_NP = torch.from_numpy(draw((len(patches_NP), patches_NP.shape[1])).values).double()
        for step in range(num_steps):
            x_NP = x_NP + self._velocity(x_NP, step / num_steps, size, read) / num_steps
        picture = np.empty(like.shape)
        for number, patch_P in enumerate(x_NP):
            top, left = (side * place for place in divmod(number, size[1]))
            picture[:, top : top + side, left : left + side] = patch_P.reshape(-1, side, side)
        return picture

    def _velocity(
        self, x_NP: Tensor, time: float, size: tuple[int, int], read: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the velocities [N, P] of the patches of an image of `size` in patches."""
        weights, name, model = self.weights, self.name, self.model
        x_ND = linear(weights, x_NP, f"{name}.patch") + sincos(*size, model.hidden)
        x_ND = x_ND + self._embedded(time)
        rows = [linear(weights, rows, f"{name}.reads.{source}") for source, rows in read.items()]
        x_ND = blocks(weights, torch.cat([x_ND, *rows]), name, model)[: len(x_NP)]
        return linear(weights, layer_norm(weights, x_ND, f"{name}.norm", 1e-5), f"{name}.velocity")

    def _embedded(self, time: float) -> Tensor:
        half = self.model.hidden // 2
        angles = [1000 * time * 10000.0 ** (-i / half) for i in range(half)]
        waves = [math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles]
        waves += [0.0] * (self.model.hidden - 2 * half)
        waves_D = torch.tensor(waves, dtype=torch.float64)
        x_D = linear(self.weights, waves_D, f"{self.name}.time.up")
        return linear(self.weights, x_D * torch.sigmoid(x_D), f"{self.name}.time.down")


@dataclass(frozen=True, slots=True)
class OneRankTalker:
    """A talker, which reads rows of one module and draws no noise."""

    weights: Weights
    name: str
    model: TalkerModel

    def loss(self, codes: np.ndarray, read: Mapping[str, Tensor], draw: Draw) -> tuple[Tensor, int]:
        """Return the loss of a clip [codebooks, frames], summed over rows, and its right codes."""
        start, end = self.model.start_code, self.model.end_code
        clip = [[start] * len(codes), *codes.T.tolist(), [end] * len(codes)]
        losses, right = [], 0
        logits = self._logits(clip[:-1], read)
        for of_book, said in zip(logits, torch.tensor(clip[1:]).T, strict=True):
            losses.append(F.cross_entropy(of_book, said, reduction="sum"))
            right += int((of_book.argmax(dim=1) == said).sum())
        return torch.stack(losses).mean(), right

    def made(
        self, like: np.ndarray, read: Mapping[str, Tensor], draw: Draw, num_steps: int
    ) -> np.ndarray:
        """Return the clip [codebooks, frames] of the most probable codes, frame by frame.

        It ends before the first frame with an end code, and after at most as many frames as `like`.
        """
        books = len(like)
        frames = [[self.model.start_code] * books]
        while len(frames) <= like.shape[1]:
            logits = self._logits(frames, read)
            frames.append([int(of_book[-1].argmax()) for of_book in logits])
            if self.model.end_code in frames[-1]:
                del frames[-1]
                break
        return np.array(frames[1:], dtype=np.int64).reshape(-1, books).T

    def _logits(self, frames: Sequence[Sequence[int]], read: Mapping[str, Tensor]) -> list[Tensor]:
        """Return, for each codebook, the logits [N, codes] after each frame."""
        weights, name, model = self.weights, self.name, self.model
        (read_rE,) = read.values()
        table = weights[f"{name}.codes.weight"]
        seen = [
            torch.stack([table[book * model.vocab + code] for book, code in enumerate(each)]).sum(0)
            for each in frames
        ]
        x_SD = linear(weights, torch.cat([read_rE, torch.stack(seen)]), f"{name}.project")
        turns = frequencies(model.head_size, model.rope_theta, model.rope_scaling)
        one, all_count = torch.zeros(len(x_SD)), torch.ones(len(x_SD)) > 0
        text = RecordText(one, all_count, Load(), angles=text_angles(len(x_SD), turns))
        x_SD = decoder_layers(weights, x_SD, model, text, name=name)
        x_ND = rms_norm(weights, x_SD[len(read_rE) :], f"{name}.norm", model.norm_eps)
        return [linear(weights, x_ND, f"{name}.heads.{book}") for book in range(len(frames[0]))]


def generator_of(weights: Weights, name: str, model: Model) -> OneRankFlow | OneRankTalker:
    """Return the generator of a module.

    Raises: TypeError if there is no oracle for its kind.
    """
    if isinstance(model, FlowModel):
        return OneRankFlow(weights, name, model)
    if isinstance(model, TalkerModel):
        return OneRankTalker(weights, name, model)
    raise TypeError(f"no oracle for generator {name} of kind {model.kind}")
