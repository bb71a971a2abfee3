"""Whether saved tensors fit the model, and what to say if they do not.

Decides: what is missing, of another shape or unused, over all ranks; how such names are listed.
Relies on: `chunks` for what each rank holds.
Leaves: what follows from it to those who load.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from mimo_launch.checkpoint.chunks import WEIGHTS, Chunk
from mimo_launch.comm.host_objects import gather_objects
from mimo_launch.train.run_state import EndOfRun

NAMES_SHOWN = 8


class WeightsDoNotFit(EndOfRun):
    """Names or shapes in a checkpoint are not those of the model; the message lists them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """This rank's chunks that fit, and names over all ranks: fitting, missing, misfitting, unused.

    `missing` maps names to the shapes they have here; `misfits` are in words.
    """

    chunks: tuple[Chunk, ...]
    num_loaded: int
    missing: dict[str, tuple[int, ...]]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]


def fit(
    saved: Mapping[str, tuple[int, ...]],
    chunks: Sequence[Chunk],
    group: dist.ProcessGroup,
    prefix: str = "",
) -> Fit:
    """Compare this rank's chunks with the shapes of all saved tensors.

    `prefix` restricts which saved names count as unused.

    Ranks: collective over `group`.
    """
    fits = tuple(chunk for chunk in chunks if saved.get(chunk.name) == chunk.shape)
    mine = {chunk.name: chunk.shape for chunk in chunks}
    known: dict[str, tuple[int, ...]] = {}
    for theirs in gather_objects(mine, group):
        known |= theirs
    misfits = sorted(
        f"{plain(name)} ({size(saved[name])} there, {size(shape)} here)"
        for name, shape in known.items()
        if name in saved and saved[name] != shape
    )
    return Fit(
        chunks=fits,
        num_loaded=sum(saved.get(name) == shape for name, shape in known.items()),
        missing={plain(name): known[name] for name in sorted(known) if name not in saved},
        misfits=tuple(misfits),
        unused=_sorted(name for name in saved if name.startswith(prefix) and name not in known),
    )


def differences(**lists: Sequence[str]) -> str:
    """Return what does not fit, the first few names of each list spelled out.

    `lists` are by what they are, with `_` for spaces.
    """

    def some(names: Sequence[str]) -> str:
        more = len(names) - NAMES_SHOWN
        return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")

    return "; ".join(
        f"{len(names)} {words.replace('_', ' ')}: {some(names)}"
        for words, names in lists.items()
        if names
    )


def plain(name: str) -> str:
    """Return the name as users know it: weights without their prefix."""
    return name.removeprefix(f"{WEIGHTS}/")


def size(shape: tuple[int, ...]) -> str:
    """Return `96x24` for such a shape."""
    return "x".join(map(str, shape))


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(plain(name) for name in names))
