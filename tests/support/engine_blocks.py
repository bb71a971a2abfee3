"""One transformer block, computed in some way, against the torch block in float64 on one processor.

Ways are backends and those of `tests.support.lists`.

Legend: N tokens of all ranks in the order of the whole list, n those of this rank, D width.
"""

import warnings
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from tests.support.lists import attention_by
from tests.support.shapes import block_shape
from torch import Tensor, nn

from mimo_launch.comm.process_groups import Group
from mimo_launch.diag.installed import ENGINE
from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.kinds.layer import Rotary
from mimo_launch.layers.image_contexts import AttentionContext, image_context, turned_by_place
from mimo_launch.layers.initial_weights import init_parameters
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters, weight_segments
from mimo_launch.layers.sequence_contexts import Documents, sequence_context, zigzag_positions
from mimo_launch.models.transformer_block import blocks
from mimo_launch.spec.module import Recompute

DECODER = block_shape(width=512, heads=8, head_size=64, mlp=1408)
GROUPED = block_shape(width=512, heads=8, kv_heads=2, head_size=64, mlp=1408, qk_norm=True)
ONE_KV_HEAD = block_shape(width=512, heads=8, kv_heads=1, head_size=64, mlp=1408)
VIT = block_shape(width=320, heads=4, head_size=80, mlp=1280, norm="layer", bias=True)
CPU = torch.device("cpu")
# How many times as large as that of another way an error may be, and the error of a result that is
# exact before it is rounded to bf16.
MOST, ROUNDING = 1.5, 2.0**-9


@dataclass(frozen=True)
class Case:
    """A block, its tokens and its grid: `lengths` are images, without them there are sequences.

    `turned`: queries and keys of images turn by the places of patches.
    """

    shape: BlockShape
    lengths: tuple[int, ...] = ()
    turned: bool = False
    num_tokens: int = 512
    batch: int = 2
    documents: tuple[int, ...] = ()
    recompute: Recompute = "none"
    tp: int = 1
    cp: int = 1
    sequence_parallel: bool = False
    compiled: bool = False


RAGGED = (100, 37, 256, 1)
# Under cp they begin and end inside chunks, and reach over several.
DOCUMENTS = (100, 156, 3, 250, 3)
ONE_GPU = {
    "decoder": Case(DECODER),
    "decoder, grouped heads, qk_norm": Case(GROUPED),
    "decoder, packed documents": Case(GROUPED, documents=DOCUMENTS),
    "decoder, recompute": Case(GROUPED, recompute="full"),
    "decoder, parts recomputed": Case(GROUPED, recompute=("attention", "mlp")),
    "decoder, compiled, recompute": Case(GROUPED, recompute="full", compiled=True),
    "vit, equal images": Case(VIT, (128, 128), num_tokens=256),
    "vit, ragged images": Case(VIT, RAGGED, num_tokens=sum(RAGGED)),
    "vit, ragged images and padding": Case(VIT, RAGGED, num_tokens=sum(RAGGED) + 6),
    "vit, equal images, turned": Case(VIT, (128, 128), num_tokens=256, turned=True),
    "vit, ragged images, turned": Case(VIT, RAGGED, num_tokens=sum(RAGGED) + 6, turned=True),
    "vit, ragged images, recompute": Case(VIT, RAGGED, num_tokens=400, recompute="full"),
}
PACKED_CP2 = {
    "decoder, cp2, packed": Case(GROUPED, documents=DOCUMENTS, cp=2),
    "decoder, cp2, packed, recompute": Case(DECODER, documents=DOCUMENTS, cp=2, recompute="full"),
    "decoder, cp2, packed, one sequence": Case(
        GROUPED, documents=(40, 24, 200, 1, 247), batch=1, cp=2
    ),
}
TP2 = {"tp": 2, "cp": 1}
TWO_GPUS = {
    "decoder, tp2": Case(GROUPED, **TP2),
    "decoder, tp2, sequence parallel": Case(GROUPED, sequence_parallel=True, **TP2),
    "decoder, tp2, one kv head": Case(ONE_KV_HEAD, sequence_parallel=True, **TP2),
    "decoder, tp2, packed": Case(GROUPED, documents=(100, 156, 256), recompute="full", **TP2),
    "vit, tp2": Case(VIT, RAGGED, num_tokens=sum(RAGGED), **TP2),
    "vit, tp2, sequence parallel": Case(VIT, RAGGED, num_tokens=400, sequence_parallel=True, **TP2),
    "decoder, cp2": Case(GROUPED, cp=2),
    "decoder, cp2, recompute": Case(DECODER, cp=2, recompute="full"),
    "vit, cp2": Case(VIT, RAGGED, num_tokens=400, cp=2),
    "vit, cp2, a rank of padding": Case(VIT, (64,), num_tokens=128, cp=2),
    **PACKED_CP2,
}


