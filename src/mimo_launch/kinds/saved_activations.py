"""The tensors that a forward saves for its backward, and the temporary ones of both.

Decides: how such a tensor is described, in units of a layer's widths, and the tensors that several
kinds share.
Relies on: how `models` compute: matrix products and attention keep their inputs, and so do the
passes between them (norms, rotations, SwiGLU and GELU) if each is compiled separately, because
torch.compile recomputes their inner tensors. A test compares this with what autograd keeps.
Leaves: bytes to `estimate.memory`, the tensors of a kind of layer to the kind.
"""

from dataclasses import dataclass

# The most scores of a head, one per pair of query and key, that exist together if they are capped.
MOST_SCORES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One tensor per token, its width in multiples of a block's sizes.

    `stream` is whole on every rank; `query`, `key` and `inner` are cut over tp, and so are `heads`,
    which are 4-byte numbers. A `shared` tensor lies between tensor-parallel regions and is cut over
    tp under sequence parallelism. `arrived` and `returned` have the width of the stream for each
    expert that a token of this rank chose, `arrived` on all ranks that split it; loads are assumed
    to be balanced. In latent attention `narrow` and `entered` are whole on every rank, `made` and
    `value` are cut over tp. `scores` are the scores that exist together, of each head, in at least
    4 bytes. A tensor `for_weights` is not kept if the weights are frozen.
    """

    name: str
    stream: int = 0
    query: int = 0
    key: int = 0
    inner: int = 0
    heads: int = 0
    arrived: int = 0
    returned: int = 0
    narrow: int = 0
    entered: int = 0
    made: int = 0
    value: int = 0
    scores: int = 0
    shared: bool = False
    for_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """Tensors of a layer that are alive together, besides those that it saves for its backward.

    `forward`: at the peak of a forward that saves nothing; `backward`: gradients, and what the
    layer recomputes.
    """

    forward: tuple[Saved, ...]
    backward: tuple[Saved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The properties of a module's computation that decide its saved tensors."""

    are_compiled: bool
    are_bf16: bool
    cp: int
    weights_train: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAtEnds:
    """The sizes on one rank of one forward, before the layers of a module and after them.

    `patches` is the number of `tokens` without class tokens; `words` is the rank's part of the
    vocabulary. Under sequence parallelism `sequence_parts` tp ranks share the tokens between
    layers, and each has `stream_tokens`. `gathered` counts the rows of each module that is read, if
    they are a copy gathered from several tp ranks. A backward goes `through_layers` unless only the
    projector trains.
    """

    tp: int
    tokens: int
    patches: int
    stream_tokens: int
    sequence_parts: int
    words: int
    through_layers: bool
    weights_train: bool
    gathered: tuple[int, ...] = ()


SUMS = Saved(name="log-sum-exp of scores", heads=1)
ATTENTION_OUT = (
    Saved(name="attention output", query=1),
    SUMS,
    Saved(name="stream after attention", stream=1, shared=True),
    Saved(name="normed stream", stream=1, for_weights=True),
)
HEAD_STATISTICS = Saved(name="root mean squares of query heads", heads=1)
# If a gate multiplies the output.
GATED_OUT = Saved(name="gated attention output", query=1, for_weights=True)
# Inside a SwiGLU MLP.
GATED = (
    Saved(name="gate and up, fused", inner=2),
    Saved(name="their product", inner=1, for_weights=True),
)
# Tensors that are alive together in the MLP, in a forward that keeps nothing: the block's input,
# what attention adds to it, their sum, and its norm; and the tensors of the MLP.
GATED_TEMPORARY = Temporary(
    forward=(
        Saved(name="streams", stream=4, shared=True),
        Saved(name="gate, up and product", inner=3),
    ),
    backward=(
        Saved(name="gradients of gate, up and product", inner=3),
        Saved(name="gradients of the stream", stream=2),
    ),
)
# If scores are capped, the backward holds scores, their weights and the gradients of both.
CAPPED_FORWARD = Saved(name="scores of a block of queries", scores=3)
CAPPED_BACKWARD = Saved(name="scores of a block of queries, and gradients", scores=4)
# In addition, if passes are not compiled: the product of SwiGLU has two factors, and norms keep
# their input in fp32, RMSNorm also the result, while the stream itself is not kept.
SILU = Saved(name="SiLU of gate", inner=1)
RMS = Saved(name="results of norms", stream=2, shared=True)
RMS_BF16 = Saved(name="inputs and results of norms, less the stream", stream=8 - 2, shared=True)
ROTATED = Saved(name="rotated queries and keys", query=1, key=1)
# In addition, if passes are not compiled: with a gate of attention, and with norms of heads.
SIGMOID = Saved(name="sigmoid of the gate of attention", query=1)
HEAD_NORMS = Saved(name="results of norms of heads", query=1, key=1)
HEAD_NORMS_BF16 = Saved(name="inputs and results of norms of heads", query=4, key=4)
# In addition, if the tokens of an image are in two lists: attention reads and writes them together.
IN_ORDER = Saved(name="attention output, in the order of tokens", query=1)

# In addition, in a layer of experts; tensors inside the experts are `inner`.
ROUTED = (
    Saved(name="tokens that came to experts", arrived=1, for_weights=True),
    Saved(name="answers of experts", returned=1),
)

# In addition, if its shared expert has a gate.
SHARED_OUT = Saved(name="output of the shared expert", stream=1, shared=True)

# In addition, in a depth of multi-token prediction: tensors before and after its block.
TOKEN_AHEAD = Saved(name="embedding of the token ahead", stream=1, shared=True)
DEPTH = (
    TOKEN_AHEAD,
    Saved(name="state of the depth before", stream=1, shared=True),
    Saved(name="norms of both", stream=2, for_weights=True),
    Saved(name="output of the block", stream=1, shared=True),
)
DEPTH_NORMS = Saved(name="results of norms of a depth", stream=3, shared=True)
DEPTH_NORMS_BF16 = Saved(
    name="inputs and results of norms of a depth, less the streams", stream=12 - 3, shared=True
)

# In addition, with cp: keys and values of each cp rank, or in a recurrent layer the output of the
# recurrence that comes back from other cp ranks.
GATHERED = Saved(name="gathered keys and values", key=2)
GATHERED_LATENT = Saved(name="gathered keys and values", query=1, value=1)
RETURNED_OF_HEADS = Saved(name="output of the recurrence, by own tokens", query=1)

# With `recompute: full` a block keeps only this; all other tensors exist while it runs backward.
RECOMPUTED = (Saved(name="block input", stream=1, shared=True),)
RECOMPUTED_DEPTH = (*RECOMPUTED, TOKEN_AHEAD)
