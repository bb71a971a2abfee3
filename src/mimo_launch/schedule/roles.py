"""What a rank takes part in: its stages, those with gradients, and its bridges.

Decides: which stages run backward, and how the rows of an encoder travel.
Relies on: `layout`.
Leaves: the order of work to `pipeline` and `bubble_filling`.
"""

from dataclasses import dataclass

from mimo_launch.layout.layout import Layout, ModuleLayout, Role


@dataclass(frozen=True, slots=True)
class MicrobatchGroup:
    """Consecutive microbatches that an encoder in phases works on at once."""

    index: int
    microbatches: range


def needs_backward(layout: Layout, module: ModuleLayout, stage: int | None = None) -> bool:
    """Return whether a module, or one of its stages, has any gradient to compute.

    A frozen language model still passes gradients to encoders that train. Stages of an encoder in
    front of a trainable projector have none.
    """
    if not module.is_language:
        return not module.frozen and (stage is None or stage >= module.first_trained)
    return any(not m.frozen for m in layout.modules)


def fills_bubbles(layout: Layout, module: ModuleLayout) -> bool:
    """Return whether an encoder runs in the idle slots of the language pipeline.

    It does if it shares ranks with language under `bubble_filling`; without a pipeline, no rank
    idles.
    """
    piped = layout.schedule == "bubble_filling" and layout.language.grid.size("pp") > 1
    return piped and module.in_phases


def exchanges(layout: Layout, module: ModuleLayout) -> bool:
    """Return whether the rows of an encoder travel in a collective between phases.

    All other encoders send and receive pairwise while the pipeline runs.
    """
    return module.in_phases and not fills_bubbles(layout, module)


def groups_of(layout: Layout) -> tuple[MicrobatchGroup, ...]:
    """Return the groups that encoders in phases run on; without any, the step is one group."""
    total = layout.samples.microbatches
    size = next((m.group_size for m in layout.encoders if m.in_phases), total)
    return tuple(
        MicrobatchGroup(index, range(index * size, (index + 1) * size))
        for index in range(total // size)
    )


def is_bridge_end(layout: Layout, encoder: ModuleLayout, role: Role) -> bool:
    """Return whether a rank with this role sends or receives rows of this bridge."""
    return (encoder.name, len(encoder.stages) - 1) in role or (layout.language.name, 0) in role


def microbatches_of(module: ModuleLayout, group: int) -> range:
    """Return the microbatches of one group of an encoder."""
    return range(group * module.group_size, (group + 1) * module.group_size)
