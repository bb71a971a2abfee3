"""Reduces grids of many ranks to few, with the same relations between modules.

Decides: the size of each reduced axis, with a price in ranks for each loss; the first rank of each
module and of the idle ranks; other changes in a spec: groups of microbatches, the batch.
Relies on: the ranges of the spec; `coverage` for the losses of a smaller grid.
Leaves: model sizes to `shrink`.

The relations between ranges of ranks never change. Axes of 1 stay 1, and axes above 1 stay above 1
if possible. Fans, islands of replicas, middle stages and shared heads stay as long as there are
enough ranks.

All starts and stops of ranges, in order, cut the ranks into intervals. The relations stay if the
cuts stay in order, each at least one rank after the previous one. The size of a module is the
distance between its two cuts. The least places that satisfy all this are lengths of longest paths.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, inf, lcm

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import divisors, expert_grids, smaller_grids
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.spec.base import LANGUAGE, Axis, rank_range, rank_text
from mimo_launch.spec.spec import ExpertGrid, Grid, ModuleSpec, Spec
from mimo_launch.verify.coverage import fan, kv_sharing

# How many more ranks a proof may take to keep something. An axis becomes 1 only as a last resort.
LOST_AXIS = {Axis.PP: 1400, Axis.CP: 1300, Axis.TP: 1200, Axis.DP: 1000}
LOST_FAN, LOST_EXPERT_AXIS = 300, 100
LOST_MIDDLE = {Axis.PP: 8, Axis.CP: 2}
LOST_ISLANDS, LOST_REPLICAS, LOST_RATIO, LOST_SHARING, OTHER_PARITY = 6, 6, 4, 4, 1
# The search stops here with the best choice so far. Hundreds of trials are usual and take
# milliseconds; one layout in some thousands needs tens of thousands of trials.
MAX_TRIALS = 300_000
# Grids of at most this many ranks are proved as they are.
MAX_RANKS = 32
# Larger grids are reduced to the fewest ranks that keep everything, and to at most this many.
MOST_RANKS = 64


@dataclass(frozen=True)
class Placing:
    """The cuts of a spec: their number, and the two cuts of each module and of idle ranks."""

    num_cuts: int
    ends: Mapping[str, tuple[int, int]]
    idle: tuple[int, int] | None

    @classmethod
    def of(cls, spec: Spec) -> "Placing":
        """Return the numbered cuts of a spec."""
        ranges = {name: module.rank_range for name, module in spec.modules.items()}
        idle = None if spec.idle_ranks is None else rank_range(spec.idle_ranks)
        every = [*ranges.values(), *([] if idle is None else [idle])]
        cuts = sorted({0, world_size(spec)} | {end for r in every for end in (r.start, r.stop)})
        number = {cut: index for index, cut in enumerate(cuts)}
        ends = {name: (number[r.start], number[r.stop]) for name, r in ranges.items()}
        between = None if idle is None else (number[idle.start], number[idle.stop])
        return cls(len(cuts), ends, between)

    def least(
        self, exact: Mapping[str, int], at_least: Mapping[str, int], limit: float
    ) -> list[int] | None:
        """Return the least place of each cut; None if there is no solution within `limit` ranks.

        `exact` are sizes of modules, `at_least` are lower bounds of sizes that are not chosen yet.
        """
        edges = [(cut, cut + 1, 1) for cut in range(self.num_cuts - 1)]
        edges += [(*self.ends[name], size) for name, size in (*exact.items(), *at_least.items())]
        backward = [(stop, start, -exact[name]) for name, (start, stop) in self.ends.items()
                    if name in exact]  # fmt: skip
        places = list(range(self.num_cuts))
        changed = True
        while changed:
            if places[-1] > limit:
                return None
            changed = False
            for before, after, distance in (*edges, *backward):
                if places[before] + distance > places[after]:
                    places[after] = places[before] + distance
                    changed = True
        return places


@dataclass(frozen=True, slots=True)
class GridChoice:
    """A smaller grid for one module, and its loss."""

    grid: Grid
    experts: ExpertGrid | None
    loss: int


def fewest(spec: Spec, most_ranks: int) -> tuple[Mapping[str, GridChoice], list[int]]:
    """Return the choice for each module and the cuts with the smallest sum of ranks and losses.

    Raises: ValueError if nothing fits on `most_ranks` ranks.
    """
    search = _Search(spec, most_ranks)
    search.extend({}, 0)
    if search.best is None:
        raise ValueError(f"to keep the placement of its modules takes more than {most_ranks} ranks")
    return search.best


class _Search:
    """Branch and bound over modules: language first, then the others by decreasing ranks."""

    def __init__(self, spec: Spec, most_ranks: int) -> None:
        self.spec, self.most_ranks = spec, most_ranks
        self.placing = Placing.of(spec)
        self.order = sorted(
            spec.modules, key=lambda n: (n != LANGUAGE, -len(spec.modules[n].rank_range))
        )
        self.all = {name: _choices(spec.modules[name], most_ranks) for name in self.order}
        self.smallest = {
            name: min(c.grid.num_ranks for c in found) for name, found in self.all.items()
        }
        self.by_size: dict[tuple[str, int], list[GridChoice]] = {}
        self.best: tuple[Mapping[str, GridChoice], list[int]] | None = None
        self.cost, self.trials = inf, 0

    def extend(self, chosen: Mapping[str, GridChoice], loss: int) -> None:
        """Try all choices for the next module, the most promising ones first."""
        exact = {name: choice.grid.num_ranks for name, choice in chosen.items()}
        rest = {name: self.smallest[name] for name in self.order if name not in chosen}
        options = {name: self._options(name, chosen) for name in rest if chosen or name == LANGUAGE}
        to_come = sum(min(choice.loss for choice in found) for found in options.values())
        limit = min(self.most_ranks, self.cost - loss - to_come - 1)
        cuts = self.placing.least(exact, rest, limit)
        self.trials += 1
        if cuts is None:
            return
        if not rest:
            self.best, self.cost = (chosen, cuts), cuts[-1] + loss
            return
        name = next(iter(rest))
        for choice in options[name]:
            if self.trials < MAX_TRIALS:
                self.extend({**chosen, name: choice}, loss + choice.loss)

    def _options(self, name: str, chosen: Mapping[str, GridChoice]) -> list[GridChoice]:
        if name == LANGUAGE:
            return self.all[name]
        dp = chosen[LANGUAGE].grid.dp
        if (name, dp) not in self.by_size:
            # Add the loss where the relation of this dp to the smaller dp of language changes.
            old, lossy = (self.spec.modules[name].grid.dp, self.spec.language.grid.dp), []
            for choice in self.all[name]:
                new = choice.grid.dp, dp
                loss = LOST_FAN * (fan(*new) != fan(*old))
                loss += LOST_RATIO * (Fraction(*new) != Fraction(*old))
                loss += LOST_ISLANDS * ((gcd(*new) == 1) != (gcd(*old) == 1))
                lossy.append(replace(choice, loss=choice.loss + loss))
            self.by_size[name, dp] = _best(lossy, lambda grid: grid.num_ranks)
        return self.by_size[name, dp]


def _choices(module: ModuleSpec, most_ranks: int) -> list[GridChoice]:
    """Return the best smaller grids of a module, one for each dp and number of ranks."""
    old, found = module.grid, []
    # The widths of a user's own class may not split over a tp that the user did not write.
    is_custom = kind_of(module.model).is_custom
    for grid in smaller_grids(old, most_ranks, tp_divides=is_custom):
        experts, loss = _smaller_experts(module, grid)
        found.append(GridChoice(grid, experts, loss + _loss(module, grid)))
    return _best(found, lambda grid: (grid.dp, grid.num_ranks))


def _best(choices: Iterable[GridChoice], key: Callable[[Grid], object]) -> list[GridChoice]:
    """Return the choice of least loss for each key, sorted by the sum of loss and ranks."""
    found: dict[object, GridChoice] = {}
    for choice in choices:
        best = found.setdefault(key(choice.grid), choice)
        if choice.loss < best.loss:
            found[key(choice.grid)] = choice
    return sorted(found.values(), key=lambda choice: choice.loss + choice.grid.num_ranks)


def _loss(module: ModuleSpec, grid: Grid) -> int:
    """Return the loss of a smaller grid, apart from relations to other modules."""
    loss = 0
    for axis, lost in LOST_AXIS.items():
        old, new = getattr(module.grid, axis), getattr(grid, axis)
        if new == 1 < old:
            # With one replica, full sharding would shard nothing.
            loss += lost * (2 if axis == Axis.DP and module.fsdp.every_backward else 1)
        elif axis == Axis.DP and module.fsdp.replicate and module.shard_over != 1:
            # Several copies of several shards.
            loss += lost * (new < 4)
        else:
            loss += OTHER_PARITY * ((new - old) % 2)
            loss += LOST_MIDDLE.get(axis, 0) * (new == 2 < old)
    for kv_heads in kind_of(module.model).cuts.kv_heads.values():
        shared = kv_sharing(kv_heads_on(kv_heads, module.grid, grid), grid.tp)
        loss += LOST_SHARING * (shared != kv_sharing(kv_heads, module.grid.tp))
    return loss


def _smaller_experts(module: ModuleSpec, grid: Grid) -> tuple[ExpertGrid | None, int]:
    """Return the grid of experts that keeps most axes above 1, and its loss."""
    old = module.experts
    if old is None:
        return None, 0
    ranks = grid.tp * grid.cp * grid.dp
    several = module.grid.num_ranks // module.grid.pp > old.tp * old.ep

    def loss(new: ExpertGrid) -> int:
        lost = (new.tp > 1) != (old.tp > 1), (new.ep > 1) != (old.ep > 1)
        return LOST_EXPERT_AXIS * sum(lost) + LOST_REPLICAS * ((ranks > new.tp * new.ep) != several)

    best = min((n for n in expert_grids(ranks) if n.tp <= old.tp and n.ep <= old.ep), key=loss)
    return best, loss(best)


def kv_heads_on(kv_heads: int, old: Grid, new: Grid) -> int:
    """Return a number of key/value heads, shared by tp ranks if it was; several if possible."""
    if kv_heads >= old.tp:
        return new.tp
    several = kv_heads > 1 and new.tp > 2 and new.tp % 2 == 0
    return new.tp // 2 if several else 1


def regrid(spec: Spec, most_ranks: int = MOST_RANKS) -> Spec:
    """Return the spec on small grids, with the same relations between modules.

    Raises: ValueError if the spec still takes more than `most_ranks` ranks.
    """
    choices, cuts = fewest(spec, most_ranks)
    placing = Placing.of(spec)
    modules = {}
    for name, module in spec.modules.items():
        start, stop = (cuts[end] for end in placing.ends[name])
        grid = choices[name].grid
        modules[name] = module.replace(
            grid=grid,
            ranks=rank_text(range(start, stop)),
            shard_over=_shards(module, grid),
            experts=choices[name].experts,
            model=_regrid_model(module, grid),
        )
    # A batch that every dp size and group size divides, with two samples per microbatch.
    share = lcm(*(module.grid.dp for module in modules.values()))
    schedule, pp = spec.schedule, modules[LANGUAGE].grid.pp
    if ORDERS[schedule.kind].interleaves and spec.is_star:
        # A step and each group need a multiple of pp microbatches. Other graphs take any number.
        old, group = spec.language.grid.pp, schedule.encoder_microbatches
        turns = schedule.microbatches // old
        together = max(n for n in divisors(turns) if n <= max(1, (group or old) // old))
        schedule = schedule.replace(
            microbatches=pp * turns, encoder_microbatches=None if group is None else pp * together
        )
    size = 2 * share * schedule.microbatches
    idle = placing.idle and rank_text(range(*(cuts[end] for end in placing.idle)))
    return spec.replace(
        modules=modules, schedule=schedule, idle_ranks=idle, batch=spec.batch.replace(global_=size)
    )


def _shards(module: ModuleSpec, grid: Grid) -> int | None:
    """Return the replicas of a copy on a smaller grid: several, if there were several."""
    if module.shard_over is None or not module.fsdp.replicate:
        return None
    fewer = [n for n in divisors(grid.dp) if n < grid.dp and n <= module.shard_over]
    return fewer[-1] if fewer else None


def _regrid_model(module: ModuleSpec, grid: Grid) -> object:
    """Return the model with key/value heads and groups of heads shared as before."""
    model = module.model
    for (*section, last), kv_heads in kind_of(model).cuts.kv_heads.items():
        if kv_heads < module.grid.tp:
            update: dict[str, object] = {last: kv_heads_on(kv_heads, module.grid, grid)}
            for key in section:
                update = {key: getattr(model, key).replace(**update)}
            model = model.replace(**update)
    for key, sizes in kind_of(model).recurrent.items():
        # Whether tp ranks, and cp ranks inside each of them, share a group or have several.
        old, groups = module.grid, 1
        if sizes.groups >= old.tp:
            local = sizes.groups // old.tp
            groups = grid.tp * (grid.cp * min(2, local // old.cp) if local >= old.cp else 1)
        model = model.replace(**{key: sizes.with_groups(groups)})
    return model
