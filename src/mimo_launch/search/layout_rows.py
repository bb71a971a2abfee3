"""What is said of a layout that `tune` found, and why one layout is faster than another.

Decides: the list of facts; their names are keys of `tune --json` (docs/tune.md).
Relies on: the estimates of the layout, `traffic` for bytes, `wastes` for what limits it.
Leaves: showing them to `cli`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import bytes_text, listed, named_ranks, percent, sizes_text
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.traffic import Traffic, traffic_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Point
from mimo_launch.search.judge import Planned
from mimo_launch.search.wastes import TimeShares, modules_of, time_shares, wastes
from mimo_launch.spec.base import AXES, LANGUAGE
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.values import GPUS, MEASURED

# The parts of a step that add up to it, in the order in which they are explained.
TERMS = {
    "computing": "computing",
    "between_layers": "activations between layers (tp, cp)",
    "of_experts": "tokens of experts (ep)",
    "of_replicas": "weights and gradients (dp, cp)",
    "with_host": "activations with the host",
    "waiting": "waiting for other ranks",
    "updating": "the update and the end of a step",
}
# Memory that differs by less of a GPU is not given up.
_SOME_MEMORY = 0.02
# Two layouts are as fast if they differ by less.
_SOME_SPEED = 0.005


@frozen(kw_only=True)
class LayoutRow:
    """A layout and its estimates.

    `tokens_per_second` counts tokens of the data, without padding. `memory` has the bytes of the
    fullest rank by the modules that it holds; `headroom` is what the fullest rank of all leaves
    free. `slower` is the share by which a step takes longer than the fastest; `gives_up` says what
    one loses against the next. If some layouts ran, they have `measured_seconds`, and all have
    `corrected_seconds`.
    """

    number: int
    words: str
    ranks: int
    step_seconds: float
    tokens_per_second: float
    mfu: float
    memory: Mapping[str, int]
    headroom: int
    bubble: float
    traffic: Traffic
    limited_by: str
    slower: float
    gives_up: str
    time: TimeShares
    settings: Mapping[str, Any]
    measured_seconds: float | None = None
    corrected_seconds: float | None = None


def layout_rows(found: Sequence[tuple[Planned, Estimator]]) -> Iterator[LayoutRow]:
    """Yield a row for each layout, which are in the order of their speed."""
    for number, (planned, estimator) in enumerate(found, 1):
        estimates, spec = planned.estimates, estimator.spec
        world = world_size(spec)
        memory: dict[str, int] = {}
        for row in estimates.ranks:
            names = " + ".join(modules_of(row))
            memory[names] = max(memory.get(names, 0), row.total_bytes)
        lost = wastes(spec, estimates, estimator.constants, world)
        positions = estimates.tokens_per_second_per_gpu * world
        yield LayoutRow(
            number=number,
            words=words_of(spec),
            ranks=world,
            step_seconds=estimates.step_seconds,
            tokens_per_second=positions * (1 - estimator.expected.padding),
            mfu=estimates.tflops_per_gpu / estimator.peak_tflops,
            memory=memory,
            headroom=(estimates.gpu_memory or GPUS[MEASURED].memory) - max(memory.values()),
            bubble=estimates.bubble,
            traffic=traffic_of(estimator.typical.model),
            limited_by=lost[0].text if lost else "GPUs compute all the time",
            slower=estimates.step_seconds / found[0][0].seconds - 1,
            gives_up=_given_up(*found[number - 1 : number + 1]),
            time=time_shares(estimates, world),
            settings=Point.of(spec).settings(),
        )


def _given_up(one: tuple[Planned, Estimator], *others: tuple[Planned, Estimator]) -> str:
    """Return what a layout gives up against the next slower one."""
    for other, _ in others:
        mine, its = one[0].estimates, other.estimates
        fullest = [max(row.total_bytes for row in each.ranks) for each in (mine, its)]
        share = its.step_seconds / mine.step_seconds - 1
        gain = "as fast as the next"
        if share >= _SOME_SPEED:
            gain = f"{percent(share)} faster than the next"
        memory = mine.gpu_memory or GPUS[MEASURED].memory
        if (more := fullest[0] - fullest[1]) > _SOME_MEMORY * memory:
            return f"{gain}, for {bytes_text(more)} more memory"
        if mine.bubble > its.bubble + _SOME_MEMORY:
            return f"{gain}, with {percent(mine.bubble - its.bubble)} more bubble"
        return f"{gain}, and gives up nothing"
    return ""


def words_of(spec: Spec) -> str:
    """Return a layout in words: ranks, grids and settings of each module, and the step."""
    held: dict[range, list[str]] = {}
    for name, module in spec.modules.items():
        words = [sizes_text({axis: getattr(module.grid, axis) for axis in AXES})]
        if module.experts:
            words.append(f"experts {sizes_text(module.experts.model_dump())}")
        again = "full" if module.recomputes else listed(sorted(module.recomputed_parts))
        settings = {
            f"sharding {module.sharding}": module.sharding != "optimizer",
            f"shards over {module.shard_over}": module.shard_over is not None,
            f"recompute {again}": module.recompute != "none",
            f"offload {listed(module.offload)}": bool(module.offload),
            "sequence parallel": module.sequence_parallel,
            f"order {' '.join(module.order)}": module.order != AXES,
        }  # fmt: skip
        words += [word for word, holds in settings.items() if holds]
        held.setdefault(module.rank_range, []).append(f"{name} {', '.join(words)}")
    places = "; ".join(f"{named_ranks(ranks)}: {listed(each)}" for ranks, each in held.items())
    own = spec.schedule
    size = spec.batch.global_ // (spec.language.grid.dp * own.microbatches)
    step = [f"{own.microbatches} microbatch{'es' * (own.microbatches != 1)} of {size}"]
    if own.encoder_microbatches is not None:
        step.append(f"{own.encoder_microbatches} encoded at once")
    if own.generator_microbatches is not None:
        step.append(f"{own.generator_microbatches} generated at once")
    if spec.modules[LANGUAGE].grid.pp > 1:
        stages = f" with {own.virtual_stages} stages a rank" * (own.virtual_stages > 1)
        step.append(f"{own.kind}{stages}")
    return f"{places}; {', '.join(step)}"


@frozen(kw_only=True)
class Term:
    """A part of the step, as seconds of a mean GPU in two layouts."""

    name: str
    seconds: tuple[float, float]

    @property
    def gain(self) -> float:
        """The seconds that the first layout saves."""
        return self.seconds[1] - self.seconds[0]


def terms_of(time: TimeShares) -> dict[str, float]:
    """Return the seconds of the parts of a step, which add up to it."""
    return {key: getattr(time, key) for key in TERMS}


def terms_between(one: TimeShares, other: TimeShares) -> list[Term]:
    """Return the parts of a step in two layouts; what they save adds up to the difference."""
    mine, its = terms_of(one), terms_of(other)
    found = [Term(name=words, seconds=(mine[key], its[key])) for key, words in TERMS.items()]
    return sorted(found, key=lambda each: -abs(each.gain))
