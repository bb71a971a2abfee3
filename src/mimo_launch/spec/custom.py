"""Classes from a user's package: the keys that a spec must have, and the keys for the class.

Decides: how a class is named, and which keys describe its rows to layout and data.
Relies on: `base`.
Leaves: finding the class to `checks.packages`, calling it to `models.custom_stages`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from mimo_launch.spec.base import MAX_INTEGER, Count, Layers
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.media import Clips, Images
from mimo_launch.spec.wording import close_matches

CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class ImageInput(Images):
    """Images of any size, cut into square patches."""

    kind: Literal["image"]


class AudioInput(Clips):
    """Log-mel clips; a patch is the five frames around a token's two, band by band."""

    kind: Literal["audio"]


class CustomModel(EncoderModel):
    """A custom encoder or generator: `kind` names its class (docs/custom-encoders.md)."""

    kind: Annotated[str, Field(pattern=CLASS_PATH)] = Field(
        description="`package.module:Name` of the class, or function.",
        examples=["my_encoders.mixer:Mixer"],
        json_schema_extra={"expected": "`package.module:Name`"},
    )
    layers: Layers = Field(
        description="Number of layers, which are split over pipeline stages.", examples=[4]
    )
    hidden: Count = Field(
        description="Width of the tokens between layers, and between stages.", examples=[128]
    )
    heads: Count | None = Field(
        None, description="Number of attention heads, if it has any; they are checked against tp."
    )
    input: Annotated[ImageInput | AudioInput, Field(discriminator="kind")] = Field(
        description="What it reads, and how many rows it makes of it; of a generator, what it "
        "learns to make.",
        examples=["{kind: image, patch: 4}"],
    )
    loss: bool = Field(
        False,
        description="It is a generator (docs/custom-generators.md): it reads `language` and "
        "returns a loss.",
    )
    parameters: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None,
        description="Number of parameters of the whole module, for the estimates of `plan`, which "
        "never imports the class; without it they leave the module out.",
    )
    options: dict[str, Any] = Field(
        {}, description="Whatever else the class needs to know; nothing else reads it."
    )

    def __hash__(self) -> int:
        """Return a hash of the JSON form, since `options` may hold lists."""
        return hash(self.model_dump_json())

    @property
    def patches_per_row(self) -> int:
        """Number of patches that become one row."""
        return self.input.patches_per_row


def nearest_class_path(value: str) -> str:
    """Return the class path that a text such as `pkg/mod.py:Name` may mean, or ""."""
    module, _, name = value.strip().removesuffix("()").rpartition(":")
    if not module:
        module, _, name = name.rpartition(".")
    guess = f"{module.removesuffix('.py').replace('/', '.').replace('-', '_').strip('.')}:{name}"
    return guess if re.fullmatch(CLASS_PATH, guess) else ""


def looks_like_class_path(value: str, kinds: list[str]) -> bool:
    """Return whether an unknown `kind` looks like a class path rather than one of `kinds`."""
    return any(sign in value for sign in ":./()") and not close_matches(value, kinds)
