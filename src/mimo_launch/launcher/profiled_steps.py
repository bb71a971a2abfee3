"""The steps of a run that are measured, whatever was done of it before.

Decides: that a number of steps follows a warm-up of each process, and a range is of the whole run.
Relies on: nothing.
Leaves: the words of a user to `cli.train.profile`, measuring to `train.profiling`.
"""

from dataclasses import dataclass

# The first steps of a process also compile, allocate and connect.
WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class ProfiledSteps:
    """`number` steps from `first` on, counted from 0; after a warm-up if `first` is None."""

    number: int = 0
    first: int | None = None

    def of(self, done: int, total: int) -> range:
        """Return the steps to measure in a process that continues after `done` of `total` steps.

        One with fewer steps than the warm-up and `number` measures its last ones.
        """
        if self.first is None:
            first = done + min(WARM_UP_STEPS, max(0, total - done - self.number))
            return range(first, min(total, first + self.number))
        return range(max(done, self.first), min(total, self.first + self.number))

    def passed(self, done: int) -> range:
        """Return the steps asked for by their numbers that were done before."""
        if self.first is None:
            return range(0)
        return range(self.first, min(done, self.first + self.number))


NO_STEPS = ProfiledSteps()
