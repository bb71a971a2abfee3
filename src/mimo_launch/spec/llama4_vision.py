"""The vision tower of Llama 4.

Decides: its keys that differ from those of a `vit`, and their defaults.
Relies on: `vit` for all others.
Leaves: nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.vit import VitModel


class Llama4VisionModel(VitModel):
    """The tower of Llama 4: a `vit` with a class token, a table of places and rotation by column.

    Places count from 1, so a class token, which has place 0, does not rotate. With `projector_out`
    there is an activation after both maps, before the linear map to the width of language.
    """

    # Every rule about a `vit` holds for it.
    kind: Literal["llama4_vision"]  # type: ignore[assignment]
    shuffle: Count = Field(
        2, description="Side of the square of patches that becomes one row, as wide as all of them."
    )
    positions: Literal["learned+rope2d"] = Field(
        "learned+rope2d",
        description="A table over a grid of `image`, added, with the class token last; neighbours "
        "in a head rotate together, the first half of them by the column, the others by the row.",
    )
    rope_frequencies: Literal["shared"] = Field(
        "shared", description="Rows and columns of patches rotate at the same frequencies."
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        10000.0, description="Base of the frequencies at which patches rotate."
    )
    class_token: bool = Field(
        True, description="A learned token beside the patches of each image; no row is made of it."
    )
    patch_bias: bool = Field(False, description="A bias in the embedding of patches.")
    pre_norm: bool = Field(True, description="A norm before the first layer.")
    tiles: None = Field(None, description="A tile is an image of its own.")
    projector_bias: bool = Field(False, description="Biases in the projector.")
