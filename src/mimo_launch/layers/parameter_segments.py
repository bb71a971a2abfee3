"""Parameters as canonical segments: full, unfused tensors and the part of each on a rank.

Decides: how a local parameter (possibly several segments fused along dim 0, cut over tp) maps to
the full tensors that users, checkpoints and proofs know by name, before and after FSDP shards it
over dp x cp.
Relies on: layers, which declare their parameters from their shapes (`ParallelContext.declare`);
FSDP2, which cuts dim 0 into equal runs of rows, with the last ones shorter or empty.
Leaves: values to `initial_weights`, sums over tp to `optimizer.gradients`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mimo_launch.kinds.weights import Init, Weight
from mimo_launch.layers.packed import PackedRows, unpack
from mimo_launch.spec.quantized_base import QuantizedBase

# sharded: only this rank has the gradient of its part. complete: every tp rank computes the same
# full gradient. partial: tp ranks hold terms of a sum, which is computed once per step.
TpGrad = Literal["sharded", "complete", "partial"]
# The attribute that holds the segments of layers that declare none (see `adopt_parameters`).
ADOPTED = "adopted_segments"


@dataclass(frozen=True, slots=True)
class Segment:
    """A weight and the part of it that this rank holds: `start:stop` of its `axis`.

    Several tp ranks may hold the same part (shared key/value heads, or the whole tensor); `counted`
    is true on the one rank that counts it in the gradient norm.
    """

    weight: Weight
    start: int
    stop: int
    tp_grad: TpGrad
    counted: bool

    @property
    def name(self) -> str:
        """Name inside its layer."""
        return self.weight.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole weight."""
        return self.weight.shape

    @property
    def axis(self) -> int | None:
        """The dimension cut over tp; None if it is held whole."""
        return self.weight.axis

    @property
    def trains(self) -> bool:
        """Whether it trains if its module does."""
        return self.weight.trains

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part that this rank holds."""
        if self.axis is None:
            return self.shape
        sizes = list(self.shape)
        sizes[self.axis] = self.stop - self.start
        return tuple(sizes)

    @property
    def packed(self) -> QuantizedBase | None:
        """How it is kept in few bits, if it is."""
        return self.weight.packed

    def unpacked(self, rows: Tensor) -> Tensor:
        """Return the values of some rows of this part, in fp64 if they are kept in few bits."""
        if self.packed is None:
            return rows
        return unpack(rows, self.packed, self.local_shape[1], torch.float64)

    def cut(self, full: Tensor) -> Tensor:
        """Return this rank's part of a full tensor."""
        return (
            full
            if self.axis is None
            else full.narrow(self.axis, self.start, self.stop - self.start)
        )


def replicated(
    name: str,
    shape: tuple[int, ...],
    tp_grad: TpGrad,
    *,
    counted: bool,
    std: float = 0.02,
    init: Init = "normal",
    decay: bool = True,
    trains: bool = True,
) -> Segment:
    """Return a segment that every tp rank holds whole, for a layer of a user."""
    weight = Weight(name=name, shape=shape, init=init, std=std, decay=decay, trains=trains)
    return Segment(weight, 0, shape[0], tp_grad, counted)


