"""The result of the last stage of a module that computes losses.

Decides: its form, and that a user's stage may return just its one loss.
Relies on: nothing.
Leaves: names and weights of losses to `layout`, and dividing by N to `runtime`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


class StageLosses(NamedTuple):
    """Losses, each summed over its terms, in the order of the layout.

    `rows` are the rows that other modules read, by reader; `right`, in an evaluation, is the number
    of codes for which the most probable code is right. A plain tuple: FSDP2 looks for tensors in
    it.
    """

    losses: tuple[Tensor, ...]
    rows: Mapping[str, Tensor] = {}
    right: Tensor | None = None

    @classmethod
    def of(cls, returned: Any) -> "StageLosses":
        """Return a stage's result in this form."""
        return returned if isinstance(returned, cls) else cls((returned,))
