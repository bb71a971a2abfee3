"""What `plan` says first: whether a job fits, how fast it is, what it loses, what to change.

Decides: the list of facts; their names are keys of `plan --json` (docs/plan-json.md). For a job
that does not fit: how many changes are given that make it fit, and in which order.
Relies on: one `Estimator` for all numbers of the job, `advice` for changes.
Leaves: showing them to `cli`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.accuracy import Accuracy, accuracy_for
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import (
    LEAST_GAIN,
    MAX_WASTES,
    Advice,
    Changes,
    advise,
    memory_limit,
)
from mimo_launch.search.changes import Change
from mimo_launch.search.fp8_change import fp8_change
from mimo_launch.search.judge import Planned
from mimo_launch.search.packing_change import packed, padding_waste
from mimo_launch.search.wastes import TimeShares, Waste, modules_of, time_shares, wastes
from mimo_launch.spec.values import GPUS, MEASURED

_SECONDS_PER_DAY = 86_400


@frozen(kw_only=True)
class MemoryFit:
    """The ranks that need the most memory; `gpu_memory` is None if the spec does not give it.

    One of them, `rank`, needs it in the largest `step` of the run, counted from 0, or of its first
    `among` steps if only they are known. Both are None if the run's own steps are not known.
    """

    modules: tuple[str, ...]
    ranks: tuple[int, ...]
    rank: int
    step: int | None
    among: int | None
    needed_bytes: int
    gpu_memory: int | None


@frozen(kw_only=True)
class OfferedChange:
    """A change that was planned: every key that it changes, by path, and its expected gain.

    `gain` is the share by which speed rises, in tokens of the data if a step then holds `fuller`
    times as many of them; `needed_bytes` is the memory of the fullest ranks.
    """

    text: str
    settings: dict[str, Any]
    step_seconds: float
    gain: float
    needed_bytes: int
    fuller: float = 1.0

    @classmethod
    def of(cls, planned: Planned, base: Estimator, before: Estimates) -> "OfferedChange":
        """Return a change that was planned, compared with the estimates before it."""
        estimates = base.on(Plan.of(planned.change.spec)).estimates()
        return cls.between(planned.change, before, estimates)

    @classmethod
    def between(
        cls, change: Change, before: Estimates, estimates: Estimates, fuller: float = 1.0
    ) -> "OfferedChange":
        """Return a change with these estimates before and after it."""
        seconds = estimates.step_seconds
        return cls(
            text=change.text,
            settings=dict(change.settings),
            step_seconds=seconds,
            gain=fuller * before.step_seconds / seconds - 1,
            needed_bytes=max(row.total_bytes for row in estimates.ranks),
            fuller=fuller,
        )


@frozen(kw_only=True)
class LostTime:
    """A waste of time, and the change that helps most; None if none was found or sought.

    `share` is the part of the step on each of `ranks`, `of_all` the part of all GPU time.
    """

    what: str
    kind: str
    modules: tuple[str, ...]
    ranks: tuple[int, ...]
    share: float
    of_all: float
    change: OfferedChange | None

    @classmethod
    def of(cls, advice: Advice, base: Estimator, before: Estimates) -> "LostTime":
        """Return a loss with its change, compared with the estimates before it."""
        planned = advice.planned
        offered = None if planned is None else OfferedChange.of(planned, base, before)
        return cls.answered(advice.waste, offered)

    @classmethod
    def answered(cls, waste: Waste, change: OfferedChange | None) -> "LostTime":
        """Return a loss with its change."""
        return cls(
            what=waste.text,
            kind=waste.kind,
            modules=waste.modules,
            ranks=waste.ranks,
            share=waste.share,
            of_all=waste.of_all,
            change=change,
        )


@frozen(kw_only=True)
class PlanAnswer:
    """The first screen of `plan`.

    `sample` is `mean` or `largest`: the assumed size of every sample of the step. `planned` is the
    number of changes that were planned to find the best ones, and `tried` divides it by what they
    change first. They are those of `compared` layouts that bounds of time and memory let in.
    `accuracy` is how far estimates of measured steps were off, of like ones if any; rates of
    kernels were measured on the device `scaled_from`, if not on that of the estimates.
    """

    sample: str
    fit: MemoryFit
    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    mfu: float
    tokens: int | None
    days: float | None
    time: TimeShares
    losses: tuple[LostTime, ...]
    compared: int
    planned: int
    tried: dict[str, int]
    accuracy: Accuracy
    scaled_from: str | None


def answer_of(
    estimator: Estimator, estimates: Estimates, *, tokens: int | None = None, seeks: bool = True
) -> PlanAnswer:
    """Return the answer for a job that trains on `tokens`; seek changes if `seeks`."""
    world, expected = estimator.layout.world_size, estimator.expected
    in_part = expected.looked_at < expected.num_steps
    tightest = max(estimates.ranks, key=lambda row: row.total_bytes)
    lost = wastes(estimator.spec, estimates, estimator.constants, world)
    compared, tried = 0, dict[str, int]()
    advice = [Advice(waste, None) for waste in lost[:MAX_WASTES]]
    if seeks and advice:
        # Changes are compared in one step of the run, which takes about as long as the mean.
        brief = estimator.brief
        near = Changes.of(brief, brief.estimates(), _gpu_memory(estimates))
        advice = advise(near, lost, estimator.constants)
        compared, tried = near.search.compared, dict(near.search.tried)
    losses = [LostTime.of(each, estimator, estimates) for each in advice]
    speed = estimates.tokens_per_second_per_gpu * world
    return PlanAnswer(
        sample="largest" if estimator.worst else "mean",
        fit=MemoryFit(
            modules=modules_of(tightest),
            ranks=tightest.ranks,
            rank=tightest.fullest_rank,
            step=tightest.fullest_step if expected.names_largest else None,
            among=expected.looked_at if expected.names_largest and in_part else None,
            needed_bytes=tightest.total_bytes,
            gpu_memory=estimates.gpu_memory,
        ),
        step_seconds=estimates.step_seconds,
        tokens_per_second=speed,
        tokens_per_second_per_gpu=estimates.tokens_per_second_per_gpu,
        mfu=estimates.tflops_per_gpu / estimator.peak_tflops,
        tokens=tokens,
        days=None if tokens is None else tokens / speed / _SECONDS_PER_DAY,
        time=time_shares(estimates, world),
        losses=_with_others(losses, estimator, estimates, seeks=seeks),
        compared=compared,
        planned=sum(tried.values()),
        tried=tried,
        accuracy=accuracy_for(estimator.spec, estimates),
        scaled_from=estimator.constants.kernels.scaled_from,
    )


def _with_others(
    losses: list[LostTime], estimator: Estimator, estimates: Estimates, *, seeks: bool
) -> tuple[LostTime, ...]:
    """Return the losses with those that no layout answers, the best change first; the shown ones.

    These are padding, which packing answers, and numbers in which another type is faster. FP8 comes
    after all other changes: it is less exact.
    """
    found = list(losses)
    for own in _other_losses(estimator, estimates, seeks=seeks):
        gain = LEAST_GAIN if own.change is None else own.change.gain
        if own.kind == "precision" and estimator.spec.language.fp8 is None:
            gain = 0.0
        place = sum(each.change is not None and each.change.gain >= gain for each in found)
        found.insert(place, own)
    return tuple(found[:MAX_WASTES])


def _other_losses(estimator: Estimator, estimates: Estimates, *, seeks: bool) -> Iterator[LostTime]:
    """Yield losses whose changes do not leave samples or numbers as they are."""
    limit = memory_limit(estimates, _gpu_memory(estimates))
    if (padding := padding_waste(estimator, estimates)) is not None:
        offered, found = None, packed(estimator, limit) if seeks else None
        if found is not None:
            planned = found.planned
            offered = OfferedChange.between(
                planned.change, estimates, planned.estimates, fuller=found.fuller
            )
        helps = offered is not None and offered.gain >= LEAST_GAIN
        yield LostTime.answered(padding, offered if helps else None)
    if seeks and (numbers := fp8_change(estimator, estimates, limit)) is not None:
        waste, planned = numbers
        offered = OfferedChange.between(planned.change, estimates, planned.estimates)
        yield LostTime.answered(waste, offered)


def _gpu_memory(estimates: Estimates) -> int:
    return estimates.gpu_memory or GPUS[MEASURED].memory


@frozen(kw_only=True)
class WhatFits:
    """Changes of a spec that does not fit, the fastest first; by tokens of the data, if one packs.

    `tried` counts the planned ones of `compared` changes by what they change first.
    """

    changes: tuple[OfferedChange, ...]
    compared: int
    tried: dict[str, int]


def what_fits(estimator: Estimator) -> WhatFits:
    """Return changes that make a spec fit that needs more memory than a GPU has."""
    estimates = estimator.estimates()
    brief = estimator.brief
    near = Changes.of(brief, brief.estimates(), _gpu_memory(estimates))
    found = in_order(near.that_fit())[:MAX_WASTES]
    changes = [OfferedChange.of(each, estimator, estimates) for each in found]
    if (packs := packed(estimator, near.search.judge.limit)) is not None:
        change, after = packs.planned.change, packs.planned.estimates
        own = OfferedChange.between(change, estimates, after, fuller=packs.fuller)
        place = sum(each.gain >= own.gain for each in changes)
        changes.insert(place, own)
    return WhatFits(
        changes=tuple(changes[:MAX_WASTES]),
        compared=near.search.compared,
        tried=dict(near.search.tried),
    )


def in_order(fastest_first: Iterable[Planned]) -> list[Planned]:
    """Return changes, no two of which set the same keys; equally fast ones start with the shortest.

    Two are equally fast if their times differ by less than the error of estimates.
    """
    by_keys: dict[frozenset[str], Planned] = {}
    for each in fastest_first:
        by_keys.setdefault(frozenset(each.change.settings), each)
    left, found = list(by_keys.values()), list[Planned]()
    while left:
        most = (1 + LEAST_GAIN) * left[0].estimates.step_seconds
        alike = [each for each in left if each.estimates.step_seconds <= most]
        found += sorted(alike, key=lambda each: len(each.change.settings))
        left = left[len(alike) :]
    return found
