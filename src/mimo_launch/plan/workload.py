"""How much data one forward of a stage works on: tokens, attention spans, rows.

Decides: that one sample stands for all of them.
Relies on: `layout.nominal` for that sample, `layout.shards` for padding.
Leaves: FLOPs to `estimate_flops`, bytes to `estimate_memory`, seconds to `cost_model`.
"""

from dataclasses import dataclass

from mimo_launch.layout.data_plan import SamplePlan
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.shards import held_patches
from mimo_launch.spec.model import DecoderModel, VitModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One forward of a module: a microbatch, or a group of them, of one replica.

    `spans` are the lengths of what attends within itself: sequences, or images in patches.
    `tokens` are theirs together, `held` those of one cp rank with padding. `rows` go from an
    encoder to language. A step has `forwards` of these.
    """

    spans: tuple[int, ...]
    held: int
    rows: int
    forwards: int

    @property
    def tokens(self) -> int:
        """Tokens of all cp ranks, without padding."""
        return sum(self.spans)


def workload(layout: Layout, module: ModuleLayout, sample: SamplePlan) -> Workload:
    """Return the work of one forward of a module when every sample is like this one."""
    samples, size = layout.samples, layout.samples.microbatch_size
    forwards = samples.microbatches // module.group_size
    if module.is_language:
        held = size * layout.seq // module.grid.size("cp")
        return Workload(spans=(layout.seq,) * size, held=held, rows=0, forwards=forwards)
    mine = samples.replicas * module.group_size * size // module.grid.size("dp")
    rows = tuple(image.rows for image in sample.spans.get(module.name, ())) * mine
    return Workload(
        spans=tuple(n * module.patches_per_row for n in rows),
        held=len(held_patches(module, sum(rows), 0)),
        rows=sum(rows),
        forwards=forwards,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes of a module's layers over all tp ranks.

    `query` and `key` are the widths of all query heads and of all key heads; `inner` that inside
    the MLP, whose input has `ups` times that many features.
    """

    stream: int
    query: int
    key: int
    heads: int
    inner: int
    ups: int
    causal: bool


def widths(model: VitModel | DecoderModel) -> Widths:
    """Return the sizes of a model's blocks."""
    if isinstance(model, DecoderModel):
        return Widths(
            stream=model.hidden,
            query=model.heads * model.head_size,
            key=model.num_kv_heads * model.head_size,
            heads=model.heads,
            inner=model.mlp_width,
            ups=2,
            causal=True,
        )
    return Widths(
        stream=model.hidden,
        query=model.hidden,
        key=model.hidden,
        heads=model.heads,
        inner=model.mlp_width,
        ups=1,
        causal=False,
    )


def row_bytes(layout: Layout, encoder: ModuleLayout, work: Workload, width: int) -> tuple[int, int]:
    """Return the bytes of rows that an encoder rank sends, and a language rank gets, for one group.

    `width` is that of a row in bytes.
    """
    ends = []
    for grid in (encoder.grid, layout.language.grid):
        rows = work.rows * encoder.grid.size("dp") // grid.size("dp")
        ends.append(-(-rows // (grid.size("cp") * grid.size("tp"))) * width)
    return ends[0], ends[1]
