"""The interface of every kind of model; other rooms use it instead of testing for classes.

Decides: which facts a kind declares, and their defaults.
Relies on: `facts` for groups of facts, `layer` for the numbers of a layer, `saved_activations` for
tensors.
Leaves: the facts to one file per kind, finding the kind of a model to `registry`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.facts import (
    Attending,
    RowReading,
    TextFacts,
    TokenFacts,
    TpCuts,
)
from mimo_launch.kinds.layer import Ends, Flops, LayerKind, Widths, Workload
from mimo_launch.kinds.saved_activations import (
    AttentionPattern,
    HeldAtEnds,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.weights import LayerShape, Weight, widths_of
from mimo_launch.spec.base import MAX_LAYERS
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.hybrid import RecurrentSizes
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.layers import Moe, Mtp
from mimo_launch.spec.spec import Clips, Codes, Images, LanguageModel

# Two of the largest models: a cache that is smaller than what is asked for in turn finds nothing.
CACHED = 2 * MAX_LAYERS


@frozen
class ModelKind(ABC):
    """A model with the facts of its kind. Layers are counted from 0 over the whole module."""

    model: EncoderModel | CausalModel

    # Facts.

    @property
    @abstractmethod
    def stage(self) -> str:
        """The class that builds a stage, as `package.module:Class`."""

    @property
    def input(self) -> Images | Clips | Codes | None:
        """How its input from a sample becomes its rows; None if it has no such input."""
        return None

    @property
    def images(self) -> Images | None:
        """How images become its rows, if it reads images."""
        return found if isinstance(found := self.input, Images) else None

    @property
    def clips(self) -> Clips | None:
        """How clips become its rows, if it reads clips."""
        return found if isinstance(found := self.input, Clips) else None

    @property
    def codes(self) -> Codes | None:
        """How codec tokens become its rows, if it generates them."""
        return found if isinstance(found := self.input, Codes) else None

    @property
    def tokens(self) -> TokenFacts:
        """The tokens of one of its images or clips."""
        return TokenFacts(self.input)

    @property
    def text(self) -> TextFacts | LanguageModel:
        """The tokens of text, if it reads any."""
        return TextFacts()

    @property
    def reading(self) -> RowReading:
        """How it takes rows of other modules, if it does."""
        return RowReading()

    @property
    def attending(self) -> Attending:
        """Which tokens its tokens attend to."""
        return Attending()

    @property
    def cuts(self) -> TpCuts:
        """The sizes that tp cuts."""
        return TpCuts()

    @property
    def torch_only(self) -> Iterable[str] | None:
        """The keys set in the model that blocks of other libraries do not support.

        None unless every layer is attention and an MLP or experts, as libraries provide them.
        """
        return None

    @property
    def reads_tokens(self) -> bool:
        """Whether it can be `language`."""
        return False

    @property
    def computes_loss(self) -> bool:
        """Whether it computes a loss."""
        return self.reads_tokens

    @property
    def draws(self) -> bool:
        """Whether it can also generate what it learns to make."""
        return False

    @property
    def is_custom(self) -> bool:
        """Whether a user's class builds it."""
        return False

    @property
    def moe(self) -> Moe | None:
        """The mixture of experts of the model, if it has one."""
        return None

    @property
    def mtp(self) -> Mtp | None:
        """How it predicts further tokens, if it learns to."""
        return None

    @property
    def depths(self) -> int:
        """Number of further tokens that it learns to predict."""
        return 0 if self.mtp is None else self.mtp.depth

    def numbers(self, layers: range, *, is_last: bool) -> range:
        """Return the numbers of a stage's layers and, on the last stage, of depths after them."""
        return range(layers.start, layers.stop + (self.depths if is_last else 0))

    @property
    def recurrent(self) -> Mapping[str, RecurrentSizes]:
        """The sizes of its recurrent layers, by their key."""
        return {}

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return False

    def is_depth(self, number: int) -> bool:
        """Return whether a number belongs to a depth of multi-token prediction."""
        return False

    def layer_kind(self, number: int) -> LayerKind:
        """Return the kind of a layer; devices have a rate for each kind."""
        return LayerKind.EXPERTS if self.has_experts(number) else LayerKind.BLOCK

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        parts = {
            "experts": self.has_experts(number),
            "windows": self.attending.in_windows(number),
        }
        found = " and ".join(part for part, is_there in parts.items() if is_there)
        return f"block with {found}" if found else "block"

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return True

    @property
    def not_estimated(self) -> tuple[str, ...]:
        """The parts of the model that cannot be estimated: weights, work, activations."""
        return ()

    def lanes(self, number: int, *, deep_rows: int, kept: Sequence[int] = ()) -> int:
        """Return how many states besides the hidden one a layer gets from the layer before it.

        `deep_rows` is the number of first layers after which rows are added; these rows enter the
        first stage. States after the layers `kept` go on to the last stage.
        """
        behind = sum(layer <= number for layer in kept)
        return max(0, deep_rows - number) + behind if number else 0

    # Weights.

    @abstractmethod
    def layer(self, number: int) -> LayerShape:
        """Return a layer, or a depth of multi-token prediction after the layers."""

    @abstractmethod
    def before(self, ends: Ends) -> LayerShape:
        """Return what the first stage has before its layers."""

    @abstractmethod
    def after(self, ends: Ends) -> LayerShape:
        """Return what the last stage has after its layers."""

    @property
    def ties_ends(self) -> bool:
        """Whether its last stage needs the embedding of its first one."""
        return self.text.tied or self.depths > 0

    def names_before(self, ends: Ends) -> frozenset[str]:
        """Return the names of what comes before the layers; the last stage may hold some, too."""
        return frozenset(self.before(ends).parts())

    def around(self, ends: Ends) -> tuple[LayerShape, ...]:
        """Return what a stage has around its layers."""
        before = (self.before(ends),) if ends.is_first else ()
        return (*before, self.after(ends)) if ends.is_last else before

    def weights(self, layers: range, ends: Ends, tp: int = 1) -> Iterator[tuple[Weight, ...]]:
        """Yield the weights of every parameter of a stage, under their names in the module."""
        for shape in self.around(ends):
            yield from shape.weights(tp=tp)
        for number in self.numbers(layers, is_last=ends.is_last):
            is_depth = number >= layers.stop
            prefix = f"mtp.{number - layers.stop}" if is_depth else f"layers.{number}"
            yield from self.layer(number).weights(prefix, tp)

    # Work.

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of what a layer computes."""
        return _widths(self, number)

    def reach(self, number: int) -> Hashable:
        """Return what the pairs of a layer depend on, besides the work."""
        return self.attending.in_windows(number)

    def pairs(self, number: int, work: Workload) -> float:
        """Return the pairs of tokens that attend to each other in a layer; here in a span."""
        spans = work.windows if self.attending.in_windows(number) else work.spans
        return sum(length**2 * times for length, times in spans.items())

    @abstractmethod
    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of one forward before the layers and after them."""

    def forward_flops(
        self, numbers: Sequence[int], ends: Ends, work: Workload
    ) -> Mapping[LayerKind, Flops]:
        """Return the operations of one forward of a stage, with its ends among the blocks."""
        found: dict[LayerKind, Flops] = defaultdict(Flops)
        found[LayerKind.BLOCK] = self.end_flops(ends, work)
        for number, times in _alike(self, tuple(numbers)):
            widths, tokens = self.layer_widths(number), times * work.tokens
            between = tokens * widths.between
            if widths.scored:
                between += 2 * times * self.pairs(number, work) * widths.scored
            linear = 2.0 * tokens * widths.products
            found[self.layer_kind(number)] += Flops(linear=linear, attention=between)
        return found

    # Activations.

    def saved_activations(self, number: int, passes: Passes) -> tuple[Saved, ...]:
        """Return the tensors that a layer saves for its backward."""
        return _saved(self, number, passes)

    def attention_pattern(self, number: int) -> AttentionPattern:
        """Return how the tokens of a layer attend."""
        return AttentionPattern()

    def temporary_activations(self, number: int) -> Temporary:
        """Return the tensors that are alive together in a layer."""
        return layer_shape(self, number).temporary()

    @abstractmethod
    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers that a rank saves before the layers and after them."""

    def temporary_at_ends(self, ends: Ends, held: HeldAtEnds) -> tuple[int, int]:
        """Return the numbers alive in a forward without a backward, and in a backward.

        Those that are kept are left out, and so are the loss and the rows of tiles.
        """
        del ends, held
        return 0, 0


def grouped(numbers: Iterable[int], key: Callable[[int], Hashable]) -> tuple[tuple[int, int], ...]:
    """Return the first of each group of layers with equal keys, and the size of the group."""
    found: dict[Hashable, list[int]] = {}
    for number in numbers:
        found.setdefault(key(number), []).append(number)
    return tuple((group[0], len(group)) for group in found.values())


@lru_cache(maxsize=1024)
def _alike(kind: ModelKind, numbers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the first layer of each group with the same operations, and the size of the group."""
    return grouped(numbers, lambda n: (kind.layer_widths(n), kind.layer_kind(n), kind.reach(n)))


@lru_cache(maxsize=CACHED)
def _widths(kind: ModelKind, number: int) -> Widths:
    """Return the sizes of what a layer computes (cached: shapes take long to make)."""
    return widths_of(layer_shape(kind, number))


@lru_cache(maxsize=CACHED)
def _saved(kind: ModelKind, number: int, passes: Passes) -> tuple[Saved, ...]:
    """Return the tensors that a layer saves (cached: the forwards of all layouts ask for them)."""
    saved = layer_shape(kind, number).saved(passes, kind.attention_pattern(number))
    keeps = passes.weights_train or passes.adapts
    return tuple(each for each in saved if keeps or not each.for_weights)


@lru_cache(maxsize=CACHED)
def layer_shape(kind: ModelKind, number: int) -> LayerShape:
    """Return the shape of a layer (cached)."""
    return _first_equal(kind.layer(number))


@lru_cache(maxsize=1024)
def _first_equal(shape: LayerShape) -> LayerShape:
    """Return the first shape that equals this one: later caches find one object at once."""
    return shape
