"""Where the time of a step goes, and what of it is lost.

Decides: what counts as a loss, its words, and which losses are too small to be mentioned.
Relies on: the rows of `estimate.estimates`, and nothing else, so that all numbers agree.
Leaves: what to do about a loss to `advice`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mimo_launch.diag.quantities import listed, named_ranks, percent, sizes_text
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.rows import Estimates, RankEstimate, StageEstimate
from mimo_launch.spec.spec import ExpertGrid, ModuleSpec, Spec

# Losses of a smaller share of all GPU time are not mentioned.
LEAST = 0.01
# A loss is said of the modules, and the kinds of data, that have this share of its largest part.
LEAST_PART = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Seconds of a step, mean over all ranks: `computing` without `communicating`.

    `waiting` is for others and for transfers, and all the time of idle ranks; `updating` has all
    that follows the schedule. The parts of `communicating`: `between_layers` over tp and cp,
    `of_experts` for their tokens, `of_replicas` for weights and gradients. Parts of `computing`:
    in `recomputing` forwards run again, in `starting` kernels wait for the host to start them.
    """

    computing: float
    waiting: float
    communicating: float
    updating: float
    between_layers: float
    of_experts: float
    of_replicas: float
    recomputing: float
    starting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Time that ranks lose: `share` of the step on each of them, `of_all` of all GPU time."""

    kind: str
    modules: tuple[str, ...]
    ranks: tuple[int, ...]
    share: float
    of_all: float
    text: str


# By the fields of `TimeShares`, the share of a step on a class of ranks that holds modules.
SHARES: dict[str, Callable[[RankEstimate], float]] = {
    "computing": lambda row: row.computing - row.communicating,
    "communicating": lambda row: row.communicating + row.reducing,
    "waiting": lambda row: row.waiting,
    "updating": lambda row: row.updating,
}
# The parts of `communicating`, and of what one stage has of it.
EXCHANGES: dict[str, Callable[[RankEstimate | StageEstimate], float]] = {
    "between_layers": lambda row: row.communicating - row.all_to_all - row.sharding,
    "of_experts": lambda row: row.all_to_all,
    "of_replicas": lambda row: row.sharding + row.reducing,
}
# What is exchanged, and the axes over which.
_EXCHANGED = {
    "between_layers": ("activations", ("tp", "cp")),
    "of_experts": ("tokens of experts", ("ep",)),
    "of_replicas": ("weights and gradients", ("dp",)),
}


def time_shares(estimates: Estimates, world_size: int) -> TimeShares:
    """Return where the time of a step goes."""
    seconds = estimates.step_seconds
    shares: dict[str, Callable[[RankEstimate], float]] = {
        **SHARES,
        **EXCHANGES,
        "recomputing": lambda row: row.recomputing,
        "starting": lambda row: row.starting,
    }
    found = {
        name: seconds * sum(len(row.ranks) * share(row) for row in estimates.ranks) / world_size
        for name, share in shares.items()
    }
    idle = 1 - sum(len(row.ranks) for row in estimates.ranks) / world_size
    found["waiting"] += seconds * idle
    return TimeShares(**found)


def wastes(spec: Spec, estimates: Estimates, constants: Calibration, world: int) -> list[Waste]:
    """Return what is lost in a step, the largest loss first."""
    found: list[Waste] = []
    groups = rows_by_modules(estimates)
    kinds = [
        (modules, rows, kind)
        for modules, rows in groups.items()
        for kind in _kinds(spec, modules, groups)
    ]
    kinds += [
        (tuple(spec.modules), list(estimates.ranks), each) for each in _of_all(spec, constants)
    ]
    for modules, alike, (kind, share, text) in kinds:
        ranks = tuple(sorted(rank for row in alike for rank in row.ranks))
        mean = _mean(alike, share)
        of_all = mean * len(ranks) / world
        if of_all >= LEAST:
            said = f"{text} {percent(mean)} on {gpus_text(ranks)}"
            found.append(
                Waste(kind=kind, modules=modules, ranks=ranks, share=mean, of_all=of_all, text=said)
            )
    idle = tuple(sorted(set(range(world)).difference(*(row.ranks for row in estimates.ranks))))
    if len(idle) >= LEAST * world:
        text = f"{named_ranks(idle)} hold{'s' * (len(idle) == 1)} no module: {gpus_text(idle)}"
        one = Waste(
            kind="idle", modules=(), ranks=idle, share=1.0, of_all=len(idle) / world, text=text
        )
        found.append(one)
    return sorted(found, key=lambda each: -each.of_all)


_Key = TypeVar("_Key")
# A kind of loss, its share on a class of ranks, and its words.
_Kind = tuple[str, Callable[[RankEstimate], float], str]


def _kinds(
    spec: Spec, modules: Sequence[str], groups: Mapping[tuple[str, ...], list[RankEstimate]]
) -> Iterator[_Kind]:
    """Yield what ranks with some modules can lose."""
    rows = groups[tuple(modules)]
    yield "waits", SHARES["waiting"], _waiting(spec, modules, groups)
    yield "communicates", SHARES["communicating"], _exchanging(spec, modules, rows)
    again = {name: _of_module(rows, name, lambda stage: stage.recomputing) for name in modules}
    text = f"{_does(_largest(again), 'compute')} forwards again"
    yield "recomputes", lambda row: row.recomputing, text
    its = "its" if len(modules) == 1 else "their"
    text = f"{_does(modules, 'wait')} for {its} hosts to start kernels"
    yield "starts", lambda row: row.starting, text


def _waiting(
    spec: Spec, modules: Sequence[str], groups: Mapping[tuple[str, ...], list[RankEstimate]]
) -> str:
    """Say that modules wait, and for what: for ranks that wait less, or in a pipeline."""
    means = {names: _mean(rows, SHARES["waiting"]) for names, rows in groups.items()}
    least = min(means, key=lambda names: means[names])
    text = _does(modules, "wait")
    if means[least] < means[tuple(modules)] / 2:
        return f"{text} for {listed(least)}"
    deep = {name: spec.modules[name].grid.pp for name in modules if spec.modules[name].grid.pp > 1}
    if not deep:
        return text
    of = "its pipeline" if list(deep) == list(modules) else f"the pipeline of {listed(list(deep))}"
    return f"{text} in {of} (pp {max(deep.values())})"


def _exchanging(spec: Spec, modules: Sequence[str], rows: Sequence[RankEstimate]) -> str:
    """Say which modules exchange what, and over which axes."""
    parts = {
        (name, kind): _of_module(rows, name, share)
        for name in modules
        for kind, share in EXCHANGES.items()
    }
    most = _largest(parts)
    names = [name for name in modules if any(name == each for each, _ in most)]
    whats = []
    for kind in dict.fromkeys(kind for _, kind in sorted(most, key=lambda key: -parts[key])):
        what, axes = _EXCHANGED[kind]
        whose = [spec.modules[name] for name, each in most if each == kind]
        sizes = {axis: max(_size(module, axis) for module in whose) for axis in axes}
        whats.append(f"{what} ({sizes_text(sizes)})")
    return f"{_does(names, 'exchange')} {listed(whats)}"


def _size(module: ModuleSpec, axis: str) -> int:
    experts = module.experts or ExpertGrid()
    return experts.ep if axis == "ep" else int(getattr(module.grid, axis))


def _mean(rows: Sequence[RankEstimate], share: Callable[[RankEstimate], float]) -> float:
    """Return the mean of a share over all ranks of some classes."""
    return sum(len(row.ranks) * share(row) for row in rows) / sum(len(row.ranks) for row in rows)


def _of_module(
    rows: Sequence[RankEstimate], name: str, share: Callable[[StageEstimate], float]
) -> float:
    """Return the mean over ranks of a share that the stages of one module have."""
    return _mean(rows, lambda row: sum(share(each) for each in row.stages if each.module == name))


def _largest(parts: Mapping[_Key, float]) -> list[_Key]:
    """Return the keys of the largest parts."""
    least = LEAST_PART * max(parts.values())
    return [key for key, part in parts.items() if part >= least]


def _does(names: Sequence[str], verb: str) -> str:
    return f"{listed(names)} {verb}{'s' * (len(names) == 1)}"


def _of_all(spec: Spec, constants: Calibration) -> Iterator[_Kind]:
    """Yield what all ranks can lose for the same reason."""
    yield "updates", SHARES["updating"], "the update and the end of a step take"
    precision = spec.train.precision
    speed = {"fp32": constants.fp32_speed, "fp64": constants.fp64_speed}.get(precision)
    if speed is not None:

        def slower(row: RankEstimate) -> float:
            products = SHARES["computing"](row) - row.recomputing - row.starting
            return max(0.0, products) * (1 - speed)

        yield "precision", slower, f"{precision} instead of bf16 takes"


def modules_of(row: RankEstimate) -> tuple[str, ...]:
    """Return the modules of a class of ranks."""
    return tuple(dict.fromkeys(stage.module for stage in row.stages))


def rows_by_modules(estimates: Estimates) -> dict[tuple[str, ...], list[RankEstimate]]:
    """Return the classes of ranks by their modules, in the order of the first rank."""
    found: dict[tuple[str, ...], list[RankEstimate]] = {}
    for row in estimates.ranks:
        found.setdefault(modules_of(row), []).append(row)
    return found


def gpus_text(ranks: Sequence[int]) -> str:
    """Return a number of ranks as GPUs."""
    return f"{len(ranks):,} GPU{'s' * (len(ranks) != 1)}"
