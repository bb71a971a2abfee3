"""A user's loss for language: its class, and the columns of the data that it reads.

Decides: its keys, defaults and limits.
Relies on: `base`.
Leaves: what fits together to `checks`, calling it to `models.custom_loss`.
"""

from typing import Annotated, Any

from pydantic import Field

from mimo_launch.spec.base import ClassPath, Strict

ColumnName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Width = Annotated[int, Field(ge=1, le=4096)]


class CustomLoss(Strict):
    """A user's loss in place of cross-entropy (docs/custom-losses.md)."""

    kind: ClassPath = Field(
        description="`package.module:Name` of the function or class.",
        examples=["my_losses:weighted"],
        json_schema_extra={"expected": "`package.module:Name`"},
    )
    columns: dict[ColumnName, Width] = Field(
        {},
        description="The columns of the data that it reads: by name, the number of values for each "
        "learnt token.",
        examples=[{"weight": 1}],
    )
    token_columns: tuple[ColumnName, ...] = Field(
        (),
        strict=False,
        description="The columns that hold ids of tokens; others hold numbers.",
        examples=[["teacher_tokens"]],
    )
    counts: ColumnName | None = Field(
        None,
        description="The loss is divided by the sum of this column, such as weights of tokens; "
        "default: by the number of learnt tokens.",
        examples=["weight"],
    )
    options: dict[str, Any] = Field({}, description="Keyword arguments that it is called with.")

    def __hash__(self) -> int:
        """Return a hash of the JSON form, since `options` may hold lists."""
        return hash(self.model_dump_json())
