"""Times one device alone: a layer of each kind, the head, plain passes over memory.

Decides: which work to time: one layer of each kind in the shapes of the spec, as one tp rank
holds it, on the tokens of one microbatch on one cp rank, forward and backward; that weights and
inputs are random numbers; that the median of repeats counts.
Relies on: the layers of `models`, built again without sharding and without other ranks;
`comm.step_clock` for device times.
Leaves: transfers to `links`, the constants to `calibrate`.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.comm.torch_internals import hold_back
from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.estimate.workload import forward_flops, workload
from mimo_launch.kinds.layer import LayerKind, Workload
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.layers.image_contexts import image_context, two_list_context
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext, torch_type
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.layout.row_owners import FP8_STEP
from mimo_launch.layout.stages import Stage
from mimo_launch.models.build import RankModule, build_network, keep_activations
from mimo_launch.models.language_input import LanguageInput
from mimo_launch.models.stage_interface import StageLosses
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.optimizers import ADAMW
from mimo_launch.spec.spec import ExpertGrid, Spec
from mimo_launch.spec.values import PRECISIONS
from mimo_launch.train.rank_session import RankSession

REPEATS, WARM_UP = 10, 3
# The device is held back before a call for the call's time on the host times this factor.
_LEAD = 1.5
# The constant of `Calibration` for each kind of layer.
CONSTANTS = {
    LayerKind.BLOCK: "language_linear",
    LayerKind.MAMBA: "mamba",
    LayerKind.DELTANET: "deltanet",
    LayerKind.EXPERTS: "experts",
}
_TERA, _GIGA = 1e12, 1e9
_MOST_WEIGHTS = {"cuda": 1 << 27, "cpu": 1 << 22}
_MATMUL_ROWS = {"cuda": 8192, "cpu": 256}


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call, after some calls to warm up.

    On a GPU this is the time of its kernels: before each call the device is held back while the
    host starts them. In real steps the host runs ahead; where it does not, its own time counts
    (`layer_overhead`).
    """
    for _ in range(WARM_UP):
        run()
    clock = StepClock(device)
    began = clock.start()
    run()
    lead = _LEAD * (time.perf_counter() - began)
    for _ in range(REPEATS):
        if device.type == "cuda":
            hold_back(lead)
        with clock.span(Section.STEP):
            run()
    return statistics.median(end - start for _, start, end in clock.stop())


def alone(module: RankModule) -> ParallelContext:
    """Return a context that computes one tp rank's part without other ranks.

    Transformer Engine takes its part from the group, so it gets whole layers.
    """
    tp = module.context.tp
    part = SINGLE if module.context.backend == "transformer_engine" else replace(tp, handle=None)
    return replace(
        module.context,
        tp=part,
        cp=SINGLE,
        ep=SINGLE,
        expert_tp=SINGLE,
        replicas=SINGLE,
        sequence_parallel=False,
        fp8=None if module.context.fp8 is None else module.context.fp8.alone(),
        dtype=module.context.compute_dtype,  # FSDP gives layers weights of this type.
    )


def randomise(network: nn.Module, context: ParallelContext) -> nn.Module:
    """Fill weights with small numbers: zeros would save power and run faster than training."""
    network.to(context.device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.02)
    return network


def there_and_back(network: nn.Module, hidden: Tensor, batch: object) -> Callable[[], None]:
    """Return a function that runs forward, and backward from losses or a random gradient."""

    def forward() -> Tensor:
        made: Tensor | StageLosses = network(hidden, batch)
        return torch.stack(made.losses).sum() if isinstance(made, StageLosses) else made

    with torch.no_grad():
        made = forward()
    gradient = torch.randn_like(made) if made.dim() else None

    def run() -> None:
        network.zero_grad()
        hidden.grad = None
        torch.autograd.backward(forward(), gradient)

    return run


def noise(context: ParallelContext, *shape: int) -> Tensor:
    """Return random numbers in the type of activations."""
    return torch.randn(*shape, dtype=context.compute_dtype, device=context.device)


def tflops(flops: float, tp: Group, run: Callable[[], object], device: torch.device) -> float:
    """Return the TFLOP/s of a call that runs one tp rank's part of forward and backward."""
    return 3 * flops / tp.size / seconds_of(run, device) / _TERA


def language_layers(session: RankSession, module: RankModule) -> Iterator[tuple[str, float]]:
    """Yield the constant and the rate of the first layer of each kind."""
    model = session.spec.language.model
    seen: set[LayerKind] = set()
    for number in range(model.layers):
        kind = kind_of(model).layer_kind(number)
        if kind in seen:
            continue
        seen.add(kind)
        context, spec, shards = alone(module), keep_activations(session.spec), 1
        if kind is LayerKind.EXPERTS:
            spec, shards = _own_experts(spec), context.tp.size
            context = replace(context, tp=SINGLE)
        stage = Stage(LANGUAGE, 1, number, 1, is_first=False, is_last=False)
        network = randomise(build_network(spec, stage, context), context)
        work, batch = _tokens(session, module, labels=None, shards=shards)
        hidden = noise(context, work.tokens, spec.language.model.hidden).requires_grad_()
        flops = forward_flops(spec, stage, work).total
        run = there_and_back(network, hidden, batch)
        name = CONSTANTS[kind] if module.context.fp8 is None else "language_fp8"
        yield name, tflops(flops, context.tp, run, context.device)


