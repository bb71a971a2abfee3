"""The program of every rank: one merge of phases and pipelines.

Decides: the order of each rank's work.
Relies on: `layout` for who holds which stage.
Leaves: proving that the programs end to `simulate`.

A step is a sequence of groups of microbatches. In each group, encoders that share ranks with
language run first (forward, exchange); then language and all upstream encoders run 1F1B over the
group's microbatches; then the gradients are exchanged back and the shared encoders run backward.
Without shared encoders the one group is the whole step. The pipeline drains at the end of a group.

1F1B: Narayanan et al. 2021 (arXiv:2104.04473). A stage's warm-up is its distance to the loss, along
the path through its consumer; counted from the head instead, encoders of unequal depth deadlock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import Action, Kind, Program, Slot
from mimo_launch.schedule.channels import is_sender
from mimo_launch.schedule.roles import Role, needs_backward, role_of

__all__ = ["Programs", "Role", "generate", "generate_forward", "needs_backward", "role_of"]

Programs = tuple[Program, ...]


@lru_cache(maxsize=8)
def generate(layout: Layout) -> Programs:
    """Return the training program of each rank; ranks with the same stages share one object."""
    return _for_every_rank(layout, _step)


@lru_cache(maxsize=8)
def generate_forward(layout: Layout) -> Programs:
    """Return the program of each rank for a step without gradients (evaluation)."""
    return _for_every_rank(layout, _forward_step)


def _for_every_rank(layout: Layout, step: Callable[[Layout, Role], Iterator[Action]]) -> Programs:
    made: dict[Role, Program] = {}
    programs = []
    for rank in range(layout.world_size):
        role = role_of(layout, rank)
        if role not in made:
            made[role] = _coalesce(step(layout, role))
        programs.append(made[role])
    return tuple(programs)


def _coalesce(actions: Iterator[Action]) -> Program:
    """Put point-to-point actions that follow each other into one slot, all else into its own.

    Opposite transfers between two ranks (an activation down, a gradient up) are then posted
    together, so that neither side waits for the other to receive first.
    """
    slots: list[Slot] = []
    open_slot = False
    for action in actions:
        joins = not (action.kind.is_compute or action.kind.is_collective)
        if joins and open_slot:
            slots[-1] = (*slots[-1], action)
        else:
            slots.append((action,))
        open_slot = joins
    return tuple(slots)


def _step(layout: Layout, role: Role) -> Iterator[Action]:
    for group in _groups(layout):
        yield from _phases_forward(layout, role, group.index)
        yield from _pipeline(layout, role, group.microbatches)
        for encoder in layout.encoders:
            if encoder.in_phases and needs_backward(layout, encoder):
                yield from _phase_backward(layout, encoder, role, group.index)


def _forward_step(layout: Layout, role: Role) -> Iterator[Action]:
    for group in _groups(layout):
        yield from _phases_forward(layout, role, group.index)
        for microbatch in group.microbatches:
            for module, stage in _pipelined(layout, role):
                yield from _forward(layout, module, stage, microbatch)


@dataclass(frozen=True, slots=True)
class _Group:
    index: int
    microbatches: range


def _groups(layout: Layout) -> Iterator[_Group]:
    """Yield the groups that shared encoders run on; without any, the step is one group."""
    total = layout.samples.microbatches
    size = next((m.group_size for m in layout.encoders if m.in_phases), total)
    for index in range(total // size):
        yield _Group(index, range(index * size, (index + 1) * size))


def _phases_forward(layout: Layout, role: Role, group: int) -> Iterator[Action]:
    for encoder in layout.encoders:
        if not encoder.in_phases:
            continue
        for name, stage in role:
            if name == encoder.name:
                yield from _stage(layout, encoder, stage, "F", group)
        if _is_bridge_end(layout, encoder, role):
            yield Action(encoder.name, None, Kind.EXCHANGE_F, group)


def _phase_backward(
    layout: Layout, encoder: ModuleLayout, role: Role, group: int
) -> Iterator[Action]:
    if _is_bridge_end(layout, encoder, role):
        yield Action(encoder.name, None, Kind.EXCHANGE_B, group)
    for name, stage in role:
        if name == encoder.name:
            yield from _stage(layout, encoder, stage, "B", group)


def _is_bridge_end(layout: Layout, encoder: ModuleLayout, role: Role) -> bool:
    """Return whether a rank with this role sends or receives rows of this bridge."""
    return (encoder.name, len(encoder.stages) - 1) in role or (layout.language.name, 0) in role


def _stage(
    layout: Layout, module: ModuleLayout, stage: int, direction: str, index: int
) -> Iterator[Action]:
    """Yield one forward or backward of a stage with its transfers inside the module."""
    first, last = module.stages[stage].is_first, module.stages[stage].is_last
    starts, ends = (first, last) if direction == "F" else (last, first)
    if not starts:
        yield Action(module.name, stage, Kind[f"RECV_{direction}"], index)
    yield Action(module.name, stage, Kind(direction), index)
    if not ends:
        yield Action(module.name, stage, Kind[f"SEND_{direction}"], index)


def _pipelined(layout: Layout, role: Role) -> list[tuple[ModuleLayout, int]]:
    return [(layout[name], stage) for name, stage in role if not layout[name].in_phases]


def _pipeline(layout: Layout, role: Role, microbatches: range) -> Iterator[Action]:
    """Yield the 1F1B part of this role.

    Each stage starts its forwards as far ahead of the loss as it is away from it. Upstream encoders
    that share ranks with each other receive together, compute one after the other in the order of
    the spec, and send together: were one to send before another receives, two such ranks could wait
    for each other.
    """
    stages = _pipelined(layout, role)
    if not stages:
        return
    trained = [(m, s) for m, s in stages if needs_backward(layout, m)]
    total = len(microbatches)
    distances = [distance_to_loss(layout, m, s) for m, s in stages]
    warmup = max(distances)
    for position in range(total + warmup):
        yield from _together(
            action
            for (module, stage), distance in zip(stages, distances, strict=True)
            if 0 <= (forward := position - (warmup - distance)) < total
            for action in _forward(layout, module, stage, microbatches[forward])
        )
        if position >= warmup:
            yield from _together(
                action
                for module, stage in trained
                for action in _backward(layout, module, stage, microbatches[position - warmup])
            )


def _together(actions: Iterator[Action]) -> list[Action]:
    """Receive for all modules of a rank, then compute, then send: their transfers share slots."""
    return sorted(actions, key=lambda a: a.kind.is_compute + 2 * is_sender(a.kind))


def distance_to_loss(layout: Layout, module: ModuleLayout, stage: int) -> int:
    """Return how many stages lie between a stage and the loss."""
    distance = len(module.stages) - 1 - stage
    return distance if module.is_language else distance + len(layout.language.stages)


def _forward(layout: Layout, module: ModuleLayout, stage: int, microbatch: int) -> Iterator[Action]:
    if module.is_language and stage == 0:
        for encoder in layout.encoders:
            if not encoder.in_phases:
                yield Action(encoder.name, None, Kind.RECV_F, microbatch)
    yield from _stage(layout, module, stage, "F", microbatch)
    if not module.is_language and module.stages[stage].is_last:
        yield Action(module.name, None, Kind.SEND_F, microbatch)


def _backward(
    layout: Layout, module: ModuleLayout, stage: int, microbatch: int
) -> Iterator[Action]:
    if not module.is_language and module.stages[stage].is_last:
        yield Action(module.name, None, Kind.RECV_B, microbatch)
    yield from _stage(layout, module, stage, "B", microbatch)
    if module.is_language and stage == 0:
        for encoder in layout.encoders:
            if not encoder.in_phases and needs_backward(layout, encoder):
                yield Action(encoder.name, None, Kind.SEND_B, microbatch)
