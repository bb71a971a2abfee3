"""The clock of all list schedulers: time moves from the end of one action to the next end.

Decides: when a rank is idle, and when an action may start.
Relies on: nothing; durations are in any unit.
Leaves: what starts first to the scheduler that asks; transfers and proofs to `deadlock_proof`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from mimo_launch.schedule.actions import Action

EPSILON = 1e-9
Rank = TypeVar("Rank", bound=Hashable)


class Clock(Generic[Rank]):
    """Model time: when each rank is free, what it has run, and when each action ends.

    An action that some ranks run together ends on all of them at the same time.
    """

    def __init__(self, ranks: Iterable[Rank]) -> None:
        self.now = 0.0
        self.free = dict.fromkeys(ranks, 0.0)
        self.orders: dict[Rank, list[Action]] = {rank: [] for rank in self.free}

    def run(self, start_what_can: Callable[[bool], bool]) -> None:
        """Run until nothing starts any more.

        `start_what_can` starts actions on idle ranks and returns whether there were any. It gets
        True, or False if all ranks would otherwise wait for each other forever, because it has been
        too patient.
        """
        while True:
            while start_what_can(True):
                pass
            later = [time for time in self.free.values() if time > self.now + EPSILON]
            if later:
                self.now = min(later)
            elif not start_what_can(False):
                return

    def start(self, action: Action, ranks: Iterable[Rank], duration: float) -> float:
        """Start an action now on some ranks; return when it ends."""
        end = self.now + duration
        for rank in ranks:
            self.free[rank] = end
            self.orders[rank].append(action)
        return end

    def has_come(self, time: float | None) -> bool:
        """Return whether a time has come; None never does."""
        return time is not None and time <= self.now + EPSILON

    def is_idle(self, rank: Rank) -> bool:
        """Return whether a rank runs nothing now."""
        return self.free[rank] <= self.now + EPSILON


def times_in_order(
    orders: Sequence[Sequence[Action]], inputs: Callable[[Action], Iterable[Action]]
) -> Mapping[Action, float]:
    """Return when each action starts if every rank runs its order, and each takes one tick."""
    clock, starts, at = Clock(range(len(orders))), dict[Action, float](), [0] * len(orders)

    def start_what_can(_: bool) -> bool:
        started = False
        for rank, order in enumerate(orders):
            if at[rank] == len(order) or not clock.is_idle(rank):
                continue
            action = order[at[rank]]
            if all(each in starts and starts[each] < clock.now for each in inputs(action)):
                starts[action] = clock.now
                clock.start(action, (rank,), 1.0)
                at[rank] += 1
                started = True
        return started

    clock.run(start_what_can)
    return starts