def _own_experts(spec: Spec) -> Spec:
    """Return a spec with only the experts, or parts of experts, that one rank holds.

    With balanced loads, they receive as many tokens as the rank sends. The rest of a layer is
    whole, for the tokens of one tp rank.
    """
    language, model = spec.language, spec.language.model
    moe, grid = kind_of(model).moe, language.experts or ExpertGrid()
    if moe is None:
        return spec
    own = moe.experts // grid.ep
    mine = moe.replace(
        experts=own, top_k=min(moe.top_k, own), width=moe.width // grid.tp, groups=1, top_groups=1
    )
    changed = language.replace(model=model.replace(moe=mine))
    return spec.replace(modules={**spec.modules, LANGUAGE: changed})


def head_rate(session: RankSession, module: RankModule) -> float:
    """Return the rate of the vocabulary head and the loss."""
    context, stage = alone(module), Stage(LANGUAGE, 1, 0, 0, is_first=False, is_last=True)
    network = randomise(build_network(keep_activations(session.spec), stage, context), context)
    vocab = vocab_size(session.spec)
    work, batch = _tokens(session, module, labels=vocab)
    hidden = noise(context, work.tokens, session.spec.language.model.hidden).requires_grad_()
    flops = forward_flops(session.spec, stage, work).total
    return tflops(flops, context.tp, there_and_back(network, hidden, batch), context.device)


def _tokens(
    session: RankSession, module: RankModule, *, labels: int | None, shards: int = 1
) -> tuple[Workload, LanguageInput]:
    """Return one microbatch of one cp rank, with random labels below `labels` if it is given.

    Each sequence is cut into `shards` parts; the microbatch has one part of each.
    """
    layout, device = session.layout, session.device
    seq = layout.seq // module.context.cp.size // shards
    count = layout.samples.microbatch_size
    batch = LanguageInput(
        num_sequences=count,
        tokens=None,
        positions=torch.arange(seq, device=device),
        documents=None,
        labels=None if labels is None else torch.randint(labels, (count, seq), device=device),
        rows={},
        row_places={},
    )
    return Workload(spans=Counter({seq: count}), held=seq * count, rows=0, forwards=1), batch


def compute_rates(session: RankSession) -> dict[str, float]:
    """Return the rates of this rank's modules, in TFLOP/s and GB/s, by names of `Calibration`.

    Blocks and the head run in the precision of the spec; the rate of FP8 blocks is `language_fp8`.
    Ranks: local.
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
        for name, precision in PRECISIONS.items():
            rows, dtype = _MATMUL_ROWS[device.type], torch_type(precision.computed)
            left = torch.randn(rows, width, dtype=dtype, device=device)
            right = torch.randn(width, 4 * width, dtype=dtype, device=device)
            seconds = seconds_of(partial(torch.matmul, left, right), device)
            rates[f"matmul_{name}"] = 2 * rows * 4 * width**2 / seconds / _TERA
        rates["memory_bandwidth"] = _adamw(session)
    return rates


def _adamw(session: RankSession) -> float:
    """Return the optimizer's GB/s on as many weights as this rank holds, up to a limit."""
    held_here = (p for module in session.modules.values() for p in module.parameters())
    device, held = session.device, sum(local_tensor(p).numel() for p in held_here)
    size = max(1, min(held, _MOST_WEIGHTS[device.type]))
    weight = nn.Parameter(torch.randn(size, device=device))
    weight.grad = torch.randn_like(weight)
    seconds = seconds_of(torch.optim.AdamW([weight], fused=True).step, device)
    return (ADAMW.passes - 1) * size * weight.element_size() / seconds / _GIGA


def _vit_block(session: RankSession, module: RankModule) -> float | None:
    """Return the rate on one cp rank's images or clips; None without any, or for custom models.

    Encoders with windows attend to whole images in some layers, too.
    """
    spec, layout, context = session.spec, session.layout, alone(module)
    if kind_of(spec.modules[module.name].model).is_custom:
        return None
    stage = Stage(module.name, 1, 0, 1, is_first=False, is_last=False)
    sample = expected_steps(spec, layout).typical
    spans = list(workload(layout, module.layout, sample).spans.elements())
    if not spans:
        return None
    spans = spans[: max(1, len(spans) // module.context.cp.size)]
    counted = Counter(spans)
    work = Workload(spans=counted, held=sum(spans), rows=0, forwards=1, windows=counted)
    network: Any = randomise(build_network(keep_activations(spec), stage, context), context)
    # Padded as in `layout.row_owners`.
    tokens = work.tokens if context.fp8 is None else -(-work.tokens // FP8_STEP) * FP8_STEP
    mask = image_context(spans, range(tokens), context.device, alone=True)
    if module.layout.is_causal:
        beside = [0] * len(spans)
        mask = two_list_context(
            spans, beside, (tokens, 0), range(1), context.device, alone=True, causal=True
        )
    width = spec.modules[module.name].model.hidden
    hidden = noise(context, tokens, width).requires_grad_()
    flops = forward_flops(spec, stage, work).total
    return tflops(
        flops,
        context.tp,
        there_and_back(network, hidden, network.between(mask, tokens)),
        context.device,
    )
