"""The space of layouts: which grids, placements and numbers of microbatches given models may have.

Decides: every grid on a number of ranks, and which of them cut a module; the numbers of
microbatches and the sizes of their groups; what a point of the space is.
Relies on: the spec. A legal point divides evenly; `checks` has the rules about a model's widths.
Leaves: which points are near or fast to `search`, `checks.proposals` and `verify`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE, Axis, Strict, rank_text
from mimo_launch.spec.module import Offloaded, Recompute
from mimo_launch.spec.sections import ScheduleKind
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec
from mimo_launch.spec.values import ShardingName


@frozen(kw_only=True)
class Placement:
    """Where a module runs, and how it is cut; None for the rest leaves a setting out."""

    ranks: range
    grid: Grid
    experts: ExpertGrid | None = None
    sharding: ShardingName | None = None
    recompute: Recompute | None = None
    offload: tuple[Offloaded, ...] | None = None
    sequence_parallel: bool | None = None
    order: tuple[str, ...] | None = None
    shard_over: int | None = None
    stages: tuple[int, ...] | None = None


# The keys of a module that a placement sets, besides its ranks; and where a spec has the course of
# a step.
OF_MODULE = (
    "grid", "experts", "sharding", "recompute", "offload", "sequence_parallel", "order",
    "shard_over", "stages",
)  # fmt: skip
# The keys that may be None.
_OPTIONAL = ("shard_over", "stages")
OF_STEP = {
    "microbatches": "schedule.microbatches",
    "at_once": "schedule.encoder_microbatches",
    "drawn_at_once": "schedule.generator_microbatches",
    "kind": "schedule.kind",
    "virtual_stages": "schedule.virtual_stages",
}


@frozen(kw_only=True)
class Point:
    """A layout of the modules of a spec, and the course of a step.

    Encoders work on `at_once` microbatches together, generators on `drawn_at_once`; None: as many
    as by default. `kind` and `virtual_stages` are the order of a pipeline; None leaves it out.
    `idle` names ranks that no module uses.
    """

    places: Mapping[str, Placement]
    microbatches: int
    at_once: int | None = None
    drawn_at_once: int | None = None
    kind: ScheduleKind | None = None
    virtual_stages: int | None = None
    idle: str | None = None

    @classmethod
    def of(cls, spec: Spec) -> "Point":
        """Return the point of a spec, with every setting."""
        return cls(
            places={
                name: Placement(
                    ranks=module.rank_range, **{key: getattr(module, key) for key in OF_MODULE}
                )
                for name, module in spec.modules.items()
            },
            **{
                key: getattr(spec.schedule, path.removeprefix("schedule."))
                for key, path in OF_STEP.items()
            },
            idle=spec.idle_ranks,
        )

    @property
    def language(self) -> Placement:
        """The place of the language model."""
        return self.places[LANGUAGE]

    @property
    def num_ranks(self) -> int:
        """The number of ranks up to the last one that a module uses."""
        return max(place.ranks.stop for place in self.places.values())

    def moved(self, name: str, **values: Any) -> "Point":
        """Return the point with another placement of a module."""
        return replace(self, places={**self.places, name: replace(self.places[name], **values)})

    def settings(self) -> dict[str, Any]:
        """Return the point as settings of a spec, by dotted path."""
        found: dict[str, Any] = {path: getattr(self, key) for key, path in OF_STEP.items()}
        if self.kind is None:
            del found[OF_STEP["kind"]], found[OF_STEP["virtual_stages"]]
        found["idle_ranks"] = self.idle
        for name, place in self.places.items():
            module = f"modules.{name}"
            found[f"{module}.ranks"] = rank_text(place.ranks)
            for key in OF_MODULE:
                value = getattr(place, key)
                if key == "stages" and value and len(value) != self._num_stages(name):
                    value = None  # They were of another grid.
                if isinstance(value, Strict):
                    value = value.model_dump()
                elif isinstance(value, tuple):
                    value = list(value)
                if value is not None or key in _OPTIONAL:
                    found[f"{module}.{key}"] = value
        return found

    def _num_stages(self, name: str) -> int:
        virtual = self.virtual_stages or 1 if name == LANGUAGE else 1
        return self.places[name].grid.pp * virtual


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, in increasing order."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def products(values: Sequence[Sequence[int]], most: int) -> Iterator[tuple[int, ...]]:
    """Yield tuples of one value per list with a product of at most `most`; lists are sorted."""
    if not values:
        yield ()
        return
    for value in takewhile(lambda value: value <= most, values[0]):
        for rest in products(values[1:], most // value):
            yield (value, *rest)


@lru_cache(maxsize=256)
def _sizes_on(num_ranks: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return tp, cp, pp and dp of every grid on this many ranks, in the order of tp, cp and pp."""
    return tuple(
        (tp, cp, pp, num_ranks // (tp * cp * pp))
        for tp in divisors(num_ranks)
        for cp in divisors(num_ranks // tp)
        for pp in divisors(num_ranks // (tp * cp))
    )


@lru_cache(maxsize=4096)
def _grid(tp: int, cp: int, pp: int, dp: int) -> Grid:
    return Grid(tp=tp, cp=cp, pp=pp, dp=dp)


def grids_on(num_ranks: int) -> tuple[Grid, ...]:
    """Return every grid on this many ranks, in the order of tp, then cp, then pp."""
    return tuple(_grid(*sizes) for sizes in _sizes_on(num_ranks))


def legal_grids(
    spec: Spec, name: str, num_ranks: int, *, heads: int = 0, cuts: Collection[int] = ()
) -> list[Grid]:
    """Return the grids of a module on this many ranks that suit the batch, hosts and layers.

    Replicas share the batch evenly, tp stays on a host, and every stage has a layer. With `heads`,
    tp divides them; with `cuts`, cp is one of them.
    """
    per_host = spec.nodes.gpus if spec.nodes else num_ranks
    batch, layers = spec.batch.global_, spec.modules[name].model.layers
    return [
        _grid(tp, cp, pp, dp)
        for tp, cp, pp, dp in _sizes_on(num_ranks)
        if batch % dp == 0
        and per_host % tp == 0
        and pp <= layers
        and heads % tp == 0
        and (not cuts or cp in cuts)
    ]


def smaller_grids(grid: Grid, most_ranks: int, *, tp_divides: bool) -> Iterator[Grid]:
    """Yield grids with no axis larger than now, on at most this many ranks, by pp, cp, tp and dp.

    If `tp_divides`, their tp divides the present one.
    """
    axes = (Axis.PP, Axis.CP, Axis.TP, Axis.DP)
    values = {axis: range(1, min(getattr(grid, axis), most_ranks) + 1) for axis in axes}
    sizes: dict[Axis, Sequence[int]] = {**values}
    if tp_divides:
        sizes[Axis.TP] = [size for size in values[Axis.TP] if grid.tp % size == 0]
    for found in products([*sizes.values()], most_ranks):
        yield Grid(**dict(zip(axes, found, strict=True)))


def expert_grids(num_ranks: int) -> Iterator[ExpertGrid]:
    """Yield every grid of experts that divides the ranks of a stage, by tp, then ep."""
    sizes = divisors(num_ranks)
    for tp, ep in products([sizes] * 2, num_ranks):
        if num_ranks % (tp * ep) == 0:
            yield ExpertGrid(tp=tp, ep=ep)


def microbatch_numbers(spec: Spec, grid: Grid) -> list[int]:
    """Return the numbers of microbatches into which each replica of language can cut its share."""
    return divisors(spec.batch.global_ // grid.dp)


def group_sizes(spec: Spec, names: Iterable[str], microbatches: int) -> list[int]:
    """Return the sizes of groups of microbatches that modules can share evenly."""
    samples = spec.batch.global_ // microbatches
    replicas = [spec.modules[name].grid.dp for name in names]
    return [k for k in divisors(microbatches) if not any(samples * k % dp for dp in replicas)]
