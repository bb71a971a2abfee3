"""Hybrid models: Mamba-2, Gated DeltaNet, short convolutions, attention, MLPs, experts, by letter.

Decides: the layers of each letter, and what each saves.
Relies on: `language` for attention, experts and both ends; `recurrent` for Mamba-2 and DeltaNet.
Leaves: nothing.
"""

from collections.abc import Mapping

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.block_shapes import BlockShape, DepthShape, MixedShape
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.kinds.mlp_shapes import MlpShape, MoeShape
from mimo_launch.kinds.recurrent import RECURRENT_LAYERS, RecurrentLayer, RecurrentShape
from mimo_launch.kinds.saved_activations import Saved, Temporary
from mimo_launch.kinds.short_conv import ShortConvShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.hybrid import (
    ATTENTION,
    CONVOLUTION,
    EXPERTS,
    MLP,
    RECURRENT,
    RecurrentSizes,
)
from mimo_launch.spec.language_models import GateActivation
from mimo_launch.spec.spec import HybridModel

NAMES = {
    **{letter: each.name for letter, each in RECURRENT_LAYERS.items()},
    CONVOLUTION: "short convolution",
    ATTENTION: "attention",
    MLP: "MLP",
    EXPERTS: "experts",
}

# In forward and backward, for MLPs with a gate.
GATE = Saved(name="gate of the MLP, or its gradient", inner=1)
FORWARD = (
    Saved(name="streams", stream=3, shared=True),
    Saved(name="what is mixed", query=4, key=4, inner=2),
)
BACKWARD = (
    Saved(name="gradients of what is mixed", query=3, key=4, inner=2),
    Saved(name="gradients of the stream", stream=2),
)


@frozen
class HybridKind(LanguageKind):
    """Layers of one norm and one mixer each, as in Nemotron-H (arXiv:2504.03624)."""

    model: HybridModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.language_model:LanguageStage"

    @property
    def recurrent(self) -> Mapping[str, RecurrentSizes]:
        """The sizes of its recurrent layers, by their key."""
        found = {key: self.model.sizes_of(letter) for letter, key in RECURRENT.items()}
        return {key: sizes for key, sizes in found.items() if sizes is not None}

    def has_experts(self, number: int) -> bool:
        """Return whether a layer, or the block of a depth after the layers, has experts."""
        model = self.model
        return EXPERTS in model.pattern if self.is_depth(number) else model.has_experts(number)

    def is_depth(self, number: int) -> bool:
        """Return whether a number belongs to a depth; depths follow the layers."""
        return number >= self.model.layers

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        if self.is_depth(number):
            return f"mtp {LanguageKind.layer_name(self, number)}"
        return NAMES[self.model.pattern[number]]

    @property
    def gate(self) -> GateActivation | None:
        """The activation of the gate of MLPs, if they have one."""
        activation = self.model.activation
        return None if activation == "squared_relu" else activation

    def layer(self, number: int) -> LayerShape:
        """Return a norm and a mixer or, for a depth, a block of attention and MLP or experts."""
        return self.depth(number) if self.is_depth(number) else self.mixed(number)

    def mixed(self, number: int) -> MixedShape:
        """Return a norm and a mixer, which adds once to the stream."""
        name, mixer = self._mixer(number, out_scale=self.model.layers**-0.5)
        return MixedShape(self.norm(), name, mixer)

    def depth(self, number: int) -> DepthShape:
        """Return a depth, with a block of attention and MLP or experts."""
        # The block of a depth adds twice; an odd number of layers is rounded up.
        out_scale = (2 * -(-self.model.layers // 2)) ** -0.5
        attention = self.attention(number, out_scale=out_scale)
        mlp = self._mlp_or_experts(number, out_scale=out_scale)
        return DepthShape(BlockShape(norm=self.norm(), attention=attention, mlp=mlp))

    def _mixer(self, number: int, *, out_scale: float) -> tuple[str, LayerShape]:
        """Return the name of a layer's mixer, and the mixer."""
        model, letter = self.model, self.model.pattern[number]
        if letter == ATTENTION:
            return "attention", self.attention(number, out_scale=out_scale)
        if letter in (MLP, EXPERTS):
            name = "mlp" if letter == MLP else "moe"
            return name, self._mlp_or_experts(number, out_scale=out_scale)
        if letter == CONVOLUTION:
            tokens = model.short_conv
            return "short_conv", ShortConvShape(
                width=model.hidden, tokens=tokens, out_scale=out_scale
            )
        sizes = model.sizes_of(letter)
        if sizes is None:
            raise ValueError(f"no layer of a hybrid model is a {letter}")
        return RECURRENT[letter], RecurrentShape(
            facts=RECURRENT_LAYERS[letter],
            width=model.hidden,
            sizes=sizes,
            eps=model.norm_eps,
            out_scale=out_scale,
        )

    def _mlp_or_experts(self, number: int, *, out_scale: float) -> MlpShape | MoeShape:
        if self.has_experts(number):
            return self.experts(out_scale=out_scale)
        return self.mlp(self.model.mlp_width, out_scale=out_scale)

    def layer_kind(self, number: int) -> LayerKind:
        """Return the kind of a layer; devices have a rate for each kind."""
        facts = self._recurrent(number)
        return LanguageKind.layer_kind(self, number) if facts is None else facts.kind

    def _recurrent(self, number: int) -> RecurrentLayer | None:
        """Return the facts of a layer if it is recurrent."""
        return None if self.is_depth(number) else RECURRENT_LAYERS.get(self.model.pattern[number])

    def temporary_activations(self, number: int) -> Temporary:
        """Return the tensors that are alive together in a layer."""
        gate = (GATE,) if self.model.gated_mlp else ()
        facts = self._recurrent(number)
        again = () if facts is None else facts.recomputed
        return Temporary(forward=(*FORWARD, *gate), backward=(*BACKWARD, *gate, *again))
