"""The shapes of MLPs and of mixtures of experts.

Decides: the layers inside each, by name, and the tensors that each saves.
Relies on: `shapes` for the weights of these.
Leaves: which layer has which to the kind of a model, what it computes to the class that it names.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import expm1, log
from typing import ClassVar, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.adapters import expert_adapter
from mimo_launch.kinds.clipped_shapes import columns, row, saved_by_clips
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.saved_activations import AttentionPattern, Passes, Saved
from mimo_launch.kinds.shapes import NORMS, NormShape, OneShape, Output, RowShape
from mimo_launch.kinds.weights import Adapter, LayerShape, Parameters, Weight, buffer, of_key
from mimo_launch.spec.encoders import Activation
from mimo_launch.spec.language_models import GateActivation
from mimo_launch.spec.layers import Moe

# Of MLPs without a gate.
PlainActivation = Activation | Literal["squared_relu", "silu", "xielu"]


@frozen
class XieluShape(LayerShape):
    """The numbers of one xIELU: two that train, two that do not, as first in `transformers`.

    Each tp rank has their gradients from its part of the inner width.
    """

    layer = "mimo_launch.layers.xielu:Xielu"

    def own(self, tp: int) -> Parameters:
        """Return its numbers; the curves of both sides begin at 0.8."""
        starts = {"alpha_p": log(expm1(0.8)), "alpha_n": log(expm1(0.8 - 0.5))}
        trained = Weight(name="", shape=(1,), terms="region", init="constant", decay=False)
        return {
            **{name: (replace(trained, name=name, std=std),) for name, std in starts.items()},
            **{n: (buffer(n, 1, "constant", x),) for n, x in (("beta", 0.5), ("eps", -1e-6))},
        }


@frozen(kw_only=True)
class MlpShape(LayerShape):
    """An MLP with its inner width cut over tp: with a `gate`, or else an activation.

    Its maps may clip what they read and give (`clipped`).
    """

    layer = "mimo_launch.models.mlp:Mlp"

    width: int
    inner: int
    out: int
    gate: GateActivation | None = None
    activation: PlainActivation = "gelu"
    bias: bool = of_key("mlp_bias", False)
    out_scale: float = 1.0
    clipped: bool = False

    @property
    def output(self) -> RowShape:
        """The last map, without clips."""
        return RowShape("down", self.inner, self.out, self.bias, self.out_scale)

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its maps, and an activation with numbers of its own."""
        names = ("up",) if self.gate is None else ("gate", "up")
        outputs = tuple(Output(name, self.inner, bias=self.bias) for name in names)
        return {
            "inputs": columns(self.width, outputs, clipped=self.clipped),
            "activation": XieluShape() if self.activation == "xielu" else None,
            "output": row(self.output, clipped=self.clipped),
        }

    def widths(self) -> Widths:
        """Return the width inside it."""
        return LayerShape.widths(self) + Widths(inner=self.inner, regions=1)

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what is inside, and what clips keep."""
        found, maps = _of_inside(self.gate, self.activation, passes), 1 + (self.gate is not None)
        if not self.clipped:
            return found
        # A clip reads what the last product would keep for its weights alone.
        return (
            *(replace(each, for_weights=False) for each in found),
            Saved(name="inner width, before clips", inner=maps),
            Saved(name="inner width, clipped", inner=1, for_weights=True),
            *saved_by_clips("mlp", maps, passes),
        )


@frozen
class ExpertBiasShape(LayerShape):
    """A bias on the scores of experts that moves by `rate` after each step."""

    layer = "mimo_launch.layers.router:ExpertBias"
    names_itself: ClassVar[bool] = False

    experts: int
    rate: float

    def own(self, tp: int) -> Parameters:
        """Return the biases."""
        return {"values": (buffer("expert_bias", self.experts, "zeros"),)}


@frozen
class RouterShape(LayerShape):
    """The map of a token to the scores of experts; each tp rank routes different tokens.

    A router with a `norm` reads the stream, and divides its normed input by the root of the width.
    """

    layer = "mimo_launch.layers.router:Router"

    moe: Moe
    width: int
    norm: NormShape | None = None

    def own(self, tp: int) -> Parameters:
        """Return its weight, and its bias and factors of scores, if it has them."""
        shape = (self.moe.experts, self.width)
        std = self.width**-0.5 if self.norm is None else 1.0
        weight = Weight(name="weight", shape=shape, terms="region", std=std, matrix=True)
        bias = Weight(name="bias", shape=shape[:1], terms="region", init="zeros", decay=False)
        return {
            "weight": (weight,),
            "bias": (bias,) if self.moe.bias else (),
            "scale": (replace(bias, name="scale", init="ones"),) if self.moe.learned_scale else (),
        }

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its norm, and the bias that balances the load, if there are any."""
        rate = self.moe.bias_update_rate
        bias = None if rate is None else ExpertBiasShape(self.moe.experts, rate)
        return {"norm": self.norm, "expert_bias": bias}


