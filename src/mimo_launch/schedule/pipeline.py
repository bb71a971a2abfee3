"""The order of forwards and backwards on each rank of a running pipeline.

Decides: the order of language by schedule kind, and from it the order of upstream encoders.
Relies on: `layout` for who holds which stage.
Leaves: transfers, and encoders that share ranks with language, to `generate`.

1F1B and interleaved 1F1B: Narayanan et al. 2021 (arXiv:2104.04473, section 2.2). GPipe: all
forwards, then all backwards, both in the order of microbatches; last in, first out would take the
same time.

The order of upstream encoders follows from a clock that ticks once per stage. If language stage 0
takes a microbatch at tick t and has its gradient at tick u, an encoder stage that is d stages ahead
of it runs the forward at t - d and the backward at u + d. On groups of k microbatches a stage takes
k ticks: it runs at t - d k, with t of the first microbatch of the group, and at u + d k, with u of
the last. So each input is made before it is used, and every rank works in the order of one clock:
ranks cannot wait for each other in a circle. If ticks were counted from the first stage of each
encoder, shallow encoders would run too far ahead of language.
"""

from functools import lru_cache

from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.spec.base import Axis

# (chunk, kind, position): which of the rank's stages, forward or backward, which microbatch.
Work = tuple[int, Kind, int]

F, B = Kind.FORWARD, Kind.BACKWARD


def pipeline_order(
    layout: Layout, role: Role, microbatches: range, *, backward: bool = True
) -> list[Action]:
    """Return the computes of a role for some microbatches, without encoders in phases."""
    stages = [(layout[name], stage) for name, stage in role if not layout[name].in_phases]
    if not any(module.is_language for module, _ in stages):
        return _upstream(layout, stages, microbatches, backward=backward)
    language = layout.language
    order = rank_order(
        layout.schedule,
        language.grid.size(Axis.PP),
        len(stages),
        language.pp_index(stages[0][1]),
        len(microbatches),
        backward=backward and needs_backward(layout, language),
    )
    return [
        Action(language.name, stages[chunk][1], kind, microbatches[position])
        for chunk, kind, position in order
    ]


def distance_to_language(module: ModuleLayout, stage: int) -> int:
    """Return the number of stages from an encoder stage to the first stage of language."""
    return len(module.stages) - stage


@lru_cache(maxsize=256)
def rank_order(
    kind: str, depth: int, num_chunks: int, index: int, total: int, *, backward: bool
) -> tuple[Work, ...]:
    """Return the work of rank `index` of a pipeline of `depth` ranks on `total` microbatches.

    With several chunks (stages of one rank) microbatches run in blocks of `depth`: a block passes
    all chunks before the next block starts.
    """
    if num_chunks == 1:
        forwards = [(0, F, each) for each in range(total)]
        backwards = [(0, B, each) for each in range(total)]
        warmup = depth - 1 - index
    else:
        turns = [divmod(turn, depth * num_chunks) for turn in range(total * num_chunks)]
        places = [(run, *divmod(inside, depth)) for run, inside in turns]
        forwards = [(chunk, F, run * depth + each) for run, chunk, each in places]
        backwards = [(num_chunks - 1 - chunk, B, run * depth + each) for run, chunk, each in places]
        warmup = 2 * (depth - 1 - index) + (num_chunks - 1) * depth
    if not backward:
        return tuple(forwards)
    if kind == "gpipe":
        return (*forwards, *backwards)
    warmup = min(warmup, len(forwards))
    steady = zip(forwards[warmup:], backwards, strict=False)
    drain = backwards[len(forwards) - warmup :]
    return (*forwards[:warmup], *(work for pair in steady for work in pair), *drain)


def _upstream(
    layout: Layout,
    stages: list[tuple[ModuleLayout, int]],
    microbatches: range,
    *,
    backward: bool,
) -> list[Action]:
    """Merge the work of encoder stages by the common clock.

    Within a tick, all ranks have the same order.
    """
    language = layout.language
    num_chunks = len(language.stages) // language.grid.size(Axis.PP)
    is_trained = backward and needs_backward(layout, language)
    forwards, backwards = first_stage_clock(
        layout.schedule,
        language.grid.size(Axis.PP),
        num_chunks,
        len(microbatches),
        backward=is_trained,
    )
    keyed = []
    for place, (module, stage) in enumerate(stages):
        size = module.group_size
        ahead = distance_to_language(module, stage) * size * num_chunks
        for first in range(0, len(microbatches), size):
            group = microbatches[first] // size
            action = Action(module.name, stage, F, group)
            keyed.append(((forwards[first] - ahead, 0, place), action))
            if is_trained and needs_backward(layout, module, stage):
                action = Action(module.name, stage, B, group)
                keyed.append(((backwards[first + size - 1] + ahead, 1, place), action))
    return [action for _, action in sorted(keyed, key=lambda each: each[0])]


@lru_cache(maxsize=64)
def first_stage_clock(
    kind: str, depth: int, num_chunks: int, total: int, *, backward: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return when stage 0 starts each forward and each backward; every action takes one tick."""
    orders = [
        rank_order(kind, depth, num_chunks, index, total, backward=backward)
        for index in range(depth)
    ]
    ends: dict[tuple[int, Kind, int], int] = {}
    at, clock = [0] * depth, [0] * depth
    last = depth * num_chunks - 1
    while any(at[index] < len(orders[index]) for index in range(depth)):
        for index in range(depth):
            while at[index] < len(orders[index]):
                chunk, way, position = orders[index][at[index]]
                stage = chunk * depth + index
                # The action that this one needs; None if its input is data.
                before: tuple[int, Kind, int] | None
                if way is F:
                    before = (stage - 1, F, position) if stage else None
                else:
                    before = (stage + 1, B, position) if stage < last else (stage, F, position)
                if before is not None and before not in ends:
                    break
                start = max(clock[index], 0 if before is None else ends[before])
                ends[stage, way, position] = clock[index] = start + 1
                at[index] += 1
    times = tuple(ends[0, F, position] - 1 for position in range(total))
    if not backward:
        return times, ()
    return times, tuple(ends[0, B, position] - 1 for position in range(total))