def block_errors(
    case: Case, ways: tuple[str, ...], device_name: str, dtype: torch.dtype = torch.bfloat16
) -> dict[str, dict[str, float]]:
    """Return, per way and tensor, the relative error. Ranks: collective over the world."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        return {way: _errors(case, way, device_name, dtype) for way in ways}


def above_bar(errors: dict[str, dict[str, float]], reference: str, way: str) -> list[str]:
    """Return the tensors in which the error of a way is above the bar, and print all."""
    for name, error in errors[way].items():
        print(f"  {name:40s} {reference} {errors[reference][name]:.2e}  {way} {error:.2e}")
    bars = {name: MOST * max(error, ROUNDING) for name, error in errors[reference].items()}
    return [name for name, error in errors[way].items() if not error <= bars[name]]


def zero_tokens(case: Case, backend: str, device_name: str) -> tuple[tuple[int, ...], list[str]]:
    """Return the shape of the output of no tokens, and the weights whose gradient is not zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        device = torch.device(device_name)
        context = context_of(case, backend, device, torch.bfloat16)
        block = _block(case, context)
        x = torch.empty(0, case.shape.width, dtype=torch.bfloat16, device=device)
        x.requires_grad_()
        mask = image_context([], range(0), device, alone=True)
        if case.turned:
            places = torch.zeros(0, 2, device=device)
            mask = turned_by_place(mask, places, case.shape.attention.head_size, torch.bfloat16)
        out = block["0"](x, mask)
        out.sum().backward()
        bad = [n for n, p in block.named_parameters() if p.grad is None or bool(p.grad.any())]
    return tuple(out.shape), bad


def _errors(case: Case, way: str, device_name: str, dtype: torch.dtype) -> dict[str, float]:
    device = (
        torch.device(device_name, torch.cuda.current_device()) if device_name == "cuda" else CPU
    )
    generator = torch.Generator().manual_seed(7)
    shape = case.num_tokens, case.shape.width
    x_ND, g_ND = (torch.randn(shape, generator=generator).bfloat16().double() for _ in "xg")
    g_ND[sum(case.lengths) or len(g_ND) :] = 0  # Padding leads to no loss.

    alone = ParallelContext(dtype=torch.float64, compute_dtype=torch.float64)
    exact = _tensors(replace(case, tp=1, cp=1), alone, x_ND, g_ND, torch.arange(len(x_ND)))
    context = context_of(case, way, device, dtype)
    places = _places(case, context)
    low = [t.to(device, dtype) for t in (x_ND, g_ND)]
    with attention_by(way, device):
        found = _tensors(case, context, low[0], low[1], places.to(device))
    for name in ("output", "input"):
        exact[name] = exact[name][places]
    scale = max(float(t.norm()) for name, t in exact.items() if name.startswith("m."))
    errors = {}
    for name, want in exact.items():
        squares = torch.stack([(found[name] - want).square().sum(), want.square().sum()])
        if name in ("output", "input") and dist.get_world_size() > 1:
            dist.all_reduce(squares)
        error, norm = squares.sqrt().tolist()
        errors[name] = error / max(norm, 1e-2 * scale)
    return errors