class SegmentedModule(nn.Module):
    """A layer that owns parameters; FSDP replaces the tensors, the declaration stays.

    If fused layers are an implementation detail, a false `names_itself` drops the layer's name from
    the path: `attention.inputs` holds `attention.q.weight`, on every layout. The keys of `segments`
    are attributes, with dots for parameters inside the layers of a library. A weight or bias that
    is not declared is None.
    """

    names_itself = True
    weight: Tensor
    bias: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.segments: dict[str, tuple[Segment, ...]] = {}

    def declare(self, attribute: str, *segments: Segment, dtype: torch.dtype) -> None:
        """Add a parameter, with values unset, that holds `segments` fused along dim 0."""
        rows = sum(segment.local_shape[0] for segment in segments)
        shape, packed = (rows, *segments[0].local_shape[1:]), segments[0].packed
        if packed is not None:
            shape, dtype = (rows, packed.row_bytes(shape[1])), torch.uint8
        values = torch.empty(shape, dtype=dtype)
        self.register_parameter(attribute, nn.Parameter(values, requires_grad=packed is None))
        self.segments[attribute] = segments

    def declare_buffer(self, attribute: str, segment: Segment, *, dtype: torch.dtype) -> None:
        """Add a buffer, with values unset, that is saved and loaded like a parameter.

        FSDP2 does not shard it: every replica holds it whole, and one of them must be `counted`.
        """
        values = torch.empty(segment.local_shape, dtype=dtype)
        self.register_buffer(attribute, values, persistent=False)
        self.segments[attribute] = (segment,)


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment with its full name and its rows `first_row:last_row` in its local parameter."""

    name: str
    segment: Segment
    first_row: int
    last_row: int


@dataclass(frozen=True, slots=True)
class DeclaredParameter:
    """A live parameter (plain or sharded by FSDP) or buffer, and the segments fused in it."""

    parameter: Tensor
    placed: tuple[Placed, ...]

    def decays(self, *, embeddings: bool) -> bool:
        """Whether weight decay applies; all segments of a parameter agree."""
        weight = self.placed[0].segment.weight
        return weight.decay or (embeddings and weight.role == "embedding")

    @property
    def is_matrix(self) -> bool:
        """Whether it maps vectors to vectors; all segments of a parameter agree."""
        return self.placed[0].segment.weight.matrix

    @property
    def is_adapter(self) -> bool:
        """Whether it belongs to an adapter; all segments of a parameter agree."""
        return self.placed[0].segment.weight.role == "adapter"

    @property
    def is_packed(self) -> bool:
        """Whether it is kept in few bits; all segments of a parameter agree."""
        return self.placed[0].segment.packed is not None

    @property
    def trains(self) -> bool:
        """Whether it trains if its module does; all segments of a parameter agree."""
        return self.placed[0].segment.trains


def declared_parameters(module_name: str, root: nn.Module) -> Iterator[DeclaredParameter]:
    """Yield every declared tensor below `root` with its segments under their full names.

    A full name is `module.path.to.layer.segment`, the same on every layout.
    """
    prefixes = {"": f"{module_name}." if module_name else ""}
    for path, layer in root.named_modules():
        segmented = isinstance(layer, SegmentedModule)
        by_attribute = layer.segments if segmented else vars(layer).get(ADOPTED, {})
        above, _, own = path.rpartition(".")
        is_named = bool(own) and not (segmented and not layer.names_itself)
        prefix = prefixes[path] = f"{prefixes[above]}{own}." if is_named else prefixes[above]
        for attribute, segments in by_attribute.items():
            placed, row = [], 0
            for segment in segments:
                rows = segment.local_shape[0]
                placed.append(Placed(f"{prefix}{segment.name}", segment, row, row + rows))
                row += rows
            yield DeclaredParameter(attrgetter(attribute)(layer), tuple(placed))


def adopt_parameters(root: nn.Module, *, counted: bool = True) -> list[str]:
    """Declare every parameter below `root` that no layer declares, and return their names.

    `counted`: this rank counts them in norms.

    Raises: ValueError for a parameter without dimensions, which FSDP2 cannot shard, and for a tied
    parameter, which would become several parameters when they get memory.
    """
    declared = {
        f"{path}.{attribute}".strip(".")
        for path, layer in root.named_modules()
        if isinstance(layer, SegmentedModule)
        for attribute in layer.segments
    }
    adopted: list[str] = []
    first: dict[int, str] = {}
    for path, layer in root.named_modules():
        for attribute, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{attribute}".strip(".")
            if name in declared:
                continue
            other = first.setdefault(id(parameter), name)
            if other != name:
                raise ValueError(
                    f"`{name}` is tied to `{other}`; keep one parameter and use it twice"
                )
            if parameter.ndim == 0:
                raise ValueError(f"parameter `{name}` has no dimension; give it one, of size 1")
            segment = replicated(
                attribute,
                tuple(parameter.shape),
                "complete",
                counted=counted,
                init="given",
                decay=parameter.ndim > 1,
                trains=parameter.requires_grad,
            )
            if isinstance(layer, SegmentedModule):
                layer.segments[attribute] = (segment,)
            else:
                vars(layer).setdefault(ADOPTED, {})[attribute] = (segment,)
            adopted.append(name)
    return adopted


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """The rows of one segment that this rank holds after sharding over dp x cp.

    `local` is a view into the local tensor; `first_row` is its first row in this tp rank's part of
    the segment.
    """

    name: str
    segment: Segment
    local: Tensor
    first_row: int

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where its first element lies in the full tensor."""
        segment = self.segment
        places = [0] * len(segment.shape)
        if segment.axis is not None:
            places[segment.axis] = segment.start
        places[0] += self.first_row
        return tuple(places)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor that FSDP may have sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_rows(parameter: Tensor) -> range:
    """Return the rows of the unsharded parameter that this rank's shard holds."""
    rows = parameter.shape[0]
    if not isinstance(parameter, DTensor):
        return range(rows)
    mesh = parameter.device_mesh
    place = cast("tuple[int, ...]", mesh.get_coordinate())  # This rank is on the mesh.
    # Ranks along a first dimension hold copies.
    size = -(-rows // mesh.size(-1))
    start = min(rows, place[-1] * size)
    return range(start, min(rows, start + size))


def gradient_of(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, if it has one."""
    return parameter.grad


def local_segments(
    declared: Iterable[DeclaredParameter],
    tensor_of: Callable[[Tensor], Tensor | None] = gradient_of,
) -> Iterator[LocalSegment]:
    """Yield the segments of this rank's shards, with views of a tensor that is sharded alike.

    `tensor_of` returns that tensor for a parameter: its gradient, itself, or a moment. If it
    returns None, the parameter is left out.
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


def weight_segments(module_name: str, root: nn.Module) -> Iterator[LocalSegment]:
    """Yield this rank's parts of every declared weight below `root`, as views to read or fill."""
    return local_segments(declared_parameters(module_name, root), lambda weight: weight.detach())


def filling(item: LocalSegment) -> Tensor | PackedRows:
    """Return the tensor, or the packed rows, to copy the values of a segment's rows into."""
    segment = item.segment
    if segment.packed is None:
        return item.local
    return PackedRows(item.local, segment.packed, segment.local_shape[1])
