"""The tower of Ovis2: what it does not share with other vision transformers.

Decides: the layers that make rows of words of a visual vocabulary, and what they keep.
Relies on: `vision` for the rest; `tiles` for the order of rows.
Leaves: computing rows to `models.ovis2_vision`.
Source: arXiv:2405.20797, section 3; `transformers` 5.24, models/ovis2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mimo_launch.kinds.facts import TokenFacts
from mimo_launch.kinds.layer import Ends, Flops, Workload
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.kinds.shapes import NormShape, OneShape, WholeShape, table
from mimo_launch.kinds.tiles import INDICATORS, IndicatorRule, TileRule
from mimo_launch.kinds.vision import ImageTokens, VisionKind
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel

_MODELS = "mimo_launch.models"


@dataclass(frozen=True, slots=True)
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
            "head": WholeShape(self.width, self.words, bias=False),
            "head_norm": NormShape(self.words, "layer"),
            "table": self._rows(self.words, "ovis2_vision:WordTable"),
            "indicators": self._rows(INDICATORS, "tiled_rows:TiledRows"),
        }

    def _rows(self, number: int, layer: str) -> OneShape:
        return table(number, self.out, layer=f"{_MODELS}.{layer}")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        rows = held.patches // self.model.patches_per_row
        own = rows // held.sequence_parts
        # Each tp rank maps its own rows alone.
        shared = (rows - own) * self.model.row_width * held.projector_trains
        return total - shared + own * self.model.words * self._saved_of_word(held)

    def _saved_of_word(self, held: HeldAtEnds) -> int:
        """Return the numbers that a row keeps of each word."""
        passes = held.passes
        # The result of a softmax, or its input if it is compiled; shares of fewer bytes are apart.
        softmax = 1 if passes.are_compiled else passes.wide
        shares = held.projector_trains * (passes.are_compiled or passes.wide > 1)
        return 1 + passes.of_norm("layer") + softmax + shares
