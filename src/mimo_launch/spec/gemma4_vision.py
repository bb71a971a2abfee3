"""The vision tower of Gemma 4, for images of any size.

Decides: its keys that differ from those of a `vit`, and their defaults.
Relies on: `vit` for all others.
Leaves: nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.vit import VitModel


class Gemma4VisionModel(VitModel):
    """The tower of Gemma 4: a `vit` with norms on both sides of its layers and RMSNorms of heads.

    Queries, keys and values are normalised, and scores are not divided. A patch reads the learned
    place of its row and of its column. A row is the mean of a square of patches, times the root of
    the width, over its root mean square.
    """

    # Every rule about a `vit` holds for it.
    kind: Literal["gemma4_vision"]  # type: ignore[assignment]
    shuffle: Count = Field(
        3, description="Side of the square of patches that becomes one row, their mean."
    )
    positions: Literal["learned+rope2d"] = Field(
        "learned+rope2d",
        description="A learned vector for each row and one for each column of patches, added; "
        "queries and keys rotated: half of a head by the column, half by the row.",
    )
    places: Count = Field(
        10240,
        description="Number of learned rows, and of learned columns: the largest height and width "
        "of an image, in patches.",
    )
    rope_frequencies: Literal["shared"] = Field(
        "shared", description="Rows and columns of patches rotate at the same frequencies."
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        100.0, description="Base of the frequencies at which patches rotate; a `vit` has 10000."
    )
    class_token: Literal[False] = Field(False, description="It has none.")
    registers: Literal[0] = Field(0, description="It has none.")
    tiles: None = Field(None, description="Images are not cut into tiles.")
    patch_bias: bool = Field(False, description="A bias in the embedding of patches.")
    qkv_bias: bool = Field(False, description="Biases of queries, keys and values.")
    block_bias: bool = Field(False, description="Biases after attention and in the MLPs.")
    qk_norm: Literal[True] = Field(True, description="RMSNorm on queries and on keys.")
    head_qk_norm: Literal[True] = Field(True, description="It is of each head by itself.")
    norm: Literal["rms"] = Field("rms", description="Every norm of the module is an RMSNorm.")
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-6, description="Added to the mean square in every norm of the module."
    )
    final_norm: bool = Field(False, description="A norm after the last layer.")
    activation: Literal["gelu_tanh"] = Field(
        "gelu_tanh", description="Of the gate inside the MLPs: gelu(gate) * up."
    )
    pooling: Literal["mean"] = Field("mean", description="A row is the mean of its patches.")
    standardize: bool = Field(
        False,
        description="Rows less a number per channel, times another, before their norm. Neither "
        "trains; they begin as 0 and 1.",
    )
    clipped_linears: bool = Field(
        False,
        description="Each linear map of a block clips what it reads and what it gives to bounds "
        "of its own. They do not train, and clip nothing unless a folder has others.",
    )
    projector: Literal["mlp", "linear", "swiglu"] = Field(
        "linear",
        description="Last layer of the encoder: one linear map, or two with an activation or a "
        "gate between them.",
    )
    projector_bias: bool = Field(False, description="Biases in the projector.")
    projector_norm_eps: None = Field(
        None, description="The norm before the projector has no weights, and `norm_eps`."
    )

    @property
    def most_places(self) -> int:
        """The most patches along a side of an image."""
        return self.places

    @property
    def has_table(self) -> bool:
        """Whether positions are a grid: they are a list of rows and a list of columns."""
        return False
