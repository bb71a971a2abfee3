"""What this rank's device achieves alone: on one block, on the head, on plain passes over memory.

Decides: the work that is timed: one layer of the spec's own shapes, as one tp rank holds it, on as
many tokens as one microbatch brings to one cp rank, forward and backward.
Relies on: the layers of `models`, built a second time without sharding and without other ranks.
Leaves: transfers to `links`, what constants follow to `calibrate`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mimo_launch.bench.language_rates import head_rate, language_layers
from mimo_launch.bench.single_layer import (
    alone,
    noise,
    randomised,
    seconds_of,
    tflops,
    there_and_back,
)
from mimo_launch.data.average_step import nominal_step_data
from mimo_launch.estimate.flops import forward_flops
from mimo_launch.estimate.workload import workload
from mimo_launch.kinds.layer import Workload
from mimo_launch.layers.attention_masks import image_mask
from mimo_launch.layers.fsdp_shards import local_tensor
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.layout.row_owners import FP8_STEP
from mimo_launch.layout.stages import Stage
from mimo_launch.models.build import PRECISIONS, RankModule, encoder_stage
from mimo_launch.models.encoder_inputs import EncoderInput
from mimo_launch.spec.model import TransformerEncoder
from mimo_launch.train.session import RankSession

# Passes of AdamW: it reads weight, gradient and two moments, and writes all but the gradient.
ADAMW_PASSES = 7
_TERA, _GIGA = 1e12, 1e9
_MOST_WEIGHTS = {"cuda": 1 << 27, "cpu": 1 << 22}
_MATMUL_ROWS = {"cuda": 8192, "cpu": 256}


def compute_rates(session: RankSession) -> dict[str, float]:
    """Return the rates of this rank's modules, in TFLOP/s and GB/s, by names of `Calibration`.

    Those of blocks and of the head are in the precision of the spec; blocks in FP8 have a name of
    their own (`language_fp8`). Ranks: local.
    """
    rates: dict[str, float] = {}
    for name, module in session.modules.items():
        if name == LANGUAGE:
            rates.update(language_layers(session, module))
            rates["head"] = head_rate(session, module)
            continue
        kind = "vision_linear" if module.context.fp8 is None else "vision_fp8"
        achieved = None if kind in rates else _vit_block(session, module)
        if achieved is not None:
            rates[kind] = achieved
    if session.modules:
        device, width = session.device, session.spec.language.model.hidden
        for precision, dtype in PRECISIONS.items():
            rates[f"matmul_{precision}"] = _matmul(width, dtype, device)
        rates["memory_bandwidth"] = _adamw(session)
    return rates


def _vit_block(session: RankSession, module: RankModule) -> float | None:
    """Return the rate on the images or clips of one cp rank; None without any, or for own kinds."""
    spec, layout, context = session.spec, session.layout, alone(module)
    model = spec.modules[module.name].model
    if not isinstance(model, TransformerEncoder):
        return None
    stage = Stage(module.name, 1, 0, 1, is_first=False, is_last=False)
    sample = nominal_step_data(spec).samples[0]
    spans = workload(layout, module.layout, sample).spans
    if not spans:
        return None
    spans = spans[: max(1, len(spans) // module.context.cp.size)]
    work = Workload(spans=spans, held=sum(spans), rows=0, forwards=1)
    width = spec.language.model.hidden
    network = randomised(
        encoder_stage(context, model, stage, language_width=width, recompute=False), context
    )
    # Padded as `layout.row_owners` has it.
    tokens = work.tokens if context.fp8 is None else -(-work.tokens // FP8_STEP) * FP8_STEP
    mask = image_mask(list(spans), range(tokens), context.device, alone=True)
    places = torch.zeros((tokens, 2), device=context.device)
    packed = EncoderInput(mask, (work.tokens,), None, places)
    hidden = noise(context, tokens, model.hidden).requires_grad_()
    flops = forward_flops(spec, stage, work).total
    return tflops(flops, context.tp, there_and_back(network, hidden, packed), context.device)


def _matmul(width: int, dtype: torch.dtype, device: torch.device) -> float:
    rows = _MATMUL_ROWS[device.type]
    left = torch.randn(rows, width, dtype=dtype, device=device)
    right = torch.randn(width, 4 * width, dtype=dtype, device=device)
    return 2 * rows * 4 * width**2 / seconds_of(lambda: left @ right, device) / _TERA


def _adamw(session: RankSession) -> float:
    """Return GB/s of the optimizer on as many weights as this rank holds, within limits."""
    device, held = session.device, sum(p.numel() for p in _shards(session.modules))
    size = max(1, min(held, _MOST_WEIGHTS[device.type]))
    weight = nn.Parameter(torch.randn(size, device=device))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    seconds = seconds_of(optimizer.step, device)
    return ADAMW_PASSES * size * weight.element_size() / seconds / _GIGA


def _shards(modules: Mapping[str, RankModule]) -> list[Tensor]:
    return [local_tensor(p) for module in modules.values() for p in module.parameters()]
