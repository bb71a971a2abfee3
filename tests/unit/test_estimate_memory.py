"""Bytes of the estimates: tensors that autograd really keeps, and sums that follow from sizes."""

from dataclasses import replace

import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.nominal import nominal_data_plan
from mimo_launch.layout.tokens import padded_vocab_size
from mimo_launch.modules.block import Block, BlockShape
from mimo_launch.parallel.context import ParallelContext
from mimo_launch.parallel.masks import causal_mask, image_mask
from mimo_launch.plan.calibration import Calibration
from mimo_launch.plan.estimate_memory import StageMemory, stage_memory
from mimo_launch.plan.estimate_rows import MemoryRow
from mimo_launch.plan.estimates import Estimator
from mimo_launch.plan.report import build_report
from mimo_launch.plan.workload import workload
from mimo_launch.schedule.generate import generate
from mimo_launch.spec.model import Spec

TOKENS, WIDTH, INNER = 512, 256, 1024
DECODER = {
    "kind": "decoder",
    "layers": 4,
    "hidden": WIDTH,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 32,
    "mlp": INNER,
    "vocab": 512,
}
VIT = {
    "kind": "vit",
    "layers": 4,
    "hidden": WIDTH,
    "heads": 8,
    "patch": 2,
    "mlp": INNER,
    "shuffle": 2,
}


def model(
    *, compiled: bool = True, precision: str = "bf16", vocab: int = 512, **language: object
) -> Spec:
    """A microbatch of two sequences, or two images, of 256 tokens each."""
    return spec(
        {
            "vision": box(0, model=VIT, compile=compiled),
            "language": box(1, model={**DECODER, "vocab": vocab}, compile=compiled, **language),
        },
        mbs=2,
        seq=256,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
        train={"steps": 1, "precision": precision},
    )


def memory_of(made: Spec, name: str, stage: int = 0) -> StageMemory:
    layout = build_layout(made)
    module, sample = layout[name], nominal_data_plan(made).samples[0]
    work = workload(layout, module, sample)
    return stage_memory(made, layout, module, module.stages[stage], work, 0)


def kept_by_autograd(name: str, *, compiled: bool, dtype: torch.dtype, frozen: bool) -> int:
    """Return the bytes of distinct tensors that a block keeps, parameters and masks left out."""
    is_vit = name == "vision"
    shape = BlockShape(
        width=WIDTH,
        heads=8,
        kv_heads=8 if is_vit else 2,
        head_size=32,
        mlp=INNER,
        layers=4,
        norm="layer" if is_vit else "rms",
        gated=not is_vit,
        bias=is_vit,
    )
    block = Block(ParallelContext(compute_dtype=dtype, dtype=dtype), shape, recompute=False)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.requires_grad_(not frozen)
    known = [*block.parameters()]
    if is_vit:
        mask = image_mask([256, 256], range(TOKENS), torch.device("cpu"), alone=True)
    else:
        mask = causal_mask(2, torch.arange(256), 32, 1e4, dtype, documents=None)
        known += [mask.cos, mask.sin]
    # What inductor is given to make kernels of, without making them.
    run = torch.compile(block._compute, backend="aot_eager_decomp_partition")
    left_out = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # A number per token or channel is a statistic of a norm, which the estimate leaves out.
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * TOKENS:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x_nD = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = (run if compiled else block._compute)(x_nD, mask)
    del out
    return sum(kept.values())


