"""The adapter of a module: what trains in place of its frozen weights.

Decides: its keys, defaults and limits; the scale of a low-rank update.
Relies on: `base`.
Leaves: which maps have an adapter to `kinds.adapters`, the update itself to `layers.adapters`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, LocalPath, Strict


class AdapterSpec(Strict):
    """A low-rank update of the maps in a module's layers; the maps' own weights stay unchanged."""

    kind: Literal["lora"] = Field("lora", description="LoRA (arXiv:2106.09685).")
    rank: Count = Field(description="Width between the two matrices of each update.", examples=[16])
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="An update is multiplied by `alpha / rank`. Default: twice the rank."
    )
    rslora: bool = Field(
        False, description="Multiply by `alpha / sqrt(rank)` (arXiv:2312.03732) instead."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of the inputs of updates that each training step drops, the same on "
        "every layout. Maps that share an input drop the same numbers.",
    )
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("attention", "mlp"),
        description="Maps with an update: parts of a layer (`attention`, `mlp`, `experts`), or "
        "names of maps (`q`, `k`, `v`, `o`, `gate`, `up`, `down`), which leave out experts.",
        examples=[["q", "v"]],
        strict=False,
    )

    init_from: LocalPath | None = Field(
        None,
        description="Folder of peft with an adapter for the folder in the module's `init_from`, to "
        "start from.",
    )

    @property
    def scale(self) -> float:
        """The factor of an update."""
        alpha = 2.0 * self.rank if self.alpha is None else self.alpha
        return float(alpha / (self.rank**0.5 if self.rslora else self.rank))


def adapter_in(saved: Mapping[str, Any], name: str) -> AdapterSpec | None:
    """Return the adapter that a module has in a saved spec."""
    found = saved["modules"].get(name, {}).get("adapter")
    return None if found is None else AdapterSpec.model_validate(found)
