"""Where the time of a step goes, and which part of it is lost.

Decides: what counts as a loss, its words, and which losses are too small to be mentioned.
Relies on: the rows of `estimate.estimates`, and nothing else, so that all numbers agree.
Leaves: what to do about a loss to `advice`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted, listed, named_ranks, percent, sizes_text
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.rows import Estimates, RankEstimate, StageEstimate
from mimo_launch.layout.layout import Layout
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import ExpertGrid, ModuleSpec, Spec

# Losses of a smaller share of all GPU time are not mentioned.
LEAST = 0.01
# A loss names the modules, and the kinds of data, with this share of its largest part.
LEAST_PART = 0.2


@frozen(kw_only=True)
class TimeShares:
    """Seconds of a step, mean over all ranks: `computing` without `communicating`.

    `waiting` is for others and for transfers, and all the time of idle ranks; in `reading`, a part
    of it, all wait for hosts to describe the next samples. `updating` is all time after the
    schedule. The parts of `communicating`: `between_layers` over tp and cp,
    `of_experts` for their tokens, `of_replicas` for weights and gradients, `with_host` for
    activations that are kept there. Parts of `computing`: in `recomputing` forwards run again, in
    `starting` kernels wait for the host to start them.
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
    reading: float
    with_host: float = 0.0


@frozen(kw_only=True)
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
    "between_layers": lambda row: (
        row.communicating - row.all_to_all - row.sharding - row.offloading
    ),
    "of_experts": lambda row: row.all_to_all,
    "of_replicas": lambda row: row.sharding + row.reducing,
    "with_host": lambda row: row.offloading,
}
# What is exchanged, and the axes over which.
_EXCHANGED: dict[str, tuple[str, tuple[Axis, ...]]] = {
    "between_layers": ("activations", (Axis.TP, Axis.CP)),
    "of_experts": ("tokens of experts", (Axis.EP, Axis.EXPERT_TP)),
    "of_replicas": ("weights and gradients", (Axis.DP, Axis.CP)),
    "with_host": ("activations with the host", ()),
}


def time_shares(estimates: Estimates, world_size: int) -> TimeShares:
    """Return where the time of a step goes."""
    seconds = estimates.step_seconds
    shares: dict[str, Callable[[RankEstimate], float]] = {
        **SHARES,
        **EXCHANGES,
        "recomputing": lambda row: row.recomputing,
        "starting": lambda row: row.starting,
        "reading": lambda row: row.reading,
    }
    found = {
        name: seconds * sum(len(row.ranks) * share(row) for row in estimates.ranks) / world_size
        for name, share in shares.items()
    }
    idle = 1 - sum(len(row.ranks) for row in estimates.ranks) / world_size
    found["waiting"] += seconds * idle
    return TimeShares(**found)


# A kind of loss, its share on a class of ranks, and its words.
_Kind = tuple[str, Callable[[RankEstimate], float], str]
_Key = TypeVar("_Key")


@frozen
class _Holders:
    """Ranks that hold the same modules, by their classes, or all ranks; and what they can lose."""

    spec: Spec
    modules: tuple[str, ...]
    rows: Sequence[RankEstimate]

    def mean(self, share: Callable[[RankEstimate], float]) -> float:
        """Return the mean of a share over all of these ranks."""
        number = sum(len(row.ranks) for row in self.rows)
        return sum(len(row.ranks) * share(row) for row in self.rows) / number

    def mean_of(self, module: str, share: Callable[[StageEstimate], float]) -> float:
        """Return the mean over ranks of a share that the stages of one module have."""
        return self.mean(lambda row: sum(share(s) for s in row.stages if s.module == module))

    def kinds(self, all_holders: Iterable["_Holders"]) -> Iterator[_Kind]:
        """Yield what these ranks can lose; they may wait for ranks of `all_holders`."""
        yield "waits", lambda row: row.waiting - row.reading, self.waiting(all_holders)
        yield "communicates", SHARES["communicating"], self.exchanging()
        again = {name: self.mean_of(name, lambda stage: stage.recomputing) for name in self.modules}
        text = f"{_does(_largest(again), 'compute')} forwards again"
        yield "recomputes", lambda row: row.recomputing, text
        its = "its" if len(self.modules) == 1 else "their"
        text = f"{_does(self.modules, 'wait')} for {its} hosts to start kernels"
        yield "starts", lambda row: row.starting, text

    def waiting(self, all_holders: Iterable["_Holders"]) -> str:
        """Say that modules wait, and for what: for ranks that wait less, or in a pipeline."""
        least = min(all_holders, key=lambda each: each.mean(SHARES["waiting"]))
        text = _does(self.modules, "wait")
        if least.mean(SHARES["waiting"]) < self.mean(SHARES["waiting"]) / 2:
            return f"{text} for {listed(least.modules)}"
        depths = {name: self.spec.modules[name].grid.pp for name in self.modules}
        deep = [name for name in self.modules if depths[name] > 1]
        if not deep:
            return text
        of = "its pipeline" if deep == list(self.modules) else f"the pipeline of {listed(deep)}"
        return f"{text} in {of} (pp {max(depths.values())})"

    def exchanging(self) -> str:
        """Say which modules exchange what, and over which axes."""
        parts = {
            (name, kind): self.mean_of(name, share)
            for name in self.modules
            for kind, share in EXCHANGES.items()
        }
        most = _largest(parts)
        names = [name for name in self.modules if any(name == each for each, _ in most)]
        whats = []
        for kind in dict.fromkeys(kind for _, kind in sorted(most, key=lambda key: -parts[key])):
            what, axes = _EXCHANGED[kind]
            whose = [self.spec.modules[name] for name, each in most if each == kind]
            sizes = {axis: max(_size(module, axis) for module in whose) for axis in axes}
            is_cut = any(size > 1 for size in sizes.values())
            whats.append(f"{what} ({sizes_text(sizes)})" if is_cut else what)
        return f"{_does(names, 'exchange')} {listed(whats)}"


