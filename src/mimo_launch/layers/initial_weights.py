"""Initial weights as a function of (seed, full name): every layout starts from the same model.

Decides: the random stream for each element of each canonical tensor.
Relies on: numpy's Philox, a counter-based generator (Salmon et al. 2011), on the CPU.
Leaves: scales to the layers' declarations.

A tensor is drawn in tiles, each from a separate stream. So a rank draws only the tiles that overlap
its part, for any cut, and several threads share the work.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mimo_launch.layers.parameter_segments import LocalSegment, Segment, filling

TILE = 128
# Tiles that a thread draws at a time: its work for a tile under the interpreter's lock takes 20 us.
GROUP = 8
MOST_THREADS = 8
# Values in a block, or a tile's rows if these are more: 8 MiB, a buffer that the blocks reuse one
# after another. A whole tensor would need new pages, which cost as much time as its draws.
BLOCK = 1 << 20


def init_parameters(
    items: Iterable[LocalSegment],
    seed: int,
    *,
    randomise: bool = False,
    quick: bool = False,
    given: Mapping[str, Tensor] | None = None,
) -> None:
    """Fill rows of this rank's weights with their initial values.

    With `randomise`, constants also get noise, so that no gradient vanishes by symmetry (verify).
    With `quick`, weights are drawn on the device from the same distributions: other numbers on
    other layouts, in a hundredth of the time. `given` has, by full name, the values of segments
    that are not drawn.
    """
    with torch.no_grad(), ThreadPoolExecutor(_threads()) as pool:
        for item in items:
            if quick and item.segment.weight.init == "normal":
                filling(item).copy_(_quickly_drawn(item, seed))
                continue
            start = (given or {}).get(item.name)
            unit = 1 if item.segment.weight.init == "given" and not randomise else TILE
            for rows in _blocks(item.segment, item.first_row, item.local.shape[0], unit):
                values = initial_values(
                    item.name,
                    item.segment,
                    seed,
                    randomise=randomise,
                    rows=rows,
                    given=start,
                    pool=pool,
                )
                filling(item)[_within(rows, item.first_row)].copy_(values)


def _quickly_drawn(item: LocalSegment, seed: int) -> Tensor:
    """Return values of this part in fp32, the same on all ranks that hold the same part."""
    digest = blake2b(f"{seed}/{item.name}/{item.offsets}".encode(), digest_size=8).digest()
    stream = torch.Generator(item.local.device).manual_seed(int.from_bytes(digest, "little") >> 1)
    segment = item.segment
    drawn = torch.empty((len(item.local), *segment.local_shape[1:]), device=item.local.device)
    return drawn.normal_(0.0, segment.weight.std, generator=stream)


def _threads() -> int:
    """Return the number of threads: this worker's share of the host's cores, within a limit."""
    share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(share, len(os.sched_getaffinity(0)), MOST_THREADS))


def _blocks(segment: Segment, first: int, count: int, unit: int = TILE) -> Iterator[range]:
    """Yield `count` rows of this part of a segment in blocks that end at multiples of `unit`."""
    width = math.prod(segment.local_shape[1:])
    step = max(1, BLOCK // (unit * max(1, width))) * unit
    origin = segment.start if segment.axis == 0 else 0
    aligned = range((origin + first) // step * step + step - origin, first + count, step)
    return (range(*bounds) for bounds in pairwise([first, *aligned, first + count]))


def initial_values(
    name: str,
    segment: Segment,
    seed: int,
    *,
    randomise: bool = False,
    rows: range | None = None,
    given: Tensor | None = None,
    pool: Executor | None = None,
) -> Tensor:
    """Return this rank's part of a segment in float64, or only `rows` of that part.

    Threads of `pool` share the work; without a pool, the caller's thread does it.

    Raises: ValueError if the values of a segment must be given and are not.
    """
    rows = range(segment.local_shape[0]) if rows is None else rows
    shape = (len(rows), *segment.local_shape[1:])
    weight = segment.weight
    start: np.ndarray | float = float(weight.init == "ones")
    if weight.init == "constant":
        start = weight.std
        if randomise and math.isinf(start):
            # A bound that clips nothing becomes one that clips.
            start = math.copysign(1.0, start)
    elif weight.init == "sinusoids":
        start = sinusoids(rows, segment.shape[1])
    elif weight.init == "given":
        if given is None:
            raise ValueError(f"no values are given for {name}")
        start = given[rows.start : rows.stop].double().numpy()
    if weight.init in ("log_decay", "time_step"):
        normal = torch.from_numpy(_normal(name, segment, seed, rows, pool).reshape(shape))
        uniform = torch.special.ndtr(normal)
        if weight.init == "log_decay":
            # log(-A) for A uniform between -16 and -1, as in Mamba-2 (its `A_init_range`).
            log_decay: Tensor = (1 + 15 * uniform).log()
            return log_decay
        # The inverse softplus of a time step that is log-uniform between 0.001 and 0.1 (Mamba,
        # 3.6).
        step = torch.exp(math.log(0.001) + uniform * math.log(100.0))
        return step + torch.log(-torch.expm1(-step))
    if weight.init != "normal" and not randomise:
        return torch.from_numpy(np.broadcast_to(start, shape).copy())
    scale = weight.std if weight.init == "normal" else 0.1
    drawn = _normal(name, segment, seed, rows, pool).reshape(shape)
    drawn *= scale
    drawn += start
    return torch.from_numpy(drawn)


def sinusoids(places: range, width: int) -> np.ndarray:
    """Return sines, then cosines, of each place, [places, width], as in Whisper's encoder.

    Wavelengths are a geometric progression from 2 pi to 10000 * 2 pi (arXiv:1706.03762, 3.5).
    """
    steps = np.arange(width // 2) / max(1, width // 2 - 1)
    angles = np.asarray(places)[:, None] * 10000.0**-steps
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class _Part(NamedTuple):
    """A part of a tensor viewed as a matrix of `shape`."""

    shape: tuple[int, int]
    rows: range
    columns: range

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Yield the upper left corners of the tiles that overlap the part."""
        for top in range(self.rows.start // TILE * TILE, self.rows.stop, TILE):
            for left in range(self.columns.start // TILE * TILE, self.columns.stop, TILE):
                yield top, left

    def draw(self, name: str, seed: int, out: np.ndarray, tiles: Iterable[tuple[int, int]]) -> None:
        """Draw tiles and write their overlaps with the part to `out`, which holds the part."""
        for top, left in tiles:
            shape = min(TILE, self.shape[0] - top), min(TILE, self.shape[1] - left)
            digest = blake2b(f"{seed}/{name}/{top}/{left}".encode(), digest_size=16).digest()
            stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
            values = stream.standard_normal(shape)
            rows = range(max(top, self.rows.start), min(top + TILE, self.rows.stop))
            columns = range(max(left, self.columns.start), min(left + TILE, self.columns.stop))
            out[_within(rows, self.rows.start), _within(columns, self.columns.start)] = values[
                _within(rows, top), _within(columns, left)
            ]


def _within(places: range, origin: int) -> slice:
    return slice(places.start - origin, places.stop - origin)


def _normal(
    name: str, segment: Segment, seed: int, rows: range, pool: Executor | None
) -> np.ndarray:
    """Return `rows` of this rank's part of a standard normal tensor, drawn tile by tile."""
    width = int(np.prod(segment.shape[1:], dtype=np.int64))
    part = _Part((segment.shape[0], width), rows, range(width))
    if segment.axis == 0:
        first = segment.start
        part = part._replace(rows=range(first + rows.start, first + rows.stop))
    elif segment.axis is not None:
        part = part._replace(columns=range(segment.start, segment.stop))
    out = np.empty((len(part.rows), len(part.columns)))
    draw, tiles = partial(part.draw, name, seed, out), list(part.tiles())
    if pool is None or len(tiles) <= GROUP:
        draw(tiles)
    else:
        groups = (tiles[first : first + GROUP] for first in range(0, len(tiles), GROUP))
        list(pool.map(draw, groups))
    return out
