"""Encoder work in the idle slots of the language pipeline that runs on the same ranks.

Decides: which of several rules makes the shortest step, under costs that follow from the layout.
Relies on: `bubble_simulation` for the course of a step under one rule.
Leaves: transfers to `sends_and_receives`, proving and timing to `simulate`.

The order of language stays that of 1F1B, and so does its memory; each rank turns from it to groups
of encoders and back. In the course of a step all ranks of an action start together, after its
inputs have ended, and each rank keeps the order of its starts: so the programs end under any costs.
What is hidden depends on how the costs compare to the ones assumed here.
"""

from collections.abc import Sequence

from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Action
from mimo_launch.schedule.bubble_simulation import EPSILON, Filler, Rule, Teams
from mimo_launch.schedule.lower_bound import lower_bound
from mimo_launch.schedule.simulation_result import Costs


def usual_costs(layout: Layout) -> Costs:
    """Return the costs that programs are made for.

    Forward 1 and backward 2 for a microbatch in a stage of language; each encoder takes a third of
    the time of language's ranks for the same samples, spread evenly over its own.
    """
    language = layout.language
    forward = {language.name: 1.0}
    for encoder in layout.encoders:
        share = len(language.grid.ranks) / len(encoder.grid.ranks) / 3
        forward[encoder.name] = encoder.group_size * share
    return Costs(forward, {name: 2 * cost for name, cost in forward.items()})


def bubble_orders(layout: Layout, classes: Sequence[int]) -> list[list[Action]]:
    """Return what the ranks of each class compute, in order; `classes` has one for each rank."""
    costs = usual_costs(layout)
    bound = lower_bound(layout, costs)
    depth = layout.language.grid.size("pp")
    teams = Teams(layout, classes)
    best: list[list[Action]] = []
    shortest = float("inf")
    for lead in (None, 0, depth, layout.samples.microbatches):
        for patient in (True, False):
            course = Filler(teams, costs, Rule(patient, lead))
            orders = course.run()
            if course.now < shortest - EPSILON:
                best, shortest = orders, course.now
            if shortest <= bound + EPSILON:
                return best
    return best
