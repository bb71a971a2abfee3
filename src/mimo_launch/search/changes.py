"""A change to a spec: another layout of the same models and batch, and how to describe it.

Decides: what a change is, the order of its settings, and the words for each of them. They name
everything that it writes into a spec, so that no line is a surprise.
Relies on: `spec.load` to apply settings to a spec; the changed spec for what a setting means there.
Leaves: which changes there are to `moves`.

Models, data and batch stay as they are, so a step computes the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted, listed, named_ranks, sizes_text
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.samples import runs_in_phases
from mimo_launch.layout.space import OF_MODULE, Point
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.editing import merge
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import ExpertGrid, Spec

# By dotted path, as `--set` takes it.
Settings = Mapping[str, Any]
# The kind of a change to a smaller number of ranks.
FEWER = "fewer GPUs"
_OFFLOADED = {"activations": "activations", "optimizer": "moments"}
# Words for a setting of modules, from its value and their names.
_OF_MODULES: dict[str, Callable[[Any, str], str]] = {
    "recompute": lambda value, names: (
        {"full": f"recompute {names}", "none": f"no recomputing of {names}"}[value]
        if isinstance(value, str)
        else f"recompute {listed(value)} of {names}"
    ),
    "offload": lambda value, names: (
        f"keep {listed([_OFFLOADED[each] for each in value])} of {names} on the host"
        if value
        else f"keep nothing of {names} on the host"
    ),
    "sequence_parallel": lambda value, names: (
        f"{'' if value else 'no '}sequence parallelism of {names}"
    ),
    "sharding": lambda value, names: f"sharding {value} for {names}",
    "shard_over": lambda value, names: (
        f"shard {names} over {f'each {value} replicas' if value else 'all replicas'}"
    ),
    "stages": lambda value, names: (
        f"cut {names} into stages of {'equal size' if value is None else _layers(value)}"
    ),
    "order": lambda value, names: f"order {', '.join(value)} for {names}",
    "balance": lambda value, names: f"balance {value} for {names}",
    "fp8": lambda value, names: (
        f"compute {names} in FP8 with Transformer Engine"
        if value is not None
        else f"compute {names} in bf16 with torch's layers"
    ),
}


@frozen
class Change:
    """A changed spec; `kind` is what is changed first, `settings` all that differs."""

    kind: str
    settings: Settings
    spec: Spec

    @property
    def text(self) -> str:
        """The changes in words."""
        words = [self._words_of_ranks(), self._words_of_modules(), self._words_of_step()]
        if "data.packing" in self.settings:
            words.insert(0, iter(["pack records into sequences"]))
        return ", ".join(word for part in words for word in part)

    def _words_of_ranks(self) -> Iterator[str]:
        modules = self.spec.modules
        if self.kind == FEWER:
            yield f"use {counted(world_size(self.spec), 'GPU')}"
        if any(path.endswith(".ranks") for path in self.settings):
            own, found = self.spec.language.rank_range, dict[range, list[str]]()
            for name, module in modules.items():
                found.setdefault(module.rank_range, []).append(name)
            world = world_size(self.spec)
            ways = {ranks: listed(names) for ranks, names in found.items()}
            others = [ranks for ranks in found if ranks != own]
            if not others:
                yield f"run all modules on {'all ranks' if len(own) == world else named_ranks(own)}"
            elif len(others) == 1 and _are_apart(others[0], own):
                number = counted(len(others[0]), "rank")
                each = "their own" if len(found[others[0]]) > 1 else "its own"
                yield f"give {ways[others[0]]} {number} of {each} and {ways[own]} {len(own):,}"
            else:
                yield "run " + listed([f"{ways[each]} on {named_ranks(each)}" for each in found])
        if "idle_ranks" in self.settings:
            yield "leave no rank idle"

    def _words_of_modules(self) -> Iterator[str]:
        modules = self.spec.modules
        grids = []
        for name in self._modules_with("grid"):
            grid = modules[name].grid
            sizes = {axis: getattr(grid, axis) for axis in (Axis.TP, Axis.CP, Axis.PP, Axis.DP)}
            grids.append(f"{name} by {sizes_text(sizes)}")
        if grids:
            yield f"cut {listed(grids)}"
        for name in self._modules_with("experts"):
            experts = (modules[name].experts or ExpertGrid()).model_dump()
            is_split = any(size > 1 for size in experts.values())
            split = f"split the experts of {name} by {sizes_text(experts)}"
            yield split if is_split else f"keep all experts of {name} on each rank"
        for key, words in _OF_MODULES.items():
            values: dict[Any, list[str]] = {}
            for name in self._modules_with(key):
                values.setdefault(getattr(modules[name], key), []).append(name)
            for value, names in values.items():
                yield words(value, listed(names))

    def _modules_with(self, key: str) -> list[str]:
        """Return the modules with a new value of a key."""
        return [name for name in self.spec.modules if f"modules.{name}.{key}" in self.settings]

    def _words_of_step(self) -> Iterator[str]:
        spec, settings, own = self.spec, self.settings, self.spec.schedule
        if "train.precision" in settings:
            yield f"compute in {spec.train.precision}"
        stages = f"{own.virtual_stages} stage{'s' * (own.virtual_stages > 1)} a rank"
        if "schedule.kind" in settings:
            has_stages = "schedule.virtual_stages" in settings
            yield f"schedule {own.kind}" + f" with {stages}" * has_stages
        elif "schedule.virtual_stages" in settings:
            yield stages
        if "schedule.microbatches" in settings:
            size = spec.batch.global_ // (spec.language.grid.dp * own.microbatches)
            yield f"run {counted(own.microbatches, 'microbatch')} of {counted(size, 'sample')}"
        if "schedule.encoder_microbatches" in settings:
            at_once = own.encoder_microbatches
            if at_once is None and any(runs_in_phases(spec, name) for name in spec.encoders):
                yield "encode all microbatches at once"
            else:
                yield f"encode {counted(at_once or 1, 'microbatch')} at once"
        if "schedule.generator_microbatches" in settings:
            at_once = own.generator_microbatches
            yield f"run generators on {counted(at_once or 1, 'microbatch')} at once"


def _layers(sizes: Sequence[int]) -> str:
    return f"{listed([str(each) for each in sizes])} layers"


def _are_apart(one: range, other: range) -> bool:
    return one.stop <= other.start or other.stop <= one.start


def setting_at(data: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the part of the data of a spec that holds a setting, and its key there."""
    *keys, last = path.split(".")
    for key in keys:
        data = data[key]
    return data, last


