"""The connector: an encoder that reads the rows of other encoders.

Decides: its keys and defaults.
Relies on: `encoder_blocks` for blocks and projector.
Leaves: what it may read to `checks`.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.encoder_blocks import TransformerEncoder


class ConnectorModel(TransformerEncoder):
    """A transformer over the rows of encoders: a resampler, or a merger of several towers."""

    kind: Literal["connector"]
    queries: Count | None = Field(
        None,
        description="Learned queries per image, which become its rows: a resampler. Without them "
        "each row that is read becomes one.",
        examples=[16],
    )
    merge: Literal["rows", "width"] = Field(
        "rows",
        description="How the rows of several encoders come together. `rows`: those of one image "
        "follow each other; `width`: they are added behind a linear map each, as a map of both "
        "side by side would; all encoders then make equally many rows.",
    )

    @property
    def patches_per_row(self) -> int:
        """A token is a row."""
        return 1
