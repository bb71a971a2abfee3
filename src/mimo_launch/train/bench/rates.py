"""What this rank's device achieves alone: on one block, on the head, on plain passes over memory.

Decides: the work that is timed: one layer of the spec's own shapes, as one tp rank holds it, on as
many tokens as one microbatch brings to one cp rank, forward and backward.
Relies on: the layers of `modules`, built a second time without sharding and without other ranks.
Leaves: transfers to `links`, what constants follow to `calibrate`.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from mimo_launch.comm.clock import Section, StepClock
from mimo_launch.grids.grid_set import Group
from mimo_launch.layout.layout import Stage
from mimo_launch.layout.nominal import nominal_data_plan
from mimo_launch.layout.phases import LANGUAGE
from mimo_launch.layout.tokens import padded_vocab_size, vocab_size
from mimo_launch.modules.build import PRECISIONS, RankModule, encoder_stage
from mimo_launch.modules.inputs import EncoderInput
from mimo_launch.modules.language import LanguageInput, LanguageStage
from mimo_launch.parallel.context import SINGLE, ParallelContext
from mimo_launch.parallel.local import local_tensor
from mimo_launch.parallel.masks import image_mask
from mimo_launch.plan.estimate_flops import forward_flops
from mimo_launch.plan.workload import Workload, workload
from mimo_launch.spec.model import LanguageModel, TransformerEncoder
from mimo_launch.train.session import RankSession

REPEATS, WARM_UP = 10, 3
# Passes of AdamW: it reads weight, gradient and two moments, and writes all but the gradient.
ADAMW_PASSES = 7
_TERA, _GIGA = 1e12, 1e9
_MOST_WEIGHTS = {"cuda": 1 << 27, "cpu": 1 << 22}
_MATMUL_ROWS = {"cuda": 8192, "cpu": 256}


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, after some that warm up."""
    for _ in range(WARM_UP):
        run()
    clock = StepClock(device)
    clock.start()
    for _ in range(REPEATS):
        with clock.span(Section.STEP):
            run()
    return statistics.median(end - start for _, start, end in clock.stop())


def compute_rates(session: RankSession) -> dict[str, float]:
    """Return the rates of this rank's modules, in TFLOP/s and GB/s, by names of `Calibration`.

    Those of blocks and of the head are in the precision of the spec. Ranks: local.
    """
    rates: dict[str, float] = {}
    for name, module in session.modules.items():
        if name == LANGUAGE:
            rates["language_linear"] = _decoder_block(session, module)
            rates["head"] = _head(session, module)
        elif "vision_linear" not in rates:
            rate = _vit_block(session, module)
            if rate is not None:
                rates["vision_linear"] = rate
    if session.modules:
        device, width = session.device, session.spec.language.model.hidden
        for precision, dtype in PRECISIONS.items():
            rates[f"matmul_{precision}"] = _matmul(width, dtype, device)
        rates["memory_bandwidth"] = _adamw(session)
    return rates


def _alone(module: RankModule) -> ParallelContext:
    """Return the context of one tp rank's part without any other rank.

    Transformer Engine asks its group for its part, so it gets whole layers.
    """
    tp = module.context.tp
    part = SINGLE if module.context.backend == "transformer_engine" else replace(tp, handle=None)
    return replace(
        module.context,
        tp=part,
        cp=SINGLE,
        sequence_parallel=False,
        fp8=None if module.context.fp8 is None else module.context.fp8.alone(),
        dtype=module.context.compute_dtype,  # As FSDP hands weights to layers.
    )


def _random(network: nn.Module, context: ParallelContext) -> nn.Module:
    """Fill weights with small numbers: zeros would save power, and so be faster than training."""
    network.to(context.device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.02)
    return network


def _noise(context: ParallelContext, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=context.compute_dtype, device=context.device)


def _rate(flops: float, tp: Group, run: Callable[[], object], device: torch.device) -> float:
    """Return TFLOP/s of a call that runs one tp rank's part of a forward and its backward."""
    return 3 * flops / tp.size / seconds_of(run, device) / _TERA


