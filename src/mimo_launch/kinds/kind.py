"""The interface of every kind of model; other rooms use it instead of testing for classes.

Decides: which facts a kind declares, and their defaults.
Relies on: `layer` for the numbers of a layer, `saved_activations` for tensors.
Leaves: the facts to one file per kind, finding the kind of a model to `registry`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimo_launch.kinds.layer import Ends, Flops, LayerKind, Widths, Workload
from mimo_launch.kinds.saved_activations import (
    DEPTH,
    DEPTH_NORMS,
    DEPTH_NORMS_BF16,
    GATHERED,
    GATHERED_LATENT,
    RETURNED_OF_HEADS,
    ROUTED,
    SHARED_OUT,
    HeldAtEnds,
    Passes,
    Saved,
)
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.kinds.weights import LayerShape, Weight
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.hybrid import RecurrentSizes
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.layers import Moe, Mtp, QueryScaling, SlidingWindow
from mimo_launch.spec.media import Windows
from mimo_launch.spec.spec import Clips, Codes, Images, RopeScaling


@dataclass(frozen=True, slots=True)
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
    def patches_per_row(self) -> int:
        """Tokens that become one row of language."""
        return 1 if self.input is None else self.input.patches_per_row

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
    def reads_rows(self) -> bool:
        """Whether it takes rows of modules that it names in `reads`."""
        return False

    @property
    def reads_beside(self) -> bool:
        """Whether these rows come beside its own tokens; otherwise they are its tokens."""
        return False

    @property
    def reads_in_turn(self) -> bool:
        """Whether the rows of several modules are concatenated; otherwise they are added."""
        return True

    def rows_of(self, sources: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return height and width, in rows, of its output for one image of each module it reads.

        Raises: TypeError if it reads none.
        """
        raise TypeError(f"a model of kind {self.model.kind} reads no rows")

    @property
    def rows_of_each(self) -> int | None:
        """Number of rows that it makes for each image, None if that depends on its input."""
        return None

    @property
    def reads_text(self) -> bool:
        """Whether the embedding of the token is added to each row of language that it reads."""
        return False

    @property
    def is_causal(self) -> bool:
        """Whether its own tokens attend only to earlier tokens, and to rows beside them."""
        return False

    @property
    def is_custom(self) -> bool:
        """Whether a user's class builds it."""
        return False

    @property
    def vocab(self) -> int | Literal["digits"]:
        """Size of its vocabulary, or the data set that defines it."""
        return "digits"

    @property
    def vocab_multiple(self) -> int:
        """The vocabulary is padded to a multiple of this number."""
        return 1

    @property
    def num_heads(self) -> int | None:
        """Number of query heads, which tp cuts, if it has any."""
        return None

    @property
    def num_kv_heads(self) -> int | None:
        """Number of key/value heads, if any; query heads of a language model may share them."""
        return None

    @property
    def has_heads_of_hidden(self) -> bool:
        """Whether a head is hidden / heads wide."""
        return False

    @property
    def mlp_width(self) -> int | None:
        """Width inside the MLPs, which tp cuts, if it has any."""
        return None

    @property
    def has_standard_blocks(self) -> bool:
        """Whether every layer is attention and an MLP or experts, as libraries provide them."""
        return False

    @property
    def torch_only(self) -> tuple[str, ...]:
        """The keys set in the model that blocks of other libraries do not support."""
        return ()

    @property
    def mrope(self) -> tuple[int, int, int] | None:
        """Pairs of a head that rotate with time, height and width, if tokens have all three."""
        return None

    @property
    def mrope_axes(self) -> tuple[int, ...] | None:
        """The axis that rotates each pair of a head, if tokens have three."""
        return None

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """The scaling of long wavelengths of rotary embeddings, if any."""
        return None

    @property
    def query_scaling(self) -> QueryScaling | None:
        """How queries grow with the position of their token, if they do."""
        return None

    @property
    def turns_patches(self) -> bool:
        """Whether queries and keys rotate by the place of a patch."""
        return False

    @property
    def windows(self) -> Windows | None:
        """The windows in which tokens of some layers attend, if any."""
        return None

    @property
    def sliding_window(self) -> SlidingWindow | None:
        """The last tokens that tokens of some layers attend to, if not all."""
        return None

    @property
    def bidirectional_images(self) -> bool:
        """Whether the tokens of an image attend to each other in both directions."""
        return False

    def attends_in_windows(self, number: int) -> bool:
        """Return whether the tokens of a layer attend in windows."""
        windows = self.windows or self.sliding_window
        return windows is not None and number not in windows.full

    @property
    def learned_grid(self) -> tuple[int, int] | None:
        """Height and width, in patches, of its table of learned positions, if it has one."""
        return None

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """Height and width, in patches, of the images that it is made for, if all are equal."""
        return None

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
    def embeds_at_end(self) -> bool:
        """Whether its last stage also needs the embedding of tokens from the first stage."""
        return self.is_tied or self.depths > 0

    @property
    def recurrent(self) -> Mapping[str, RecurrentSizes]:
        """The sizes of its recurrent layers, by their key."""
        return {}

    def has_experts(self, number: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        return False

    def layer_name(self, number: int) -> str:
        """Return the name of a layer in tables."""
        parts = {
            "experts": self.has_experts(number),
            "windows": self.attends_in_windows(number),
        }
        found = " and ".join(part for part, is_there in parts.items() if is_there)
        return f"block with {found}" if found else "block"

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return True

    @property
    def is_tied(self) -> bool:
        """Whether first and last stage share a weight."""
        return False

    @property
    def tile_rule(self) -> TileRule | None:
        """How images in tiles become rows, if it cuts them."""
        return None

    @property
    def learned_tokens(self) -> int:
        """Number of learned tokens that each image has in addition to its patches."""
        return 0

    @property
    def not_estimated(self) -> tuple[str, ...]:
        """The parts of the model that cannot be estimated: weights, work, activations."""
        return ()

    def lanes(self, number: int, *, deep_rows: int) -> int:
        """Return how many states besides the hidden one a layer gets from the layer before it.

        `deep_rows` is the number of first layers after which rows are added; these rows enter the
        first stage.
        """
        return max(0, deep_rows - number) if number else 0

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

    @property
    @abstractmethod
    def widths(self) -> Widths:
        """Sizes of the layers; if they differ, the sizes of all mixers together."""

    def layer_widths(self, number: int) -> Widths:
        """Return the sizes of a layer."""
        return self.widths

    @abstractmethod
    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of one forward before the layers and after them."""

    def forward_flops(
        self, numbers: range, ends: Ends, work: Workload
    ) -> Mapping[LayerKind, Flops]:
        """Return the operations of one forward of a stage, with its ends among the blocks."""
        found: dict[LayerKind, Flops] = defaultdict(Flops)
        found[LayerKind.BLOCK] = self.end_flops(ends, work)
        for number in numbers:
            layer = self.layer_widths(number)
            found[layer.kind] += layer.forward_flops(work)
        return found

    # Activations.

    def saved_activations(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        """Return the tensors that a layer of these sizes saves for its backward."""
        saved = self._saved_compiled(layer)
        if not passes.are_compiled:
            saved += self._saved_besides(layer, passes)
        if layer.experts is not None:
            saved += ROUTED
            saved += (SHARED_OUT,) if layer.experts.gates_shared else ()
        if layer.is_depth:
            norms = DEPTH_NORMS_BF16 if passes.are_bf16 else DEPTH_NORMS
            saved += DEPTH if passes.are_compiled else (*DEPTH, norms)
        # Where tokens attend in windows, each rank keeps only the keys of its own windows.
        if passes.cp > 1 and not layer.windowed:
            gathered = GATHERED if layer.latent is None else GATHERED_LATENT
            recurs = layer.recurrence is not None
            saved += (RETURNED_OF_HEADS,) if recurs else (gathered,) * passes.cp
        return tuple(each for each in saved if passes.weights_train or not each.for_weights)

    @abstractmethod
    def _saved_compiled(self, layer: Widths) -> tuple[Saved, ...]:
        """Return the tensors that a layer saves if passes between products are compiled."""

    def _saved_besides(self, layer: Widths, passes: Passes) -> tuple[Saved, ...]:
        """Return the tensors that a layer also saves if these passes are not compiled."""
        return ()

    def recomputed_activations(self, layer: Widths) -> tuple[Saved, ...]:
        """Return the tensors that a layer recomputes in its backward."""
        return ()

    @property
    @abstractmethod
    def forward_activations(self) -> tuple[Saved, ...]:
        """Tensors that are alive together in the forward of a layer that saves nothing."""

    @property
    @abstractmethod
    def backward_activations(self) -> tuple[Saved, ...]:
        """Gradients that are alive together in the backward of a layer."""

    @abstractmethod
    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers that a rank saves before the layers and after them."""
