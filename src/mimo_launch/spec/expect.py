"""The section `data.expect`: what samples of shards hold that are not here.

Decides: its keys, and how a spread of numbers is written.
Relies on: `base`.
Leaves: samples made from it to `data.expected_samples`.
"""

from typing import Annotated

from pydantic import Field

from mimo_launch.spec.base import MAX_COUNT, Count, Strict

_Number = Annotated[float, Field(ge=0, le=MAX_COUNT, allow_inf_nan=False)]
_SPREAD = "a number, or a list of numbers from the least to the most"
Spread = Annotated[
    _Number | Annotated[tuple[_Number, ...], Field(strict=False, min_length=2)],
    Field(json_schema_extra={"expected": _SPREAD}),
]
OfModules = Spread | dict[str, Spread]


class ExpectedSamples(Strict):
    """What samples hold, for plans where the shards are not here.

    A number is a mean, and all samples are next to it. A list says how samples differ: the least,
    percentiles at equal distances, and the most. `[0, 1, 3]`: half of the samples have at most 1.
    """

    text: Spread = Field(
        description="Tokens of text of a sample: all that are no rows, those of the template "
        "included.",
        examples=[400, [60, 300, 500, 2000]],
    )
    images: OfModules = Field(
        1.0,
        description="Images or clips of a sample for each encoder; or by encoder, as `{vision: "
        "1.5, audio: 0.2}`.",
        examples=[1.5],
    )
    rows: OfModules | None = Field(
        None,
        description="Rows of an image or clip, also of one to be made; or by encoder or "
        "generator. Default: half of the most that its processor makes, if sizes differ.",
        examples=[240, {"vision": [64, 200, 1024]}],
    )
    text_only: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Share of samples without any image, clip or video."
    )
    videos: Spread = Field(
        0.0, description="Videos of a sample, for the encoder that reads them.", examples=[0.3]
    )
    temporal_patches: Spread = Field(8.0, description="Temporal patches of a video.")
    frame_rows: Spread | None = Field(
        None,
        description="Rows of a temporal patch of a video. Default: what fills half a sequence, "
        "within the limits of the processor.",
    )
    targets: Spread = Field(
        1.0, description="Images or clips of a sample that generators learn to make."
    )
    samples: Count = Field(100_000, description="Samples of an epoch.")
