"""The proof that the programs of a job end: no rank waits forever or acts before its input.

Decides: that one rank of each class may stand for its class, and when all ranks are simulated.
Relies on: `simulate` for the course of a step, `rank_classes` for classes of ranks.
Leaves: showing a deadlock to `cli`.

A class waits for every class that any of its ranks waits for. So if the classes reach their ends,
all ranks do, no later; and they end at the same time, because every compute waits for all ranks of
its stage. Classes that do not reach their ends prove nothing: then all ranks are simulated.
"""

from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import ClassMeetings, refined
from mimo_launch.schedule.simulate import simulate
from mimo_launch.schedule.simulation_result import Costs, Simulation


class DeadlockError(Exception):
    """The programs of a layout do not end; `stuck` says where each rank waits."""

    def __init__(self, stuck: tuple[str, ...]) -> None:
        super().__init__(f"{len(stuck)} ranks cannot go on: {'; '.join(stuck[:4])}")
        self.stuck = stuck


def proven(layout: Layout, programs: Programs, costs: Costs | None = None) -> Simulation:
    """Return the course of a step on all ranks.

    Raises: DeadlockError if a rank does not reach its end.
    """
    simulation = by_class(layout, programs, costs)
    if simulation.stuck:
        simulation = simulate(layout, programs, costs)
    if simulation.stuck:
        raise DeadlockError(simulation.stuck)
    return simulation


def by_class(layout: Layout, programs: Programs, costs: Costs | None = None) -> Simulation:
    """Return the course of a step, simulated for one rank per class, whose events the class shares.

    `stuck` names the first ranks of classes only.
    """
    labels = [(role, id(each)) for role, each in zip(layout.roles, programs, strict=True)]
    meetings = ClassMeetings(layout, refined(labels, layout.modules))
    return simulate(layout, programs, costs, meetings=meetings).spread(meetings.stand_ins)
