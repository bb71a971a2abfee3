"""Encoders of a user's own package: the keys that a spec must have, and those passed to the class.

Decides: how a class is named, and which keys tell layout and data about its rows.
Relies on: `base`.
Leaves: finding the class to `checks.custom`, calling it to `models.custom_stages`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from mimo_launch.spec.base import MAX_INTEGER, Count, Layers, Strict
from mimo_launch.spec.encoders import Clips, EncoderModel, VitModel
from mimo_launch.spec.wording import close_matches

CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class ImageInput(Strict):
    """Images of any size, cut into square patches."""

    kind: Literal["image"]
    patch: Count = Field(description="Side of a square patch, in pixels.", examples=[4])
    channels: Count = Field(1, description="Colour channels of a pixel.")
    shuffle: Count = Field(
        1,
        description="Each square of `shuffle` x `shuffle` neighbouring patches becomes one row; "
        "its patches stand together in the list.",
    )

    @property
    def patches_per_row(self) -> int:
        """Number of patches in the square that becomes one row."""
        return self.shuffle**2

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return self.shuffle, self.shuffle

    @property
    def row_side(self) -> int:
        """Side, in pixels, of the square that becomes one row."""
        return self.shuffle * self.patch

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return (channels, height, width) of an image in pixels."""
        return self.channels, height * self.row_side, width * self.row_side

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of an image (channels, height, width) in pixels."""
        return shape[1] // self.row_side, shape[2] // self.row_side

    @property
    def patch_size(self) -> int:
        """Size of a patch: channels x patch x patch."""
        return self.channels * self.patch**2


class AudioInput(Clips):
    """Log-mel clips; a patch is the five frames around two, each band's together."""

    kind: Literal["audio"]

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return 1, self.stack

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (mels, frames)."""
        return 1, shape[1] // self.frames_per_row


class CustomModel(EncoderModel):
    """An encoder of your own: `kind` names its class (docs/custom-encoders.md)."""

    kind: Annotated[str, Field(pattern=CLASS_PATH)] = Field(
        description="`package.module:Name` of the class, or function.",
        examples=["my_encoders.mixer:Mixer"],
        json_schema_extra={"expected": "`package.module:Name`"},
    )
    layers: Layers = Field(
        description="Number of layers, which pipeline stages share out.", examples=[4]
    )
    hidden: Count = Field(
        description="Width of the tokens between layers, and between stages.", examples=[128]
    )
    heads: Count | None = Field(
        None, description="Number of attention heads, to be checked against tp, if it has any."
    )
    input: Annotated[ImageInput | AudioInput, Field(discriminator="kind")] = Field(
        description="What it reads, and how many rows come of it.",
        examples=["{kind: image, patch: 4}"],
    )
    parameters: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None,
        description="Number of parameters of the whole module, for the estimates of `plan`, which "
        "never imports the class; without it they leave the module out.",
    )
    options: dict[str, Any] = Field(
        {}, description="Whatever else the class wants to know; nothing here reads it."
    )

    @property
    def patches_per_row(self) -> int:
        """Number of patches that become one row."""
        return self.input.patches_per_row

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of the array that becomes `height x width` rows."""
        return self.input.input_shape(height, width)


def image_input(model: Strict) -> VitModel | ImageInput | None:
    """Return the settings for the images of a model; None if it reads none."""
    read = model.input if isinstance(model, CustomModel) else model
    return read if isinstance(read, VitModel | ImageInput) else None


def clip_input(model: Strict) -> Clips | None:
    """Return the settings for the clips of a model; None if it reads none."""
    read = model.input if isinstance(model, CustomModel) else model
    return read if isinstance(read, Clips) else None


def nearest_class_path(value: str) -> str:
    """Return the class path that a user may have meant, or "", as for `pkg/mod.py:Name`."""
    module, _, name = value.strip().removesuffix("()").rpartition(":")
    if not module:
        module, _, name = name.rpartition(".")
    guess = f"{module.removesuffix('.py').replace('/', '.').replace('-', '_').strip('.')}:{name}"
    return guess if re.fullmatch(CLASS_PATH, guess) else ""


def looks_like_class_path(value: str, kinds: list[str]) -> bool:
    """Return whether an unknown `kind` looks like a class path rather than one of `kinds`."""
    return any(sign in value for sign in ":./()") and not close_matches(value, kinds)
