"""Rotary embeddings of the oracle: complex numbers, turned token by token.

Decides: the position ids of a sample's tokens from the tokens themselves and the images' sizes.
Relies on: nothing of the product's positions, runs or masks.
Leaves: where they are used to `oracle`.

Legend: S tokens of a sample, H heads, K head size.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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


def text_angles(num_tokens: int, size: int, theta: float) -> Tensor:
    """Return position / theta^(2i/K) for pair i of a head of `size` K, [S, K/2]."""
    return torch.tensor(
        [
            [place / theta ** (2 * i / size) for i in range(size // 2)]
            for place in range(num_tokens)
        ],
        dtype=torch.float64,
    )


def axis_angles(
    ids: Sequence[tuple[int, ...]], sections: Sequence[int], size: int, theta: float
) -> Tensor:
    """Return the same where the first `sections[0]` pairs turn with the first id, and so on."""
    axis_of = [axis for axis, pairs in enumerate(sections) for _ in range(pairs)]
    return torch.tensor(
        [[each[axis] / theta ** (2 * i / size) for i, axis in enumerate(axis_of)] for each in ids],
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
