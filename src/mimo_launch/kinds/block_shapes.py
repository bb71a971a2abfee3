"""The shapes of blocks, layers of hybrids, depths and projectors, made of simpler ones.

Decides: the layers inside each, by name, and the tensors that each saves.
Relies on: `attention_shapes`, `mlp_shapes`, and `shapes` for simpler layers.
Leaves: which model has which layers to its kind, what a layer computes to the class that it names.
"""

from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from itertools import chain

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.adapters import DOWN
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.mlp_shapes import MlpShape, MoeShape
from mimo_launch.kinds.per_layer_shapes import PerLayerShape
from mimo_launch.kinds.saved_activations import (
    BLOCK_PARTS,
    CAPPED_BACKWARD,
    CAPPED_FORWARD,
    GATED_TEMPORARY,
    PLAIN_TEMPORARY,
    TOKEN_AHEAD,
    AttentionPattern,
    Part,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.shapes import NORMS, NormShape, OneShape, RowShape, WholeShape
from mimo_launch.kinds.weights import Adapter, LayerShape, Weight, buffer, of_key
from mimo_launch.spec.encoders import Projector, ProjectorActivation


@frozen(kw_only=True)
class BlockShape(LayerShape):
    """Attention, then an MLP or experts, each after a norm like `norm` if it has `pre_norms`.

    `post_norms` follow both. `layer_scale` is the initial value of factors on what both add to the
    stream, and `residual_scale` a constant one. If they are `parallel`, both read the same stream,
    by one norm. What `per_layer` embeddings add comes after both. A number that does not train, at
    first `scalar`, multiplies the stream after them.
    """

    layer = "mimo_launch.models.transformer_block:Block"

    norm: NormShape
    attention: AttentionShape
    mlp: MlpShape | MoeShape
    pre_norms: bool = of_key("pre_norms", True)
    post_norms: bool = of_key("post_norms", False)
    parallel: bool = of_key("parallel", False)
    layer_scale: float | None = None
    residual_scale: float | None = of_key("residual_scale", None)
    scalar: float | None = of_key("layer_scalar", None)
    per_layer: PerLayerShape | None = None

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
            "per_layer": self.per_layer,
            "layer_scalar": None if self.scalar is None else scalar_shape(self.scalar),
        }

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return the streams between its layers, what norms and factors keep, and its layers."""
        found = (
            *self._streams(passes),
            *self.attention.saved(passes, pattern),
            *self.mlp.saved(passes, pattern),
            *(() if self.per_layer is None else self.per_layer.saved(passes, pattern)),
        )
        for part in BLOCK_PARTS:
            if self.post_norms:
                name = f"output of {part}, before its norm"
                found += (Saved(name=name, stream=1, shared=True, part=part),)
            if self.layer_scale is not None:
                name = f"what {part} adds, unscaled"
                found += (Saved(name=name, stream=1, shared=True, for_weights=True, part=part),)
        for _ in range(0 if passes.are_compiled else self.pre_norms + self.post_norms):
            found += passes.of_stream(self.norm.kind, *BLOCK_PARTS)
        return found

    def _streams(self, passes: Passes) -> tuple[Saved, ...]:
        """Return inputs of norms before attention and MLP, and of the products after them."""
        remade = self.pre_norms
        normed = (
            Saved(
                name="normed input",
                stream=1,
                # The maps to narrow widths lie between regions.
                shared=self.attention.latent is not None,
                for_weights=True,
                part="attention" if remade else None,
                normed=remade,
            ),
            Saved(
                name="normed stream",
                stream=1,
                for_weights=True,
                part="mlp" if remade else None,
                normed=remade,
            ),
        )
        if not self.pre_norms:
            # Products read the stream itself, which stays.
            return normed
        found = (Saved(name="block input", stream=1, shared=True), *normed)
        if self.parallel and (passes.are_compiled or passes.wide == 1):
            # Both norms read the block's input; otherwise each keeps a copy of it.
            return found
        return (*found, Saved(name="stream after attention", stream=1, shared=True))

    def temporary(self) -> Temporary:
        """Return the tensors that are alive together; also scores if they are capped."""
        found = PLAIN_TEMPORARY if self.mlp.gate is None else GATED_TEMPORARY
        if self.attention.score_cap is None:
            return found
        return Temporary(
            forward=(CAPPED_FORWARD, *found.forward),
            backward=(*found.backward, CAPPED_BACKWARD),
        )


def scalar_shape(start: float) -> OneShape:
    """Return a number that the stream is multiplied by after a block, at first `start`."""
    return OneShape(f"{NORMS}:LayerScalar", buffer("weight", 1, "constant", start))


def scale_shape(width: int, start: float) -> OneShape:
    """Return a factor per channel of what a layer adds to the stream, at first `start`."""
    factors = Weight(name="weight", shape=(width,), std=start, init="constant", decay=False)
    return OneShape(f"{NORMS}:LayerScale", factors)


@frozen
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

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return its input, the input's norm, and what the mixer keeps."""
        normed = Saved(
            name="normed input",
            stream=1,
            for_weights=True,
            part=self.part,
            normed=True,
        )
        beside = () if passes.are_compiled else passes.of_stream(self.norm.kind, self.part)
        stream = Saved(name="layer input", stream=1, shared=True)
        return (stream, normed, *self.mixer.saved(passes, pattern), *beside)


@frozen
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

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return tensors before and after its block, and those of the block."""
        return (
            TOKEN_AHEAD,
            Saved(name="state of the depth before", stream=1, shared=True),
            Saved(name="norms of both", stream=2, for_weights=True),
            Saved(name="output of the block", stream=1, shared=True),
            *passes.of_stream(self.block.norm.kind, None, None, None),
            *self.block.saved(passes, pattern),
        )

    def temporary(self) -> Temporary:
        """Return the tensors that are alive together in its block."""
        return self.block.temporary()


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


@frozen(kw_only=True)
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

    def parts(self) -> Mapping[str, LayerShape | None]:
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
