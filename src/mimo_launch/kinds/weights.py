"""The weights of layers, declared once: names, shapes, cuts over tp, gradients, initial values.

    Weight      one tensor as users, checkpoints and proofs know it: whole, with a name
    LayerShape  a layer in numbers, without torch: the weights that it owns, by parameter, and the
                layers inside it, by name; products and widths follow; see `shapes`
    Share       the place of a rank among those that cut a module
    Parameter   several weights that a layer stores fused along dimension 0, on one rank

A kind makes the shape of every layer. A shape names the class that computes it, which declares its
parameters and builds the layers inside it from the shape (`layers.shaped_layer`). Estimates, FSDP
units, names and what an optimizer may do with a weight come from the same shapes.

Decides: the facts that a weight declares, and which part of it a rank holds.
Relies on: `layer` for widths and even cuts, `saved_activations` for tensors.
Leaves: the weights of each kind of layer to `shapes`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import Widths, even_cut
from mimo_launch.kinds.saved_activations import AttentionPattern, Passes, Saved, Temporary
from mimo_launch.spec.quantized_base import QuantizedBase

# sinusoids: a table of positions; log_decay, time_step: of Mamba heads; constant: `std` everywhere;
# given: not drawn, as parameters of plain torch layers. See `layers.initial_weights`.
Init = Literal[
    "normal", "zeros", "ones", "constant", "sinusoids", "log_decay", "time_step", "given"
]
# The terms of a gradient that a tp rank has, for a weight that is not cut. tokens: from its tokens
# between regions (all, or its share under sequence parallelism); region: from its share of a
# tensor-parallel region; complete: all.
Terms = Literal["tokens", "region", "complete"]
# Weights that are counted, decayed or updated in different ways. An adapter trains where its own
# module's weights do not; a buffer is saved but has no gradient, and every replica holds it whole.
Role = Literal["body", "embedding", "head", "experts", "adapter", "buffer"]


@frozen
class Share:
    """One of `tp` ranks, and its place in the grid of its experts."""

    tp: int = 1
    index: int = 0
    ep: int = 1
    expert_tp: int = 1
    ep_index: int = 0
    expert_index: int = 0


@frozen(kw_only=True)
class Weight:
    """One tensor, whole.

    `axis` is the dimension cut over tp, between multiples of `unit` if given (the features of a
    head); where there are fewer units than ranks, several ranks hold the same unit, and each has
    terms of its gradient. If it is not cut, `terms` says which terms a rank has. `std` is the
    scale of a normal `init`. `matrix`: it maps hidden vectors to hidden vectors, unlike an output
    layer; `in_product`: its product can accumulate its gradient (`layers.linear`). Weight decay
    applies with `decay`, and to a table of the role `embedding` if the spec says so. Without
    `trains` it keeps its values even if its module trains; without `counted` another stage counts
    it in norms. If `experts` is not 0, that many experts have such a weight, each with its number
    in place of `{expert}`, and it is cut over the grid of experts instead of tp. `packed`: it is
    kept in blocks of few bits, and does not train.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    unit: int | None = None
    terms: Terms = "tokens"
    init: Init = "normal"
    std: float = 0.02
    decay: bool = True
    matrix: bool = False
    in_product: bool = False
    role: Role = "body"
    trains: bool = True
    counted: bool = True
    experts: int = 0
    packed: QuantizedBase | None = None

    def copies(self, tp: int) -> int:
        """Return how many of `tp` ranks hold the same part of a weight that is cut."""
        if self.axis is None or self.unit is None:
            return 1
        return max(1, tp // (self.shape[self.axis] // self.unit))

    def part(self, share: Share) -> range:
        """Return the part along `axis` (0 if it is not cut) that a rank holds."""
        if self.axis is None:
            return range(self.shape[0])
        size, unit = self.shape[self.axis], self.unit or 1
        ranks, index = share.tp, share.index
        if self.experts:
            ranks, index = share.expert_tp, share.expert_index
        copies = self.copies(ranks)
        units = even_cut(size // unit, ranks // copies, index // copies)
        return range(units.start * unit, units.stop * unit)

    def local_shape(self, share: Share) -> tuple[int, ...]:
        """Return the shape of the part that a rank holds."""
        if self.axis is None:
            return self.shape
        part = len(self.part(share))
        return (*self.shape[: self.axis], part, *self.shape[self.axis + 1 :])


def buffer(name: str, size: int, init: Init, std: float = 0.02) -> Weight:
    """Return numbers that every rank has whole and no gradient changes."""
    return Weight(
        name=name,
        shape=(size,),
        terms="complete",
        init=init,
        std=std,
        decay=False,
        trains=False,
        role="buffer",
    )


@frozen
class Adapter:
    """The adapter of a module as seen from a layer: which maps have an update, and its size.

    `path` holds the names of the layers around this one, in its block. An update has matrices of
    width `rank`, is multiplied by `scale`, and drops a share of its inputs. Maps of blocks in
    `frozen` have none.
    """

    rank: int
    scale: float
    targets: frozenset[str]
    dropout: float = 0.0
    path: frozenset[str] = frozenset()
    frozen: range = range(0)

    def of_layer(self, number: int) -> "Adapter | None":
        """Return the adapter of a block of the model; None if the spec freezes it."""
        return None if number in self.frozen else self

    def inside(self, name: str) -> "Adapter":
        """Return the adapter as seen from a layer inside this one."""
        return replace(self, path=self.path | {name})

    def takes(self, name: str = "") -> bool:
        """Return whether a map of this layer has an update; without a name, the layer is a map."""
        return not self.targets.isdisjoint(self.path | {name})


def of_key(key: str, default: Any) -> Any:
    """Return a field of a shape that a key of a model in the spec decides (`settings`)."""
    return field(default=default, metadata={"key": key})


# Weights by the parameter that stores them, fused along dimension 0.
Parameters = Mapping[str, tuple[Weight, ...]]


@frozen
class LayerShape:
    """A layer in numbers: its own parameters, and the layers inside it.

    If `names_itself` is false, the names of its weights leave out the name of the layer:
    `attention.inputs` holds `attention.q.weight`.
    """

    names_itself: ClassVar[bool] = True
    # Whether the class multiplies with matrices that are kept in blocks of few bits.
    unpacks: ClassVar[bool] = False

    @property
    def layer(self) -> str:
        """The class that computes it, as `package.module:Class`."""
        raise NotImplementedError

    @classmethod
    def settings(cls, model: object) -> dict[str, Any]:
        """Return the fields that keys of a model decide (`of_key`), as far as it has the keys."""
        keys = {each.name: each.metadata["key"] for each in fields(cls) if each.metadata}
        return {name: getattr(model, key) for name, key in keys.items() if hasattr(model, key)}

    def own(self, tp: int) -> Parameters:
        """Return the layer's own weights by the attribute that stores them on one of `tp` ranks.

        An attribute without weights is None.
        """
        return {}

    def held(self, tp: int, base: QuantizedBase | None = None) -> Parameters:
        """Return its own weights as a rank keeps them: matrices packed, under such a `base`."""
        own = self.own(tp)
        if base is None or not self.unpacks:
            return own
        return {
            attribute: tuple(replace(each, packed=base if each.matrix else None) for each in held)
            for attribute, held in own.items()
        }

    def parts(self) -> "Mapping[str, LayerShape | None]":
        """Return the layers inside it by attribute; by default, its fields that are layers.

        None: an optional layer that this one lacks.
        """
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {n: part for n, part in found.items() if isinstance(part, LayerShape | None)}

    def adapters(self, adapter: Adapter | None) -> "Mapping[str, LayerShape | None]":
        """Return the updates of its own maps by attribute, under an adapter of its module."""
        return {}

    def weights(
        self,
        prefix: str = "",
        tp: int = 1,
        adapter: Adapter | None = None,
        base: QuantizedBase | None = None,
    ) -> Iterator[tuple[Weight, ...]]:
        """Yield the weights of every parameter of the layer, under names that begin with prefix."""
        for held in filter(None, self.held(tp, base).values()):
            yield tuple(replace(each, name=_joined(prefix, each.name)) for each in held)
        for name, part in (*self.parts().items(), *self.adapters(adapter).items()):
            if part is not None:
                inside = _joined(prefix, name) if part.names_itself else prefix
                yield from part.weights(inside, tp, adapter and adapter.inside(name), base)

    def widths(self) -> Widths:
        """Return the sizes of what it computes: products with its matrices, and its layers."""
        parts = (part.widths() for part in self.parts().values() if part is not None)
        own = sum(prod(each.shape) for held in self.own(1).values() for each in held if each.matrix)
        return sum(parts, Widths(products=own))

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return the tensors that a block of it saves for its backward, or that it adds to one."""
        return ()

    def temporary(self) -> Temporary:
        """Return the tensors that are alive together in a block."""
        return Temporary(forward=(), backward=())


@lru_cache(maxsize=1024)
def widths_of(shape: LayerShape) -> Widths:
    """Return the sizes of what a layer computes."""
    return shape.widths()


@frozen
class Parameter:
    """The part that one rank holds of the weights fused in one parameter, for `experts` if not 0.

    `matrices` are the whole shapes of those that map hidden vectors to hidden vectors. `whole`:
    they are not cut over tp.
    """

    shape: tuple[int, ...]
    role: Role
    matrices: tuple[tuple[int, ...], ...]
    in_product: bool
    trains: bool
    experts: int = 0
    packed: QuantizedBase | None = None
    whole: bool = False

    @property
    def matrix(self) -> bool:
        """Whether it maps hidden vectors to hidden vectors."""
        return bool(self.matrices)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def bytes(self, number: int, ranks: int = 1) -> int:
        """Return the bytes of one of `ranks` shards; a value that is not packed takes `number`."""
        row = prod(self.shape[1:]) * number
        if self.packed is not None:
            row = self.packed.row_bytes(self.shape[1])
        return -(-self.shape[0] // ranks) * row

    def shard(self, ranks: int) -> int:
        """Return the elements of one shard over replicas, which FSDP2 pads to equal rows."""
        return -(-self.shape[0] // ranks) * prod(self.shape[1:])


@lru_cache(maxsize=1024)
def parameters(
    shape: LayerShape,
    share: Share,
    adapter: Adapter | None = None,
    base: QuantizedBase | None = None,
) -> tuple[Parameter, ...]:
    """Return the parameters of a layer on a rank; buffers are none."""
    return tuple(
        _held(weights, share)
        for weights in shape.weights(tp=share.tp, adapter=adapter, base=base)
        if weights[0].role != "buffer"
    )


def _held(weights: tuple[Weight, ...], share: Share) -> Parameter:
    first = weights[0]
    times = len(even_cut(first.experts, share.ep, share.ep_index)) if first.experts else 1
    rows = times * sum(each.local_shape(share)[0] for each in weights)
    matrices = times * tuple(each.shape for each in weights if each.matrix)
    shape = (rows, *first.local_shape(share)[1:])
    experts = times if first.experts else 0
    whole = first.axis is None and not experts
    return Parameter(
        shape, first.role, matrices, first.in_product, first.trains, experts, first.packed, whole
    )


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
