"""The state of a rank as boxes of full tensors, whatever its layout.

Decides: the names of saved tensors (`weights/SEGMENT`, `exp_avg/SEGMENT`, ...) and which rank saves
which part: the one that counts it in the gradient norm, so that each element is saved once.
Relies on: segments for where a local tensor lies in the full one; FSDP2 sharding moments like
weights.
Leaves: reading and writing to `storage`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mimo_launch.modules.build import RankModule, fsdp_modules
from mimo_launch.optimizer.build import Updates
from mimo_launch.optimizer.gradients import LocalSegment, local_segments

WEIGHTS = "weights"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a full tensor: `tensor` holds what starts at `offsets` in a tensor of `shape`.

    `counted` is true on the one rank that saves it.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    tensor: Tensor
    counted: bool


def weight_chunks(module: RankModule) -> Iterator[Chunk]:
    """Yield this rank's parts of a module's weights as views that can be written to."""
    for network in module.stages.values():
        for unit in fsdp_modules(network):
            # An evaluation leaves weights gathered; then every rank would hold all of them.
            unit.reshard()
    for item in local_segments(module.declared(), lambda p: p.detach()):
        yield _chunk(WEIGHTS, item)


def state_chunks(modules: dict[str, RankModule], updates: Updates) -> Iterator[Chunk]:
    """Yield this rank's parts of all weights and of all optimizer state.

    An optimizer that has not made a step yet gets the state it would start with.
    """
    for name, module in modules.items():
        yield from weight_chunks(module)
        update = updates.by_module.get(name)
        if update is None or not isinstance(update.optimizer, torch.optim.AdamW):
            continue
        _open_state(update.optimizer)
        for moment in MOMENTS:
            tensor_of = partial(_moment, update.optimizer, moment)
            for item in local_segments(module.declared(), tensor_of):
                yield _chunk(moment, item)


def _moment(optimizer: torch.optim.AdamW, key: str, parameter: Tensor) -> Tensor | None:
    """Return one moment of a parameter; None for a frozen one."""
    state: dict[str, Tensor] | None = optimizer.state.get(parameter)
    return None if state is None else state[key]


def set_update_count(updates: Updates, count: int) -> None:
    """Tell every optimizer how many updates it has made; AdamW's bias correction depends on it."""
    for update in updates.by_module.values():
        if isinstance(update.optimizer, torch.optim.AdamW):
            _open_state(update.optimizer)
            for state in update.optimizer.state.values():
                state["step"].fill_(count)


def _open_state(optimizer: torch.optim.AdamW) -> None:
    """Create the state that the first step would create."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {key: torch.zeros_like(parameter) for key in MOMENTS}
                optimizer.state[parameter] = {"step": step, **moments}


def _chunk(kind: str, item: LocalSegment) -> Chunk:
    segment = item.segment
    offsets = [0] * len(segment.shape)
    if segment.axis is not None:
        offsets[segment.axis] = segment.start
    offsets[0] += item.first_row
    return Chunk(f"{kind}/{item.name}", segment.shape, tuple(offsets), item.local, segment.counted)
