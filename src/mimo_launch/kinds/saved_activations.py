"""What a forward saves for its backward, tensor by tensor, and what it or a backward needs besides.

Decides: how such a tensor is described, in the units of a layer's widths, and those that several
kinds have. Kept short, to be corrected against measured peaks.
Relies on: how `models` compute: matrix products and attention keep their inputs, and so do the
passes between them (norms, rotations, SwiGLU and GELU) where each is compiled by itself, since
torch.compile computes their inner tensors again. A test compares it with what autograd keeps.
Leaves: bytes to `estimate.memory`, the tensors of a kind of layer to the kind.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How a module computes, as far as what it saves depends on it."""

    are_compiled: bool
    are_bf16: bool
    cp: int
    weights_train: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAtEnds:
    """What one rank holds of one forward in front of the layers of a module and behind them.

    `tokens` of which `patches` are no class tokens; `words` of the vocabulary. Under sequence
    parallelism `sequence_parts` tp ranks share tokens between layers, and each has `stream_tokens`.
    A backward goes `through_layers` unless only the projector trains.
    """

    tp: int
    tokens: int
    patches: int
    stream_tokens: int
    sequence_parts: int
    words: int
    through_layers: bool
    weights_train: bool


ATTENTION_OUT = (
    Saved(name="attention output", query=1),
    Saved(name="log-sum-exp of scores", heads=1),
    Saved(name="stream after attention", stream=1, shared=True),
    Saved(name="normed stream", stream=1, for_weights=True),
)
ROTATED = Saved(name="rotated queries and keys", query=1, key=1)

# Besides, in a layer of experts; what is inside them is `inner`.
ROUTED = (
    Saved(name="tokens that came to experts", arrived=1, for_weights=True),
    Saved(name="answers of experts", returned=1),
)

# Besides, with cp: keys and values of the other ranks, per cp rank; or what the recurrence of a
# Mamba layer made comes back from them.
GATHERED = Saved(name="gathered keys and values", key=2)
MAMBA_RETURNED = Saved(name="output of the recurrence, by own tokens", query=1)

# With `recompute: full` a block keeps this alone, and all that it saves while it runs backward.
RECOMPUTED = (Saved(name="block input", stream=1, shared=True),)
