"""Hybrid models: Mamba-2, Gated DeltaNet, attention, an MLP or experts, by letter.

Decides: the layers of each letter, and what each saves.
Relies on: `language` for attention, experts and both ends; `recurrent` for Mamba-2 and DeltaNet.
Leaves: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mimo_launch.kinds.block_shapes import (
    AttentionShape,
    BlockShape,
    DepthShape,
    MixedShape,
    MlpShape,
    MoeShape,
)
from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.recurrent import RECURRENT_BY_KIND, RECURRENT_LAYERS, RecurrentShape
from mimo_launch.kinds.saved_activations import (
    ATTENTION_OUT,
    GATED,
    RMS,
    RMS_BF16,
    SILU,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.hybrid import (
    ATTENTION,
    EXPERTS,
    MLP,
    RECURRENT,
    RecurrentSizes,
)
from mimo_launch.spec.language_models import GateActivation
from mimo_launch.spec.spec import HybridModel

NAMES = {
    **{letter: each.name for letter, each in RECURRENT_LAYERS.items()},
    ATTENTION: "attention",
    MLP: "MLP",
    EXPERTS: "experts",
}

_INPUT = (
    Saved(name="layer input", stream=1, shared=True),
    Saved(name="normed input", stream=1, for_weights=True),
)
SQUARED = (
    Saved(name="up", inner=1),
    Saved(name="its squared ReLU", inner=1, for_weights=True),
)
# In addition, if passes are not compiled.
EAGER = Saved(name="result of the norm", stream=1, shared=True)
EAGER_BF16 = Saved(name="input and result of the norm, less the stream", stream=3, shared=True)
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


@dataclass(frozen=True, slots=True)
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
        return EXPERTS in model.pattern if self._is_depth(number) else model.has_experts(number)

    def _is_depth(self, number: int) -> bool:
        return number >= self.model.layers

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        if self._is_depth(number):
            return f"mtp {LanguageKind.layer_name(self, number)}"
        return NAMES[self.model.pattern[number]]

    def attention(self, number: int, *, out_scale: float) -> AttentionShape:
        """Return the attention of a layer."""
        plain = LanguageKind.attention(self, number, out_scale=out_scale)
        return replace(plain, qk_norm=self.model.qk_norm)

    @property
    def gate(self) -> GateActivation | None:
        """The activation of the gate of MLPs, if they have one."""
        activation = self.model.activation
        return None if activation == "squared_relu" else activation

    def layer(self, number: int) -> LayerShape:
        """Return a norm and a mixer or, for a depth, a block of attention and MLP or experts."""
        return self.depth(number) if self._is_depth(number) else self.mixed(number)

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

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of one mixer."""
        whole = self.widths
        if self._is_depth(number):
            return self._around_depth(self._with_experts(number, whole))
        letter = self.model.pattern[number]
        empty = replace(whole, query=0, key=0, inner=0, ups=0, regions=1)
        if sizes := self.model.sizes_of(letter):
            return replace(
                empty,
                query=sizes.inner,
                key=sizes.shared,
                heads=sizes.heads,
                recurrence=RECURRENT_LAYERS[letter].recurrence(sizes),
            )
        if letter == ATTENTION:
            return replace(empty, query=whole.query, key=whole.key)
        return self._with_experts(number, replace(empty, inner=whole.inner, ups=whole.ups))

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        if layer.recurrence is not None:
            return (*_INPUT, *RECURRENT_BY_KIND[layer.recurrence.kind].saved)
        inside = GATED if self.model.gated_mlp else SQUARED
        if layer.query:
            rotated = self.model.rope_theta is not None
            attention = self._saved_projected(rotated=rotated, normed=self.model.qk_norm)
            behind = (*ATTENTION_OUT, *inside) if layer.is_depth else ATTENTION_OUT[:2]
            return (*_INPUT, *attention, *behind)
        return (*_INPUT, *inside)

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        norm = EAGER_BF16 if passes.are_bf16 else EAGER
        if layer.recurrence is None:
            gate = (SILU,) if self.model.gated_mlp else ()
            if not layer.query:
                return (norm, *gate)
            attention = self._saved_beside_attention(passes, normed=self.model.qk_norm)
            if not layer.is_depth:
                return (norm, *attention)
            return (RMS_BF16 if passes.are_bf16 else RMS, *attention, *gate)
        found = RECURRENT_BY_KIND[layer.recurrence.kind]
        return norm, found.eager_bf16 if passes.are_bf16 else found.eager

    def temporary_activations(self, layer: Widths) -> Temporary:
        """Return the tensors that are alive together in a layer."""
        gate = (GATE,) if self.model.gated_mlp else ()
        again: tuple[Saved, ...] = ()
        if layer.recurrence is not None:
            again = RECURRENT_BY_KIND[layer.recurrence.kind].recomputed
        return Temporary(forward=(*FORWARD, *gate), backward=(*BACKWARD, *gate, *again))
