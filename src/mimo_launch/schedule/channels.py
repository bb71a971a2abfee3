"""Who an action meets: the ranks at the other end of its transfer, known without data.

Decides: the partners of every transfer, as ranks that may exchange at least one row.
Relies on: `layout.routing` for the links between replicas.
Leaves: how many rows each pair moves to the DataPlan of a step.
"""

from functools import lru_cache

from mimo_launch.layout.layout import Layout
from mimo_launch.layout.routing import components
from mimo_launch.schedule.actions import Action, Kind

FORWARD_KINDS = (Kind.SEND_F, Kind.RECV_F, Kind.EXCHANGE_F)


def is_sender(kind: Kind) -> bool:
    """Return whether a point-to-point action sends."""
    return kind in (Kind.SEND_F, Kind.SEND_B)


def partners(layout: Layout, rank: int, action: Action) -> tuple[int, ...]:
    """Return the ranks that a point-to-point action of `rank` may meet."""
    module = layout[action.module]
    if action.stage is not None:
        step = 1 if action.kind in (Kind.SEND_F, Kind.RECV_B) else -1
        other = module.pp_index(action.stage + step)
        apart = other - module.grid.index("pp", rank)
        return (rank + apart * module.grid.strides["pp"],)
    at_encoder = action.kind in (Kind.SEND_F, Kind.RECV_B)
    return _bridge_partners(layout, action.module, rank, action.index, at_encoder)


def component_of(layout: Layout, rank: int, encoder: str) -> tuple[int, ...]:
    """Return the ranks of the collective exchange that `rank` takes part in."""
    return next(ranks for ranks in components_of(layout, encoder) if rank in ranks)


@lru_cache(maxsize=64)
def components_of(layout: Layout, encoder: str) -> tuple[tuple[int, ...], ...]:
    """Return the components of a bridge (cached)."""
    return components(layout, encoder)


@lru_cache(maxsize=65536)
def _bridge_partners(
    layout: Layout, encoder: str, rank: int, group: int, at_encoder: bool
) -> tuple[int, ...]:
    module, language, samples = layout[encoder], layout.language, layout.samples
    share = samples.replicas * module.group_size * samples.microbatch_size // module.grid.size("dp")
    per_language = module.group_size * samples.microbatch_size
    if at_encoder:
        mine, size, theirs = module.grid.index("dp", rank), share, per_language
        grid, stage = language.grid, 0
    else:
        mine, size, theirs = language.grid.index("dp", rank), per_language, share
        grid, stage = module.grid, module.pp_index(len(module.stages) - 1)
    # Both sides cut the same list of samples; the partners are those whose cut overlaps.
    first, last = mine * size, (mine + 1) * size - 1
    linked = range(first // theirs, last // theirs + 1)
    return tuple(sorted(r for replica in linked for r in grid.slice(dp=replica, pp=stage)))
