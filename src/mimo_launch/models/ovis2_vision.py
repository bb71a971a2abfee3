"""Layers of the tower of Ovis2: rows as mixtures of the vectors of a visual vocabulary.

Decides: the softmax over words, in at least fp32.
Relies on: nothing.
Leaves: learned rows, and the order of all, to `tiled_rows`; the rest to `vision_encoder`.
Source: `transformers` 5.24, models/ovis2.

Legend: n rows of this rank, W width of the patches of a row, V words, L width of language.
"""

from torch import Tensor

from mimo_launch.kinds.ovis2_vision import VocabularyShape
from mimo_launch.kinds.shapes import OneShape
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.tiled_rows import TiledRows


class WordTable(ShapedLayer[OneShape]):
    """A vector of each word: shares [n, V] -> [n, L]."""

    def forward(self, shares_nV: Tensor) -> Tensor:
        """Return the sum of the vectors of all words, each times its share."""
        return shares_nV @ self.weight


class Vocabulary(ShapedLayer[VocabularyShape]):
    """Rows as mixtures of the vectors of words; holds the learned rows of tiles."""

    head: WholeLinear
    head_norm: Norm
    table: WordTable
    indicators: TiledRows

    def forward(self, x_nW: Tensor) -> Tensor:
        """Return the rows [n, L]."""
        shares_nV = self.context.fused(_softmax, self.head_norm(self.head(x_nW)))
        rows: Tensor = self.table(shares_nV)
        return rows


def _softmax(x_nV: Tensor) -> Tensor:
    return widened(x_nV).softmax(dim=-1).to(x_nV.dtype)
