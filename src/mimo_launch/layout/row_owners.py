"""The rank of a replica that owns each row, at the two ends of a bridge.

Decides: how rows are cut over cp and tp, and their places in the language input.
Relies on: the grids of `layout`.
Leaves: which rows a replica has to `replica_views`, pairing the two ends to `bridge_routing`.

Encoder end: a replica's rows, in sample order, are cut into contiguous shares over cp, then tp.
Without sequence parallelism every tp rank holds all rows and *owns* an even share of them. With it
a rank holds only the rows that it owns: an even cut of the rows, padded at the end. Patches are cut
with their rows, so no cut splits the square of patches that makes a row (pixel shuffle).

Language end: see `replica_views.LanguageView`.
"""

import math
from collections.abc import Iterator
from itertools import accumulate

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import even_cut
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.spec.base import Axis


@frozen
class Piece:
    """Consecutive rows of one sample that `rank` owns; `start` is their offset in its rows."""

    rank: int
    sample: int
    first_row: int
    num_rows: int
    start: int


@frozen
class Run:
    """Consecutive rows of one sample at consecutive places of a token list."""

    sample: int
    first_row: int
    num_rows: int
    place: int


def local_rows(module: ModuleLayout, total: int) -> int:
    """Return the number of a replica's `total` rows on each cp rank, padding included.

    Padding makes the number equal on every cp rank, and under sequence parallelism on every tp
    rank. It makes the number of patches a multiple of the module's `token_step`.
    """
    cp_size = module.grid.size(Axis.CP)
    rows = module.token_step // math.gcd(module.token_step, module.patches_per_row)
    unit = cp_size * shards_of_cp_rank(module) * rows
    return -(-total // unit) * unit // cp_size


def local_extra_tokens(module: ModuleLayout, total: int) -> int:
    """Return the number of a replica's extra tokens on each shard, padding included.

    A shard is a cp rank or, under sequence parallelism, one of its tp ranks. Extra tokens (class
    tokens, rows of other modules, or tokens that make no row) are a separate list, cut like rows: a
    shard holds its part of that list after its patches.
    """
    return -(-total // (module.grid.size(Axis.CP) * shards_of_cp_rank(module)))


def shards_of_cp_rank(module: ModuleLayout) -> int:
    """Return the number of parts into which tp cuts the tokens of a cp rank."""
    return module.grid.size(Axis.TP) if module.sequence_parallel else 1


def held_patches(module: ModuleLayout, total: int, cp: int) -> range:
    """Return the patches of a replica's `total` rows that cp rank `cp` holds, padding included."""
    size = local_rows(module, total) * module.patches_per_row
    return range(cp * size, (cp + 1) * size)


def row_cut(module: ModuleLayout, total: int, cp: int, tp: int) -> range:
    """Return which of a replica's `total` rows the encoder rank at (cp, tp) owns."""
    tp_size, size = module.grid.size(Axis.TP), local_rows(module, total)
    first, last = min(total, cp * size), min(total, (cp + 1) * size)
    if not module.sequence_parallel:
        inner = even_cut(last - first, tp_size, tp)
        return range(first + inner.start, first + inner.stop)
    share = size // tp_size
    start = cp * size + tp * share
    return range(min(total, start), min(total, start + share))


def zigzag_parts(
    position: int, length: int, seq: int, cp: int, cp_size: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (position, length, local place) of each part of a span that cp rank `cp` holds.

    It holds chunks cp and 2 * cp_size - 1 - cp of 2 * cp_size. This zigzag balances causal
    attention.
    """
    if cp_size == 1:
        yield position, length, position
        return
    size = seq // (2 * cp_size)
    for local, chunk in enumerate((cp, 2 * cp_size - 1 - cp)):
        first = max(position, chunk * size)
        last = min(position + length, (chunk + 1) * size)
        if first < last:
            yield first, last - first, local * size + first - chunk * size


def cut_runs(module: ModuleLayout, runs: list[Run], tokens: int) -> list[list[Run]]:
    """Return the part of a token list's runs that each tp rank of a module owns.

    Under sequence parallelism these are the rows in its slice of the list of `tokens`, with places
    relative to the slice. Otherwise they are an even share of all rows, with the same places.
    """
    tp_size = module.grid.size(Axis.TP)
    if module.sequence_parallel:
        size, starts = tokens // tp_size, [run.place for run in runs]
        slices = (range(tp * size, (tp + 1) * size) for tp in range(tp_size))
        return [list(_clip(runs, starts, held, held.start)) for held in slices]
    *starts, total = accumulate((run.num_rows for run in runs), initial=0)
    cuts = (even_cut(total, tp_size, tp) for tp in range(tp_size))
    return [list(_clip(runs, starts, cut, 0)) for cut in cuts]


def cut_by_shards(run: Run, held: int, size: int, start: int) -> Iterator[Run]:
    """Yield the parts of a run in a list that is cut evenly over shards.

    Places of parts count through all shards. Each shard has `size` tokens, of which `held`, from
    `start` on, belong to this list.
    """
    done = 0
    while done < run.num_rows:
        shard, place = divmod(run.place + done, held)
        length = min(run.num_rows - done, held - place)
        yield Run(run.sample, run.first_row + done, length, shard * size + start + place)
        done += length


def _clip(runs: list[Run], starts: list[int], window: range, shift: int) -> Iterator[Run]:
    """Yield the part of each run inside `window`; run i begins at `starts[i]`."""
    for run, start in zip(runs, starts, strict=True):
        first = max(start, window.start)
        last = min(start + run.num_rows, window.stop)
        if first < last:
            skip = first - start
            yield Run(run.sample, run.first_row + skip, last - first, run.place + skip - shift)
