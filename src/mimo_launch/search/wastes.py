"""Where the time of a step goes, and what of it is lost.

Decides: what counts as a loss, its words, and which losses are too small to be mentioned.
Relies on: the rows of `estimate.estimates`, and nothing else, so that all numbers agree.
Leaves: what to do about a loss to `advice`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimo_launch.diag.quantities import named_ranks, percent
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.rows import Estimates, RankEstimate
from mimo_launch.spec.spec import Spec

# Losses of a smaller share of all GPU time are not mentioned.
LEAST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Seconds of a step, mean over all ranks: `computing` without `communicating`.

    `waiting` is for others and for transfers, and all the time of idle ranks; `updating` has all
    that follows the schedule. The parts of `communicating`: `between_layers` over tp and cp,
    `of_experts` for their tokens, `of_replicas` for weights and gradients.
    """

    computing: float
    waiting: float
    communicating: float
    updating: float
    between_layers: float
    of_experts: float
    of_replicas: float


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
# The parts of `communicating`.
EXCHANGES: dict[str, Callable[[RankEstimate], float]] = {
    "between_layers": lambda row: row.communicating - row.all_to_all - row.sharding,
    "of_experts": lambda row: row.all_to_all,
    "of_replicas": lambda row: row.sharding + row.reducing,
}


def time_shares(estimates: Estimates, world_size: int) -> TimeShares:
    """Return where the time of a step goes."""
    seconds = estimates.step_seconds

    found = {
        name: seconds * sum(len(row.ranks) * share(row) for row in estimates.ranks) / world_size
        for name, share in (SHARES | EXCHANGES).items()
    }
    idle = 1 - sum(len(row.ranks) for row in estimates.ranks) / world_size
    found["waiting"] += seconds * idle
    return TimeShares(**found)


def wastes(spec: Spec, estimates: Estimates, constants: Calibration, world: int) -> list[Waste]:
    """Return what is lost in a step, the largest loss first."""
    found: list[Waste] = []
    groups = rows_by_modules(estimates)
    kinds = [(modules, rows, kind) for modules, rows in groups.items() for kind in _kinds(modules)]
    kinds += [
        (tuple(spec.modules), list(estimates.ranks), each) for each in _of_all(spec, constants)
    ]
    for modules, alike, (kind, share, text) in kinds:
        ranks = tuple(sorted(rank for row in alike for rank in row.ranks))
        mean = sum(len(row.ranks) * share(row) for row in alike) / len(ranks)
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


# A kind of loss, its share on a class of ranks, and its words.
_Kind = tuple[str, Callable[[RankEstimate], float], str]


def _kinds(modules: Sequence[str]) -> Iterator[_Kind]:
    """Yield what ranks with some modules can lose."""
    who, s = " and ".join(modules), "s" * (len(modules) == 1)
    yield "waits", SHARES["waiting"], f"{who} wait{s}"
    text = f"{who} exchange{s} data of layers and gradients"
    yield "communicates", SHARES["communicating"], text
    yield "recomputes", lambda row: row.recomputing, f"{who} compute{s} forwards again"
    yield "starts", lambda row: row.starting, f"{who} start{s} small forwards and backwards"


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
