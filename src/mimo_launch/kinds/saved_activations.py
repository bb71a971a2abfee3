"""What a forward keeps for its backward, tensor by tensor, and what it or a backward needs besides.

Decides: which tensors those are, in the units of a layer's widths. Kept short and in one place, to
be corrected against measured peaks.
Relies on: how `models` compute: matrix products and attention keep their inputs, and so do the
passes between them (norms, rotations, SwiGLU and GELU) where each is compiled by itself, since
torch.compile computes their inner tensors again. A test compares it with what autograd keeps.
Leaves: bytes to `estimate.memory`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One tensor per token, its width in multiples of a block's sizes.

    `stream` is whole on every rank; `query`, `key` and `inner` are cut over tp, and so are `heads`,
    which are 4-byte numbers. A `shared` tensor stands between tensor-parallel regions and is cut
    over tp under sequence parallelism. `arrived` and `returned` are as wide as the stream for each
    expert that a token of this rank chose, `arrived` on all ranks that split it; loads are taken to
    be balanced. One `for_weights` only is not kept where they are frozen.
    """

    name: str
    stream: int = 0
    query: int = 0
    key: int = 0
    inner: int = 0
    heads: int = 0
    arrived: int = 0
    returned: int = 0
    shared: bool = False
    for_weights: bool = False


_ATTENTION_OUT = (
    Kept(name="attention output", query=1),
    Kept(name="log-sum-exp of scores", heads=1),
    Kept(name="stream after attention", stream=1, shared=True),
    Kept(name="normed stream", stream=1, for_weights=True),
)

ROTATED = Kept(name="rotated queries and keys", query=1, key=1)

DECODER_BLOCK = (
    Kept(name="block input", stream=1, shared=True),
    Kept(name="normed input", stream=1, for_weights=True),
    # Values are a view into it.
    Kept(name="queries, keys and values, fused", query=1, key=2),
    ROTATED,
    *_ATTENTION_OUT,
    Kept(name="gate and up, fused", inner=2),
    Kept(name="their product", inner=1, for_weights=True),
)

VIT_BLOCK = (
    Kept(name="block input", stream=1, shared=True),
    Kept(name="normed input", stream=1, for_weights=True),
    Kept(name="queries, keys and values, fused", query=1, key=2),
    *_ATTENTION_OUT,
    Kept(name="up", inner=1),
    Kept(name="its GELU", inner=1, for_weights=True),
)

# Besides, in a layer of experts; what is inside them is `inner`.
ROUTED = (
    Kept(name="tokens that came to experts", arrived=1, for_weights=True),
    Kept(name="answers of experts", returned=1),
)

# Layers of a hybrid model. Of a Mamba layer `query` are the channels of its heads, `key` the
# numbers of B or C. What its kernels keep is meant, which compute products inside a chunk again.
_HYBRID_IN = (
    Kept(name="layer input", stream=1, shared=True),
    Kept(name="normed input", stream=1, for_weights=True),
)
ATTENTION_LAYER = (
    *_HYBRID_IN,
    Kept(name="queries, keys and values, fused", query=1, key=2),
    *_ATTENTION_OUT[:2],
)
MLP_LAYER = (
    *_HYBRID_IN,
    Kept(name="up", inner=1),
    Kept(name="its squared ReLU", inner=1, for_weights=True),
)
MAMBA_LAYER = (
    *_HYBRID_IN,
    # The gate is a view into it.
    Kept(name="z, x, B and C, fused", query=2, key=2),
    Kept(name="x, B and C before the convolution", query=1, key=2),
    Kept(name="x, B and C behind it", query=1, key=2),
    Kept(name="time steps: given, with their bias, positive, limited; sums of decays", heads=5),
    Kept(name="output of the recurrence", query=1),
    Kept(name="gated and normed", query=1, for_weights=True),
)
# Besides, with cp: what the recurrence made comes back from other ranks.
MAMBA_RETURNED = Kept(name="output of the recurrence, by own tokens", query=1)
# Besides, where passes are not compiled.
HYBRID_EAGER = Kept(name="result of the norm", stream=1, shared=True)
HYBRID_EAGER_BF16 = Kept(
    name="input and result of the norm, less the stream", stream=3, shared=True
)
MAMBA_EAGER = Kept(name="SiLU of the gate and gated, twice, and scaled", query=5)
# In fp32, as are the gate and the output that is gated; so z, and all that it is a view into, goes.
MAMBA_EAGER_BF16 = Kept(name="the same and their inputs, less z, x, B and C", query=18 - 2, key=-2)
HYBRID_BACKWARD = (
    Kept(name="gradients of what is mixed", query=3, key=4, inner=2),
    Kept(name="gradients of the stream", stream=2),
)
HYBRID_FORWARD = (
    Kept(name="streams", stream=3, shared=True),
    Kept(name="what is mixed", query=4, key=4, inner=2),
)

# Besides, where passes are not compiled: the product of SwiGLU has two factors, and norms keep what
# they normalise in fp32, RMSNorm also the result, while the stream itself is not kept.
DECODER_EAGER = (
    Kept(name="SiLU of gate", inner=1),
    Kept(name="results of norms", stream=2, shared=True),
)
DECODER_EAGER_BF16 = (
    Kept(name="SiLU of gate", inner=1),
    Kept(name="inputs and results of norms, less the stream", stream=8 - 2, shared=True),
)
VIT_EAGER_BF16 = (Kept(name="inputs of norms, less the stream", stream=4 - 2, shared=True),)
QUICK_GELU_EAGER = Kept(name="sigmoid of up", inner=1)

# Keys and values of the other cp ranks, per cp rank.
GATHERED = Kept(name="gathered keys and values", key=2)

# With `recompute: full` a block keeps this alone, and all of the above while it runs backward.
RECOMPUTED = (DECODER_BLOCK[0],)

# Gradients that are alive together while a block runs backward.
DECODER_BACKWARD = (
    Kept(name="gradients of gate, up and product", inner=3),
    Kept(name="gradients of the stream", stream=2),
)
VIT_BACKWARD = (
    Kept(name="gradients of up and its GELU", inner=2),
    Kept(name="gradients of the stream", stream=2),
)

# What is alive at once in a forward that keeps nothing, in the MLP: the block's input, what
# attention adds to it, their sum, and that normed; and the MLP's own.
DECODER_FORWARD = (
    Kept(name="streams", stream=4, shared=True),
    Kept(name="gate, up and product", inner=3),
)
VIT_FORWARD = (
    Kept(name="streams", stream=4, shared=True),
    Kept(name="up and its GELU", inner=2),
)
