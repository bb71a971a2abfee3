"""The proof by classes of ranks beside its oracle, the simulation of all ranks."""

import random

import pytest

from mimo_launch.layout.layout import Layout
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.deadlock_proof import DeadlockError, proven, simulate
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.simulation_result import Costs, Event

# Costs that differ by module, stage and kind, so that times tell alike ranks from others.
COSTS = Costs(forward={"vision": 1.25, "audio": 0.75, "depth": 3.0}, backward={"language": 2.5})


def same_as_all_ranks(layout: Layout, programs: Programs, costs: Costs | None = None) -> bool:
    """Return whether the programs end, having checked that both ways of looking agree."""
    every = simulate(layout, programs, costs)
    if every.stuck:
        with pytest.raises(DeadlockError) as caught:
            proven(layout, programs, costs)
        assert caught.value.stuck == every.stuck
        return False
    found = proven(layout, programs, costs)
    assert found.makespan == every.makespan
    assert list(map(computes, found.events)) == list(map(computes, every.events))
    return True


def computes(events: tuple[Event, ...]) -> list[Event]:
    return [event for event in events if event.slot[0].kind.is_compute]


def broken(programs: Programs, dice: random.Random) -> Programs:
    """Return programs of which one rank's has a slot less, or two that have changed places."""
    rank = dice.choice([rank for rank, program in enumerate(programs) if len(program) > 1])
    slots = list(programs[rank])
    place = dice.randrange(len(slots) - 1)
    if dice.random() < 0.5:
        del slots[place]
    else:
        slots[place], slots[place + 1] = slots[place + 1], slots[place]
    alike = [other for other in range(len(programs)) if programs[other] is programs[rank]]
    # One rank alone, or all that run this program: a mistake of the generator.
    changed = dict.fromkeys(alike if dice.random() < 0.5 else [rank], tuple(slots))
    return tuple(changed.get(rank, program) for rank, program in enumerate(programs))


def prove_as_all_ranks(plan: Plan, mistakes: int) -> None:
    """Check that both prove the programs of a plan, and judge so many random mistakes alike."""
    assert same_as_all_ranks(plan.layout, plan.training, COSTS)
    assert same_as_all_ranks(plan.layout, plan.evaluation)
    dice = random.Random(plan.identity)
    for _ in range(mistakes):
        same_as_all_ranks(plan.layout, broken(plan.training, dice))
