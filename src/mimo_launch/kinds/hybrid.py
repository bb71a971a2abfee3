"""Hybrid models: recurrent layers, attention, an MLP or experts, by letter.

Decides: the weights of each, and what it saves.
Relies on: `language` for attention, experts and both ends; `recurrent`.
Leaves: nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import Share, Weight, Widths
from mimo_launch.kinds.recurrent import RECURRENT_LAYERS
from mimo_launch.kinds.saved_activations import ATTENTION_OUT, GATED, SILU, Passes, Saved
from mimo_launch.spec.language_models import (
    ATTENTION,
    EXPERTS,
    MLP,
    RECURRENT,
    RecurrentSizes,
)
from mimo_launch.spec.spec import HybridModel

NAMES = {
    **{letter: each.name for letter, each in RECURRENT_LAYERS.items()},
    ATTENTION: "attention",
    MLP: "MLP",
    EXPERTS: "experts",
}
_BY_KIND = {each.kind: each for each in RECURRENT_LAYERS.values()}

_INPUT = (
    Saved(name="layer input", stream=1, shared=True),
    Saved(name="normed input", stream=1, for_weights=True),
)
MLP_LAYER = (
    *_INPUT,
    Saved(name="up", inner=1),
    Saved(name="its squared ReLU", inner=1, for_weights=True),
)
# Besides, where passes are not compiled.
EAGER = Saved(name="result of the norm", stream=1, shared=True)
EAGER_BF16 = Saved(name="input and result of the norm, less the stream", stream=3, shared=True)
# In a forward and in a backward, where MLPs have one.
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
        return "mimo_launch.models.hybrid_layers:HybridStage"

    @property
    def recurrent(self) -> Mapping[str, RecurrentSizes]:
        """The sizes of its recurrent layers, by their key."""
        found = {key: self.model.sizes_of(letter) for letter, key in RECURRENT.items()}
        return {key: sizes for key, sizes in found.items() if sizes is not None}

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        return NAMES[self.model.pattern[number]]

    def layer_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the weights of a norm and a mixer."""
        model, letter = self.model, self.model.pattern[number]
        width = model.hidden
        yield Weight((width,))
        if sizes := model.sizes_of(letter):
            yield from RECURRENT_LAYERS[letter].weights(width, sizes, share)
        elif letter == ATTENTION:
            yield from self._attention_weights(share)
            if model.qk_norm:
                yield from (Weight((model.head_size,)),) * 2
        elif dense := self._dense_width(number):
            inner = share.of(dense)
            yield Weight((inner * (1 + model.gated_mlp), width), in_product=True)
            yield Weight((width, inner), in_product=True)
        yield from self._expert_weights(number, share)

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of one mixer."""
        whole, letter = self.widths, self.model.pattern[number]
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
            return (*_INPUT, *_BY_KIND[layer.recurrence.kind].saved)
        if layer.query:
            rotated = self.model.rope_theta is not None
            attention = self._saved_projected(rotated=rotated, normed=self.model.qk_norm)
            return (*_INPUT, *attention, *ATTENTION_OUT[:2])
        return (*_INPUT, *GATED) if self.model.gated_mlp else MLP_LAYER

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        norm = EAGER_BF16 if passes.are_bf16 else EAGER
        if layer.recurrence is None:
            if layer.query:
                return (norm, *self._saved_beside_attention(passes, normed=self.model.qk_norm))
            return (norm, SILU) if self.model.gated_mlp else (norm,)
        found = _BY_KIND[layer.recurrence.kind]
        return norm, found.eager_bf16 if passes.are_bf16 else found.eager

    def recomputed_activations(self, layer: Widths) -> tuple[Saved, ...]:
        """Return what a layer computes again in its backward, besides what it saved."""
        return () if layer.recurrence is None else _BY_KIND[layer.recurrence.kind].recomputed

    @property
    def forward_activations(self) -> tuple[Saved, ...]:
        """Tensors that are alive at once in the forward of a layer that saves nothing."""
        return (*FORWARD, *((GATE,) if self.model.gated_mlp else ()))

    @property
    def backward_activations(self) -> tuple[Saved, ...]:
        """Gradients that are alive at once in the backward of a layer."""
        return (*BACKWARD, *((GATE,) if self.model.gated_mlp else ()))
