"""The first placement of given models on a number of GPUs: by a simple rule, or a better one.

Decides: the rule. All modules share all ranks. The language model gets the smallest tp * pp that
fits into memory, tp before pp, and dp for the rest; an encoder is data parallel. A step has the
fewest microbatches that fit, four per pipeline stage at least; encoders work on all of them
together if that fits. If nothing fits, activations are recomputed; then experts are split over the
ranks of a host; then the weights of language are fully sharded. Another placement is better if the
memory of a GPU is known and the estimates say so, or if nothing fits by the rule.
Relies on: `checks` for what is legal and fits, `advice` for other placements, settings and their
estimates.
Leaves: the models and the data of a spec to `cli.init_draft`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from mimo_launch.checks.all_checks import check, is_legal
from mimo_launch.checks.memory import fits, memory_findings
from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Placement, Point, divisors, legal_grids, microbatch_numbers
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import Changes
from mimo_launch.search.changes import FEWER, with_settings
from mimo_launch.search.placements import MICROBATCHES_PER_STAGE
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec

# A spec that is not the simplest must be faster by more than estimates are wrong.
LEAST_GAIN = 0.1


class NothingFits(Exception):
    """No layout of the rule is legal and small enough.

    The message is about the last layout that is only too large, or else about the rule that the
    first one breaks; `help` says what to do. `too_large` is that last layout.
    """

    def __init__(self, message: str, help_: str, too_large: Point | None = None) -> None:
        super().__init__(message)
        self.help, self.too_large = help_, too_large


def placed(data: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return the data of a spec without any placement, with this point."""
    return with_settings({"schedule": {}, **data}, point.settings())


def on_all_ranks(
    modules: Iterable[str], grid: Grid, *, microbatches: int = 1, **more: Any
) -> Point:
    """Return the point with all modules on all ranks: language on a grid, the others by dp."""
    ranks = range(grid.num_ranks)
    places = {name: Placement(ranks=ranks, grid=Grid(dp=len(ranks))) for name in modules}
    places[LANGUAGE] = Placement(ranks=ranks, grid=grid)
    return Point(places=places, microbatches=microbatches, **more)


def choose(data: Mapping[str, Any], num_ranks: int) -> Point:
    """Return the first layout that fits, for the data of a spec without any placement.

    Its section `nodes` gives the ranks per host and the memory of a GPU. Raises: NothingFits;
    ValueError if the data are no spec, whatever the layout.
    """
    # Weights to start from do not change what fits, and looking at them takes time.
    modules = {name: {**each, "init_from": None} for name, each in data["modules"].items()}
    bare = {**data, "modules": modules}
    illegal: Spec | None = None
    too_large: Point | None = None
    job: Estimator | None = None
    simplest = spec_from_data(placed(bare, on_all_ranks(modules, Grid(dp=num_ranks))))
    for point in _points(simplest):
        spec = spec_from_data(placed(bare, point))
        if not is_legal(spec):
            illegal = illegal or spec
            continue
        # Layouts share what is known of their stages.
        job = job.on(Plan.of(spec)) if job else Estimator.of(Plan.of(spec))
        if fits(job):
            return point
        too_large = point
    if job is not None:
        last = next(memory_findings(job))
    elif illegal is not None:
        last = next(each for each in check(illegal) if each.is_error and not each.is_absence)
    else:
        raise NothingFits(
            f"no number of replicas divides {data['batch']['global']} samples",
            f"take a batch that {num_ranks} ranks divide",
        )
    raise NothingFits(f"{last.headline}: {last.why}", last.help, too_large)


