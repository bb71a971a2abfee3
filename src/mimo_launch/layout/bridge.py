"""The bridge between two modules: the way of rows from a module to one that reads them.

Decides: names, and which forwards of both ends a transfer belongs to.
Relies on: the spec's word for the language model.
Leaves: the rows of a transfer to `bridge_routing`, its order to `schedule`.
"""

from dataclasses import dataclass

from mimo_launch.spec.base import LANGUAGE


@dataclass(frozen=True, slots=True)
class Bridge:
    """The way of rows from one module to another that reads them.

    A forward of the source is on `source_group` microbatches, one of the target on `target_group`,
    of which the smaller divides the larger. Transfers are on the larger number.
    """

    source: str
    target: str
    source_group: int
    target_group: int

    @property
    def name(self) -> str:
        """The source, with the target behind it where that is not language."""
        return self.source if self.target == LANGUAGE else f"{self.source}>{self.target}"

    @property
    def group_size(self) -> int:
        """Microbatches of one transfer."""
        return max(self.source_group, self.target_group)

    def of_source(self, forward: int) -> int:
        """Return the transfer that takes the rows of a forward of the source."""
        return forward * self.source_group // self.group_size

    def of_target(self, forward: int) -> int:
        """Return the transfer that brings the rows of a forward of the target."""
        return forward * self.target_group // self.group_size

    def sources(self, transfer: int) -> range:
        """Return the forwards of the source whose rows a transfer takes."""
        number = self.group_size // self.source_group
        return range(transfer * number, (transfer + 1) * number)

    def targets(self, transfer: int) -> range:
        """Return the forwards of the target that a transfer brings rows to."""
        number = self.group_size // self.target_group
        return range(transfer * number, (transfer + 1) * number)