def context_of(case: Case, way: str, device: torch.device, dtype: torch.dtype) -> ParallelContext:
    """Return this rank's context: tp is the fastest axis. Ranks: collective over the world."""
    rank = dist.get_rank()
    axes = {
        "tp": [list(range(c * case.tp, (c + 1) * case.tp)) for c in range(case.cp)],
        "cp": [list(range(t, case.tp * case.cp, case.tp)) for t in range(case.tp)],
    }
    mine = {}
    for axis, groups in axes.items():
        for ranks in groups:
            handle = None
            if len(ranks) > 1:
                handle = dist.new_group(ranks, backend="nccl" if device.type == "cuda" else "gloo")
            if rank in ranks:
                mine[axis] = Group(tuple(ranks), ranks.index(rank), handle)
    return ParallelContext(
        tp=mine.get("tp", SINGLE),
        cp=mine.get("cp", SINGLE),
        sequence_parallel=case.sequence_parallel,
        dtype=dtype,
        compute_dtype=dtype,
        device=device,
        compiled=case.compiled,
        backend="transformer_engine" if way.startswith(ENGINE) else "torch",
    )


def _block(case: Case, context: ParallelContext) -> nn.ModuleDict:
    """Return a block whose weights are the same on every layout, and exact in bf16."""
    network = blocks(context, {0: case.shape}, recompute=case.recompute)
    init_parameters(weight_segments("m", network), 0, randomise=True)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())
    return network.to(context.device)


def _places(case: Case, context: ParallelContext) -> Tensor:
    """Return the places [n] of this rank's tokens in the whole list."""
    tp, cp = context.tp, context.cp
    if case.lengths:
        size = case.num_tokens // cp.size
        places = torch.arange(cp.index * size, (cp.index + 1) * size)
    else:
        seq = case.num_tokens // case.batch
        positions = zigzag_positions(seq, cp.index, cp.size, CPU)
        places = (torch.arange(case.batch)[:, None] * seq + positions).flatten()
    return places.chunk(tp.size)[tp.index] if case.sequence_parallel else places


def mask_of(case: Case, context: ParallelContext) -> AttentionContext:
    cp, device = context.cp, context.device
    if case.lengths:
        size = case.num_tokens // cp.size
        held = range(cp.index * size, (cp.index + 1) * size)
        mask = image_context(list(case.lengths), held, device, alone=cp.size == 1)
        if not case.turned:
            return mask
        tokens = torch.arange(held.start, held.stop, device=device)
        places = torch.stack([tokens // 16, tokens % 16], dim=1)
        return turned_by_place(mask, places, case.shape.attention.head_size, context.compute_dtype)
    seq, documents = case.num_tokens // case.batch, None
    if case.documents:
        each = torch.tensor(case.documents)
        numbers = torch.arange(len(each)).repeat_interleave(each).view(case.batch, seq)
        documents = Documents(numbers.to(device), case.documents)
    positions = zigzag_positions(seq, cp.index, cp.size, device)
    rotary = Rotary(case.shape.attention.head_size, 10000.0)
    return sequence_context(
        case.batch, positions, rotary, context.compute_dtype, documents=documents
    )


def _tensors(
    case: Case, context: ParallelContext, x_ND: Tensor, g_ND: Tensor, places: Tensor
) -> dict[str, Tensor]:
    """Return output and input gradient of this rank's tokens, and the full gradient of each weight.

    All in float64 on the processor.
    """
    block = _block(case, context)
    x = x_ND[places].requires_grad_()
    out = block["0"](x, mask_of(case, context))
    torch.autograd.backward(out, g_ND[places])
    if x.grad is None:
        raise ValueError("no gradient of the input")
    found = {"output": out.detach(), "input": x.grad}
    for declared in declared_parameters("m", block):
        gradient = declared.parameter.grad
        if gradient is None:
            raise ValueError(f"no gradient of {declared.placed[0].name}")
        for placed in declared.placed:
            segment = placed.segment
            full = torch.zeros(segment.shape, dtype=torch.float64, device=context.device)
            # Ranks have parts of it, terms of a sum, or all of it (one of them is counted then).
            if segment.tp_grad != "complete" or segment.counted:
                segment.cut(full).add_(gradient[placed.first_row : placed.last_row])
            if context.tp.size * context.cp.size > 1:
                dist.all_reduce(full)
            found[placed.name] = full
    return {name: tensor.double().cpu() for name, tensor in found.items()}