def with_settings(data: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the data of a spec with other settings; None stands for a default, without a key."""
    made = deepcopy(data)
    for path, value in settings.items():
        place, last = setting_at(made, path)
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return made


def changed(spec: Spec, kind: str, settings: Settings) -> Change | None:
    """Return a spec with other settings; None if the result is not a spec, or they change nothing.

    In a grid, keys that `settings` do not name stay as they are.
    """
    data = dump_spec(spec)
    # Models stay as they are. One that is the same object is neither read nor compared again.
    for name, module in spec.modules.items():
        data["modules"][name]["model"] = module.model
    different: dict[str, Any] = {}
    for path, value in settings.items():
        place, last = setting_at(data, path)
        before, after = place.get(last), merge(place.get(last), value)
        if before != after:
            place[last], different[path] = after, _sizes(before, after)
    # In the order of the file.
    sections = [*(f"modules.{name}" for name in spec.modules), *data]
    ordered = sorted(different, key=lambda path: sections.index(_section(path)))
    settings = {path: different[path] for path in ordered}
    try:
        return Change(kind, settings, spec_from_data(data)) if different else None
    except ValueError:
        return None


def _sizes(before: Any, after: Any) -> Any:
    """Return what a setting becomes; of a section, the values that are, or were, no default.

    The default of a size of a grid is 1, that of others None.
    """
    if not isinstance(after, dict):
        return after
    before = before or {}
    return {key: value for key, value in after.items() if {value, before.get(key)} - {1, None}}


def kind_between(before: Spec, after: Spec) -> str:
    """Return what a changed spec changes first: numbers, GPUs, ranks, a grid or a setting."""
    one, other = Point.of(before), Point.of(after)
    names = sorted(one.places, key=lambda name: name != LANGUAGE)

    def differ(key: str) -> list[str]:
        places = ((name, one.places[name], other.places[name]) for name in names)
        return [name for name, *both in places if getattr(both[0], key) != getattr(both[1], key)]

    kinds = {
        "precision": before.train.precision != after.train.precision,
        FEWER: world_size(before) > world_size(after),
        "placement": differ("ranks"),
        f"grid of {(differ('grid') or names)[0]}": differ("grid"),
        "schedule": (one.kind, one.virtual_stages) != (other.kind, other.virtual_stages),
        "microbatches": one.microbatches != other.microbatches,
        "encoder_microbatches": one.at_once != other.at_once,
        "generator_microbatches": one.drawn_at_once != other.drawn_at_once,
        **{key: differ(key) for key in OF_MODULE if key != "grid"},
    }
    return next((kind for kind, is_changed in kinds.items() if is_changed), "settings")


def _section(path: str) -> str:
    return ".".join(path.split(".")[: 2 if path.startswith("modules.") else 1])