def _size(module: ModuleSpec, axis: Axis) -> int:
    experts = module.experts or ExpertGrid()
    if axis in (Axis.EP, Axis.EXPERT_TP):
        return experts.ep if axis is Axis.EP else experts.tp
    return int(getattr(module.grid, axis))


def _largest(parts: Mapping[_Key, float]) -> list[_Key]:
    """Return the keys of the largest parts."""
    least = LEAST_PART * max(parts.values())
    return [key for key, part in parts.items() if part >= least]


def _does(names: Sequence[str], verb: str) -> str:
    return f"{listed(names)} {verb}{'s' * (len(names) == 1)}"


def wastes(spec: Spec, estimates: Estimates, constants: Calibration, world: int) -> list[Waste]:
    """Return what is lost in a step, the largest loss first."""
    found: list[Waste] = []
    groups = [_Holders(spec, names, rows) for names, rows in rows_by_modules(estimates).items()]
    everyone = _Holders(spec, tuple(spec.modules), estimates.ranks)
    kinds = [(holders, kind) for holders in groups for kind in holders.kinds(groups)]
    kinds += [(everyone, kind) for kind in _of_all(spec, constants)]
    for holders, (kind, share, text) in kinds:
        ranks = tuple(sorted(rank for row in holders.rows for rank in row.ranks))
        mean = holders.mean(share)
        of_all = mean * len(ranks) / world
        if of_all >= LEAST:
            waste = Waste(
                kind=kind,
                modules=holders.modules,
                ranks=ranks,
                share=mean,
                of_all=of_all,
                text=f"{text} {percent(mean)} on {gpus_text(ranks)}",
            )
            found.append(waste)
    idle = tuple(sorted(set(range(world)).difference(*(row.ranks for row in estimates.ranks))))
    if len(idle) >= LEAST * world:
        text = f"{named_ranks(idle)} hold{'s' * (len(idle) == 1)} no module: {gpus_text(idle)}"
        one = Waste(
            kind="idle", modules=(), ranks=idle, share=1.0, of_all=len(idle) / world, text=text
        )
        found.append(one)
    return sorted(found, key=lambda each: -each.of_all)


def _of_all(spec: Spec, constants: Calibration) -> Iterator[_Kind]:
    """Yield what all ranks can lose for the same reason."""
    yield "updates", SHARES["updating"], "the update and the end of a step take"
    yield "reads", lambda row: row.reading, "all wait for Python to describe the next samples"
    speed = constants.speed(spec.train.numbers)
    if not spec.train.numbers.is_mixed:

        def slower(row: RankEstimate) -> float:
            products = SHARES["computing"](row) - row.recomputing - row.starting
            return max(0.0, products) * (1 - speed)

        yield "precision", slower, f"{spec.train.precision} instead of bf16 takes"


def language_share(row: RankEstimate) -> float:
    """Return the part of the work of a class of ranks that is language's, in FLOPs."""
    mine = sum(stage.tflop for stage in row.stages if stage.module == LANGUAGE)
    return mine / row.tflop if row.tflop else 0.0


def work_of(layout: Layout, estimates: Estimates) -> dict[str, float]:
    """Return the GPU time of each module in a step."""
    work: dict[str, float] = {}
    for row in estimates.ranks:
        for stage in row.stages:
            milliseconds = stage.forward_ms + stage.backward_ms
            forwards = layout.num_groups(layout[stage.module])
            spent = len(row.ranks) * milliseconds * forwards
            work[stage.module] = work.get(stage.module, 0.0) + spent
    return work


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
    return counted(len(ranks), "GPU")
