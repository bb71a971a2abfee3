"""The vision tower of Ovis2.

Decides: its keys that differ from those of a `vit`, and their defaults.
Relies on: `vit` for all others.
Leaves: nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.media import Tiles
from mimo_launch.spec.vit import VitModel


class IndicatedTiles(Tiles):
    """Images as tiles of one size, with learned rows around the whole image and between tiles."""

    grids: tuple[Annotated[tuple[Count, Count], Field(strict=False)], ...] = Field(
        ((1, 1),),
        description="Grids of tiles, each by height and width, into which an image may be cut; "
        "`[1, 1]` is an image as one tile. Before the tiles of a larger grid comes a tile that "
        "shows all of the image.",
        examples=["[[1, 1], [1, 2], [2, 1]]"],
        strict=False,
    )
    whole: Literal["first"] = Field("first", description="The whole image comes first.")
    most: None = Field(None, description="Tiles keep all their rows.")
    each: Literal[True] = Field(True, description="Every image of a sample is cut.")
    side: None = Field(None, description="A tile has whole patches.")


class Ovis2VisionModel(VitModel):
    """The tower of Ovis2: a `vit` with RMSNorms and gates, and a visual vocabulary.

    A row is the softmax of a map of its patches to the `words` of the vocabulary, times a learned
    vector of each word. Five more learned rows come before and after the whole image, after all of
    its tiles, and between tiles.
    """

    # Every rule about a `vit` holds for it.
    kind: Literal["ovis2_vision"]  # type: ignore[assignment]
    words: Count = Field(
        description="Number of words of the visual vocabulary, without the five learned rows.",
        examples=[65531],
    )
    positions: Literal["learned"] = Field(
        "learned", description="A table over a grid of `image`, the size of a tile, added."
    )
    class_token: Literal[False] = Field(False, description="It has none.")
    registers: Literal[0] = Field(0, description="It has none.")
    tiles: IndicatedTiles = Field(
        default_factory=IndicatedTiles,
        description="Images are one tile of `image` patches, or several, which attend to "
        "themselves only.",
        examples=["{grids: [[1, 1], [1, 2], [2, 1]]}"],
    )
    patch_norm: bool = Field(True, description="A norm of patches before their positions.")
    qkv_bias: bool = Field(False, description="Biases of queries, keys and values.")
    block_bias: bool = Field(False, description="Biases after attention and in the MLPs.")
    norm: Literal["layer", "rms"] = Field("rms", description="The kind of every norm of a block.")
    activation: Literal["swiglu"] = Field(
        "swiglu", description="A gate inside the MLPs: silu(gate) * up."
    )
    pooling: None = Field(None, description="The patches of a row are side by side.")
    projector: Literal["vocabulary"] = Field(  # type: ignore[assignment]
        "vocabulary",
        description="A linear map without bias to `words` numbers, LayerNorm, a softmax, and a "
        "learned vector of each word.",
    )
    projector_bias: Literal[False] = Field(False, description="The map has no bias.")
    projector_mlp: None = Field(None, description="There is no MLP.")
    projector_norm_eps: None = Field(None, description="There is no norm before the map.")
    projector_out: None = Field(None, description="Vectors of words are as wide as language.")
    video: None = Field(None, description="Videos are not read.")

    def projector_width(self, out: int) -> int:
        """Return 0: nothing inside the projector is cut over tp."""
        del out
        return 0
