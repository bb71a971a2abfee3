"""The actions that end a step: which of them a rank has, in which order, and who meets in each.

Decides: the entries of `ENDS`, one per kind of action. Programs, the proof that they end and the
executor read them there, so a new action is an entry here and a handler in `optimizer.step_end`.
Relies on: `layout` for the ranks.
Leaves: the work of an action to `optimizer.step_end`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.rank_groups import tied_ranks
from mimo_launch.schedule.actions import STEP, Action, Kind
from mimo_launch.spec.base import Axis


class Team(Enum):
    """The ranks that meet in an action, seen from one of them."""

    REPLICA = auto()  # All that hold the same stages of the same replica of the module.
    TIED = auto()  # The two that hold the same part of a tied embedding.
    WORLD = auto()
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class End:
    """A kind of action at the end of a step.

    It occurs once in a step, or once for each module that trains and for which it `applies` on a
    rank. It comes after the last backwards (of its module), or after the step's action `after`.
    """

    kind: Kind
    team: Team
    applies: Callable[[Layout, ModuleLayout, int], bool] | None = None
    after: Kind | None = None


def _has_tp(layout: Layout, module: ModuleLayout, rank: int) -> bool:
    return module.grid.size(Axis.TP) > 1


def _is_tied(layout: Layout, module: ModuleLayout, rank: int) -> bool:
    return module.is_language and rank in tied_ranks(layout)


# In the order of a program; the actions of modules between two of the step go module by module.
ENDS = (
    End(Kind.SUM_TP, Team.REPLICA, _has_tp),
    End(Kind.SUM_TIED, Team.TIED, _is_tied),
    End(Kind.NORM, Team.WORLD),
    End(Kind.UPDATE, Team.ALONE, after=Kind.NORM),
)
END_OF = {end.kind: end for end in ENDS}


def end_actions(layout: Layout, rank: int, trained: Iterable[ModuleLayout]) -> Iterator[Action]:
    """Yield the actions of a rank after its last backward; `trained` are its modules that train."""
    modules = tuple(trained)
    for once, ends in groupby(ENDS, key=lambda end: end.applies is None):
        kinds = tuple(ends)
        for module in (None,) if once else modules:
            for end in kinds:
                if module is None:
                    yield Action(STEP, None, end.kind, 0)
                elif end.applies is not None and end.applies(layout, module, rank):
                    yield Action(module.name, None, end.kind, 0)
