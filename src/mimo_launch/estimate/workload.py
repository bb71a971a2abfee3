"""The work of one forward or backward of a stage: tokens, attention spans, rows, operations.

Decides: that one sample represents all; the cost of a backward, with frozen modules and without.
Relies on: `data.sample_sizes` for that sample, `layout.row_owners` for padding, `kinds` for the
operations of a forward.
Leaves: bytes to `memory`, seconds to `cost_model`.
"""

from collections.abc import Mapping

from mimo_launch.estimate.parameters import ends_of
from mimo_launch.kinds.layer import Flops, LayerKind, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.row_owners import held_patches, local_extra_tokens, shards_of_cp_rank
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData, StepData
from mimo_launch.layout.step_views import EncoderView
from mimo_launch.schedule.roles import needs_backward
from mimo_launch.spec.spec import Spec


def workload(layout: Layout, module: ModuleLayout, sample: SampleData) -> Workload:
    """Return the work of one forward of a module if every sample is like this one."""
    samples, size = layout.samples, layout.samples.microbatch_size
    forwards = layout.num_groups(module)
    if module.is_language:
        held = size * layout.seq // module.grid.size("cp")
        spans = language_spans(sample, layout.seq) * size
        return Workload(spans=spans, held=held, rows=0, forwards=forwards)
    mine = samples.replicas * module.group_size * size // module.grid.size("dp")
    view = EncoderView(module, StepData(0, [sample]), 0, (0,))
    rows = tuple(image.rows for image in view.images) * mine
    extras = tuple(view.extras) * mine
    extra_tokens = local_extra_tokens(module, sum(extras)) * shards_of_cp_rank(module)
    return Workload(
        spans=tuple(
            n * module.patches_per_row + more for n, more in zip(rows, extras, strict=True)
        ),
        held=len(held_patches(module, sum(rows), 0)) + extra_tokens,
        extra_tokens=extra_tokens,
        rows=sum(rows),
        forwards=forwards,
    )


def language_spans(sample: SampleData, seq: int) -> tuple[int, ...]:
    """Return the lengths of a sequence's attention spans: records, the last with padding."""
    *others, last = (record.num_tokens for record in sample.records)
    return (*others, max(last, seq - sum(others)))


def row_bytes(layout: Layout, encoder: ModuleLayout, work: Workload, width: int) -> tuple[int, int]:
    """Return the bytes of rows that an encoder rank sends, and a language rank gets, for one group.

    `width` is that of a row in bytes.
    """
    ends = []
    for grid in (encoder.grid, layout.language.grid):
        rows = work.rows * encoder.grid.size("dp") // grid.size("dp")
        ends.append(-(-rows // (grid.size("cp") * grid.size("tp"))) * width)
    return ends[0], ends[1]


def forward_flops(spec: Spec, stage: Stage, work: Workload) -> Flops:
    """Return the operations of one forward of a stage."""
    return sum(forward_by_kind(spec, stage, work).values(), Flops())


def forward_by_kind(spec: Spec, stage: Stage, work: Workload) -> Mapping[LayerKind, Flops]:
    """Return the operations of one forward by kind of layer; those at the ends count as blocks."""
    kind = kind_of(spec.modules[stage.module].model)
    return kind.forward_flops(stage.layers, ends_of(spec, stage), work)


def backward_flops(
    spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage, forward: Flops
) -> Flops:
    """Return the operations of one backward of a stage whose forward has these.

    They are twice the forward: gradients of inputs and of weights. A frozen language model has only
    gradients of inputs (and all of attention, which has no weights). Recomputing is not counted.
    """
    if not needs_backward(layout, module, stage.index):
        return Flops()
    if spec.modules[module.name].frozen == "except_projector":
        return Flops(projector=2 * forward.projector)
    weights = 1 if module.frozen else 2
    return Flops(
        linear=weights * forward.linear,
        attention=2 * forward.attention,
        head=weights * forward.head,
        patch=2 * forward.patch,
        projector=2 * forward.projector,
    )
