"""The operations of a stage in one forward or backward, and of a whole step with its own samples.

Decides: that the FLOPs of a step count its own samples, with padding and without recomputation; the
cost of a backward, with frozen modules and without.
Relies on: `layout.step_views`, by which a run deals out samples, `kinds` for the operations of a
forward; `spec.values` for known peaks.
Leaves: bytes to `memory`, seconds to `cost_model`, and measured seconds to `train` and `bench`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from operator import add

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.kinds.language import CausalKind
from mimo_launch.kinds.layer import Flops, LayerKind, Workload
from mimo_launch.kinds.module_weights import lowest_trained
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.saved_activations import Mask
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.row_owners import held_patches, local_extra_tokens, shards_of_cp_rank
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData, StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.schedule.data_flow import needs_backward, trains_before
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import ModuleSpec, Spec, VitModel
from mimo_launch.spec.values import BF16_PEAKS, Precision


def workload(views: StepViews, module: ModuleLayout, replica: int, forward: int) -> Workload:
    """Return the work of one forward of a replica on the samples that it gets in a step."""
    forwards = views.layout.num_groups(module)
    if not module.is_language:
        return encoder_workload(views.encoder(module.name, replica, forward), forwards)
    seq, samples = views.layout.seq, samples_of(views, replica, forward)
    images = (s.spans.get(name, ()) for name in module.whole_images for s in samples)
    blocks = Counter(span.num_positions for span in chain.from_iterable(images))
    if module.whole_prompts:
        # As if what is learnt came last.
        records = chain.from_iterable(sample.records for sample in samples)
        blocks = Counter(each.num_tokens - each.num_labels for each in records)
    return Workload(
        spans=Counter(chain.from_iterable(sample.span_lengths(seq) for sample in samples)),
        held=_tokens_of(module, len(samples) * seq),
        rows=0,
        forwards=forwards,
        blocks=blocks,
    )


def tokens_held(views: StepViews, module: ModuleLayout, replica: int, forward: int) -> int:
    """Return `held` of the work of one forward, without the rest of it, which takes longer."""
    if module.is_language:
        samples = views.language(replica, forward).samples
        return _tokens_of(module, len(samples) * views.layout.seq)
    return _tokens_of_view(views.encoder(module.name, replica, forward))


def _tokens_of(language: ModuleLayout, tokens: int) -> int:
    return tokens // language.grid.size(Axis.CP)


def _tokens_of_view(view: EncoderView) -> int:
    return len(view.held(0)) + _extra_tokens(view.module, sum(view.extras))


def _extra_tokens(module: ModuleLayout, extras: int) -> int:
    """Return the extra tokens that a cp rank holds, padding included."""
    return local_extra_tokens(module, extras) * shards_of_cp_rank(module)


def samples_of(views: StepViews, replica: int, microbatch: int) -> list[SampleData]:
    """Return the samples of a microbatch of a language replica."""
    return [views.data.samples[each] for each in views.language(replica, microbatch).samples]


def encoder_workload(view: EncoderView, forwards: int) -> Workload:
    """Return the work of an encoder forward on the images of a view."""
    return _work_of_views(view.module, [(view, 1)], forwards)


def _work_of_views(
    module: ModuleLayout, views: Iterable[tuple[EncoderView, int]], forwards: int
) -> Workload:
    """Return the work of an encoder forward on the images of views, each so many times."""
    spans, windows = Counter[int](), Counter[int]()
    units = extras = rows = 0
    reads = [0] * len(module.reads)
    for view, times in views:
        for length in map(add, view.lengths, view.extras):
            spans[length] += times
        for length in () if module.window_side is None else map(add, *view.windows):
            windows[length] += times
        units += times * view.num_units
        extras += times * sum(view.extras)
        rows += times * view.num_rows
        reads = [sum_ + times * more for sum_, more in zip(reads, view.rows_read, strict=True)]
    extra_tokens = _extra_tokens(module, extras)
    return Workload(
        spans=spans,
        windows=windows,
        held=len(held_patches(module, units, 0)) + extra_tokens,
        extra_tokens=extra_tokens,
        rows=rows,
        reads=tuple(reads),
        forwards=forwards,
    )


def mask_of_sequences(
    spec: Spec, layout: Layout, module: ModuleLayout, number: int, work: Workload
) -> Mask:
    """Return the mask of a layer of language, before what the shape of its attention needs.

    Kernels of more than 16 bits take no lists and no chunks.
    """
    written, cp = spec.modules[module.name], module.grid.size(Axis.CP)
    kind = kind_of(written.model)
    window = kind.window(number) if isinstance(kind, CausalKind) else None
    is_cut = window is not None and window.size < layout.seq
    found: Mask = "causal"
    if is_cut or work.has_documents(layout.seq):
        found = "documents"
    is_wide = spec.train.numbers.computed.bytes > 2 and (cp > 1 or found == "documents")
    sees_later = work.blocks and kind.attending.sees_later(number)
    return "masked" if sees_later or written.attention_dropout or is_wide else found


def gathered_numbers(spec: Spec, module: ModuleLayout, stage: Stage, work: Workload) -> int:
    """Return the numbers of patches that a cp group gathers to make rows of tiles, 0 elsewhere."""
    if module.tiles is None or not stage.is_last:
        return 0
    model, width = spec.modules[module.name].model, spec.row_width(module.name)
    if isinstance(model, VitModel) and model.tiles_before_projector:
        width = model.row_width
    patches = (work.held - work.extra_tokens) // module.patches_per_row
    return patches * module.grid.size(Axis.CP) * width


def rows_sent(views: StepViews, bridge: Bridge, replica: int, transfer: int) -> int:
    """Return the rows that a rank of a replica of a bridge's source sends in one transfer."""
    source, rows = views.layout[bridge.source], 0
    for forward in bridge.sources(transfer):
        if source.is_language:
            samples = samples_of(views, replica, forward)
            spans = (span for each in samples for span in each.spans.get(bridge.target, ()))
            rows += sum(span.num_positions for span in spans)
        else:
            rows += views.encoder(source.name, replica, forward).num_rows
    return _part_of_rank(source, rows)


