"""The shapes of simple layers: linear maps, tables, norms.

Decides: the weights of each layer, their names inside it, and how they are cut and drawn.
Relies on: `weights` for the facts that a weight declares.
Leaves: layers made of these to `block_shapes`, what a layer computes to the class that it names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.adapters import AdapterShape, column_adapter, row_adapter, whole_adapter
from mimo_launch.kinds.weights import Adapter, Init, LayerShape, Parameters, Terms, Weight
from mimo_launch.spec.language_models import NormKind

# The epsilon of norms in models without a key for it.
EPSILON = 1e-5
NORMS, LINEAR = "mimo_launch.layers.norms", "mimo_launch.layers.linear"
TABLE = "mimo_launch.layers.linear:WholeTable"


@frozen
class OneShape(LayerShape):
    """A layer with one weight, and without further numbers."""

    computed_by: str
    weight: Weight

    @property
    def layer(self) -> str:
        """The class that computes it."""
        return self.computed_by

    def own(self, tp: int) -> Parameters:
        """Return the weight."""
        return {"weight": (self.weight,)}


def table(*shape: int, layer: str = TABLE, embeds: bool = True) -> OneShape:
    """Return learned vectors, [rows, width] or [width], that each tp rank holds whole."""
    role: Literal["embedding", "body"] = "embedding" if embeds else "body"
    std = shape[-1] ** -0.5
    return OneShape(layer, Weight(name="weight", shape=shape, std=std, decay=False, role=role))


@frozen
class NormShape(LayerShape):
    """RMSNorm or LayerNorm; the weight plus `offset` is 1 at first. `inside`: in a region of tp."""

    layer = f"{NORMS}:Norm"

    width: int
    kind: NormKind
    eps: float = EPSILON
    inside: bool = False
    offset: float = 0.0

    def own(self, tp: int) -> Parameters:
        """Return its weight, and the bias of a LayerNorm."""
        terms: Terms = "region" if self.inside else "tokens"
        init: Init = "zeros" if self.offset else "ones"
        shape = (self.width,)
        weight = Weight(name="weight", shape=shape, terms=terms, init=init, decay=False)
        bias = Weight(name="bias", shape=shape, terms=terms, init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.kind == "layer" else ()}


@frozen
class WideNormShape(LayerShape):
    """RMSNorm over a width that tp cuts between heads; few heads may be shared by tp ranks.

    As in `NormShape`, the weight plus `offset` is 1 at first.
    """

    layer = f"{NORMS}:WideNorm"

    width: int
    eps: float
    head_size: int | None = None
    offset: float = 0.0

    @property
    def scale(self) -> Weight:
        """Its weight."""
        return Weight(
            name="weight",
            shape=(self.width,),
            axis=0,
            unit=self.head_size,
            init="zeros" if self.offset else "ones",
            decay=False,
        )

    def own(self, tp: int) -> Parameters:
        """Return its weight."""
        return {"weight": (self.scale,)}


@frozen
class WholeShape(LayerShape):
    """A linear map that each tp rank holds whole, for tokens between regions.

    One to the scores of words is no `matrix` of hidden vectors. `scale` multiplies its initial
    weights.
    """

    layer = "mimo_launch.layers.linear:WholeLinear"
    unpacks: ClassVar[bool] = True

    inputs: int
    outputs: int
    bias: bool = True
    matrix: bool = True
    scale: float = 1.0

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        shape, std = (self.outputs, self.inputs), self.scale * self.inputs**-0.5
        weight = Weight(name="weight", shape=shape, std=std, matrix=self.matrix)
        bias = Weight(name="bias", shape=shape[:1], init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.bias else ()}

    def adapters(self, adapter: Adapter | None) -> Mapping[str, AdapterShape | None]:
        """Return the update of its map."""
        return {"adapter": whole_adapter(adapter, self.own(1)["weight"][0])}


@frozen
class Output:
    """One of the maps fused in a ColumnLinear: its name, features, their unit, its bias."""

    name: str
    features: int
    unit: int | None = None
    bias: bool = False

    def weight(self, width: int) -> Weight:
        """Return its weight, for inputs of `width` numbers."""
        shape, std = (self.features, width), width**-0.5
        name, unit = f"{self.name}.weight", self.unit
        return Weight(
            name=name, shape=shape, axis=0, unit=unit, std=std, matrix=True, in_product=True
        )

    def offsets(self) -> Weight:
        """Return its bias."""
        name, shape, unit = f"{self.name}.bias", (self.features,), self.unit
        return Weight(name=name, shape=shape, axis=0, unit=unit, init="zeros", decay=False)


@frozen
class ColumnShape(LayerShape):
    """Linear maps of one input, with outputs cut over tp, at the start of a region.

    Maps with units that several ranks hold are a separate parameter.
    """

    layer = f"{LINEAR}:ColumnLinear"
    unpacks: ClassVar[bool] = True
    names_itself: ClassVar[bool] = False

    width: int
    outputs: tuple[Output, ...]

    def own(self, tp: int) -> Parameters:
        """Return their weights and biases; weights that ranks share come first."""
        weights = {each: each.weight(self.width) for each in self.outputs}
        own = [each for each, weight in weights.items() if weight.copies(tp) == 1]
        shared = [each for each in self.outputs if each not in own]
        return {
            "shared_weight": tuple(replace(weights[each], in_product=False) for each in shared),
            "shared_bias": tuple(each.offsets() for each in shared if each.bias),
            "weight": tuple(weights[each] for each in own),
            "bias": tuple(each.offsets() for each in own if each.bias),
        }

    def adapters(self, adapter: Adapter | None) -> Mapping[str, AdapterShape | None]:
        """Return the updates of its maps."""
        weights = [(each.name, each.weight(self.width)) for each in self.outputs]
        return {"adapter": column_adapter(adapter, self.width, weights)}


@frozen
class RowShape(LayerShape):
    """A linear map with inputs cut over tp, at the end of a region."""

    layer = f"{LINEAR}:RowLinear"
    unpacks: ClassVar[bool] = True
    names_itself: ClassVar[bool] = False

    name: str
    features: int
    width: int
    bias: bool = False
    scale: float = 1.0

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        name, shape = f"{self.name}.weight", (self.width, self.features)
        std = self.scale * self.features**-0.5
        weight = Weight(name=name, shape=shape, axis=1, std=std, matrix=True, in_product=True)
        bias = Weight(name=f"{self.name}.bias", shape=shape[:1], init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.bias else ()}

    def adapters(self, adapter: Adapter | None) -> Mapping[str, AdapterShape | None]:
        """Return the update of its map."""
        return {"adapter": row_adapter(adapter, self.name, self.own(1)["weight"][0])}


@frozen
class VocabShape(LayerShape):
    """The embedding of ids, cut over tp; `counted` false if another stage counts it in norms."""

    layer = "mimo_launch.layers.vocab_parallel:VocabEmbedding"

    vocab: int
    width: int
    std: float = 0.5
    counted: bool = True

    def own(self, tp: int) -> Parameters:
        """Return the table."""
        table = Weight(
            name="weight",
            shape=(self.vocab, self.width),
            axis=0,
            std=self.std,
            decay=False,
            role="embedding",
            counted=self.counted,
        )
        return {"weight": (table,)}


@frozen
class HeadShape(LayerShape):
    """An output layer, with the vocabulary cut over tp."""

    layer = "mimo_launch.layers.vocab_parallel:VocabHead"

    vocab: int
    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weight."""
        weight = Output("", self.vocab).weight(self.width)
        return {"weight": (replace(weight, name="weight", matrix=False, role="head"),)}


@frozen
class ListShape(LayerShape):
    """Layers in a list, named by their index."""

    layer = "torch.nn:ModuleList"

    layers: tuple[LayerShape, ...]

    def parts(self) -> Mapping[str, LayerShape]:
        """Return the layers by index."""
        return {str(index): each for index, each in enumerate(self.layers)}
