"""Changes to a spec that may make its steps faster: other layouts of the same models and batch.

Decides: which changes are tried, in which order, and their words.
Relies on: the spec alone, and on the GPU time of each module.
Leaves: what is legal to `checks`, whether a change fits and what it gains to `advice`.

Models, data, batch and number of ranks stay as they are, so a step computes the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from mimo_launch.checks.grids import grids_of
from mimo_launch.checks.rule import divisors, show_ranks
from mimo_launch.diag.quantities import sizes_text
from mimo_launch.layout.encoder_placement import runs_in_phases
from mimo_launch.layout.layout import world_size
from mimo_launch.search.first_layout import MICROBATCHES_PER_STAGE
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import Grid, Spec

_MAX_GRIDS = 6

# By dotted path, as `--set` takes it.
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed spec; `kind` is what is changed first, `settings` all that differs.

    `texts` has the words of each step, by the settings that it is about.
    """

    kind: str
    texts: Mapping[tuple[str, ...], str]
    settings: Settings
    spec: Spec

    @property
    def text(self) -> str:
        """What is changed, in words; nothing about settings that are as before."""
        shown = (
            text for paths, text in self.texts.items() if not self.settings.keys().isdisjoint(paths)
        )
        return ", ".join(shown)


def changed(
    spec: Spec, kind: str, texts: Mapping[tuple[str, ...], str], settings: Settings
) -> Change | None:
    """Return a spec with other settings; None if they are no spec, or change nothing."""
    data = dump_spec(spec)
    different: dict[str, Any] = {}
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = data
        for key in keys:
            place = place[key]
        if place.get(last) != value:
            different[path] = place[last] = value
    # In the order of the file.
    sections = [*(f"modules.{name}" for name in spec.modules), *data]
    place_of = {name: place for place, name in enumerate(sections)}
    settings = {
        path: different[path]
        for path in sorted(different, key=lambda path: place_of[_section(path)])
    }
    try:
        return Change(kind, texts, settings, spec_from_data(data)) if different else None
    except ValueError:
        return None


def _section(path: str) -> str:
    return ".".join(path.split(".")[: 2 if path.startswith("modules.") else 1])


def first_changes(spec: Spec, work: Mapping[str, float]) -> Iterator[Change]:
    """Yield changes of one idea each, in turn placements, settings and grids.

    `work` is the GPU time of each module in a step.
    """
    in_turn = zip_longest(_placements(spec, work), _settings(spec), _grids(spec))
    for kind, text, settings in filter(None, chain.from_iterable(in_turn)):
        if found := changed(spec, kind, {tuple(settings): text}, settings):
            yield found


def further_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with one more setting each."""
    for _, text, settings in _settings(first.spec):
        both = {**first.settings, **settings}
        texts = {**first.texts, tuple(settings): text}
        if found := changed(spec, first.kind, texts, both):
            yield found


def smaller_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with settings that need less memory, those that cost least first."""
    own, settings = first.spec, dict(first.settings)
    share = own.batch.global_ // own.language.grid.dp
    least = min(share, 4 * own.schedule.microbatches)
    number = next(each for each in divisors(share) if each >= least)
    steps: list[Settings] = [{"schedule.microbatches": number}]
    if own.language.grid.tp > 1:
        steps.append({f"modules.{LANGUAGE}.sequence_parallel": True})
    if any(runs_in_phases(own, name) for name in own.encoders):
        steps.append({"schedule.encoder_microbatches": own.language.grid.pp})
    steps.append({f"modules.{name}.recompute": "full" for name in own.modules})
    for step in steps:
        settings |= step
        if found := changed(spec, first.kind, first.texts, settings):
            yield found


def _settings(spec: Spec) -> Iterator[tuple[str, str, Settings]]:
    """Yield other settings of the same grids: their kind, their words, themselves."""
    if spec.train.precision != "bf16":
        yield "precision", "compute in bf16", {"train.precision": "bf16"}
    for name, module in spec.modules.items():
        if module.recompute != "none":
            yield "recompute", f"no recomputing of {name}", {f"modules.{name}.recompute": "none"}
    yield from _schedules(spec)
    for name, module in spec.modules.items():
        for other in ("optimizer", "full"):
            if module.sharding != other:
                text = f"sharding {other} for {name}"
                yield "sharding", text, {f"modules.{name}.sharding": other}


