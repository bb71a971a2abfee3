"""The shapes of layers: linear maps, tables, norms, attention, MLPs, experts, blocks, projectors.

Decides: the weights of each layer, their names inside it, and how they are cut and drawn.
Relies on: `weights` for what a weight says of itself.
Leaves: which model has which layers to its kind, what a layer computes to the class of the same
name in `layers` and `models`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from mimo_launch.kinds.weights import Init, LayerShape, Parameters, Terms, Weight
from mimo_launch.spec.encoder_blocks import Activation, Projector, ProjectorActivation
from mimo_launch.spec.language_models import GateActivation
from mimo_launch.spec.layers import Mla, Moe

# Of the norms of blocks whose model has no key for it.
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class NormShape(LayerShape):
    """RMSNorm or LayerNorm; the weight plus `offset` is 1 at first. `inside`: in a region of tp."""

    width: int
    kind: Literal["rms", "layer"]
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


@dataclass(frozen=True, slots=True)
class WideNormShape(LayerShape):
    """RMSNorm over a width that tp cuts."""

    width: int
    eps: float

    def own(self, tp: int) -> Parameters:
        """Return its weight."""
        weight = Weight(name="weight", shape=(self.width,), axis=0, init="ones", decay=False)
        return {"weight": (weight,)}


@dataclass(frozen=True, slots=True)
class ScaleShape(LayerShape):
    """A factor per channel of what a layer adds to the stream, at first `start`."""

    width: int
    start: float

    def own(self, tp: int) -> Parameters:
        """Return the factors."""
        factors = Weight(
            name="weight", shape=(self.width,), std=self.start, init="constant", decay=False
        )
        return {"weight": (factors,)}


@dataclass(frozen=True, slots=True)
class SinksShape(LayerShape):
    """A logit per head that joins the denominator of a softmax."""

    heads: int

    def own(self, tp: int) -> Parameters:
        """Return the logits."""
        logits = Weight(name="weight", shape=(self.heads,), axis=0, init="zeros", decay=False)
        return {"weight": (logits,)}


@dataclass(frozen=True, slots=True)
class VectorShape(LayerShape):
    """One learned vector that is no embedding, such as the row that ends a line of patches."""

    width: int

    def own(self, tp: int) -> Parameters:
        """Return the vector."""
        vector = Weight(name="weight", shape=(self.width,), std=self.width**-0.5, decay=False)
        return {"weight": (vector,)}


@dataclass(frozen=True, slots=True)
class TableShape(LayerShape):
    """Learned vectors that each tp rank holds whole; a single one if `rows` is None."""

    rows: int | None
    width: int

    def own(self, tp: int) -> Parameters:
        """Return the table."""
        shape = (self.width,) if self.rows is None else (self.rows, self.width)
        std = self.width**-0.5
        table = Weight(name="weight", shape=shape, std=std, decay=False, role="embedding")
        return {"weight": (table,)}


@dataclass(frozen=True, slots=True)
class WholeShape(LayerShape):
    """A linear map that each tp rank holds whole, for tokens between regions."""

    inputs: int
    outputs: int
    bias: bool = True

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        shape, std = (self.outputs, self.inputs), self.inputs**-0.5
        weight = Weight(name="weight", shape=shape, std=std, matrix=True)
        bias = Weight(name="bias", shape=shape[:1], init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.bias else ()}


@dataclass(frozen=True, slots=True)
class TokenGateShape(LayerShape):
    """A linear map of each token to one number."""

    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weight."""
        return {"weight": (Weight(name="weight", shape=(1, self.width), std=self.width**-0.5),)}


@dataclass(frozen=True, slots=True)
class Output:
    """One of the maps fused in a ColumnLinear: its name, features, their unit, its bias."""

    name: str
    features: int
    unit: int | None = None
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ColumnShape(LayerShape):
    """Linear maps of one input, with outputs cut over tp, at the start of a region.

    Maps of which several ranks hold the same unit are a separate parameter.
    """

    names_itself: ClassVar[bool] = False

    width: int
    outputs: tuple[Output, ...]

    def own(self, tp: int) -> Parameters:
        """Return their weights and biases, those that ranks share first."""
        found: dict[str, tuple[Weight, ...]] = {}
        for kind in ("shared_", ""):
            outputs = [each for each in self.outputs if self.is_shared(each, tp) == bool(kind)]
            weights = tuple(
                Weight(
                    name=f"{each.name}.weight",
                    shape=(each.features, self.width),
                    axis=0,
                    unit=each.unit,
                    std=self.width**-0.5,
                    matrix=True,
                    in_product=not kind,
                )
                for each in outputs
            )
            biases = tuple(_cut_bias(each) for each in outputs if each.bias)
            found |= {f"{kind}weight": weights, f"{kind}bias": biases}
        return found

    @staticmethod
    def is_shared(output: Output, tp: int) -> bool:
        """Return whether several of `tp` ranks hold the same unit of a map."""
        return output.unit is not None and output.features // output.unit < tp


