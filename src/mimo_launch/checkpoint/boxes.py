"""Describes the state of a rank as boxes of full tensors, whatever its layout.

Decides: the names of saved tensors (`weights/SEGMENT`, `exp_avg/SEGMENT`, ..., `fp8/LAYER...`) and
the rank that saves each part: the one that counts it in the gradient norm, so that each element is
saved once.
Relies on: segments for the position of a local tensor in the full one; FSDP2 sharding moments like
weights.
Leaves: reading and writing to `storage`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from mimo_launch.comm.objects import gather_objects
from mimo_launch.layers.parameter_segments import (
    DeclaredParameter,
    LocalSegment,
    filling,
    local_segments,
)
from mimo_launch.models.build import RankModule
from mimo_launch.models.fsdp import fsdp_modules
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.runtime.progress import EndOfRun
from mimo_launch.spec.optimizers import UpdateRule

WEIGHTS = "weights"
FP8 = "fp8/"
NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a full tensor: `tensor` holds the part that starts at `offsets` in a `shape`.

    Several ranks may hold the same box; it is `counted` on the one that saves it.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    tensor: Tensor
    counted: bool


def weight_boxes(module: RankModule, *, packed: bool = False) -> Iterator[Box]:
    """Yield this rank's parts of a module's weights, as views to read or fill.

    `packed` adds weights that are kept in few bits, which can only be filled and are never saved.
    """
    for item in local_segments(resharded_parameters(module), lambda p: p.detach()):
        if packed or item.segment.packed is None:
            yield _box(WEIGHTS, item)


def note_filled(modules: Mapping[str, RankModule], boxes: Iterable[Box]) -> None:
    """Note that these weights have values; a box may end before this rank's part of its weight."""
    for box in boxes:
        kind, _, name = box.name.partition("/")
        if kind == WEIGHTS:
            modules[name.partition(".")[0]].unfilled.note(name, box.tensor.shape[0])


def frozen_boxes(module: RankModule, *, packed: bool = False) -> Iterator[Box]:
    """Yield this rank's parts of the weights that do not train; no buffers, which change.

    `packed`: only weights that are kept in few bits.
    """
    declared = resharded_parameters(module)
    frozen = [
        each
        for each in declared
        if isinstance(each.parameter, nn.Parameter)
        and not each.parameter.requires_grad
        and (each.is_packed or not packed)
    ]
    for item in local_segments(frozen, lambda p: p.detach()):
        yield _box(WEIGHTS, item)


def state_boxes(modules: dict[str, RankModule], updates: Updates) -> Iterator[Box]:
    """Yield this rank's parts of all weights, of all optimizer state and of the scales of FP8.

    An optimizer that has not made a step yet gets its initial state.
    """
    for module in modules.values():
        yield from weight_boxes(module)
        if (fp8 := module.context.fp8) is None:
            continue
        # The FP8 state is the same on all ranks of a stage.
        for name, tensor in fp8.tensors():
            shape = tuple(tensor.shape)
            yield Box(f"{FP8}{module.name}.{name}", shape, (0,) * len(shape), tensor, fp8.saves)
    for item, rule, state in _states(modules, updates):
        for name in rule.state:
            for part in _like(item, state[name]):
                yield _box(name, part)


def update_counts(modules: dict[str, RankModule], updates: Updates) -> dict[str, int]:
    """Return the number of updates of each segment with its first element on this rank.

    The bias correction depends on it. Waits for the device.
    """
    counts = {}
    for item, rule, state in _states(modules, updates):
        for part in _like(item, state[rule.state[0]]):
            box = _box("", part)
            if box.counted and not any(box.offsets):
                counts[part.name] = int(state["step"])
    return counts


def set_update_counts(
    modules: dict[str, RankModule], updates: Updates, counts: Mapping[str, int]
) -> None:
    """Set the number of updates of each parameter; 0 if `counts` lacks it."""
    for item, _, state in _states(modules, updates):
        state["step"].fill_(counts.get(item.placed[0].name, 0))


def _like(item: DeclaredParameter, state: Tensor) -> Iterator[LocalSegment]:
    """Yield the segments of a tensor that is sharded like its parameter."""
    return local_segments([item], lambda parameter: state)


def resharded_parameters(module: RankModule) -> list[DeclaredParameter]:
    """Reshard a module, and return its parameters as they are between steps.

    An evaluation leaves weights gathered, so that every rank holds all of them.
    """
    for network in module.stages.values():
        for unit in fsdp_modules(network):
            unit.reshard()
    return list(module.declared())


def _states(
    modules: dict[str, RankModule], updates: Updates
) -> Iterator[tuple[DeclaredParameter, UpdateRule, dict[str, Tensor]]]:
    """Yield the parameters with optimizer state, each with its rule and its state."""
    for name, optimizers in updates.by_module.items():
        declared = resharded_parameters(modules[name])
        for each in optimizers:
            states = each.states()
            # A frozen parameter has no state.
            for item in declared:
                if item.parameter in states:
                    yield item, each.rule, states[item.parameter]


def _box(kind: str, item: LocalSegment) -> Box:
    segment = item.segment
    values: Any = filling(item)
    return Box(f"{kind}/{item.name}", segment.shape, item.offsets, values, segment.counted)


class WeightsDoNotFit(EndOfRun):
    """Names or shapes in a checkpoint differ from the model's; the message lists them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """This rank's boxes that fit, and the names on all ranks that do not.

    `num_loaded` counts the fitting names. `missing` maps names to their shapes in the model;
    `misfits` are descriptions.
    """

    boxes: tuple[Box, ...]
    num_loaded: int
    missing: dict[str, tuple[int, ...]]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]


def fit(
    saved: Mapping[str, tuple[int, ...]],
    boxes: Sequence[Box],
    group: dist.ProcessGroup,
    prefix: str = "",
) -> Fit:
    """Compare this rank's boxes with the shapes of all saved tensors.

    `prefix` restricts which saved names count as unused.

    Ranks: collective over `group`.
    """
    fits = tuple(box for box in boxes if saved.get(box.name) == box.shape)
    mine = {box.name: box.shape for box in boxes}
    known: dict[str, tuple[int, ...]] = {}
    for theirs in gather_objects(mine, group):
        known |= theirs
    misfits = sorted(
        f"{plain(name)} ({size(saved[name])} there, {size(shape)} here)"
        for name, shape in known.items()
        if name in saved and saved[name] != shape
    )
    return Fit(
        boxes=fits,
        num_loaded=sum(saved.get(name) == shape for name, shape in known.items()),
        missing={plain(name): known[name] for name in sorted(known) if name not in saved},
        misfits=tuple(misfits),
        unused=tuple(sorted(plain(n) for n in saved if n.startswith(prefix) and n not in known)),
    )


def differences(**lists: Sequence[str]) -> str:
    """Describe the differences, with the first few names of each list.

    The keywords of `lists` describe the lists, with `_` for spaces.
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
    """Return the name as users know it: without the prefix for weights."""
    return name.removeprefix(f"{WEIGHTS}/")


def size(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as `96x24`."""
    return "x".join(map(str, shape))
