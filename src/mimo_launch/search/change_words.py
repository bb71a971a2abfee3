"""Says in words what a change writes into a spec: all of it, so that no line is a surprise.

Decides: the words for each setting, and their order.
Relies on: the changed spec for what a setting means there.
Leaves: which settings change to `changes`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mimo_launch.diag.quantities import listed, num_ranks_text, sizes_text
from mimo_launch.layout.samples import runs_in_phases
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ExpertGrid, Spec

# By dotted path, as `--set` takes it.
Settings = Mapping[str, Any]


def words_of(spec: Spec, settings: Settings) -> str:
    """Return in words the settings that make a spec what it is now."""
    return ", ".join(_parts(spec, settings))


def _parts(spec: Spec, settings: Settings) -> Iterator[str]:
    if any(path.endswith(".ranks") for path in settings):
        yield _placement(spec)
    if "idle_ranks" in settings:
        yield "leave no rank idle"
    grids = [f"{name} by {_axes(spec, name)}" for name in _set(spec, settings, "grid")]
    if grids:
        yield f"cut {listed(grids)}"
    for name in _set(spec, settings, "experts"):
        sizes = (spec.modules[name].experts or ExpertGrid()).model_dump()
        is_split = any(size > 1 for size in sizes.values())
        split = f"split the experts of {name} by {sizes_text(sizes)}"
        yield split if is_split else f"keep all experts of {name} on each rank"
    for key, words in _OF_MODULES.items():
        values: dict[Any, list[str]] = {}
        for name in _set(spec, settings, key):
            values.setdefault(getattr(spec.modules[name], key), []).append(name)
        for value, names in values.items():
            yield words(value, listed(names))
    if "train.precision" in settings:
        yield f"compute in {spec.train.precision}"
    yield from _schedule(spec, settings)


# What is said of a setting of modules: of its value, and their names.
_OF_MODULES: dict[str, Callable[[Any, str], str]] = {
    "recompute": lambda value, names: (
        f"recompute {names}" if value == "full" else f"no recomputing of {names}"
    ),
    "sequence_parallel": lambda value, names: (
        f"{'' if value else 'no '}sequence parallelism of {names}"
    ),
    "sharding": lambda value, names: f"sharding {value} for {names}",
}


def _set(spec: Spec, settings: Settings, key: str) -> list[str]:
    """Return the modules of which a key is set."""
    return [name for name in spec.modules if f"modules.{name}.{key}" in settings]


def _placement(spec: Spec) -> str:
    own = spec.language.rank_range
    others = [name for name in spec.modules if name != LANGUAGE]
    apart = [name for name in others if spec.modules[name].rank_range != own]
    if not apart:
        return "run all modules on all ranks"
    number = num_ranks_text(len(spec.modules[apart[0]].rank_range))
    rest = listed([name for name in (LANGUAGE, *others) if name not in apart])
    each = "their own" if len(apart) > 1 else "its own"
    return f"give {listed(apart)} {number} of {each} and {rest} {len(own):,}"


def _axes(spec: Spec, name: str) -> str:
    grid = spec.modules[name].grid
    return sizes_text({axis: getattr(grid, axis) for axis in ("tp", "cp", "pp", "dp")})


def _schedule(spec: Spec, settings: Settings) -> Iterator[str]:
    own = spec.schedule
    stages = f"{own.virtual_stages} stage{'s' * (own.virtual_stages > 1)} a rank"
    if "schedule.kind" in settings:
        has_stages = "schedule.virtual_stages" in settings
        yield f"schedule {own.kind}" + f" with {stages}" * has_stages
    elif "schedule.virtual_stages" in settings:
        yield stages
    if "schedule.microbatches" in settings:
        size = spec.batch.global_ // (spec.language.grid.dp * own.microbatches)
        yield f"run {_counted(own.microbatches)} of {size} sample{'s' * (size != 1)}"
    if "schedule.encoder_microbatches" in settings:
        at_once = own.encoder_microbatches
        if at_once is None and any(runs_in_phases(spec, name) for name in spec.encoders):
            yield "encode all microbatches at once"
        else:
            yield f"encode {_counted(at_once or 1)} at once"


def _counted(number: int) -> str:
    return f"{number} microbatch{'es' * (number != 1)}"
