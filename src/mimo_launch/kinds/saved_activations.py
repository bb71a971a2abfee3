"""The tensors that a forward saves for its backward, and the temporary ones of both.

Decides: how such a tensor is described, in units of a layer's widths, and what norms keep.
Relies on: how `models` compute: matrix products and attention keep their inputs, and so do the
passes between them (norms, rotations, SwiGLU and GELU) if each is compiled separately, because
torch.compile recomputes their inner tensors. A test compares this with what autograd keeps.
Leaves: bytes to `estimate.activations`, the tensors of a layer to its shape.
"""

from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.language_models import NormKind

# The most scores of a head, one per pair of query and key, that exist together if they are capped.
MOST_SCORES = 2**22


# What tokens of sequences attend to in a layer: all earlier tokens, those of their document or
# window, or what a tensor says for each pair of tokens.
Mask = Literal["causal", "documents", "masked"]
# Parts of a layer that may be computed again: a mixer, or an MLP or experts, with their norms.
Part = Literal["attention", "mlp"]


@frozen(kw_only=True)
class Saved:
    """One tensor per token, its width in multiples of a block's sizes.

    `stream` is whole on every rank; `query`, `key` and `inner` are cut over tp, and so are `heads`,
    which are 4-byte numbers. A `shared` tensor lies between tensor-parallel regions and is cut over
    tp under sequence parallelism. `routed` is the stream of the tokens that this rank sends to
    experts, a part of each tp rank. `arrived` and `returned` have the width of the stream for each
    expert that a token of this rank chose, `arrived` on all ranks that split it; loads are assumed
    to be balanced. In latent attention `narrow` and `entered` are whole on every rank, `made` and
    `value` are cut over tp; `beside`, of per-layer embeddings, is whole. `scores` are the scores
    that exist together, of each head, in at least 4 bytes, as are `numbers`, and `routed_numbers`
    of each token that this rank sends to experts. A tensor `for_weights` is not kept if the weights
    are frozen, one of a `part` not if that is computed again, and a `normed` stream not if norms
    are; one that `stays` is kept in any case, for later layers.
    """

    name: str
    stream: int = 0
    routed: int = 0
    query: float = 0
    key: float = 0
    inner: int = 0
    heads: int = 0
    arrived: int = 0
    returned: int = 0
    narrow: int = 0
    entered: int = 0
    made: int = 0
    value: float = 0
    beside: int = 0
    scores: int = 0
    numbers: int = 0
    routed_numbers: int = 0
    shared: bool = False
    for_weights: bool = False
    part: Part | None = None
    normed: bool = False
    stays: bool = False

    @property
    def inside(self) -> Part | None:
        """The part that it belongs to, if any: widths of heads and inner widths tell it."""
        if self.part is not None:
            return self.part
        if self.inner or self.routed or self.arrived or self.returned:
            return "mlp"
        heads = self.query or self.key or self.heads or self.value or self.made or self.scores
        return "attention" if heads or self.narrow or self.entered else None


@frozen(kw_only=True)
class AttentionPattern:
    """How the tokens of a layer attend: to earlier ones if `causal`, or inside images.

    With `in_windows` a list of tokens in another order is read. Queries and keys may rotate, and
    queries grow, with positions.
    """

    causal: bool = False
    in_windows: bool = False
    rotates: bool = False
    grows: bool = False


@frozen(kw_only=True)
class Temporary:
    """Tensors of a layer that are alive together, besides those that it saves for its backward.

    `forward`: at the peak of a forward that saves nothing; `backward`: gradients, and what the
    layer recomputes.
    """

    forward: tuple[Saved, ...]
    backward: tuple[Saved, ...]


