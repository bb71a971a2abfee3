"""Initial weights as a function of (seed, full name): every layout starts from the same model.

Decides: the random stream behind each element of each canonical tensor.
Relies on: numpy's Philox, a counter-based generator (Salmon et al. 2011), on the CPU.
Leaves: scales to the layers' declarations.

A tensor is drawn in tiles, each from a stream of its own, so a rank draws only the tiles it holds a
part of, whatever the cut.
"""

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn

from mimo_launch.parallel.segments import Segment, declared_parameters

TILE = 128


def init_parameters(
    module_name: str, root: nn.Module, seed: int, *, randomise: bool = False
) -> None:
    """Fill every parameter below `root` with its initial values.

    With `randomise`, constants get noise too, so that no gradient vanishes by symmetry (verify).
    """
    with torch.no_grad():
        for declared in declared_parameters(module_name, root):
            for placed in declared.placed:
                local = declared.parameter[placed.first_row : placed.last_row]
                local.copy_(initial_values(placed.name, placed.segment, seed, randomise=randomise))


def initial_values(name: str, segment: Segment, seed: int, *, randomise: bool = False) -> Tensor:
    """Return this rank's part of a segment in float64."""
    constant = {"normal": 0.0, "zeros": 0.0, "ones": 1.0}[segment.init]
    if segment.init != "normal" and not randomise:
        return torch.full(segment.local_shape, constant, dtype=torch.float64)
    scale = segment.std if segment.init == "normal" else 0.1
    return torch.from_numpy(constant + scale * _normal(name, segment, seed))


def _normal(name: str, segment: Segment, seed: int) -> np.ndarray:
    """Return this rank's part of a standard normal tensor, tile by tile."""
    rows, columns = segment.shape[0], int(np.prod(segment.shape[1:], dtype=np.int64))
    row_part, column_part = range(rows), range(columns)
    if segment.axis == 0:
        row_part = range(segment.start, segment.stop)
    elif segment.axis is not None:
        column_part = range(segment.start, segment.stop)
    out = np.empty((len(row_part), len(column_part)))
    for top in range(row_part.start // TILE * TILE, row_part.stop, TILE):
        for left in range(column_part.start // TILE * TILE, column_part.stop, TILE):
            shape = min(TILE, rows - top), min(TILE, columns - left)
            tile = _stream(name, seed, top, left).standard_normal(shape)
            first_row, last_row = max(top, row_part.start), min(top + TILE, row_part.stop)
            first, last = max(left, column_part.start), min(left + TILE, column_part.stop)
            out[
                first_row - row_part.start : last_row - row_part.start,
                first - column_part.start : last - column_part.start,
            ] = tile[first_row - top : last_row - top, first - left : last - left]
    return out.reshape(segment.local_shape)


def _stream(name: str, seed: int, top: int, left: int) -> np.random.Generator:
    digest = blake2b(f"{seed}/{name}/{top}/{left}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
