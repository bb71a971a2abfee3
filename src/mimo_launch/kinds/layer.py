"""One layer, or the ends of a module, in numbers: widths, work and operations.

Decides: even cuts of a width; what counts as an operation: 2 m n k for every matmul, including
scores and values of attention (half if it is causal) and the matmuls of recurrences, and nothing
else, as docs/estimates.md explains.
Relies on: the spec's types of sizes.
Leaves: weights to `weights`, the sizes of each layer to its shape, the choice of layers to the
kinds, the placement of ranks to `layout`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from operator import mul
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.layers import QueryScaling, SlidingWindow
from mimo_launch.spec.spec import RopeScaling


def even_cut(total: int, parts: int, index: int) -> range:
    """Return part `index` of `total` items cut as evenly as possible."""
    return range(total * index // parts, total * (index + 1) // parts)


@frozen
class ReadState:
    """What the rows of language are that a generator reads: states of its tokens.

    `text`: whether the embedding of a token is added to its state, or replaces it where the token
    stands for no row of an image or a clip. States are those after `layer` layers, None: after the
    last norm.
    """

    text: Literal["added", "instead"] | None = None
    layer: int | None = None


@frozen(kw_only=True)
class Ends:
    """The ends of a module that a stage holds, and their widths.

    `vocab` is the padded vocabulary, `words` the number of its tokens; `row_width` the width of the
    rows that it sends, `sources` the widths of the rows that it reads, by module; of language,
    `readers` are the generators that read more than its last states. After each of the first
    `deep_rows` layers of language, rows of an encoder's layer are added.
    """

    is_first: bool
    is_last: bool
    vocab: int
    row_width: int
    words: int = 0
    sources: tuple[tuple[str, int], ...] = ()
    readers: tuple[tuple[str, ReadState], ...] = ()
    deep_rows: int = 0

    @property
    def sends_text(self) -> bool:
        """Whether a generator reads embeddings of tokens."""
        return any(read.text for _, read in self.readers)

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The numbers of layers after which states are kept for generators, in order."""
        return kept_layers(read for _, read in self.readers)

    @property
    def source_widths(self) -> tuple[int, ...]:
        """Widths of the rows that it reads."""
        return tuple(width for _, width in self.sources)

    def numbers_in(self, rows: tuple[int, ...]) -> int:
        """Return how many numbers these rows hold, counted for each module that is read."""
        return sum(map(mul, rows, self.source_widths))


def kept_layers(readers: Iterable[ReadState]) -> tuple[int, ...]:
    """Return the numbers of layers after which readers take states, in order."""
    return tuple(sorted({read.layer for read in readers if read.layer is not None}))


class LayerKind(StrEnum):
    """Kinds of layers that devices compute at different rates."""

    BLOCK = "block"  # Attention, an MLP, or both.
    MAMBA = "mamba"
    DELTANET = "deltanet"
    EXPERTS = "experts"


@frozen(kw_only=True, slots=False)
class Workload:
    """One forward of a module: a microbatch, or a group of them, of one replica.

    Tokens attend within `spans`, which are sequences, or images in patches; in layers with windows,
    within `windows`. Tokens in one of `blocks` attend to each other in both directions where other
    tokens are causal. All three count items by their length in tokens. `held` is the number of
    tokens of one cp rank with padding; `extra_tokens` of them are not patches. `rows` is the number
    of rows that an encoder makes, `reads` the number of rows that it takes from each module it
    reads. A step has `forwards` such forwards.
    """

    spans: Counter[int]
    held: int
    rows: int
    forwards: int
    extra_tokens: int = 0
    reads: tuple[int, ...] = ()
    windows: Counter[int] = field(default_factory=Counter)
    blocks: Counter[int] = field(default_factory=Counter)

    @cached_property
    def tokens(self) -> int:
        """Tokens of all cp ranks, without padding."""
        return sum(length * number for length, number in self.spans.items())

    @cached_property
    def key(self) -> Hashable:
        """A key that equal work shares."""
        counted = (self.spans, self.windows, self.blocks)
        return (
            *(frozenset(each.items()) for each in counted),
            *(self.held, self.extra_tokens, self.rows, self.reads, self.forwards),
        )

    def has_documents(self, seq: int) -> bool:
        """Return whether sequences of `seq` tokens hold several documents."""
        return self.spans.total() * seq > self.tokens


@frozen(kw_only=True)
class Flops:
    """Operations by kind of work, over all tp and cp ranks of a replica.

    `linear` and `attention` (or Mamba's equivalent) are for blocks, `head` is for the vocabulary,
    or for the velocities of a flow generator, `patch` for maps in front of the blocks. `whole` is
    the part of `projector` that is for maps which each tp rank holds whole.
    """

    linear: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    patch: float = 0.0
    projector: float = 0.0
    whole: float = 0.0

    @property
    def total(self) -> float:
        """All operations."""
        return self.linear + self.attention + self.head + self.patch + self.projector

    def __add__(self, other: "Flops") -> "Flops":
        """Return the operations of both."""
        names = Flops.__dataclass_fields__
        return Flops(**{name: getattr(self, name) + getattr(other, name) for name in names})


@frozen(kw_only=True)
class Widths:
    """Sizes of what a layer computes, over all tp ranks; sizes of several mixers add up.

    `query` and `key` are the widths of all query heads and of all key heads, `value` is the width
    of the values of all query heads; `unit` is the width of a key head. In a recurrent layer
    `query` and `key` are the channels of its heads and of B or C, `unit` the channels of a group.
    `inner` is the width inside the MLP, or inside all experts of one token together. In latent
    attention `narrow` is the total width from which queries, keys and values are made, `entered`
    includes the stream if it is a source, and `made` is the width of keys and values without their
    rotating part.

    A token has `products` multiplications with matrices. With cp each rank gathers `gathers`
    numbers of every token, and sends `exchanges` numbers of each of its own tokens. A pair of
    tokens that attend multiplies `scored` numbers; a recurrence has `between` operations per token.
    `beside` is the width of per-layer embeddings. `regions` counts the tensor-parallel regions.
    """

    products: int = 0
    query: int = 0
    key: int = 0
    value: int = 0
    unit: int = 0
    heads: int = 0
    inner: int = 0
    narrow: int = 0
    entered: int = 0
    made: int = 0
    gathers: int = 0
    exchanges: int = 0
    scored: int = 0
    beside: int = 0
    between: float = 0.0
    regions: float = 0

    def __add__(self, other: "Widths") -> "Widths":
        """Return the sizes of both."""
        names = Widths.__dataclass_fields__
        return Widths(**{name: getattr(self, name) + getattr(other, name) for name in names})


@frozen
class Rotary:
    """How queries and keys rotate with positions: `size` numbers of a head, at base `theta`.

    If tokens have several positions, `axes` gives the one that rotates each pair of a head.
    """

    size: int
    theta: float
    axes: tuple[int, ...] | None = None
    scaling: RopeScaling | None = None


@frozen
class Sight:
    """Which tokens the tokens of a causal layer attend to, and how scores depend on positions.

    Without `rotary` nothing rotates. Tokens attend to those of a `window`, None: to all earlier
    ones. Queries grow with their position by `growth`.
    """

    rotary: Rotary | None
    window: SlidingWindow | None = None
    growth: QueryScaling | None = None
