"""One layer as one rank holds it, without any other rank, and how long it takes.

Decides: that weights and inputs are random numbers, and that medians of repeats count.
Relies on: `comm.step_clock` for times of the device.
Leaves: which layers are timed to `device_rates` and `language_rates`.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext
from mimo_launch.models.build import RankModule

REPEATS, WARM_UP = 10, 3
_TERA = 1e12


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


def alone(module: RankModule) -> ParallelContext:
    """Return the context of one tp rank's part without any other rank.

    Transformer Engine asks its group for its part, so it gets whole layers.
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
        dtype=module.context.compute_dtype,  # As FSDP hands weights to layers.
    )


def randomised(network: nn.Module, context: ParallelContext) -> nn.Module:
    """Fill weights with small numbers: zeros would save power, and so be faster than training."""
    network.to(context.device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.02)
    return network


def there_and_back(network: nn.Module, hidden: Tensor, batch: object) -> Callable[[], None]:
    """Return what runs a forward of a layer and its backward: from a loss, or a random gradient."""
    gradient = torch.randn_like(hidden)

    def run() -> None:
        network.zero_grad()
        hidden.grad = None
        out: Tensor = network(hidden, batch)
        out.backward(gradient if out.dim() else None)  # type: ignore[no-untyped-call]

    return run


def noise(context: ParallelContext, *shape: int) -> Tensor:
    """Return random numbers in the type of activations."""
    return torch.randn(*shape, dtype=context.compute_dtype, device=context.device)


def tflops(flops: float, tp: Group, run: Callable[[], object], device: torch.device) -> float:
    """Return TFLOP/s of a call that runs one tp rank's part of a forward and its backward."""
    return 3 * flops / tp.size / seconds_of(run, device) / _TERA
