"""Rotary embeddings of the oracle: complex numbers, turned token by token.

Decides: the position ids of a sample's tokens from the tokens themselves and the images' sizes.
Relies on: nothing of the product's positions, runs or masks.
Leaves: where they are used to `oracle`.

Legend: S tokens of a sample, H heads, K head size.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mimo_launch.spec.model import RopeScaling

Size = tuple[int, int]


def axis_ids(
    tokens: Tensor, documents: Tensor, images: Mapping[int, Sequence[Size]]
) -> list[tuple[int, int, int]]:
    """Return time, height and width of each token.

    `images` are the heights and widths, in rows, of what each placeholder token stands for.
    """
    left = {token: list(sizes) for token, sizes in images.items()}
    ids: list[tuple[int, int, int]] = []
    now = 0
    while len(ids) < len(tokens):
        place = len(ids)
        if place and documents[place] != documents[place - 1]:
            now = 0
        if int(tokens[place]) not in left:
            ids.append((now, now, now))
            now += 1
            continue
        height, width = left[int(tokens[place])].pop(0)
        ids += [(now, now + y, now + x) for y in range(height) for x in range(width)]
        now += max(height, width)
    return ids


def turned(x_SHK: Tensor, angle: Tensor) -> Tensor:
    """Return x with the pair (i, i + K/2) of each head turned by the angles [S, K/2]."""
    half = x_SHK.shape[-1] // 2
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    pairs = torch.complex(x_SHK[..., :half], x_SHK[..., half:]) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def frequencies(size: int, theta: float, scaling: RopeScaling | None = None) -> list[float]:
    """Return 1 / theta^(2i/K) for pair i of a head of `size` K; scaled, by its wavelength."""
    plain = [theta ** (-2 * i / size) for i in range(size // 2)]
    return plain if scaling is None else [_stretched(each, scaling) for each in plain]


def _stretched(frequency: float, scaling: RopeScaling) -> float:
    wavelength, length = 2 * math.pi / frequency, scaling.original_max_position_embeddings
    if wavelength > length / scaling.low_freq_factor:
        return frequency / scaling.factor
    if wavelength < length / scaling.high_freq_factor:
        return frequency
    width = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (length / wavelength - scaling.low_freq_factor) / width
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def text_angles(num_tokens: int, turns: Sequence[float]) -> Tensor:
    """Return position x frequency for each pair of a head, [S, K/2]."""
    return torch.tensor(
        [[place * turn for turn in turns] for place in range(num_tokens)], dtype=torch.float64
    )


def axis_angles(
    ids: Sequence[tuple[int, ...]], sections: Sequence[int], turns: Sequence[float]
) -> Tensor:
    """Return the same where the first `sections[0]` pairs turn with the first id, and so on."""
    axis_of = [axis for axis, pairs in enumerate(sections) for _ in range(pairs)]
    return torch.tensor(
        [[each[axis] * turn for axis, turn in zip(axis_of, turns, strict=True)] for each in ids],
        dtype=torch.float64,
    )


def image_angles(height: int, width: int, size: int) -> Tensor:
    """Return the angles of the patches of an image, row by row, for a head of `size` K, [N, K/2].

    The first K/4 pairs turn by the row, the others by the column, at the same frequencies.
    """
    frequencies = [10000.0 ** (-4 * i / size) for i in range(size // 4)]
    return torch.tensor(
        [
            [place * frequency for place in (y, x) for frequency in frequencies]
            for y in range(height)
            for x in range(width)
        ],
        dtype=torch.float64,
    )