@frozen(kw_only=True)
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
        ups, downs = (part.own(1) for part in filter(None, mlp.parts().values()))
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

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what is inside experts, and what comes to them and goes back."""
        return (
            *_of_inside(self.gate, self.activation, passes),
            Saved(name="tokens that came to experts", arrived=1, for_weights=True),
            Saved(name="answers of experts", returned=1),
        )

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


@frozen(kw_only=True)
class MoeShape(LayerShape):
    """Experts for each token, and perhaps one MLP `shared` by all tokens.

    With a `norm`, router and experts each read the stream through a norm like it. One follows the
    shared MLP, and one the sum of the experts.
    """

    layer = "mimo_launch.models.mlp:MoeMlp"

    moe: Moe
    width: int
    gate: GateActivation | None
    activation: PlainActivation = "squared_relu"
    shared: MlpShape | None
    norm: NormShape | None = None
    out_scale: float

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return router, experts, the shared MLP and its gate, and norms."""
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
        # Each tp rank has these norms of the tokens that it routes.
        norm = None if self.norm is None else replace(self.norm, inside=True)
        return {
            "router": RouterShape(moe, width, norm),
            "experts": experts,
            "shared": self.shared,
            "shared_gate": gate,
            "routed_norm": norm,
            "routed_post_norm": norm,
            "shared_post_norm": self.norm,
        }

    def widths(self) -> Widths:
        """Return the sizes of experts, shared MLP and its gate; only the shared MLP is a region."""
        return LayerShape.widths(self) + Widths(products=self.width * self.moe.gates_shared)

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what experts, router and norms keep, and the gate of a shared MLP.

        The inner widths of experts and shared MLP add up.
        """
        shared = self._of_gate(passes) if self.moe.gates_shared else ()
        experts, norm = self.parts()["experts"], self.norm
        inside = () if experts is None else experts.saved(passes, pattern)
        norms = () if norm is None else _of_separate_norms(norm, passes)
        router = _of_router(self.moe, has_norm=norm is not None)
        return (*inside, *router, *norms, *shared)

    def _of_gate(self, passes: Passes) -> tuple[Saved, ...]:
        """Return what the gate of a shared MLP keeps.

        It reads the normed stream, which then stays if norms are computed again, unless the router
        keeps it as well.
        """
        found = (_of_shared(passes),)
        if self.norm is None:
            return found
        stays = Saved(
            name="normed stream for the gate",
            stream=1,
            shared=True,
            part="mlp",
            for_weights=True,
        )
        name = "less the normed stream"
        return (*found, stays, replace(stays, name=name, stream=-1, normed=True))


def _of_inside(
    gate: GateActivation | None, activation: PlainActivation, passes: Passes
) -> tuple[Saved, ...]:
    """Return what an MLP keeps of its inner width."""
    if gate is not None:
        # The product has two factors.
        beside = Saved(name="activation of gate", inner=1)
        made = Saved(name="their product", inner=1, for_weights=True)
        found = (Saved(name="gate and up, fused", inner=2), made)
    else:
        beside = Saved(name="sigmoid of up", inner=int(activation == "quick_gelu"))
        made = Saved(name="its activation", inner=1, for_weights=True)
        found = (Saved(name="up", inner=1), made)
    return found if passes.are_compiled else (*found, beside)


def _of_router(moe: Moe, *, has_norm: bool) -> tuple[Saved, ...]:
    """Return what a router keeps: its input, scores, and places of tokens.

    Without a norm of its own it keeps the normed stream of this rank's tokens, also if norms are
    computed again. Only a shared expert keeps the whole normed stream.
    """
    # Choices and places, each way, take 8 bytes, and weights two more numbers, as do factors.
    per_choice = 8 + 2 * moe.learned_scale
    kept = [
        Saved(
            name="normed stream for the router",
            routed=int(has_norm),
            stream=int(not has_norm),
            shared=True,
            for_weights=True,
        ),
        Saved(
            name="scores, choices, places",
            routed_numbers=moe.experts + per_choice * moe.top_k,
        ),
    ]
    if not has_norm or not moe.shared:
        # Beside a shared expert it is the router's own that is counted once.
        less = Saved(name="less the normed stream", stream=-1, for_weights=True, normed=True)
        kept.append(replace(less, shared=bool(moe.shared)))
    return tuple(replace(each, part="mlp") for each in kept)


def _of_separate_norms(norm: NormShape, passes: Passes) -> tuple[Saved, ...]:
    """Return what norms of router and experts keep, and those of answers.

    The former read the stream, which stays.
    """
    before = passes.of_norm(norm.kind, input_stays=True)
    after = 1 + passes.of_norm(norm.kind)
    return (
        Saved(name="stream of router and experts in fp32, and its norms", routed=2 * before),
        Saved(name="answers of experts, before their norm", routed=after),
        Saved(
            name="answer of the shared expert, before its norm",
            stream=after,
            shared=True,
            part="mlp",
        ),
    )


def _of_shared(passes: Passes) -> Saved:
    """Return what the gate of a shared expert keeps: its output, and without compiling its factor.

    Both then have at least 4 bytes.
    """
    copies = 1 if passes.are_compiled else passes.wide
    numbers = 0 if passes.are_compiled else passes.wide
    name = "output of the shared expert"
    return Saved(name=name, stream=copies, numbers=numbers, shared=True, part="mlp")