def _cut_bias(output: Output) -> Weight:
    shape = (output.features,)
    return Weight(
        name=f"{output.name}.bias", shape=shape, axis=0, unit=output.unit, init="zeros", decay=False
    )


@dataclass(frozen=True, slots=True)
class RowShape(LayerShape):
    """A linear map with inputs cut over tp, at the end of a region."""

    names_itself: ClassVar[bool] = False

    name: str
    features: int
    width: int
    bias: bool = False
    scale: float = 1.0

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        weight = Weight(
            name=f"{self.name}.weight",
            shape=(self.width, self.features),
            axis=1,
            std=self.scale * self.features**-0.5,
            matrix=True,
            in_product=True,
        )
        bias = Weight(name=f"{self.name}.bias", shape=(self.width,), init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.bias else ()}


@dataclass(frozen=True, slots=True)
class VocabShape(LayerShape):
    """The embedding of ids, cut over tp; `std` None makes an output layer."""

    vocab: int
    width: int
    std: float | None = 0.5

    def own(self, tp: int) -> Parameters:
        """Return the table."""
        is_head, std = self.std is None, self.std or self.width**-0.5
        table = Weight(
            name="weight",
            shape=(self.vocab, self.width),
            axis=0,
            std=std,
            decay=is_head,
            matrix=is_head,
            in_product=is_head,
            role="head" if is_head else "embedding",
        )
        return {"weight": (table,)}


