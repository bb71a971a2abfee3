"""Seconds and memory of attention over packed documents, by masks and by lists.

Legend: N tokens of this rank, D width.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from tests.support.engine_blocks import Case, context_of, mask_of
from tests.support.lists import attention_by
from torch import Tensor

from mimo_launch.layers.attention import Attention

GIB = 2**30
WARM_UP, TIMES = 2, 5


def layer_of(case: Case, way: str, device: torch.device) -> tuple[Attention, Tensor]:
    """Return a layer of attention in bf16 and tokens [N, D] for it. Ranks: collective."""
    torch.manual_seed(0)
    shape, context = case.shape, context_of(case, way, device, torch.bfloat16)
    plain = replace(shape.attention, qk_norm=False, bias=False, qkv_bias=False, out_scale=1.0)
    attention = Attention(context, plain)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    tokens = case.num_tokens // case.cp
    x_ND = torch.randn(tokens, shape.width, dtype=torch.bfloat16, device=device)
    return attention.to(device), x_ND.requires_grad_()


def milliseconds_and_gib(case: Case, way: str) -> tuple[float, float] | None:
    """Return the median time of a forward and backward, and the memory it takes at its peak.

    Returns: None where it does not fit. Ranks: collective over the world, a GPU each.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    attention, x_ND = layer_of(case, way, device)
    mask = mask_of(case, attention.context)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    try:
        with attention_by(way, device):
            for _ in range(WARM_UP + TIMES):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
                begin.record()
                out = attention(x_ND, mask)
                out.backward(out.detach())
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
    except torch.OutOfMemoryError:
        if dist.get_world_size() > 1:
            raise  # Other ranks wait for this one in a collective.
        return None
    peak = (torch.cuda.max_memory_allocated() - before) / GIB
    return sorted(times[WARM_UP:])[TIMES // 2], peak


def waits_for_device(case: Case, way: str, others: tuple[int, ...]) -> None:
    """Run forward and backward with documents of lengths `others`, that no step has had before.

    Raises: RuntimeError where the host waits for the GPU in it.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    attention, x_ND = layer_of(case, way, device)
    mask = mask_of(case, attention.context)
    attention(x_ND, mask).sum().backward()
    with attention_by(way, device):
        mask = mask_of(replace(case, documents=others), attention.context)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            attention(x_ND, mask).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