def _schedules(spec: Spec) -> Iterator[tuple[str, str, Settings]]:
    """Yield other numbers of microbatches, and other orders of their work."""
    schedule, language = spec.schedule, spec.language
    share, own = spec.batch.global_ // language.grid.dp, schedule.microbatches
    legal = divisors(share)
    wanted = (2 * own, own // 2, share, 4 * own, MICROBATCHES_PER_STAGE * language.grid.pp, 1)
    near = (min(legal, key=lambda each: (abs(each - number), each)) for number in wanted)
    for number in dict.fromkeys(near):
        if number != own:
            many = "es" * (number > 1)
            text = f"run {number} microbatch{many} of {_samples(share // number)}"
            yield "microbatches", text, {"schedule.microbatches": number}
    if _in_phases(spec):
        for at_once in (None, language.grid.pp):
            text = f"encode {at_once or 'all'} microbatch{'es' * (at_once != 1)} at once"
            yield "encoder_microbatches", text, {"schedule.encoder_microbatches": at_once}
    if language.grid.pp > 1:
        kinds = {"1f1b": 1, "interleaved": 2, "bubble_filling": 1}
        for kind, virtual in kinds.items():
            if kind != schedule.kind and (kind != "bubble_filling" or _in_phases(spec)):
                text = f"schedule {kind}" + f" with {virtual} stages a rank" * (virtual > 1)
                yield "schedule", text, {"schedule.kind": kind, "schedule.virtual_stages": virtual}


def _in_phases(spec: Spec) -> bool:
    return any(runs_in_phases(spec, name) for name in spec.encoders)


def _grids(spec: Spec) -> Iterator[tuple[str, str, Settings]]:
    """Yield other grids of one module on its own ranks."""
    for name, module in spec.modules.items():
        for grid in grids_on(spec, name, len(module.rank_range)):
            shape = {axis: getattr(grid, axis) for axis in ("tp", "pp", "cp", "dp")}
            settings: dict[str, Any] = {f"modules.{name}.grid": grid.model_dump()}
            if name == LANGUAGE:
                settings |= _microbatches(spec, grid, behind=not _in_phases(spec))
            yield f"grid of {name}", f"cut {name} by {sizes_text(shape)}", settings


def _placements(spec: Spec, work: Mapping[str, float]) -> Iterator[tuple[str, str, Settings]]:
    """Yield other ranks of modules: all of them on all ranks, or encoders on ranks of their own."""
    others = [name for name in spec.modules if name != LANGUAGE]
    world = world_size(spec)
    if not others:
        return
    if any(len(module.rank_range) < world for module in spec.modules.values()):
        for grid in (*_as_now(spec, world), *grids_on(spec, LANGUAGE, world)):
            settings = _microbatches(spec, grid, behind=False)
            at_once = spec.batch.global_
            placed = {name: (range(world), LANGUAGE, at_once) for name in others}
            found = _placed(spec, {LANGUAGE: grid}, range(world), placed)
            if found is not None:
                yield "placement", "run all modules on all ranks", {**settings, **found}
    if spec.generators or world == 1:
        return
    needed = sum(work.get(name, 0.0) for name in others)
    share = work.get(LANGUAGE, 0.0) / max(1e-12, needed + work.get(LANGUAGE, 0.0))
    for shape in (*_as_now(spec, world), *grids_on(spec, LANGUAGE, world))[:3]:
        unit = shape.tp * shape.pp * shape.cp
        sizes = [n for n in divisors(spec.batch.global_) if n * unit < world]
        sizes.sort(key=lambda n: abs(n * unit - share * world))
        for dp in sizes[:3]:
            grid = shape.model_copy(update={"dp": dp})
            yield from _apart(spec, grid, world, others)


def _apart(
    spec: Spec, grid: Grid, world: int, others: list[str]
) -> Iterator[tuple[str, str, Settings]]:
    """Yield encoders on the ranks that a grid of language leaves."""
    own = grid.num_ranks
    left = world - own
    settings = _microbatches(spec, grid, behind=True)
    at_once = spec.batch.global_ // settings["schedule.microbatches"]
    first = left if left % grid.tp == 0 else 0
    rest = range(left) if first else range(own, world)
    placed = {name: (rest, name, at_once) for name in others}
    found = _placed(spec, {LANGUAGE: grid}, range(first, first + own), placed)
    if found is not None:
        names = " and ".join(others)
        yield "placement", f"give {names} {left} ranks of their own", {**settings, **found}


def _placed(
    spec: Spec,
    grids: Mapping[str, Grid],
    ranks: range,
    others: Mapping[str, tuple[range, str, int]],
) -> dict[str, Any] | None:
    """Return the settings of a placement; None if a module has no grid on its ranks.

    `others` has for each module its ranks, and the samples that it works on at once.
    """
    settings: dict[str, Any] = {"idle_ranks": None}
    for name, grid in grids.items():
        settings[f"modules.{name}.ranks"] = show_ranks(ranks)
        settings[f"modules.{name}.grid"] = grid.model_dump()
    for name, (mine, _, at_once) in others.items():
        module = spec.modules[name].grid
        # As little tp as now, or as much as leaves replicas an equal share of samples.
        unit = module.cp * module.pp
        sizes = [
            tp for tp in divisors(len(mine)) if tp >= module.tp and len(mine) % (tp * unit) == 0
        ]
        fits = [tp for tp in (1, *sizes) if at_once % (len(mine) // (tp * unit) or 1) == 0]
        if not fits or len(mine) % unit:
            return None
        dp = len(mine) // (fits[0] * unit)
        own = Grid(tp=fits[0], cp=module.cp, pp=module.pp, dp=dp)
        settings[f"modules.{name}.ranks"] = show_ranks(mine)
        settings[f"modules.{name}.grid"] = own.model_dump()
    return settings


def _as_now(spec: Spec, num_ranks: int) -> Iterator[Grid]:
    """Yield the grid of language with other replicas on some ranks, if they fit."""
    grid = spec.language.grid
    dp, rest = divmod(num_ranks, grid.tp * grid.cp * grid.pp)
    if rest == 0 and dp and spec.batch.global_ % dp == 0:
        yield grid.model_copy(update={"dp": dp})


def grids_on(spec: Spec, name: str, num_ranks: int) -> list[Grid]:
    """Return other grids of a module on some ranks: those nearest to that of now first."""
    module, per_host = spec.modules[name], spec.nodes.gpus if spec.nodes else num_ranks
    now = module.grid
    found = [
        grid
        for grid in grids_of(num_ranks)
        if grid.cp == now.cp
        and spec.batch.global_ % grid.dp == 0
        and per_host % grid.tp == 0
        and grid.pp <= module.model.layers
        and (grid.tp, grid.pp) != (now.tp, now.pp)
    ]
    found.sort(key=lambda grid: (_apart_by(grid.tp, now.tp) + _apart_by(grid.pp, now.pp), grid.pp))
    return found[:_MAX_GRIDS]


def _apart_by(one: int, other: int) -> float:
    """Return how far apart two sizes are: by what factor, and 1 for none."""
    return max(one, other) / min(one, other)


def _microbatches(spec: Spec, grid: Grid, *, behind: bool) -> dict[str, Any]:
    """Return a number of microbatches for a grid of language; `behind` other ranks' encoders.

    Enough to fill the pipeline, and none larger than now.
    """
    share = spec.batch.global_ // grid.dp
    now = spec.batch.global_ // (spec.language.grid.dp * spec.schedule.microbatches)
    stages = grid.pp + (behind and len(spec.modules) > 1)
    least = max(MICROBATCHES_PER_STAGE * stages if stages > 1 else 1, -(-share // now))
    fits = [number for number in divisors(share) if number >= least] or [share]
    kind = {} if grid.pp > 1 else {"schedule.kind": "1f1b", "schedule.virtual_stages": 1}
    return {"schedule.microbatches": fits[0], "schedule.encoder_microbatches": None, **kind}


def _samples(number: int) -> str:
    return f"{number} sample{'s' * (number != 1)}"
