"""The shapes of attention, MLPs, experts, blocks and projectors, made of simpler ones.

Decides: the layers inside each, by name.
Relies on: `shapes` for the weights of these.
Leaves: which model has which layers to its kind, what a layer computes to the class that it names.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import ClassVar, Literal

from mimo_launch.kinds.adapters import DOWN, expert_adapter
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.saved_activations import Part
from mimo_launch.kinds.shapes import (
    EPSILON,
    NORMS,
    ColumnShape,
    NormShape,
    OneShape,
    Output,
    RowShape,
    WholeShape,
    WideNormShape,
)
from mimo_launch.kinds.weights import Adapter, LayerShape, Parameters, Weight
from mimo_launch.spec.encoders import Activation, Projector, ProjectorActivation
from mimo_launch.spec.language_models import GateActivation
from mimo_launch.spec.layers import Mla, Moe

# Of MLPs without a gate.
PlainActivation = Activation | Literal["squared_relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape(LayerShape):
    """An MLP with its inner width cut over tp: with a `gate`, or else an activation."""

    layer = "mimo_launch.models.mlp:Mlp"

    width: int
    inner: int
    out: int
    gate: GateActivation | None = None
    activation: PlainActivation = "gelu"
    bias: bool = False
    out_scale: float = 1.0

    @property
    def output(self) -> RowShape:
        """The last map."""
        return RowShape("down", self.inner, self.out, self.bias, self.out_scale)

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its maps."""
        names = ("up",) if self.gate is None else ("gate", "up")
        outputs = tuple(Output(name, self.inner, bias=self.bias) for name in names)
        return {"inputs": ColumnShape(self.width, outputs), "output": self.output}

    def widths(self) -> Widths:
        """Return the width inside it."""
        return LayerShape.widths(self) + Widths(inner=self.inner, regions=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape(LayerShape):
    """The maps of latent attention from narrow widths to queries, keys and values."""

    layer = "mimo_launch.layers.latent_attention:LatentInputs"

    sizes: Mla
    width: int
    heads: int
    head_size: int

    @property
    def query_width(self) -> int:
        """The width that queries are made of."""
        return self.sizes.q_rank or self.width

    @property
    def made(self) -> int:
        """The width of all keys, without what rotates, and values."""
        head = self.head_size - self.sizes.rope_head_dim + self.sizes.v_head_dim
        return self.heads * head

    def widths(self) -> Widths:
        """Return the narrow widths, and the width of keys and values made from them."""
        narrow = self.sizes.kv_rank + self.sizes.rope_head_dim
        entered = narrow + self.query_width
        narrow += self.sizes.q_rank or 0
        return LayerShape.widths(self) + Widths(narrow=narrow, entered=entered, made=self.made)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return maps to narrow widths, norms of these, and maps from them."""
        sizes, heads, rank = self.sizes, self.heads, self.sizes.q_rank
        narrow = sizes.kv_rank + sizes.rope_head_dim
        return {
            "q_down": None if rank is None else WholeShape(self.width, rank, bias=False),
            "q_norm": None if rank is None else NormShape(rank, "rms", sizes.norm_eps),
            "kv_down": WholeShape(self.width, narrow, bias=False),
            "kv_norm": NormShape(sizes.kv_rank, "rms", sizes.norm_eps),
            "queries": ColumnShape(self.query_width, (Output("q_up", heads * self.head_size),)),
            "keys": ColumnShape(sizes.kv_rank, (Output("kv_up", self.made),)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape(LayerShape):
    """Multi-head, grouped-query or latent attention.

    `qkv_bias` gives queries, keys and values biases, except keys without `key_bias` (Whisper);
    `bias` gives the output one. `qk_norm` normalises each head of queries and keys, `l2_norm`
    without weights, `wide_norm` all of them together; `norm_last`: each head after its rotation.
    Scores are divided by the square root of `score_size` (None: of the head size), and stay below
    `score_cap`; learned `sinks` join their softmax. If `gated`, each head's output is multiplied by
    the sigmoid of a gate, which follows the query of the head. `interleaved`: numbers of a head
    that rotate together are neighbours. `latent` makes queries, keys and values of narrow widths.
    """

    layer = "mimo_launch.layers.attention:Attention"

    width: int
    heads: int
    kv_heads: int
    head_size: int
    bias: bool = False
    qkv_bias: bool = False
    key_bias: bool = True
    qk_norm: bool = False
    l2_norm: bool = False
    norm_last: bool = False
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
    def output(self) -> RowShape:
        """The map to the stream."""
        value_size = self.head_size if self.latent is None else self.latent.v_head_dim
        return RowShape("o", self.heads * value_size, self.width, self.bias, self.out_scale)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return maps, sinks, and norms of heads."""
        width, heads, head = self.width, self.heads, self.head_size
        narrow, inputs = None, None
        if self.latent is not None:
            narrow = LatentShape(sizes=self.latent, width=width, heads=heads, head_size=head)
        else:
            query, bias = head * self.query_parts, self.qkv_bias
            outputs = (
                Output("q", heads * query, query, bias),
                Output("k", self.kv_heads * head, head, bias and self.key_bias),
                Output("v", self.kv_heads * head, head, bias),
            )
            inputs = ColumnShape(width, outputs)
        logits = Weight(name="weight", shape=(heads,), axis=0, init="zeros", decay=False)
        return {
            "latent": narrow,
            "inputs": inputs,
            "sinks": OneShape(f"{NORMS}:Sinks", logits) if self.sinks else None,
            "output": self.output,
            "q_norm": self._norm(heads),
            "k_norm": self._norm(self.kv_heads),
        }

    def widths(self) -> Widths:
        """Return the widths of heads, and of latent attention."""
        query, key, value = (
            self.heads * self.head_size,
            self.kv_heads * self.head_size,
            self.output.features,
        )
        own = Widths(
            query=query,
            key=key,
            value=value,
            unit=self.head_size,
            heads=self.heads,
            gathers=2 * key if self.latent is None else key + value,
            scored=query + value,
            regions=1,
        )
        return own + LayerShape.widths(self)

    def _norm(self, heads: int) -> NormShape | WideNormShape | None:
        if not self.qk_norm:
            return None
        if self.wide_norm:
            width = heads * self.head_size
            return WideNormShape(width, self.eps, self.head_size, self.norm_offset)
        return NormShape(self.head_size, "rms", self.eps, inside=True, offset=self.norm_offset)


@dataclass(frozen=True, slots=True)
class ExpertBiasShape(LayerShape):
    """A bias on the scores of experts that moves by `rate` after each step."""

    layer = "mimo_launch.layers.router:ExpertBias"
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

    layer = "mimo_launch.layers.router:Router"

    moe: Moe
    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias, if it has one."""
        shape, std = (self.moe.experts, self.width), self.width**-0.5
        weight = Weight(name="weight", shape=shape, terms="region", std=std, matrix=True)
        bias = Weight(name="bias", shape=shape[:1], terms="region", init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.moe.bias else ()}

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return the bias that balances the load, if there is one."""
        rate = self.moe.bias_update_rate
        return {"expert_bias": None if rate is None else ExpertBiasShape(self.moe.experts, rate)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape(LayerShape):
    """The experts of a layer, each an MLP, distributed over ep and split over their own tp."""

    layer = "mimo_launch.layers.experts:Experts"
    unpacks: ClassVar[bool] = True

    moe: Moe
    width: int
    gate: GateActivation | None
    activation: PlainActivation = "squared_relu"
    out_scale: float

    def own(self, tp: int) -> Parameters:
        """Return the weights of one expert; all experts have the same."""
        mlp = MlpShape(
            width=self.width,
            inner=self.moe.width,
            out=self.width,
            gate=self.gate,
            bias=self.moe.bias,
            out_scale=self.out_scale,
        )
        ups, downs = (part.own(1) for part in mlp.parts().values())
        found = {
            "inputs": ups["weight"],
            "outputs": downs["weight"],
            "input_bias": ups["bias"],
            # Each rank that splits an expert adds a part of the last bias.
            "output_bias": tuple(replace(each, axis=0) for each in downs["bias"]),
        }
        return {attribute: self._of_each(weights) for attribute, weights in found.items()}

    def adapters(self, adapter: Adapter | None) -> Mapping[str, LayerShape | None]:
        """Return the updates of all experts."""
        own = self.own(1)
        maps = [
            (each.name.split(".")[1], replace(each, experts=0))
            for each in (*own["inputs"], *own["outputs"])
        ]
        return {"adapter": expert_adapter(adapter, self.moe.experts, self.width, maps)}

    def widths(self) -> Widths:
        """Return the sizes of all experts of one token together."""
        chosen = self.moe.top_k
        products = chosen * LayerShape.widths(self).products
        return Widths(products=products, inner=chosen * self.moe.width)

    def _of_each(self, weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
        return tuple(
            replace(
                each,
                name=f"{{expert}}.{each.name}",
                in_product=False,
                role="experts",
                experts=self.moe.experts,
            )
            for each in weights
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape(LayerShape):
    """Experts for each token, and perhaps one MLP `shared` by all tokens."""

    layer = "mimo_launch.models.mlp:MoeMlp"

    moe: Moe
    width: int
    gate: GateActivation | None
    activation: PlainActivation = "squared_relu"
    shared: MlpShape | None
    out_scale: float

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return router, experts, the shared MLP and its gate."""
        moe, width, gate = self.moe, self.width, None
        if moe.gates_shared:
            weight = Weight(name="weight", shape=(1, width), std=width**-0.5)
            gate = OneShape(f"{NORMS}:TokenGate", weight)
        experts = ExpertsShape(
            moe=moe,
            width=width,
            gate=self.gate,
            activation=self.activation,
            out_scale=self.out_scale,
        )
        router = RouterShape(moe, width)
        return {
            "router": router,
            "experts": experts,
            "shared": self.shared,
            "shared_gate": gate,
        }

    def widths(self) -> Widths:
        """Return the sizes of experts, shared MLP and its gate; only the shared MLP is a region."""
        return LayerShape.widths(self) + Widths(products=self.width * self.moe.gates_shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape(LayerShape):
    """Attention, then an MLP or experts, each after a norm like `norm` if it has `pre_norms`.

    `post_norms` follow both. `layer_scale` is the initial value of factors on what both add to the
    stream, and `residual_scale` a constant one. If they are `parallel`, both read the same stream,
    by one norm.
    """

    layer = "mimo_launch.models.transformer_block:Block"

    norm: NormShape
    attention: AttentionShape
    mlp: MlpShape | MoeShape
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    layer_scale: float | None = None
    residual_scale: float | None = None

    @property
    def width(self) -> int:
        """Width of the stream."""
        return self.norm.width

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its layers in order."""
        pre_norm, start = self.norm if self.pre_norms else None, self.layer_scale
        post_norm = self.norm if self.post_norms else None
        scale = None if start is None else scale_shape(self.width, start)
        return {
            "attention_norm": pre_norm,
            "attention": self.attention,
            "mlp_norm": None if self.parallel else pre_norm,
            "post_attention_norm": post_norm,
            "post_mlp_norm": post_norm,
            "attention_scale": scale,
            "mlp_scale": scale,
            "mlp": self.mlp,
        }


def scale_shape(width: int, start: float) -> OneShape:
    """Return a factor per channel of what a layer adds to the stream, at first `start`."""
    factors = Weight(name="weight", shape=(width,), std=start, init="constant", decay=False)
    return OneShape(f"{NORMS}:LayerScale", factors)


@dataclass(frozen=True, slots=True)
class MixedShape(LayerShape):
    """A layer of a hybrid: one norm, and one mixer with its name."""

    layer = "mimo_launch.models.transformer_block:HybridLayer"

    norm: NormShape
    name: str
    mixer: LayerShape

    @property
    def part(self) -> Part:
        """The part of a block that the mixer is."""
        return "mlp" if isinstance(self.mixer, MlpShape | MoeShape) else "attention"

    def parts(self) -> Mapping[str, LayerShape]:
        """Return both."""
        return {"norm": self.norm, self.name: self.mixer}


@dataclass(frozen=True, slots=True)
class DepthShape(LayerShape):
    """One depth of multi-token prediction: a block after a product of two streams."""

    layer = "mimo_launch.models.transformer_block:MtpDepth"

    block: BlockShape

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        norm, width = self.block.norm, self.block.width
        project = RowShape("project", 2 * width, width)
        norms = {"token_norm": norm, "hidden_norm": norm}
        return {**norms, "project": project, "block": self.block, "norm": norm}

    def widths(self) -> Widths:
        """Return the sizes of its block."""
        # One more region for its product; embedding and head are half a region each.
        return LayerShape.widths(self) + Widths(regions=2)


def parts_of(layer: LayerShape) -> Iterator[tuple[Part, str, LayerShape]]:
    """Yield the parts of a layer that may be computed again, each with its name in its block."""
    block = layer.block if isinstance(layer, DepthShape) else layer
    if isinstance(block, BlockShape):
        yield "attention", "attention", block.attention
        yield "mlp", "mlp", block.mlp
    elif isinstance(block, MixedShape):
        yield block.part, block.name, block.mixer


def narrow_width(
    layer: LayerShape, adapter: Adapter | None, choices: float, but: Container[str] = ()
) -> float:
    """Return the sum of the ranks of the updates of a token, `but` those of some parts.

    A token has `choices` experts.
    """
    downs = (down for part, down in _downs(layer, adapter) if part not in but)
    return sum(each.shape[0] * (choices if each.experts else 1.0) for each in downs)


def num_updates(layer: LayerShape, adapter: Adapter | None) -> int:
    """Return how many maps of a layer have an update; a map of all experts counts once."""
    return len(_downs(layer, adapter))


# A search asks for the few layers of its models hundreds of thousands of times.
@lru_cache(maxsize=1024)
def _downs(layer: LayerShape, adapter: Adapter | None) -> tuple[tuple[Part, Weight], ...]:
    """Return the first matrix of each update of a layer, with the part that it is in."""
    if adapter is None:
        return ()
    return tuple(
        (part, each)
        for part, name, shape in parts_of(layer)
        for each in chain.from_iterable(shape.weights(adapter=adapter.inside(name)))
        if each.name.endswith(DOWN)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorShape(LayerShape):
    """The map of rows of `width` to `out` numbers.

    A gated projector has an `inner` width, by default `width`, and reads the `patches` of a row.
    Two maps have an `inner` width between them, by default `out`; a merger always has `width`.
    """

    layer = "mimo_launch.models.projector:projector"

    kind: Projector
    width: int
    out: int
    activation: ProjectorActivation = "gelu"
    bias: bool = True
    inner: int | None = None
    patches: int = 1

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
            gate="silu" if self.kind == "swiglu" else None,
            activation=self.activation,
            bias=self.bias,
        )

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        if self.kind == "linear":
            return {"output": RowShape("linear", self.width, self.out, self.bias)}
        if self.kind != "gated":
            return self.mlp.parts()
        return {
            "convolution": WholeShape(self.width, self.out, self.bias),
            "middle": WholeShape(self.out, self.out, bias=False),
            "middle_norm": NormShape(self.out, "layer"),
            "mlp": self.mlp,
        }
