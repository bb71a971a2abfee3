"""The rows of each segment that a rank holds once FSDP has sharded the parameters over dp x cp.

Decides: how the shards of fused parameters map back to canonical segments.
Relies on: FSDP2 cutting dim 0 into equal runs of rows, the last ones shorter or empty.
Leaves: what is done with them to `initial_weights`, the optimizer and checkpoints.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.layers.parameter_segments import DeclaredParameter, Segment


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """The rows of one segment that this rank holds after sharding over dp x cp.

    `local` is a view into the local tensor; `first_row` is its first row within the part of the
    segment that this tp rank holds.
    """

    name: str
    segment: Segment
    local: Tensor
    first_row: int


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor that FSDP may have sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_rows(parameter: Tensor) -> range:
    """Return which rows of the unsharded parameter this rank's shard holds."""
    rows = parameter.shape[0]
    if not isinstance(parameter, DTensor):
        return range(rows)
    mesh = parameter.device_mesh
    size = -(-rows // mesh.size())
    start = min(rows, mesh.get_local_rank() * size)
    return range(start, min(rows, start + size))


def gradient_of(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, if it has one."""
    return parameter.grad


def local_segments(
    declared: Iterable[DeclaredParameter],
    tensor_of: Callable[[Tensor], Tensor | None] = gradient_of,
) -> Iterator[LocalSegment]:
    """Yield the segments of this rank's shards with views of a tensor that is sharded like them.

    `tensor_of` returns it for a parameter: its gradient, itself, or a moment; None leaves it out.
    """
    for item in declared:
        source = tensor_of(item.parameter)
        if source is None:
            continue
        local, rows = local_tensor(source), shard_rows(item.parameter)
        for placed in item.placed:
            first, last = max(rows.start, placed.first_row), min(rows.stop, placed.last_row)
            if first < last:
                view = local[first - rows.start : last - rows.start]
                yield LocalSegment(placed.name, placed.segment, view, first - placed.first_row)