@dataclass(frozen=True, slots=True)
class ListShape(LayerShape):
    """Layers in a list, named by their index."""

    layers: tuple[LayerShape, ...]

    def parts(self) -> Mapping[str, LayerShape]:
        """Return the layers by index."""
        return {str(index): each for index, each in enumerate(self.layers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape(LayerShape):
    """An MLP with its inner width cut over tp: with a `gate`, or else an activation."""

    width: int
    inner: int
    out: int
    gate: GateActivation | None = None
    activation: Activation | Literal["squared_relu"] = "gelu"
    bias: bool = False
    out_scale: float = 1.0

    @property
    def inputs(self) -> ColumnShape:
        """The first maps."""
        names = ("up",) if self.gate is None else ("gate", "up")
        outputs = (Output(name, self.inner, bias=self.bias) for name in names)
        return ColumnShape(self.width, tuple(outputs))

    @property
    def output(self) -> RowShape:
        """The last map."""
        return RowShape("down", self.inner, self.out, self.bias, self.out_scale)

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its maps."""
        return {"inputs": self.inputs, "output": self.output}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape(LayerShape):
    """The maps of latent attention from narrow widths to queries, keys and values."""

    sizes: Mla
    width: int
    heads: int
    head_size: int

    @property
    def query_width(self) -> int:
        """The width that queries are made of."""
        return self.sizes.q_rank or self.width

    @property
    def q_down(self) -> WholeShape | None:
        """The map of the stream to the narrow width of queries, if they have one."""
        rank = self.sizes.q_rank
        return None if rank is None else WholeShape(self.width, rank, bias=False)

    @property
    def q_norm(self) -> NormShape | None:
        """The norm of this width."""
        rank = self.sizes.q_rank
        return None if rank is None else NormShape(rank, "rms", self.sizes.norm_eps)

    @property
    def kv_down(self) -> WholeShape:
        """The map of the stream to the narrow width of keys and values, and to what rotates."""
        narrow = self.sizes.kv_rank + self.sizes.rope_head_dim
        return WholeShape(self.width, narrow, bias=False)

    @property
    def kv_norm(self) -> NormShape:
        """The norm of this width, without what rotates."""
        return NormShape(self.sizes.kv_rank, "rms", self.sizes.norm_eps)

    @property
    def queries(self) -> ColumnShape:
        """The map to queries."""
        return ColumnShape(self.query_width, (Output("q_up", self.heads * self.head_size),))

    @property
    def keys(self) -> ColumnShape:
        """The map to keys, without what rotates, and to values."""
        size = self.head_size - self.sizes.rope_head_dim + self.sizes.v_head_dim
        return ColumnShape(self.sizes.kv_rank, (Output("kv_up", self.heads * size),))

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its layers in order."""
        names = ("q_down", "q_norm", "kv_down", "kv_norm", "queries", "keys")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(LayerShape):
    """Multi-head, grouped-query or latent attention.

    `qkv_bias` gives queries, keys and values biases, except keys without `key_bias` (Whisper);
    `bias` is that of the output. `qk_norm` normalises each head of queries and keys, with
    `wide_norm` all of them together. Scores are divided by the square root of `score_size` (None:
    of the head size), and stay below `score_cap`. If `gated`, each head's output is multiplied by
    the sigmoid of a gate, which follows the query of the head. `interleaved`: numbers of a head
    that rotate together are neighbours. `latent` makes queries, keys and values of narrow widths.
    """

    width: int
    heads: int
    kv_heads: int
    head_size: int
    bias: bool = False
    qkv_bias: bool = False
    key_bias: bool = True
    qk_norm: bool = False
    wide_norm: bool = False
    eps: float = EPSILON
    norm_offset: float = 0.0
    score_size: float | None = None
    score_cap: float | None = None
    sinks: bool = False
    gated: bool = False
    interleaved: bool = False
    latent: Mla | None = None
    out_scale: float = 1.0

    @property
    def query_parts(self) -> int:
        """Vectors of a query head: the query, and perhaps a gate."""
        return 1 + self.gated

    @property
    def value_size(self) -> int:
        """Size of a value."""
        return self.head_size if self.latent is None else self.latent.v_head_dim

    @property
    def inputs(self) -> ColumnShape:
        """The maps to queries, keys and values, if they are made of the stream."""
        head, bias = self.head_size, self.qkv_bias
        queries = Output("q", self.heads * head * self.query_parts, head * self.query_parts, bias)
        keys = Output("k", self.kv_heads * head, head, bias and self.key_bias)
        values = Output("v", self.kv_heads * head, head, bias)
        return ColumnShape(self.width, (queries, keys, values))

    @property
    def narrow(self) -> LatentShape | None:
        """The maps to queries, keys and values, if they are made of narrow widths."""
        if self.latent is None:
            return None
        return LatentShape(
            sizes=self.latent, width=self.width, heads=self.heads, head_size=self.head_size
        )

    @property
    def output(self) -> RowShape:
        """The map to the stream."""
        features = self.heads * self.value_size
        return RowShape("o", features, self.width, self.bias, self.out_scale)

    @property
    def sink(self) -> SinksShape | None:
        """The logits of sinks, if it has them."""
        return SinksShape(self.heads) if self.sinks else None

    def norm(self, heads: int) -> NormShape | WideNormShape | None:
        """Return the norm of queries, or of keys."""
        if not self.qk_norm:
            return None
        if self.wide_norm:
            return WideNormShape(heads * self.head_size, self.eps)
        return NormShape(self.head_size, "rms", self.eps, inside=True, offset=self.norm_offset)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return maps, norms of heads, and sinks."""
        return {
            "inputs": self.inputs if self.latent is None else None,
            "latent": self.narrow,
            "sinks": self.sink,
            "output": self.output,
            "q_norm": self.norm(self.heads),
            "k_norm": self.norm(self.kv_heads),
        }


@dataclass(frozen=True, slots=True)
class ExpertBiasShape(LayerShape):
    """A bias on the scores of experts that moves by `rate` after each step."""

    names_itself: ClassVar[bool] = False

    experts: int
    rate: float

    def own(self, tp: int) -> Parameters:
        """Return the biases."""
        values = Weight(
            name="expert_bias",
            shape=(self.experts,),
            terms="complete",
            init="zeros",
            decay=False,
            trains=False,
            role="buffer",
        )
        return {"values": (values,)}


@dataclass(frozen=True, slots=True)
class RouterShape(LayerShape):
    """The map of a token to the scores of experts; each tp rank routes different tokens."""

    moe: Moe
    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        shape, std = (self.moe.experts, self.width), self.width**-0.5
        weight = Weight(name="weight", shape=shape, terms="region", std=std, matrix=True)
        bias = Weight(name="bias", shape=shape[:1], terms="region", init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.moe.bias else ()}

    @property
    def expert_bias(self) -> ExpertBiasShape | None:
        """The bias that balances the load, if there is one."""
        rate = self.moe.bias_update_rate
        return None if rate is None else ExpertBiasShape(self.moe.experts, rate)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return the bias that balances the load, if there is one."""
        return {"expert_bias": self.expert_bias}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape(LayerShape):
    """The experts of a layer, each an MLP, distributed over ep and split over their own tp."""

    moe: Moe
    width: int
    gate: GateActivation | None
    out_scale: float

    def own(self, tp: int) -> Parameters:
        """Return the weights of one expert, as all have them."""
        inner, width = self.moe.width, self.width
        names = ("up",) if self.gate is None else ("gate", "up")
        ups = tuple(self._weight(f"{x}.weight", (inner, width), 0, width**-0.5) for x in names)
        std = self.out_scale * inner**-0.5
        found = {
            "inputs": ups,
            "outputs": (self._weight("down.weight", (width, inner), 1, std),),
        }
        if self.moe.bias:
            found["input_bias"] = tuple(self._bias(f"{name}.bias", inner) for name in names)
            found["output_bias"] = (self._bias("down.bias", width),)
        return found

    def _weight(self, name: str, shape: tuple[int, int], axis: int, std: float) -> Weight:
        return Weight(
            name=f"{{expert}}.{name}",
            shape=shape,
            axis=axis,
            std=std,
            matrix=True,
            role="experts",
            experts=self.moe.experts,
        )

    def _bias(self, name: str, features: int) -> Weight:
        return Weight(
            name=f"{{expert}}.{name}",
            shape=(features,),
            axis=0,
            init="zeros",
            decay=False,
            role="experts",
            experts=self.moe.experts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape(LayerShape):
    """Experts for each token, and perhaps one MLP `shared` by all tokens."""

    moe: Moe
    width: int
    gate: GateActivation | None
    shared: MlpShape | None
    out_scale: float

    @property
    def experts(self) -> ExpertsShape:
        """The experts."""
        return ExpertsShape(
            moe=self.moe, width=self.width, gate=self.gate, out_scale=self.out_scale
        )

    @property
    def router(self) -> RouterShape:
        """The router."""
        return RouterShape(self.moe, self.width)

    @property
    def shared_gate(self) -> TokenGateShape | None:
        """The gate of the shared MLP, if it has one."""
        return TokenGateShape(self.width) if self.moe.gates_shared else None

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return router, experts, the shared MLP and its gate."""
        return {
            "router": self.router,
            "experts": self.experts,
            "shared": self.shared,
            "shared_gate": self.shared_gate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape(LayerShape):
    """Attention, then an MLP or experts, each after a norm like `norm`.

    `post_norms` follow both. `layer_scale` is the initial value of factors on what both add to the
    stream.
    """

    norm: NormShape
    attention: AttentionShape
    mlp: MlpShape | MoeShape
    post_norms: bool = False
    layer_scale: float | None = None

    @property
    def width(self) -> int:
        """Width of the stream."""
        return self.norm.width

    @property
    def post_norm(self) -> NormShape | None:
        """The norm of what is added to the stream, if any."""
        return self.norm if self.post_norms else None

    @property
    def scale(self) -> ScaleShape | None:
        """The factors on what is added to the stream, if any."""
        return None if self.layer_scale is None else ScaleShape(self.width, self.layer_scale)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its layers in order."""
        return {
            "attention_norm": self.norm,
            "attention": self.attention,
            "mlp_norm": self.norm,
            "post_attention_norm": self.post_norm,
            "post_mlp_norm": self.post_norm,
            "attention_scale": self.scale,
            "mlp_scale": self.scale,
            "mlp": self.mlp,
        }


@dataclass(frozen=True, slots=True)
class DepthShape(LayerShape):
    """One depth of multi-token prediction: a block after a product of two streams."""

    block: BlockShape

    @property
    def project(self) -> RowShape:
        """The product."""
        return RowShape("project", 2 * self.block.width, self.block.width)

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        norm = self.block.norm
        norms = {"token_norm": norm, "hidden_norm": norm}
        return {**norms, "project": self.project, "block": self.block, "norm": norm}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorShape(LayerShape):
    """The map of rows of `width` to `out` numbers.

    A gated projector has an `inner` width, by default `width`, and reads the `patches` of a row.
    Two maps have an `inner` width between them, by default `out`; a merger always has `width`.
    """

    kind: Projector
    width: int
    out: int
    activation: ProjectorActivation = "gelu"
    bias: bool = True
    inner: int | None = None
    patches: int = 1

    @property
    def output(self) -> RowShape:
        """Its only map, if it is `linear`."""
        return RowShape("linear", self.width, self.out, self.bias)

    @property
    def convolution(self) -> WholeShape:
        """The first map of a `gated` one."""
        return WholeShape(self.width, self.out, self.bias)

    @property
    def middle(self) -> WholeShape:
        """The second map of a `gated` one."""
        return WholeShape(self.out, self.out, bias=False)

    @property
    def middle_norm(self) -> NormShape:
        """The norm after both maps of a `gated` one."""
        return NormShape(self.out, "layer")

    @property
    def mlp(self) -> MlpShape:
        """Its MLP, if it is not `linear`."""
        if self.kind == "gated":
            inner = self.inner or self.width
            return MlpShape(width=self.out, inner=inner, out=self.out, gate="silu")
        inner = self.width if self.kind == "merger" else self.inner or self.out
        return MlpShape(
            width=self.width,
            inner=inner,
            out=self.out,
            activation=self.activation,
            bias=self.bias,
        )

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        if self.kind == "linear":
            return {"output": self.output}
        if self.kind != "gated":
            return self.mlp.parts()
        names = ("convolution", "middle", "middle_norm", "mlp")
        return {name: getattr(self, name) for name in names}
