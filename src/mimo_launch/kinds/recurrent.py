"""Recurrent layers of hybrid models: Mamba-2 and Gated DeltaNet.

Decides: the weights of each, the work of its recurrence, and what it saves.
Relies on: the sizes of the spec.
Leaves: which layer is which to `hybrid`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mimo_launch.kinds.layer import LayerKind, Recurrence, Share, Weight
from mimo_launch.kinds.saved_activations import Saved
from mimo_launch.spec.language_models import DELTANET, MAMBA, RecurrentSizes
from mimo_launch.spec.spec import DeltaNetSizes, MambaSizes

# In a recurrent layer `query` is the number of channels of its heads, `key` that of B or C, the
# keys or queries of a DeltaNet. The tensors are those that kernels of Mamba keep, which recompute
# products inside a chunk; a DeltaNet computes convolution and recurrence again.
_FUSED = (
    # The gate is a view into it.
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
    """What is known of a kind of recurrent layer.

    `steps` counts the numbers of a head and token besides channels, `of_heads` the weights with a
    number per head. `eager` and `eager_bf16` are saved besides where passes are not compiled,
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

    Inside a chunk these are C B^T and its product with x, half of each. Then x and B make the
    states of all chunks, and C reads them (arXiv:2405.21060, section 6).
    """
    within = sizes.chunk * (sizes.shared + sizes.inner)
    return within + 4.0 * sizes.inner * sizes.state


def _delta_rule(sizes: DeltaNetSizes) -> float:
    """Return the operations of a Gated DeltaNet between tokens, for one token.

    Inside a chunk these are products of keys with keys and with queries, a triangular system for
    values and keys, and the product with what is written, half of each. Then keys and queries read
    the state, and keys write it.
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
        # In fp32, as are the gate and the output that is gated; so z, and all that it is a view
        # into, goes.
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
        # In fp32, as are the gate and the output that is normed.
        eager_bf16=Saved(name="the same and their inputs, less the output", query=10 - 1),
        # In fp32: five tensors of a number for each pair of tokens in a chunk, values and keys
        # before and behind the triangular system, states, and the gradients of some of these.
        recomputed=(Saved(name="products inside chunks, and states", query=36, key=12),),
    ),
}
