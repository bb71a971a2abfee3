"""Hybrid models: Mamba-2, Gated DeltaNet, attention, an MLP or experts, by letter.

Decides: the weights of each layer, the work of a recurrence, and what each layer saves.
Relies on: `language` for attention, experts and both ends; the sizes of the spec.
Leaves: nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mimo_launch.kinds.language import LanguageKind
from mimo_launch.kinds.layer import LayerKind, Recurrence, Share, Weight, Widths
from mimo_launch.kinds.saved_activations import (
    ATTENTION_OUT,
    GATED,
    RMS,
    RMS_BF16,
    SILU,
    Passes,
    Saved,
)
from mimo_launch.spec.hybrid import (
    ATTENTION,
    DELTANET,
    EXPERTS,
    MAMBA,
    MLP,
    RECURRENT,
    RecurrentSizes,
)
from mimo_launch.spec.spec import DeltaNetSizes, HybridModel, MambaSizes

# In a recurrent layer `query` is the number of channels of its heads, and `key` the number of
# channels of B or C, or of the keys or queries of a DeltaNet. These are the tensors that the
# kernels of Mamba keep; they recompute products inside a chunk. A DeltaNet recomputes convolution
# and recurrence.
_FUSED = (
    # The gate is a view of this tensor.
    Saved(name="z, x, B and C, fused", query=2, key=2),
    Saved(name="x, B and C before the convolution", query=1, key=2),
)
_OUT = (
    Saved(name="output of the recurrence", query=1),
    Saved(name="gated and normed", query=1, for_weights=True),
)
_MAMBA = (
    *_FUSED,
    Saved(name="x, B and C behind it", query=1, key=2),
    Saved(name="time steps: given, with their bias, positive, limited; sums of decays", heads=5),
    *_OUT,
)
_DELTANET = (
    *_FUSED,
    Saved(name="decays and strengths as projected; root mean squares", heads=2),
    *_OUT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayer:
    """The facts of a kind of recurrent layer.

    `steps` counts the numbers per head and token in addition to channels, `of_heads` the weights
    with one number per head. `eager` and `eager_bf16` are also saved if passes are not compiled;
    `recomputed` exists while a layer runs backward.
    """

    name: str
    kind: LayerKind
    steps: int
    of_heads: int
    has_bias: bool
    norms_groups: bool
    saved: tuple[Saved, ...]
    eager: Saved
    eager_bf16: Saved
    recomputed: tuple[Saved, ...] = ()

    def recurrence(self, sizes: RecurrentSizes) -> Recurrence:
        """Return the layer's recurrence in numbers."""
        between = _delta_rule(sizes) if isinstance(sizes, DeltaNetSizes) else _state_space(sizes)
        return Recurrence(kind=self.kind, state=sizes.state, steps=self.steps, between=between)

    def weights(self, width: int, sizes: RecurrentSizes, share: Share) -> Iterator[Weight]:
        """Yield the weights of a mixer, on one rank."""
        heads, inner = share.of(sizes.heads), share.of(sizes.inner)
        own = 2 * inner + self.steps * heads
        if sizes.groups < share.tp:
            shared = sizes.state
            yield Weight((own, width), in_product=True)
            yield Weight((2 * shared, width))
        else:
            shared = share.of(sizes.shared)
            yield Weight((own + 2 * shared, width), in_product=True)
        channels = inner + 2 * shared
        yield Weight((channels, sizes.conv))
        if self.has_bias:
            yield Weight((channels,))
        yield from (Weight((heads,)),) * self.of_heads
        yield Weight((inner if self.norms_groups else sizes.head_dim,))
        yield Weight((width, inner), in_product=True)


def _state_space(sizes: MambaSizes) -> float:
    """Return the operations of Mamba-2 between tokens, for one token.

    Inside a chunk, half of C B^T and half of its product with x are counted. Then x and B make the
    states of all chunks, and C reads them (arXiv:2405.21060, section 6).
    """
    within = sizes.chunk * (sizes.shared + sizes.inner)
    return within + 4.0 * sizes.inner * sizes.state


def _delta_rule(sizes: DeltaNetSizes) -> float:
    """Return the operations of a Gated DeltaNet between tokens, for one token.

    Inside a chunk, half of each is counted: products of keys with keys and with queries, a
    triangular system for values and keys, and the product with the written values. Then keys and
    queries read the state, and keys write it.
    """
    keys = sizes.heads * sizes.state
    within = sizes.chunk * (2 * sizes.shared + keys + 2 * sizes.inner)
    return within + 6.0 * sizes.inner * sizes.state


RECURRENT_LAYERS = {
    MAMBA: RecurrentLayer(
        name="Mamba-2",
        kind=LayerKind.MAMBA,
        steps=1,
        of_heads=3,
        has_bias=True,
        norms_groups=True,
        saved=_MAMBA,
        eager=Saved(name="SiLU of the gate and gated, twice, and scaled", query=5),
        # In fp32, like the gate and the gated output; so z is freed, with the tensor of which it
        # is a view.
        eager_bf16=Saved(
            name="the same and their inputs, less z, x, B and C", query=18 - 2, key=-2
        ),
    ),
    DELTANET: RecurrentLayer(
        name="Gated DeltaNet",
        kind=LayerKind.DELTANET,
        steps=2,
        of_heads=2,
        has_bias=False,
        norms_groups=False,
        saved=_DELTANET,
        eager=Saved(name="normed, with its weight, and SiLU of the gate", query=3),
        # In fp32, like the gate and the normed output.
        eager_bf16=Saved(name="the same and their inputs, less the output", query=10 - 1),
        # In fp32: five tensors with a number for each pair of tokens in a chunk, values and keys
        # before and after the triangular system, states, and the gradients of some of these.
        recomputed=(Saved(name="products inside chunks, and states", query=36, key=12),),
    ),
}


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
        return "mimo_launch.models.hybrid_layers:HybridStage"

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

    def layer_weights(self, number: int, share: Share) -> Iterator[Weight]:
        """Yield the weights of a norm and a mixer or, for a depth, of its block and around it."""
        width = self.model.hidden
        letters = self.model.pattern[number : number + 1] or ATTENTION + MLP
        if self._is_depth(number):
            yield from self._weights_around_depth(share)
        for letter in letters:
            yield Weight((width,))
            yield from self._mixer_weights(letter, number, share)
        yield from self._expert_weights(number, share)

    def _mixer_weights(self, letter: str, number: int, share: Share) -> Iterator[Weight]:
        model, width = self.model, self.model.hidden
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
            return (*_INPUT, *_BY_KIND[layer.recurrence.kind].saved)
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
        found = _BY_KIND[layer.recurrence.kind]
        return norm, found.eager_bf16 if passes.are_bf16 else found.eager

    def recomputed_activations(self, layer: Widths) -> tuple[Saved, ...]:
        """Return the tensors that a layer recomputes in its backward."""
        return () if layer.recurrence is None else _BY_KIND[layer.recurrence.kind].recomputed

    @property
    def forward_activations(self) -> tuple[Saved, ...]:
        """Tensors that are alive together in the forward of a layer that saves nothing."""
        return (*FORWARD, *((GATE,) if self.model.gated_mlp else ()))

    @property
    def backward_activations(self) -> tuple[Saved, ...]:
        """Gradients that are alive together in the backward of a layer."""
        return (*BACKWARD, *((GATE,) if self.model.gated_mlp else ()))
