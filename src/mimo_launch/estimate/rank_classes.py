"""The classes of ranks of a plan: one of them stands for all of a class in estimates.

Decides: which ranks form a class.
Relies on: `schedule.rank_classes` for ranks with alike partners, `parameters` for weights.
Leaves: the time of a class to `simulated_step`, its memory to `memory_of_run`.
"""

from itertools import product

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.parameters import StageWeights, stage_weights
from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import classes_of, refined
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec


@frozen(eq=False)
class RankClass:
    """Ranks that hold the same stages with equal weights and run one program."""

    role: Role
    ranks: tuple[int, ...]
    weights: tuple[StageWeights, ...]


def rank_classes(spec: Spec, layout: Layout, programs: Programs) -> tuple[RankClass, ...]:
    """Return the classes of ranks that hold a stage, in the order of their first ranks.

    Ranks that wait for ranks with different programs are in different classes.
    """
    places: list[tuple[tuple[int, int, int], ...]] = [()] * layout.world_size
    for number, module in enumerate(layout.modules):
        for pp, tp in product(range(module.grid.size(Axis.PP)), range(module.grid.size(Axis.TP))):
            place = number, pp, tp
            for rank in module.grid.slice(pp=pp, tp=tp):
                places[rank] = (*places[rank], place)
    held = {
        each: tuple(
            stage_weights(spec, stage, tp)
            for number, pp, tp in each
            for stage in layout.modules[number].stages_at(pp)
        )
        for each in dict.fromkeys(places)
    }
    sizes = {each: tuple(own.numel for own in weights) for each, weights in held.items()}
    finer = refined(classes_of(layout), layout.modules)
    ranks_of: dict[tuple[object, ...], list[int]] = {}
    for rank, kind in enumerate(zip(finer, map(id, programs), map(sizes.get, places), strict=True)):
        ranks_of.setdefault(kind, []).append(rank)
    return tuple(
        RankClass(layout.roles[ranks[0]], tuple(ranks), held[places[ranks[0]]])
        for ranks in ranks_of.values()
        if layout.roles[ranks[0]]
    )
