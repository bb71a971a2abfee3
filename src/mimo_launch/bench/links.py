"""Times the links between ranks: the spec's own groups and channels, at its own sizes.

Decides: which transfers are timed, large ones for bandwidth and tiny ones for latency.
Relies on: the groups of the session; the same order of groups and channels on all ranks, so that
ranks do not wait for each other in a circle.
Leaves: the constants to `calibrate`.
"""

import statistics
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from mimo_launch.bench.measure_device import REPEATS, seconds_of
from mimo_launch.comm.collectives import all_gather
from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.estimate.memory import row_bytes
from mimo_launch.estimate.parameters import stage_weights
from mimo_launch.estimate.step_work import first_work
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.schedule.channels import Channel
from mimo_launch.spec.base import Axis
from mimo_launch.train.rank_session import RankSession

_MOST_BYTES = {"cuda": 1 << 30, "cpu": 1 << 24}
_LEAST_BYTES = 1 << 12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """Seconds of a tiny transfer, and the GB/s of a large one after that latency, if measurable."""

    ranks: tuple[int, ...]
    seconds: float
    bandwidth: float | None


def collectives(session: RankSession) -> list[MeasuredLink]:
    """Time an all-gather in every group of this rank, with the size that its module gathers there.

    Bandwidth counts the bytes that each rank receives. Ranks: collective over groups.
    """
    found, device = [], session.device
    for name, module in session.modules.items():
        sizes = _gathered_bytes(session, module.layout)
        for axes, size in sizes.items():
            group = session.grids.group(name, *axes)
            if group.handle is None:
                continue
            tiny, large = (
                seconds_of(partial(all_gather, torch.randn(n, device=device), group), device)
                for n in (1, max(1, size // 4 // group.size))
            )
            share = (group.size - 1) / group.size
            found.append(
                MeasuredLink(group.ranks, tiny, _bandwidth(size * share, large - tiny, tiny))
            )
    return found


def _gathered_bytes(session: RankSession, module: ModuleLayout) -> dict[tuple[Axis, ...], int]:
    """Return the bytes that a module gathers in one all-gather over each group of axes."""
    spec, layout = session.spec, session.layout
    number = spec.train.numbers.computed.bytes
    model = spec.modules[module.name].model
    kind = kind_of(model)
    gathered = max(kind.layer_widths(number).gathers for number in range(model.layers))
    held = max(work.held for work in first_work(spec, layout).slowest(module))
    tp, cp = module.grid.size(Axis.TP), module.grid.size(Axis.CP)
    stage = module.stages_of(session.rank)[0]
    unit = stage_weights(spec, stage, module.grid.index(Axis.TP, session.rank)).units[0]
    wanted = {
        (Axis.TP,): held * model.hidden * number,  # Activations.
        (Axis.CP,): held * cp * gathered // tp * number,  # Keys and values.
        module.sharding.shard: sum(weight.numel for weight in unit) * number,  # Weights.
    }
    return {axes: _within(session, size) for axes, size in wanted.items()}


def channels(session: RankSession) -> list[MeasuredLink]:
    """Time a send over every channel of this rank's program; only receivers return times.

    Ranks: collective over the world.
    """
    found, spec, layout = [], session.spec, session.layout
    step = first_work(spec, layout)
    number = spec.train.numbers.computed.bytes
    for channel in session.mine.channels:
        # The size of the largest message in a step.
        if channel.is_bridge:
            bridge = layout.bridges[channel.module]
            size = max(step.most_rows(bridge)) * row_bytes(spec, bridge)
        else:
            module = layout[channel.module]
            held = max(work.held for work in step.slowest(module))
            shared = module.grid.size(Axis.TP) if module.sequence_parallel else 1
            size = held // shared * spec.modules[module.name].model.hidden * number
        size = _within(session, size)
        tiny, large = (_transfer_seconds(session, channel, n) for n in (0, size))
        if channel.dst == session.rank:
            ranks = (channel.src, channel.dst)
            found.append(MeasuredLink(ranks, tiny, _bandwidth(size, large - tiny, tiny)))
    return found


def _transfer_seconds(session: RankSession, channel: Channel, size: int) -> float:
    """Return the median time of a message; the first one does not count."""
    device = session.device
    data = torch.randn(max(1, size // 4), device=device)
    sends = channel.src == session.rank
    transfer, other = (dist.isend, channel.dst) if sends else (dist.irecv, channel.src)
    clock, group = StepClock(device), session.grids.p2p(channel)
    clock.start()
    for _ in range(1 + REPEATS):
        with clock.span(Section.STEP):
            work = transfer(data, other, group=group)
            if work is not None:
                work.wait()
    return statistics.median(end - start for _, start, end in clock.stop()[1:])


def _within(session: RankSession, size: int) -> int:
    return max(_LEAST_BYTES, min(size, _MOST_BYTES[session.device.type]))


def _bandwidth(size: float, seconds: float, latency: float) -> float | None:
    """Return GB/s; None if a large transfer takes hardly longer than a tiny one."""
    return size / seconds / _GIGA if seconds > 0.1 * latency else None