# The import of inductor warns about its own use of torch.jit.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("name", "frozen"), [("language", False), ("language", True), ("vision", False)]
)
def test_a_compiled_block_keeps_what_the_table_says(name: str, frozen: bool) -> None:
    got = kept_by_autograd(name, compiled=True, dtype=torch.bfloat16, frozen=frozen)
    assert per_block(model(frozen=frozen), name) == got


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["language", "vision"])
def test_a_block_that_is_not_compiled_keeps_more(name: str, precision: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    made = model(compiled=False, precision=precision)
    got = kept_by_autograd(name, compiled=False, dtype=dtype, frozen=False)
    assert per_block(made, name) == got


def per_block(made: Spec, name: str) -> int:
    """Return what a block keeps, as the difference that two blocks make."""
    fewer = made.model_copy(deep=True)
    object.__setattr__(fewer.modules[name].model, "layers", 2)
    return (memory_of(made, name).kept - memory_of(fewer, name).kept) // 2


def test_recomputing_keeps_the_input_alone() -> None:
    made = model(recompute="full")
    assert per_block(made, "language") == TOKENS * WIDTH * 2
    assert memory_of(made, "language").backward_extra > memory_of(model(), "language").kept / 4


def test_head_keeps_one_tensor_of_logits_and_needs_a_second() -> None:
    large, small = memory_of(model(vocab=1024), "language"), memory_of(model(), "language")
    assert large.kept - small.kept == TOKENS * 512 * 2
    assert large.forward_extra == TOKENS * 1024 * 2


def row(made: Spec, rank: int, **constants: float) -> MemoryRow:
    layout, sample = build_layout(made), nominal_data_plan(made).samples[0]
    estimator = Estimator(
        made, layout, generate(layout), sample, replace(Calibration(), **constants)
    )
    (alike,) = [each for each in estimator.classes if rank in each.ranks]
    return estimator.memory(alike)


def language(microbatches: int = 4, mbs: int = 2, **more: object) -> Spec:
    grid = {axis: more.pop(axis) for axis in ("tp", "cp", "dp", "pp") if axis in more}
    return spec(
        {"language": box(0, model={**DECODER, "hidden": 512}, **grid, **more)},
        microbatches=microbatches,
        mbs=mbs,
        seq=256,
        train={"steps": 1, "precision": "bf16"},
    )


def test_state_is_sharded_over_dp_and_cp() -> None:
    made = language(dp=2, cp=2)
    numel = build_report(made).estimates.ranks[0].parameters
    got = row(made, 0)
    # fp32 shards and a bf16 copy; two fp32 moments; whole fp32 gradients, and in a backward bf16
    # ones of what is no matrix product, the embedding above all.
    assert got.weights == pytest.approx(numel * (4 / 4 + 2), rel=1e-3)
    assert got.optimizer == pytest.approx(numel * 8 / 4, rel=1e-3)
    words = 2 * 512 * padded_vocab_size(made)
    assert got.gradients == pytest.approx(numel * 4 + words, rel=1e-2)
    full = row(language(dp=2, cp=2, sharding="full"), 0)
    assert full.weights < got.weights
    assert full.gradients < got.gradients / 2
    assert full.optimizer == got.optimizer


def test_one_microbatch_accumulates_nothing() -> None:
    assert row(language(1), 0).gradients < row(language(2), 0).gradients
    assert row(language(2), 0).gradients == row(language(8), 0).gradients


def test_activations_are_those_of_live_microbatches() -> None:
    made = language(8, mbs=64, pp=4)
    report = build_report(made)
    peaks = [stage.peak_live for stage in report.stages]
    assert peaks == [4, 3, 2, 1]
    for rank, peak in enumerate(peaks):
        stage = memory_of(made, "language", rank)
        extra = row(made, rank).activations - peak * stage.kept
        assert extra == max(stage.forward_extra, stage.backward_extra)


def test_input_gradients_wait_in_their_send_buffers() -> None:
    few, many = (row(language(m, pp=2), 1).transfers for m in (4, 8))
    assert many - few == 4 * 2 * 256 * 512 * 2


def test_communicators_and_context_are_outside_the_allocator() -> None:
    free = {"context_memory": 0.0, "communicator_memory": 0.0, "allocator_slack": 0.0}
    alone = row(language(), 0, **free)
    assert alone.device == alone.reserve == 0
    assert alone.total == alone.allocated
    assert row(language(), 0, **{**free, "communicator_memory": 1.0}).device == 0
    # World, tp; world, dp x cp; world, pp and a channel each way.
    for grid, number in (({"tp": 2}, 2), ({"dp": 2}, 2), ({"pp": 2}, 4)):
        got = row(language(**grid), 0, **{**free, "communicator_memory": 1.0})
        assert got.device == number * 10**9


def test_what_is_frozen_has_no_gradients_and_keeps_nothing() -> None:
    made = spec(
        {"vision": box(0, model=VIT, frozen=True), "language": box(1, model=DECODER)},
        microbatches=4,
        seq=512,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
    )
    got = row(made, 0)
    assert got.gradients == got.optimizer == got.activations == 0
    assert got.weights > 0