def _points(spec: Spec) -> Iterator[Point]:
    """Yield layouts in the order of preference, legal or not; `spec` has all modules on all ranks.

    A smaller tp * pp comes first, then a larger tp; tp and ep stay on a host.
    """
    num_ranks, model = world_size(spec), spec.language.model
    per_host = spec.nodes.gpus if spec.nodes else num_ranks
    grids = legal_grids(spec, LANGUAGE, num_ranks)
    grids = [grid for grid in grids if grid.cp == 1 and model.layers % grid.pp == 0]
    grids.sort(key=lambda grid: (grid.tp * grid.pp, -grid.tp))
    moe = kind_of(model).moe
    ways = [n for n in divisors(moe.experts if moe else 1) if per_host % n == 0]
    for full, ep, recompute, grid in product((False, True), ways, (False, True), grids):
        legal = microbatch_numbers(spec, grid)
        least = min(legal[-1], MICROBATCHES_PER_STAGE * grid.pp if grid.pp > 1 else 1)
        for number in (each for each in legal if each >= least):
            groups: list[int | None] = [None]
            groups += divisors(number)[-2::-1] if spec.encoders and number > 1 else []
            for at_once in groups:
                point = on_all_ranks(spec.modules, grid, microbatches=number, at_once=at_once)
                yield _lighter(point, ep=ep, full_sharding=full, recompute=recompute)


def _lighter(point: Point, *, ep: int, full_sharding: bool, recompute: bool) -> Point:
    """Return a point with settings that need less memory."""
    places = dict(point.places)
    places[LANGUAGE] = replace(
        places[LANGUAGE],
        experts=ExpertGrid(ep=ep) if ep > 1 else None,
        sharding="full" if full_sharding else None,
    )
    if recompute:
        places = {name: replace(place, recompute="full") for name, place in places.items()}
    return replace(point, places=places)


@frozen(kw_only=True)
class FirstSpec:
    """The data of a spec, the best of `compared` ones.

    `changes` says in words what differs from the rule, and is empty if nothing does. `gain` is how
    much faster that is, None if nothing fits by the rule.
    """

    data: dict[str, Any]
    compared: int
    changes: str = ""
    gain: float | None = None


def first_spec(data: Mapping[str, Any], num_ranks: int) -> FirstSpec:
    """Return the data of a spec with ranks, grids and a schedule.

    `data` have none of them. Encoders may get ranks of their own, or all modules share all ranks.
    Raises: NothingFits; ValueError if the data are no spec, whatever the layout.
    """
    try:
        layout = choose(data, num_ranks)
    except NothingFits as error:
        fitting = _better(data, error.too_large, rule_fits=False) if error.too_large else None
        if fitting is None:
            raise
        return fitting
    knows_memory = not {"gpu", "gpu_memory"}.isdisjoint(data.get("nodes") or {})
    found = _better(data, layout, rule_fits=True) if num_ranks > 1 and knows_memory else None
    return found or FirstSpec(data=placed(data, layout), compared=1)


def _better(data: Mapping[str, Any], layout: Point, *, rule_fits: bool) -> FirstSpec | None:
    """Return a spec that is faster than a layout, or that fits if the layout does not."""
    base = Estimator.of(Plan.of(spec_from_data(placed(data, layout))))
    estimates = base.estimates()
    if estimates.gpu_memory is None:
        return None
    # As in `plan`, layouts are compared in one step of the run.
    brief = base.brief
    search = Changes.of(brief, brief.estimates(), estimates.gpu_memory)
    # A layout must not choose what is computed, such as its precision, nor leave GPUs out.
    found = [
        each
        for each in (search.run() if rule_fits else search.that_fit())
        if not any(path.startswith("train.") for path in each.change.settings)
        and each.change.kind != FEWER
        and not (rule_fits and search.gain(each) < LEAST_GAIN)
    ]
    # The largest steps of another layout may be others.
    simplest = map(search.simplest, found)
    best = next((each for each in simplest if fits(base.on(Plan.of(each.change.spec)))), None)
    if best is None:
        return None
    return FirstSpec(
        data=with_settings(placed(data, layout), best.change.settings),
        changes=best.change.text,
        gain=estimates.step_seconds / _seconds(base, best.change.spec) - 1 if rule_fits else None,
        compared=1 + search.search.compared,
    )


def _seconds(base: Estimator, spec: Spec) -> float:
    return base.on(Plan.of(spec)).estimates().step_seconds