def rows_received(views: StepViews, bridge: Bridge, replica: int, transfer: int) -> int:
    """Return the rows that a rank of a replica of a bridge's target receives in one transfer."""
    target, rows = views.layout[bridge.target], 0
    for forward in bridge.targets(transfer):
        if target.is_language:
            samples = views.language(replica, forward).samples
            rows += sum(views.data.rows(bridge.source, samples))
        else:
            view = views.encoder(target.name, replica, forward)
            rows += view.rows_read[target.reads.index(bridge.source)]
    return _part_of_rank(target, rows)


def _part_of_rank(module: ModuleLayout, rows: int) -> int:
    """Return the largest part of a replica's rows on one of its ranks."""
    return -(-rows // (module.grid.size(Axis.CP) * module.grid.size(Axis.TP)))


def forward_flops(spec: Spec, stage: Stage, work: Workload) -> Flops:
    """Return the operations of one forward of a stage."""
    return sum(forward_by_kind(spec, stage, work).values(), Flops())


def forward_by_kind(spec: Spec, stage: Stage, work: Workload) -> Mapping[LayerKind, Flops]:
    """Return the operations of one forward by kind of layer; the ends count as blocks."""
    kind = kind_of(spec.modules[stage.module].model)
    numbers = kind.numbers(stage.layers, is_last=stage.is_last)
    ends = ends_of(spec, stage.module, is_first=stage.is_first, is_last=stage.is_last)
    return kind.forward_flops(numbers, ends, work)


@frozen
class BackwardPath:
    """Where the backward of a stage goes: through these `layers`, of which some are `trained`.

    `after`: through the norm and the head after them, if the stage has them; `before`: through what
    comes before them.
    """

    layers: tuple[int, ...] = ()
    trained: tuple[int, ...] = ()
    after: bool = False
    before: bool = False


def backward_path(spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage) -> BackwardPath:
    """Return where the backward of a stage goes; it ends where nothing trains before."""
    if not needs_backward(layout, module, stage.index):
        return BackwardPath()
    goes_on = trains_before(layout, module.name)
    return _path(spec.modules[module.name], stage.layers, stage.is_last, goes_on)


@lru_cache(maxsize=1024)
def _path(written: ModuleSpec, layers: range, is_last: bool, goes_on: bool) -> BackwardPath:
    """Return the path through some layers of a module that needs a backward there."""
    if not goes_on and not written.trains_besides_projector:
        return BackwardPath()
    lowest = 0 if goes_on else lowest_trained(written)
    numbers = kind_of(written.model).numbers(layers, is_last=is_last)
    through = tuple(each for each in numbers if each >= lowest)
    return BackwardPath(
        layers=through,
        trained=tuple(filter(written.layer_trains, through)),
        after=True,
        before=lowest == 0,
    )


def backward_by_kind(
    spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage, work: Workload
) -> Mapping[LayerKind, Flops]:
    """Return the operations of one backward of a stage by kind of layer, as `forward_by_kind`.

    They are twice the forward: gradients of inputs and of weights. Frozen weights have none, and
    attention has no weights. Recomputation is not counted.
    """
    if not needs_backward(layout, module, stage.index):
        return {}
    written, path = spec.modules[module.name], backward_path(spec, layout, module, stage)
    kind = kind_of(written.model)
    ends = ends_of(spec, stage.module, is_first=stage.is_first, is_last=stage.is_last)
    around = kind.end_flops(ends, work)
    found: dict[LayerKind, Flops] = defaultdict(Flops)
    found[LayerKind.BLOCK] = Flops(
        head=path.after * (1 + written.body_trains) * around.head,
        patch=path.before * (1 + written.layer_trains(0)) * around.patch,
        projector=(1 + written.projector_trains) * around.projector,
        whole=(1 + written.projector_trains) * around.whole,
        attention=2 * path.after * around.attention,
    )
    through = trained = flops_of_layers(spec, module, path.layers, work)
    if path.trained != path.layers:
        trained = flops_of_layers(spec, module, path.trained, work)
    for each, flops in through.items():
        found[each] += Flops(linear=flops.linear, attention=2 * flops.attention)
    for each, flops in trained.items():
        found[each] += Flops(linear=flops.linear)
    return found


def flops_of_layers(
    spec: Spec, module: ModuleLayout, numbers: tuple[int, ...], work: Workload
) -> Mapping[LayerKind, Flops]:
    """Return the operations of one forward of some layers of a module, without its ends."""
    middle = ends_of(spec, module.name, is_first=False, is_last=False)
    return kind_of(spec.modules[module.name].model).forward_flops(numbers, middle, work)


def backward_flops(
    spec: Spec, layout: Layout, module: ModuleLayout, stage: Stage, work: Workload
) -> Flops:
    """Return the operations of one backward of a stage."""
    return sum(backward_by_kind(spec, layout, module, stage, work).values(), Flops())


@frozen(kw_only=True)
class Rate:
    """The TFLOP of each module in a step, TFLOP/s per rank, and their share of the peak."""

    tflop: dict[str, float]
    tflops_per_rank: float
    mfu: float | None


def step_flops(spec: Spec, layout: Layout, data: StepData) -> dict[str, float]:
    """Return the FLOPs of one step by module: forward and backward, without recomputation."""
    flops = {}
    for module in layout.modules:
        # Treat the whole step as one forward: the FLOPs of its samples add up.
        if module.is_language:
            held = len(data.samples) * layout.seq
            work = Workload(spans=data.span_lengths(layout.seq), held=held, rows=0, forwards=1)
        else:
            work = _work_of_all(module, data)
        total = 0.0
        for stage in module.stages:
            forward = forward_flops(spec, stage, work)
            total += forward.total + backward_flops(spec, layout, module, stage, work).total
        flops[module.name] = total
    return flops


def _work_of_all(module: ModuleLayout, data: StepData) -> Workload:
    """Return the work of an encoder on all samples of a step; equal images are counted once."""
    alike = data.alike(module.name, module.reads)
    only = StepData(data.step, [sample for sample, _ in alike])
    views = (
        (EncoderView(module, only, 0, (place,)), times) for place, (_, times) in enumerate(alike)
    )
    return _work_of_views(module, views, forwards=1)


def peak_tflops(
    device: str, precision: Precision, constants: Calibration | None = None
) -> float | None:
    """Return the peak of a device in TFLOP/s, or None if it is unknown, for example for a CPU.

    `constants` apply to their own device only, in every precision.
    """
    constants = constants or Calibration()
    if device == constants.rated_device:
        return constants.peak_in(precision)
    return BF16_PEAKS.get(device) if precision.is_mixed else None


def rate_of(
    flops: Mapping[str, float], seconds: float, world_size: int, peak: float | None
) -> Rate:
    """Return the rate of a step with these FLOPs by module; `peak` is for one device."""
    tflop = {name: each / 1e12 for name, each in flops.items()}
    tflops = sum(tflop.values()) / seconds / world_size
    return Rate(tflop=tflop, tflops_per_rank=tflops, mfu=None if peak is None else tflops / peak)
