"""What the last stage of a module returns that computes losses.

Decides: its form, and that a user's stage may return its one loss alone.
Relies on: nothing.
Leaves: names and weights of losses to `layout`, dividing by N to `runtime`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


class StageLosses(NamedTuple):
    """Losses, each summed over its terms, in the order of the layout.

    `rows` are those that other modules read, by reader; `right`, in an evaluation, the number of
    codes that are found most probable and are right. A plain tuple: FSDP2 looks for tensors in it.
    """

    losses: tuple[Tensor, ...]
    rows: Mapping[str, Tensor] = {}
    right: Tensor | None = None

    @classmethod
    def of(cls, returned: Any) -> "StageLosses":
        """Return what a stage has returned in this form."""
        return returned if isinstance(returned, cls) else cls((returned,))
