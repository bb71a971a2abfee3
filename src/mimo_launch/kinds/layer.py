"""One layer, or the ends of a module, in numbers: widths, work and operations.

Decides: even cuts of a width; what counts as an operation: 2 m n k for
every matmul, including scores and values of attention (half if it is causal) and the matmuls of
recurrences, and nothing else, as docs/estimates.md explains.
Relies on: the spec's types of sizes.
Leaves: weights to `weights`, the choice of layers to the kinds, the placement of ranks to `layout`.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from operator import mul

from mimo_launch.spec.layers import Moe, QueryScaling
from mimo_launch.spec.spec import RopeScaling


def even_cut(total: int, parts: int, index: int) -> range:
    """Return part `index` of `total` items cut as evenly as possible."""
    return range(total * index // parts, total * (index + 1) // parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ends of a module that a stage holds, and their widths.

    `vocab` is the padded vocabulary, `words` the number of its tokens; `row_width` the width of the
    rows that it sends, `sources` the widths of the rows that it reads, by module. The generators
    `text_readers` read the embedding of each token with its row. After each of the first
    `deep_rows` layers of language, rows of an encoder's layer are added.
    """

    is_first: bool
    is_last: bool
    vocab: int
    row_width: int
    words: int = 0
    sources: tuple[tuple[str, int], ...] = ()
    text_readers: frozenset[str] = frozenset()
    deep_rows: int = 0

    @property
    def source_widths(self) -> tuple[int, ...]:
        """Widths of the rows that it reads."""
        return tuple(width for _, width in self.sources)

    def numbers_in(self, rows: tuple[int, ...]) -> int:
        """Return how many numbers these rows hold, counted for each module that is read."""
        return sum(map(mul, rows, self.source_widths))


class LayerKind(StrEnum):
    """Kinds of layers that devices compute at different rates."""

    BLOCK = "block"  # Attention, an MLP, or both.
    MAMBA = "mamba"
    DELTANET = "deltanet"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def tokens(self) -> int:
        """Tokens of all cp ranks, without padding."""
        return sum(length * number for length, number in self.spans.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Operations by kind of work, over all tp and cp ranks of a replica.

    `linear` and `attention` (or Mamba's equivalent) are for blocks, `head` is for the vocabulary,
    or for the velocities of a flow generator.
    """

    linear: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    patch: float = 0.0
    projector: float = 0.0

    @property
    def total(self) -> float:
        """All operations."""
        return self.linear + self.attention + self.head + self.patch + self.projector

    def __add__(self, other: "Flops") -> "Flops":
        """Return the operations of both."""
        names = Flops.__dataclass_fields__
        return Flops(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A layer with a state that is carried along sequences, in numbers.

    `state` is how many numbers a group has per token, such as for its key; a head has `steps` more
    numbers per token; `between` is the number of operations between tokens, for one token.
    """

    kind: LayerKind
    state: int
    steps: int
    between: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWidths:
    """Sizes of latent attention over all tp ranks.

    `narrow` is the total width from which queries, keys and values are made; `entered` includes the
    stream if it is a source. `made` is the width of keys and values without their rotating part,
    `value` the width of values. `products` is the number of elements of all its matrices.
    """

    narrow: int
    entered: int
    made: int
    value: int
    products: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes of a layer over all tp ranks.

    `query` and `key` are the widths of all query heads and of all key heads; the projection makes
    `query_parts` times `query`, two with a gate of attention. `inner` is the width inside the MLP;
    its first product has `ups` times as many outputs. In a layer with a `recurrence`, `query` and
    `key` are the numbers of channels of its heads and of B or C. In a layer of `experts`, `inner`
    is the width of all experts of one token together. `regions` counts the tensor-parallel regions.
    `windowed`: tokens attend in windows of their image; `reach`: only to this many last tokens. In
    `latent` attention, `query` and `key` are the widths of queries and keys that attend. A layer
    that `is_depth` of multi-token prediction follows a product of two streams.
    """

    stream: int
    query: int
    key: int
    heads: int
    inner: int
    ups: int
    causal: bool
    recurrence: Recurrence | None = None
    regions: int = 2
    query_parts: int = 1
    experts: Moe | None = None
    windowed: bool = False
    reach: int | None = None
    latent: LatentWidths | None = None
    is_depth: bool = False

    @property
    def value(self) -> int:
        """Width of the values of all query heads, which is the output width of attention."""
        return self.query if self.latent is None else self.latent.value

    @property
    def gathered(self) -> int:
        """Width of all keys and values."""
        return 2 * self.key if self.latent is None else self.key + self.latent.value

    @property
    def head_size(self) -> int:
        """Width of one query head."""
        return self.query // self.heads

    @property
    def kind(self) -> LayerKind:
        """The kind of the layer; devices have a rate for each kind."""
        if self.recurrence is not None:
            return self.recurrence.kind
        return LayerKind.BLOCK if self.experts is None else LayerKind.EXPERTS

    def forward_flops(self, work: Workload) -> Flops:
        """Return the operations of one forward of the layer."""
        products = self.stream * self._features
        if self.latent is not None:
            products += self.latent.products - self.stream * (2 * self.query + 2 * self.key)
        linear = 2.0 * work.tokens * products
        return Flops(linear=linear, attention=self._mixing(work))

    @property
    def _features(self) -> int:
        """Widths of the inputs and outputs of linear layers, except the stream."""
        if self.recurrence is not None:  # z, x, B, C, steps; and the output.
            return 3 * self.query + 2 * self.key + self.recurrence.steps * self.heads
        router = self.experts.experts + self.experts.gates_shared if self.experts else 0
        attention = (self.query_parts + 1) * self.query + 2 * self.key
        joined = 2 * self.stream if self.is_depth else 0
        return attention + (self.ups + 1) * self.inner + router + joined

    def _mixing(self, work: Workload) -> float:
        """Return the operations between tokens: attention, or a recurrence in chunks."""
        if self.recurrence is not None:
            return work.tokens * self.recurrence.between
        spans = work.windows if self.windowed else work.spans
        pairs = sum(self._pairs(length) * number for length, number in spans.items())
        # The span already counts half of a block.
        later = sum(length**2 / 2 * number for length, number in work.blocks.items())
        return 2 * (pairs + later) * (self.query + self.value)

    def _pairs(self, span: int) -> float:
        """Return the pairs of tokens of a span that attend to each other."""
        if not self.causal:
            return span**2
        reach = span if self.reach is None else min(span, self.reach)
        return reach * (span - reach / 2)


@dataclass(frozen=True, slots=True)
class Rotary:
    """How queries and keys rotate with positions: `size` numbers of a head, at base `theta`.

    If tokens have several positions, `axes` gives the one that rotates each pair of a head.
    """

    size: int
    theta: float
    axes: tuple[int, ...] | None = None
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """Which tokens the tokens of a causal layer attend to, and how scores depend on positions.

    Without `rotary` nothing rotates. Tokens attend to the last `reach` tokens, None: to all
    earlier ones. Queries grow with their position by `growth`.
    """

    rotary: Rotary | None
    reach: int | None = None
    growth: QueryScaling | None = None
