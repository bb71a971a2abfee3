"""What a rank holds of full tensors, gathered over its replicas.

Decides: that of each part one replica answers, with all rows of it.
Relies on: segments for the part of a full tensor that a parameter is.
Leaves: judging to `compare`.
"""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.comm.collectives import all_gather_uneven
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parameter_segments import DeclaredParameter
from mimo_launch.train.session import RankSession
from mimo_launch.verify.compare import TensorPiece


def pieces_of(
    session: RankSession, tensor_of: Callable[[Tensor], Tensor | None]
) -> list[TensorPiece]:
    """Return this rank's parts of a tensor for each parameter that has one.

    `tensor_of` gives it, sharded like the parameter. Ranks: collective over dp x cp of each module,
    and over the replicas of its experts.
    """
    return [
        piece
        for name in session.modules
        for piece in module_pieces(session, name, session.declared(name), tensor_of)
    ]


def module_pieces(
    session: RankSession,
    module: str,
    declared: Iterable[DeclaredParameter],
    tensor_of: Callable[[Tensor], Tensor | None],
) -> list[TensorPiece]:
    """Return those of some parameters of one module. Ranks: collective as in `pieces_of`."""
    pieces = []
    for item in declared:
        tensor = tensor_of(item.parameter)
        if tensor is None:
            continue
        group = session.grids.replicas(module, item.parameter)
        full = _unsharded(tensor.detach(), group)
        if group.index > 0:
            continue
        for placed in item.placed:
            segment = placed.segment
            # A copy: the update writes into gradients and weights.
            values = full[placed.first_row : placed.last_row].to("cpu", copy=True)
            pieces.append(
                TensorPiece(placed.name, segment.axis, segment.start, segment.stop, values)
            )
    return pieces


def _unsharded(tensor: Tensor, group: Group) -> Tensor:
    """Return all rows of a tensor that FSDP shards over `group`.

    With our own gather: DTensor's goes through functional collectives, whose tensors gloo's threads
    have been seen to release at the wrong moment.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    rows = tensor.shape[0]
    size = -(-rows // group.size)
    sizes = tuple(max(0, min(size, rows - i * size)) for i in range(group.size))
    return all_gather_uneven(tensor.to_local(), sizes, group)
