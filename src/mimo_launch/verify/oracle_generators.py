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
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.encoders import FlowModel
from mimo_launch.spec.spec import Model, TalkerModel
from mimo_launch.verify.oracle_blocks import Load, RecordText, blocks
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_encoders import patches_of
from mimo_launch.verify.oracle_language import decoder_block, decoder_streams
from mimo_launch.verify.oracle_layers import (
    frequencies,
    layer_norm,
    linear,
    rms_norm,
    text_angles,
)
from mimo_launch.verify.oracle_towers import sincos

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
        first, states = self._first(clip[:-1], read)
        logits = [*first, *self._later(states[:-1], clip[1:-1])]
        for of_book, column in zip(logits, torch.tensor(clip[1:]).T, strict=True):
            # A predictor says nothing after the last frame, and nothing wrong.
            said = column[: len(of_book)]
            right += len(column) - len(said)
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
            first, states = self._first(frames, read)
            said = [int(of_book[-1].argmax()) for of_book in first]
            if self.model.end_code in said:
                break
            while len(said) < books:
                later = self._later(states[-1:], [[*said, *[0] * (books - len(said))]])
                said.append(int(later[len(said) - 1][0].argmax()))
            frames.append(said)
        return np.array(frames[1:], dtype=np.int64).reshape(-1, books).T

    def _code(self, book: int, code: int) -> Tensor:
        """Return the embedding of a code of a codebook."""
        if book and self.model.inside_frames is not None:
            later: Tensor = self.weights[f"{self.name}.later.{book - 1}.weight"]
            return later[code]
        table: Tensor = self.weights[f"{self.name}.codes.weight"]
        return table[book * self.model.vocab + code]

    def _first(
        self, frames: Sequence[Sequence[int]], read: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Return the logits [N, codes] after each frame of every codebook with a head, and states.

        With a code predictor only the first codebook has such a head, and a start.
        """
        weights, name, model = self.weights, self.name, self.model
        (read_rE,) = read.values()
        alone = model.predictor is not None
        seen = []
        for each in frames:
            codes = each[:1] if alone and each[0] == model.start_code else each
            seen.append(torch.stack([self._code(*code) for code in enumerate(codes)]).sum(0))
        codes_NE = torch.stack(seen)
        if model.maps_text_apart:
            x_SD = torch.cat([self._apart(*read.items()), codes_NE])
        elif model.maps_rows_alone:
            x_SD = torch.cat([linear(weights, read_rE, f"{name}.project"), codes_NE])
        else:
            x_SD = linear(weights, torch.cat([read_rE, codes_NE]), f"{name}.project")
        turns = frequencies(model.head_size, model.rope_theta, model.rope_scaling)
        one, all_count = torch.zeros(len(x_SD)), torch.ones(len(x_SD)) > 0
        text = RecordText(one, all_count, Load(), angles=text_angles(range(len(x_SD)), turns))
        *_, (_, x_SD) = decoder_streams(weights, x_SD, model, text, name=name)
        x_ND = rms_norm(weights, x_SD[len(read_rE) :], f"{name}.norm", model.norm_eps)
        heads = range(1 if alone else model.codebooks)
        return [linear(weights, x_ND, f"{name}.heads.{book}") for book in heads], x_ND

    def _apart(self, read: tuple[str, Tensor]) -> Tensor:
        """Return the rows [R, D] of language, in which a last column tells states from text."""
        source, rows_rE = read

        def mapped(x_rE: Tensor, kind: str) -> Tensor:
            inner = linear(self.weights, x_rE, f"{self.name}.project.{kind}.up")
            inner = inner * torch.sigmoid(inner)
            return linear(self.weights, inner, f"{self.name}.project.{kind}.down")

        if source != LANGUAGE:
            return mapped(rows_rE, "states")
        rows_rE, is_state = rows_rE[:, :-1], rows_rE[:, -1:] > 0
        return torch.where(is_state, mapped(rows_rE, "states"), mapped(rows_rE, "text"))

    def _later(self, states: Tensor, frames: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the logits [N, codes] of each codebook with a predictor, frame after frame."""
        weights, model, name = self.weights, self.model.inside_frames, f"{self.name}.predictor"
        if model is None:
            return []
        books = range(self.model.codebooks - 1)
        found: list[list[Tensor]] = [[] for _ in books]
        turns = frequencies(model.head_size, model.rope_theta)
        for state_D, codes in zip(states, frames, strict=True):
            read = [self._code(book, codes[book]) for book in books]
            x_KD = torch.stack([state_D, *read])
            one, counts = torch.zeros(len(x_KD)), torch.ones(len(x_KD)) > 0
            text = RecordText(one, counts, Load(), angles=text_angles(range(len(x_KD)), turns))
            for number in range(model.layers):
                x_KD = decoder_block(weights, x_KD, model, text, number, f"{name}.blocks.{number}")
            x_KD = rms_norm(weights, x_KD, f"{name}.norm", model.norm_eps)
            for book in books:
                found[book].append(linear(weights, x_KD[book + 1], f"{name}.heads.{book}"))
        empty = torch.zeros((0, model.vocab), dtype=states.dtype)
        return [torch.stack(each) if each else empty for each in found]


def generator_of(weights: Weights, name: str, model: Model) -> OneRankFlow | OneRankTalker:
    """Return the generator of a module.

    Raises: TypeError if there is no oracle for its kind.
    """
    if isinstance(model, FlowModel):
        return OneRankFlow(weights, name, model)
    if isinstance(model, TalkerModel):
        return OneRankTalker(weights, name, model)
    raise TypeError(f"no oracle for generator {name} of kind {model.kind}")