@frozen(kw_only=True)
class Passes:
    """The properties of a module's computation that decide its saved tensors.

    A number takes `bytes`. `reorders`: attention reads the tokens of an image from two lists;
    `pads`: padding follows the tokens of images. Attention inside sequences has a `mask`; over cp
    and by lists of documents it reads `listed_keys` keys for each token of a rank. `adapts`: beside
    frozen weights, an adapter reads the inputs of products.
    """

    are_compiled: bool
    bytes: int
    cp: int
    weights_train: bool
    adapts: bool = False
    reorders: bool = False
    pads: bool = False
    mask: Mask = "causal"
    listed_keys: float = 0.0

    @property
    def wide(self) -> int:
        """How many numbers are as large as one of at least 4 bytes."""
        return max(4, self.bytes) // self.bytes

    def of_norm(self, kind: NormKind, *, input_stays: bool = False) -> int:
        """Return how many more numbers a norm keeps of each that it reads if it is not compiled.

        A compiled norm keeps its input. Otherwise it keeps a copy in at least 4 bytes; the input
        itself stays only for others (`input_stays`). RMSNorm also keeps its result for its weight.
        """
        if self.are_compiled:
            return 0
        copies = self.wide - 1 + (input_stays and self.wide > 1)
        return copies + self.wide * (kind == "rms" and self.weights_train)

    def of_stream(self, kind: NormKind, *parts: Part | None) -> tuple[Saved, ...]:
        """Return what norms of the stream, each of a part, keep besides their inputs."""
        name, kept = "inputs of norms in fp32, and results", self.of_norm(kind)
        return tuple(Saved(name=name, stream=kept, shared=True, part=part) for part in parts)

    def of_head_norms(self, *, weighted: bool = True) -> Saved:
        """Return what norms of query and key heads keep besides their inputs.

        Norms that are not `weighted` keep no result, like a LayerNorm.
        """
        kept = self.of_norm("rms" if weighted else "layer", input_stays=True)
        return Saved(name="inputs of norms of heads in fp32, and results", query=kept, key=kept)

    def of_value_norm(self) -> Saved:
        """Return what the norm of value heads, without weights, keeps besides its input."""
        kept = self.of_norm("layer", input_stays=True)
        return Saved(name="values in fp32", key=kept)

    def of_wide_norm(self) -> Saved:
        """Return what norms of all heads together keep besides their inputs."""
        if self.wide > 1:
            return Saved(name="queries and keys in fp32, thrice", query=6, key=6)
        return Saved(name="queries and keys over their norm", query=1, key=1)


@frozen(kw_only=True)
class HeldAtEnds:
    """The sizes on one rank of one forward of `layers`, before them and after them.

    `patches` is the number of `tokens` without class tokens; `words` is the rank's part of the
    vocabulary. Under sequence parallelism `sequence_parts` tp ranks share the tokens between
    layers, and each has `stream_tokens`. An encoder makes `rows` of them. `reads` counts the rows
    of each module that is read, which are a copy if they are `gathered` from several tp ranks. A
    backward goes through these `layers`; it goes `through_layers` to their end unless only the
    projector trains, and through what is before them if `through_embedding`. The tokens have
    `positions`, which sequences may share.
    """

    passes: Passes
    layers: tuple[int, ...]
    first_layer: int
    tp: int
    tokens: int
    patches: int
    positions: int
    stream_tokens: int
    sequence_parts: int
    words: int
    through_layers: bool
    through_embedding: bool
    rows: int = 0
    reads: tuple[int, ...] = ()
    projector_trains: bool = True
    gathered: bool = False


BLOCK_PARTS: tuple[Part, Part] = ("attention", "mlp")
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
PLAIN_TEMPORARY = Temporary(
    forward=(
        Saved(name="streams", stream=4, shared=True),
        Saved(name="up and its activation", inner=2),
    ),
    backward=(
        Saved(name="gradients of up and its activation", inner=2),
        Saved(name="gradients of the stream", stream=2),
    ),
)
# If scores are capped, the backward holds scores, their weights and the gradients of both.
CAPPED_FORWARD = Saved(name="scores of a block of queries", scores=3)
CAPPED_BACKWARD = Saved(name="scores of a block of queries, and gradients", scores=4)
# If weights of attention are dropped: each has two numbers of 8 bytes in turn.
DROPPED_FORWARD = Saved(name="scores of a block of queries, and numbers drawn", scores=5)
DROPPED_BACKWARD = Saved(name="scores, numbers drawn and gradients", scores=5)

# In a depth of multi-token prediction.
TOKEN_AHEAD = Saved(name="embedding of the token ahead", stream=1, shared=True)
# What a norm of the stream is made from again.
NORM_INPUT = Saved(name="input of a norm", stream=1, shared=True)
# With `recompute: full` a block keeps only this; all other tensors exist while it runs backward.
RECOMPUTED = (Saved(name="block input", stream=1, shared=True),)
RECOMPUTED_DEPTH = (*RECOMPUTED, TOKEN_AHEAD)
