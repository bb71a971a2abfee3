"""Exchanges of tokens between the GPUs of one host by their copy engines.

Decides: where tokens lie for other GPUs to read, when that memory is free again, and which groups
exchange so.
Relies on: `torch.distributed._symmetric_memory`: memory that all GPUs of a group read, barriers.
Leaves: all other exchanges to NCCL.

A matrix product on a Hopper GPU is one block of threads for each multiprocessor. NCCL's kernels
occupy some of these, so a product beside them takes up to twice as long, and nothing is gained: R1
with language tp 2 took 3.41 s with and without NCCL beside its products, 3.23 s with copies beside
them (docs/performance.md). A copy engine needs no multiprocessor.
"""

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from mimo_launch.comm.objects import gather_objects

# Barriers before and after the copies of an exchange.
_READY, _READ = 0, 1
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a stream waits for; it holds a tensor that is still read."""

    event: torch.cuda.Event
    read: Tensor

    def wait(self) -> None:
        """Let the current stream wait until the tokens are there."""
        torch.cuda.current_stream().wait_event(self.event)


@dataclass(slots=True)
class _Space:
    """Memory of this GPU that others read; `free` once they have read what it holds."""

    handle: Any
    size: int
    free: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    views: dict[Any, Tensor] = field(default_factory=dict)

    def view(self, rank: int, like: tuple[torch.Size, torch.dtype], first: int = 0) -> Tensor:
        """Return a tensor in the memory of a rank; `first` is the number of its first element."""
        key = rank, like, first
        if key not in self.views:
            self.views[key] = self.handle.get_buffer(rank, *like, first)
        return self.views[key]


class PeerCopies:
    """Gathers and exchanges of one group of ranks, one of each at a time."""

    def __init__(self, gathers: _Space, exchanges: _Space, rank: int, size: int) -> None:
        self._gathers, self._exchanges, self._rank = gathers, exchanges, rank
        self._peers = [peer for peer in range(size) if peer != rank]
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def gathers(self, size: int) -> bool:
        """Return whether `gather` takes tokens of this many bytes; it takes no empty ones."""
        return 0 < size <= self._gathers.size

    def exchanges(self, size: int) -> bool:
        """Return whether `room` and `exchange` take rows of this many bytes."""
        return 0 < size <= self._exchanges.size

    def gather(self, x_nD: Tensor) -> tuple[Tensor, Arrival]:
        """Start to concatenate the tokens of all ranks, [n, D] -> [N, D]."""
        out_ND = x_nD.new_empty((len(x_nD) * (len(self._peers) + 1), *x_nD.shape[1:]))
        parts, like = out_ND.chunk(len(self._peers) + 1), (x_nD.shape, x_nD.dtype)
        space = self._gathers
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            space.view(self._rank, like).copy_(x_nD)
            parts[self._rank].copy_(x_nD)
            reads = [(parts[peer], space.view(peer, like)) for peer in self._peers]
            return out_ND, self._read(space, reads, x_nD)

    def room(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return where to write the rows of an exchange, for each other rank in turn."""
        torch.cuda.current_stream().wait_event(self._exchanges.free)
        return self._exchanges.view(self._rank, (shape, dtype))

    def exchange(self, room: Tensor) -> tuple[Tensor, Arrival]:
        """Start to read what all other ranks wrote for this one into their rooms, by rank."""
        out, space = torch.empty_like(room), self._exchanges
        parts = out.chunk(len(self._peers))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            reads = []
            for part, peer in zip(parts, self._peers, strict=True):
                # A room has no part for its own rank.
                number = self._rank - (self._rank > peer)
                like = part.shape, part.dtype
                reads.append((part, space.view(peer, like, number * part.numel())))
            return out, self._read(space, reads, room)

    def _read(self, space: _Space, reads: list[tuple[Tensor, Tensor]], read: Tensor) -> Arrival:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        space.handle.barrier(_READY)
        for part, theirs in reads:
            part.copy_(theirs)
        arrived.record()
        space.handle.barrier(_READ)
        space.free.record()
        return Arrival(arrived, read)


def open_copies(group: ProcessGroup, device: torch.device, most: int) -> PeerCopies | None:
    """Return the copies of a group, for regions with at most `most` bytes of tokens.

    The memory has room for a rank's own tokens, and for its products for all others.

    None if its GPUs are on several hosts, or cannot read each other's memory. Ranks: collective
    over the group.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    boot = _BOOT.read_text(encoding="ascii") if _BOOT.exists() else ""
    places = gather_objects((platform.node(), boot, device.index), group)
    near = all(each[:2] == places[rank][:2] for each in places)
    reads = near and all(
        each[2] == device.index or torch.cuda.can_device_access_peer(device, each[2])
        for each in places
    )
    if not all(gather_objects(reads, group)):
        return None
    import torch.distributed._symmetric_memory as symmetric_memory

    spaces = []
    try:
        for bytes_held in (most // size, most - most // size):
            made = symmetric_memory.empty(bytes_held, dtype=torch.uint8, device=device)
            spaces.append(_Space(symmetric_memory.rendezvous(made, group), bytes_held))
    except RuntimeError:  # The system forbids processes to share memory of GPUs.
        spaces = []
    if not all(gather_objects(len(spaces) == 2, group)):
        return None
    gathers, exchanges = spaces
    return PeerCopies(gathers, exchanges, rank, size)