def _decoder_block(session: RankSession, module: RankModule) -> float:
    context, stage = _alone(module), Stage(LANGUAGE, 1, 0, 1, is_first=False, is_last=False)
    network = _random(_decoder(session, context, stage), context)
    work, batch = _tokens(session, module, labels=None)
    hidden = _noise(context, work.tokens, session.spec.language.model.hidden).requires_grad_()
    gradient = torch.randn_like(hidden)

    def run() -> None:
        network.zero_grad()
        hidden.grad = None
        network(hidden, batch).backward(gradient)

    flops = forward_flops(session.spec, stage, work).total
    return _rate(flops, context.tp, run, context.device)


def _head(session: RankSession, module: RankModule) -> float:
    context, stage = _alone(module), Stage(LANGUAGE, 1, 0, 0, is_first=False, is_last=True)
    network = _random(_decoder(session, context, stage), context)
    vocab = vocab_size(session.spec)
    work, batch = _tokens(session, module, labels=vocab)
    hidden = _noise(context, work.tokens, session.spec.language.model.hidden).requires_grad_()

    def run() -> None:
        network.zero_grad()
        hidden.grad = None
        network(hidden, batch).backward()

    flops = forward_flops(session.spec, stage, work).total
    return _rate(flops, context.tp, run, context.device)


def _decoder(session: RankSession, context: ParallelContext, stage: Stage) -> nn.Module:
    spec = session.spec
    model = spec.language.model
    if not isinstance(model, LanguageModel):
        raise TypeError(f"language has a model of unknown kind {model!r}")
    return LanguageStage(
        context,
        model,
        stage,
        vocab=vocab_size(spec),
        padded_vocab=padded_vocab_size(spec),
        global_samples=spec.batch.global_,
        recompute=False,
    )


def _tokens(
    session: RankSession, module: RankModule, *, labels: int | None
) -> tuple[Workload, LanguageInput]:
    """Return one microbatch of one cp rank, with random labels below `labels` if there are any."""
    layout, device = session.layout, session.device
    seq, count = layout.seq // module.context.cp.size, layout.samples.microbatch_size
    batch = LanguageInput(
        num_sequences=count,
        tokens=None,
        positions=torch.arange(seq, device=device),
        documents=None,
        labels=None if labels is None else torch.randint(labels, (count, seq), device=device),
        rows={},
        placements={},
    )
    return Workload(spans=(seq,) * count, held=seq * count, rows=0, forwards=1), batch


def _vit_block(session: RankSession, module: RankModule) -> float | None:
    """Return the rate on the images or clips of one cp rank; None without any, or for own kinds."""
    spec, layout, context = session.spec, session.layout, _alone(module)
    model = spec.modules[module.name].model
    if not isinstance(model, TransformerEncoder):
        return None
    stage = Stage(module.name, 1, 0, 1, is_first=False, is_last=False)
    sample = nominal_data_plan(spec).samples[0]
    spans = workload(layout, module.layout, sample).spans
    if not spans:
        return None
    spans = spans[: max(1, len(spans) // module.context.cp.size)]
    work = Workload(spans=spans, held=sum(spans), rows=0, forwards=1)
    width = spec.language.model.hidden
    network = _random(
        encoder_stage(context, model, stage, language_width=width, recompute=False), context
    )
    mask = image_mask(list(spans), range(work.tokens), context.device, alone=True)
    places = torch.zeros((work.tokens, 2), device=context.device)
    packed = EncoderInput(mask, (work.tokens,), None, places)
    hidden = _noise(context, work.tokens, model.hidden).requires_grad_()
    gradient = torch.randn_like(hidden)

    def run() -> None:
        network.zero_grad()
        hidden.grad = None
        network(hidden, packed).backward(gradient)

    flops = forward_flops(spec, stage, work).total
    return _rate(flops, context.tp, run, context.device)


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
