"""Times one rank alone: its host starting a layer of each kind, products, passes over memory.

Decides: which work to time: one layer of each kind in the shapes of the spec, as one tp rank
holds it, on the tokens of one microbatch on one cp rank, forward and backward; that weights and
inputs are random numbers; that the median of repeats counts.
Relies on: the layers of `models`, built again without sharding and without other ranks;
`comm.step_clock` for device times.
Leaves: kernels by size to `measure_kernels`, transfers to `links`, the constants to `calibrate`.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.bench.measure_kernels import sustained
from mimo_launch.checks.backends import backend_can
from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.comm.torch_internals import hold_back
from mimo_launch.diag.installed import ENGINE, is_installed
from mimo_launch.estimate.step_work import first_work
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.image_contexts import image_context, two_list_context
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext, torch_type
from mimo_launch.layers.parameter_segments import local_tensor
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
# Seconds of a kernel alone, as `measure_kernels` times it, and until a GPU is at its power limit.
SHORT, LONG = 0.06, 4
# The device is held back before a call for the call's time on the host times this factor.
_LEAD = 1.5
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


def started(runs: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Return the seconds of the host for calls in turn; each waits until the device is idle."""
    times = []
    for number in range(len(runs) * (WARM_UP + REPEATS)):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        runs[number % len(runs)]()
        times.append(time.perf_counter() - began)
    return statistics.median(times[len(runs) * WARM_UP :])


def host_starts(session: RankSession) -> dict[str, float]:
    """Return the host's time for a layer of each kind of this rank's modules.

    `engine` is a block of Transformer Engine, if it is installed and can be one of the model's;
    `dynamic` a block of an encoder whose number of tokens changes from call to call. Ranks: local.
    """
    found: dict[str, float] = {}
    for name, module in session.modules.items():
        own = kind_of(session.spec.modules[name].model)
        if name == LANGUAGE:
            found |= dict(_language_layers(session, module))
        elif not own.is_custom:
            found |= dict(_encoder_block(session, module))
    return found


def _language_layers(session: RankSession, module: RankModule) -> Iterator[tuple[str, float]]:
    """Yield the first layer of each kind, and the first block by Transformer Engine."""
    model = session.spec.language.model
    kind, seen = kind_of(model), set[LayerKind]()
    for number in range(model.layers):
        layer = kind.layer_kind(number)
        if layer in seen:
            continue
        seen.add(layer)
        context, spec, shards = alone(module), keep_activations(session.spec), 1
        if layer is LayerKind.EXPERTS:
            spec, shards = _own_experts(spec), context.tp.size
            context = replace(context, tp=SINGLE)
        stage = Stage(LANGUAGE, 1, number, 1, is_first=False, is_last=False)
        batch = _tokens(session, module, shards=shards)
        tokens = batch.num_sequences * len(batch.positions)
        hidden = noise(context, tokens, model.hidden).requires_grad_()

        is_engine = context.backend == ENGINE
        contexts = {"engine" if is_engine else layer.value: context}
        if layer is LayerKind.BLOCK and not is_engine and _engine_can(spec):
            contexts["engine"] = replace(context, backend="transformer_engine", tp=SINGLE)
        for name, each in contexts.items():
            network = randomise(build_network(spec, stage, each), each)
            yield name, started([there_and_back(network, hidden, batch)], each.device)


def _engine_can(spec: Spec) -> bool:
    """Return whether Transformer Engine is installed and can compute blocks of language."""
    language = spec.language.replace(backend=ENGINE)
    twin = spec.replace(modules={**spec.modules, LANGUAGE: language})
    return is_installed(ENGINE) and not any(backend_can(twin, LANGUAGE))


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


def _tokens(session: RankSession, module: RankModule, *, shards: int = 1) -> LanguageInput:
    """Return one microbatch of one cp rank, without labels.

    Each sequence is cut into `shards` parts; the microbatch has one part of each.
    """
    layout, device = session.layout, session.device
    seq = layout.seq // module.context.cp.size // shards
    return LanguageInput(
        num_sequences=layout.samples.microbatch_size,
        tokens=None,
        positions=torch.arange(seq, device=device),
        documents=None,
        labels=None,
        rows={},
        row_places={},
    )


