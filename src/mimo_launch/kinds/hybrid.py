"""Hybrid models: layers of Mamba-2, attention, an MLP or experts, by letter.

Decides: the weights of each, and what it saves.
Relies on: `language` for attention, experts and both ends.
Leaves: nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import Share, Weight, Widths
from mimo_launch.kinds.saved_activations import ATTENTION_OUT, ROTATED, Passes, Saved
from mimo_launch.spec.language_models import ATTENTION, EXPERTS, MAMBA, MLP
from mimo_launch.spec.spec import HybridModel, MambaSizes

NAMES = {MAMBA: "Mamba-2", ATTENTION: "attention", MLP: "MLP", EXPERTS: "experts"}

# In a Mamba layer `query` is the number of channels of its heads, `key` that of B or C. The tensors
# are those that its kernels keep, which recompute products inside a chunk.
_INPUT = (
    Saved(name="layer input", stream=1, shared=True),
    Saved(name="normed input", stream=1, for_weights=True),
)
ATTENTION_LAYER = (
    *_INPUT,
    Saved(name="queries, keys and values, fused", query=1, key=2),
    *ATTENTION_OUT[:2],
)
MLP_LAYER = (
    *_INPUT,
    Saved(name="up", inner=1),
    Saved(name="its squared ReLU", inner=1, for_weights=True),
)
MAMBA_LAYER = (
    *_INPUT,
    # The gate is a view into it.
    Saved(name="z, x, B and C, fused", query=2, key=2),
    Saved(name="x, B and C before the convolution", query=1, key=2),
    Saved(name="x, B and C behind it", query=1, key=2),
    Saved(name="time steps: given, with their bias, positive, limited; sums of decays", heads=5),
    Saved(name="output of the recurrence", query=1),
    Saved(name="gated and normed", query=1, for_weights=True),
)
# Besides, where passes are not compiled.
EAGER = Saved(name="result of the norm", stream=1, shared=True)
EAGER_BF16 = Saved(name="input and result of the norm, less the stream", stream=3, shared=True)
MAMBA_EAGER = Saved(name="SiLU of the gate and gated, twice, and scaled", query=5)
# In fp32, as are the gate and the output that is gated; so z, and all that it is a view into, goes.
MAMBA_EAGER_BF16 = Saved(name="the same and their inputs, less z, x, B and C", query=18 - 2, key=-2)
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
    def mamba(self) -> MambaSizes | None:
        """The sizes of its Mamba-2 layers, if it has any."""
        return self.model.mamba

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        return NAMES[self.model.pattern[number]]

    def layer_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the weights of a norm and a mixer."""
        model, letter = self.model, self.model.pattern[number]
        width = model.hidden
        yield Weight((width,))
        if letter == MAMBA and model.mamba is not None:
            yield from _mamba_weights(width, model.mamba, share)
        elif letter == ATTENTION:
            yield from self._attention_weights(share)
        elif dense := self._dense_width(number):
            inner = share.of(dense)
            yield Weight((inner, width), in_product=True)
            yield Weight((width, inner), in_product=True)
        yield from self._expert_weights(number, share)

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of one mixer."""
        whole, letter, sizes = self.widths, self.model.pattern[number], self.model.mamba
        empty = replace(whole, query=0, key=0, inner=0, ups=0, regions=1)
        if letter == MAMBA and sizes is not None:
            return replace(
                empty, query=sizes.inner, key=sizes.shared, heads=sizes.heads, mamba=sizes
            )
        if letter == ATTENTION:
            return replace(empty, query=whole.query, key=whole.key)
        return self._with_experts(number, replace(empty, inner=whole.inner, ups=1))

    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        if layer.mamba is not None:
            return MAMBA_LAYER
        if layer.query:
            return ATTENTION_LAYER + (() if self.model.rope_theta is None else (ROTATED,))
        return MLP_LAYER

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        norm = EAGER_BF16 if passes.are_bf16 else EAGER
        if layer.mamba is None:
            return (norm,)
        return norm, MAMBA_EAGER_BF16 if passes.are_bf16 else MAMBA_EAGER

    @property
    def forward_activations(self) -> tuple[Saved, ...]:
        """Tensors that are alive at once in the forward of a layer that saves nothing."""
        return FORWARD

    @property
    def backward_activations(self) -> tuple[Saved, ...]:
        """Gradients that are alive at once in the backward of a layer."""
        return BACKWARD


def _mamba_weights(width: int, sizes: MambaSizes, share: Share) -> Iterator[Weight]:
    heads, inner = share.of(sizes.heads), share.of(sizes.inner)
    if sizes.groups < share.tp:
        shared = sizes.state
        yield Weight((2 * inner + heads, width), in_product=True)
        yield Weight((2 * shared, width))
    else:
        shared = share.of(sizes.shared)
        yield Weight((2 * inner + heads + 2 * shared, width), in_product=True)
    channels = inner + 2 * shared
    yield from (Weight((channels, sizes.conv)), Weight((channels,)))
    yield from (Weight((heads,)),) * 3
    yield from (Weight((inner,)), Weight((width, inner), in_product=True))
