"""The actions that end a step: which of them a rank has, in which order, and who meets in each.

Decides: the entries of `ENDS`, one per kind of action. Programs, the proof that they end and the
executor read them there, so a new action is an entry here and a handler in `optimizer.step_end`.
Relies on: `layout` for the ranks.
Leaves: the work of an action to `optimizer.step_end`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.rank_groups import tied_ranks
from mimo_launch.schedule.actions import STEP, Action, Kind
from mimo_launch.spec.base import Axis


class Teams(Protocol):
    """Finds the ranks that meet in an action, seen from one of them; see `channels.Meetings`."""

    ranks: Sequence[int]

    def replica(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return all that hold the same stages of the same replica."""

    def stage(self, module: ModuleLayout, stage: int) -> Sequence[int]:
        """Return all that hold a stage."""

    def tied(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the two that hold the same part of a module's tied embedding."""


@frozen
class End:
    """A kind of action at the end of a step.

    It occurs once in a step, or once for each module that trains and for which it `applies` on a
    rank. It comes after the last backwards (of its module), or after the step's action `after`. The
    `team` of a rank may depend on the module, if the action has one.
    """

    kind: Kind
    team: Callable[[Teams, ModuleLayout, int], Sequence[int]]
    applies: Callable[[Layout, ModuleLayout, int], bool] | None = None
    after: Kind | None = None


def _has_tp(layout: Layout, module: ModuleLayout, rank: int) -> bool:
    return module.grid.size(Axis.TP) > 1


def _is_tied(layout: Layout, module: ModuleLayout, rank: int) -> bool:
    return rank in tied_ranks(layout, module.name)


def _needs_matrices(layout: Layout, module: ModuleLayout, rank: int) -> bool:
    return any(rule.whole_matrices for rule in module.rules)


def _holders(teams: Teams, module: ModuleLayout, rank: int) -> Sequence[int]:
    """Return the ranks among which the matrices of a rank are cut."""
    return teams.stage(module, module.stages_of(rank)[0].index)


# In the order of a program; the actions of modules between two of the step go module by module.
ENDS = (
    End(Kind.SUM_TP, lambda teams, module, rank: teams.replica(module, rank), _has_tp),
    End(Kind.SUM_TIED, lambda teams, module, rank: teams.tied(module, rank), _is_tied),
    End(Kind.NORM, lambda teams, module, rank: teams.ranks),
    End(Kind.ORTHOGONALISE, _holders, _needs_matrices, after=Kind.NORM),
    End(Kind.UPDATE, lambda teams, module, rank: (rank,), after=Kind.NORM),
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
