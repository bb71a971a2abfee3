"""DINOv3, a vision transformer with registers and rotary positions of patches.

Decides: its keys that differ from those of a `vit`, and their defaults.
Relies on: `vit` for all others.
Leaves: nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.vit import VitModel


class Dinov3Model(VitModel):
    """A DINOv3 (arXiv:2508.10104): a `vit` with registers; patches rotate by their centres.

    A place is a share of the image, so one model fits images of any size; class token and registers
    do not rotate.
    """

    # Every rule about a `vit` holds for it.
    kind: Literal["dinov3"]  # type: ignore[assignment]
    positions: Literal["rope2d"] = Field(
        "rope2d",
        description="Queries and keys rotate by row and column of a patch: its centre, from -1 to "
        "1 across the image, times 2 pi.",
    )
    rope_frequencies: Literal["shared"] = Field(
        "shared", description="Rows and columns of patches rotate at the same frequencies."
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        100.0, description="Base of the frequencies at which patches rotate; a `vit` has 10000."
    )
    class_token: bool = Field(
        True, description="A learned token beside the patches of each image; no row is made of it."
    )
    registers: Annotated[int, Field(ge=0)] = Field(
        4,
        description="Further learned tokens beside the patches of each image; no row is made of "
        "them.",
    )
    qkv_bias: bool = Field(True, description="Biases of queries and values; keys have none.")
    layer_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        1.0,
        description="What attention and MLP add is multiplied by a learned weight per channel, "
        "which begins as this number.",
    )
