"""The tower of Ovis2: what it does not share with other vision transformers.

Decides: the layers that make rows of words of a visual vocabulary, and what they keep.
Relies on: `vision` for the rest; `tiles` for the order of rows.
Leaves: computing rows to `models.ovis2_vision`.
Source: arXiv:2405.20797, section 3; `transformers` 5.24, models/ovis2.
"""

from collections.abc import Mapping

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.facts import TokenFacts
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import NormShape, OneShape, WholeShape, table
from mimo_launch.kinds.tiles import INDICATORS, IndicatorRule, TileRule
from mimo_launch.kinds.vision import ImageTokens, VisionKind
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel

_MODELS = "mimo_launch.models"


@frozen
class VocabularyShape(LayerShape):
    """Rows as mixtures of the vectors of words, and the learned rows beside them.

    Each tp rank holds all of it: the number of words has few divisors.
    """

    layer = f"{_MODELS}.ovis2_vision:Vocabulary"

    width: int
    words: int
    out: int

    def parts(self) -> Mapping[str, LayerShape]:
        """Return the map to words, its norm, the vectors of words, and the learned rows."""
        return {
            "head": WholeShape(self.width, self.words, bias=False, matrix=False),
            "head_norm": NormShape(self.words, "layer"),
            "table": self._rows(self.words, "ovis2_vision:WordTable"),
            "indicators": self._rows(INDICATORS, "tiled_rows:TiledRows"),
        }

    def _rows(self, number: int, layer: str) -> OneShape:
        return table(number, self.out, layer=f"{_MODELS}.{layer}")


@frozen
class IndicatedTokens(ImageTokens):
    """The tokens of an image in tiles, with learned rows around and between them."""

    model: Ovis2VisionModel

    @property
    def tiles(self) -> TileRule | None:
        """How images in tiles become rows."""
        model = self.model
        if model.image is None:
            return None
        height, width = (side // model.shuffle for side in model.image)
        return IndicatorRule(height, width, None, True, model.image_side, model.tiles.grids)


@frozen
class Ovis2VisionKind(VisionKind):
    """A tower of Ovis2."""

    model: Ovis2VisionModel

    @property
    def tokens(self) -> TokenFacts:
        """The tokens of an image in tiles."""
        return IndicatedTokens(self.model, self.model)

    @property
    def learned_rows(self) -> str:
        """The layer of the projector that makes the rows of tiles, and has the learned ones."""
        return "indicators"

    def projector(self, out: int) -> VocabularyShape:  # type: ignore[override]
        """Return the visual vocabulary."""
        return VocabularyShape(self.model.row_width, self.model.words, out)

    def end_flops(self, ends: Ends, work: Workload) -> Flops:
        """Return the operations of embedding and vocabulary."""
        found = VisionKind.end_flops(self, ends, work)
        if not ends.is_last:
            return found
        products = self.model.words * (self.model.row_width + ends.row_width)
        projector = 2.0 * self._projected(work) * products
        return Flops(patch=found.patch, projector=projector, whole=projector)

    def saved_at_ends(self, ends: Ends, held: HeldAtEnds) -> int:
        """Return the numbers saved by embedding, vocabulary and the layers between them."""
        total = VisionKind.saved_at_ends(self, ends, held)
        if not ends.is_last:
            return total
        rows, own = held.patches // self.model.patches_per_row, self._own_rows(held)
        # Each tp rank maps its own rows alone.
        shared = (rows - own) * self.model.row_width * held.projector_trains
        words = 1 + held.passes.of_norm("layer") + _softmax(held) + _shares(held)
        return total - shared + own * self.model.words * words

    def temporary_at_ends(self, ends: Ends, held: HeldAtEnds) -> tuple[int, int]:
        """Return the numbers of a softmax over words, beside what is kept for a backward."""
        if not ends.is_last:
            return 0, 0
        each, wide = self._own_rows(held) * self.model.words, _softmax(held)
        # Words and shares, and in more bytes both sides of the softmax; its two gradients, where
        # the shares were.
        forward, backward = 2 * wide + 2 * (wide > 1), 2 * wide - _shares(held)
        return each * forward, each * backward

    def _own_rows(self, held: HeldAtEnds) -> int:
        return held.patches // self.model.patches_per_row // held.sequence_parts


def _softmax(held: HeldAtEnds) -> int:
    """Return how many numbers one of the result of a softmax, or its input if compiled, takes."""
    return 1 if held.passes.are_compiled else held.passes.wide


def _shares(held: HeldAtEnds) -> int:
    """Return 1 if shares of fewer bytes are kept apart, else 0."""
    passes = held.passes
    return int(held.projector_trains and (passes.are_compiled or passes.wide > 1))