def compute_rates(session: RankSession) -> dict[str, float]:
    """Return the rates of products in each precision (TFLOP/s) and of the optimizer (GB/s).

    Ranks: local.
    """
    rates: dict[str, float] = {}
    if session.modules:
        device, width = session.device, session.spec.language.model.hidden
        for name, precision in PRECISIONS.items():
            rows, dtype = _MATMUL_ROWS[device.type], torch_type(precision.computed)
            left = torch.randn(rows, width, dtype=dtype, device=device)
            right = torch.randn(width, 4 * width, dtype=dtype, device=device)
            seconds = seconds_of(partial(torch.matmul, left, right), device)
            rates[f"matmul_{name}"] = 2 * rows * 4 * width**2 / seconds / _TERA
        if device.type == "cuda":
            rates["sustained"] = _sustained(partial(torch.matmul, *_squares(device)), device)
        rates["memory_bandwidth"] = _adamw(session)
    return rates


def _squares(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the factors of a product that lets a GPU reach its power limit."""
    left, right = (torch.randn(8192, 8192, device=device).to(torch.bfloat16) for _ in range(2))
    return left, right


def _sustained(run: Callable[[], object], device: torch.device) -> float:
    """Return the rate of a call in the last second of some, against its rate in the first."""
    alone = sustained(run, device, SHORT)
    clock, number = StepClock(device), int(1 / alone)
    clock.start()
    for _ in range(LONG):
        with clock.span(Section.STEP):
            for _ in range(number):
                run()
    (_, start, end) = clock.stop()[-1]
    return alone * number / (end - start)


def _adamw(session: RankSession) -> float:
    """Return the optimizer's GB/s on as many weights as this rank holds, up to a limit."""
    held_here = (p for module in session.modules.values() for p in module.parameters())
    device, held = session.device, sum(local_tensor(p).numel() for p in held_here)
    size = max(1, min(held, _MOST_WEIGHTS[device.type]))
    weight = nn.Parameter(torch.randn(size, device=device))
    weight.grad = torch.randn_like(weight)
    seconds = seconds_of(torch.optim.AdamW([weight], fused=True).step, device)
    return (ADAMW.passes - 1) * size * weight.element_size() / seconds / _GIGA


def _encoder_block(session: RankSession, module: RankModule) -> Iterator[tuple[str, float]]:
    """Yield a block on one cp rank's images, and on fewer and more of their tokens in turn."""
    spec, layout, context = session.spec, session.layout, alone(module)
    stage = Stage(module.name, 1, 0, 1, is_first=False, is_last=False)
    slowest = first_work(spec, layout).slowest(module.layout)
    spans = list(max(slowest, key=lambda work: work.held).spans.elements())
    spans = spans[: max(1, len(spans) // module.context.cp.size)]
    if not spans:
        return
    network: Any = randomise(build_network(keep_activations(spec), stage, context), context)
    width = spec.modules[module.name].model.hidden

    def of(lengths: list[int]) -> Callable[[], None]:
        tokens = sum(lengths)
        step = module.layout.token_step  # Padded as in `layout.row_owners`.
        tokens = -(-tokens // step) * step
        mask = image_context(lengths, range(tokens), context.device, alone=True)
        if module.layout.is_causal:
            beside = [0] * len(lengths)
            mask = two_list_context(
                lengths, beside, (tokens, 0), range(1), context.device, alone=True, causal=True
            )
        hidden = noise(context, tokens, width).requires_grad_()
        return there_and_back(network, hidden, network.between(mask, tokens))

    is_engine = context.backend == "transformer_engine"
    same = of(spans)
    yield "engine" if is_engine else "encoder", started([same], context.device)
    if not is_engine:
        longer = [[*spans, spans[-1] * part // 4] for part in (1, 2, 3)]
        yield "dynamic", started([of(lengths) for lengths in longer], context.device)
