"""Loss, gradient norms and counts of a step, equal on all ranks after one all-reduce.

Decides: which numbers the ranks add up; when a step is bad; what a rank records of its numbers,
to find later where a bad one came from.
Relies on: `gradients` for the elements that each rank counts.
Leaves: reading the numbers on the host to `train.step`, judging bad ones to `train.non_finite`.

The update needs no value on the host: the clipping factor and the skip flag are scalars on the
device. On CUDA the host reads the totals while the next step runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm.async_copies import HostCopy, to_device
from mimo_launch.layout.layout import Layout
from mimo_launch.models.build import RankModule
from mimo_launch.optimizer.gradients import counted_gradients, num_zeros, sum_of_squares


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Loss, gradient norms and counts of a step, equal on all ranks.

    `norms` are per module, before clipping; `norm` is over all modules; `losses` are means over the
    terms of a step (labels of language), by name, and `loss` their weighted sum; `aux_loss` is
    the loss that balances experts, 0 without any; `flags` are sums over all ranks; `zeros` counts
    per module the gradients that are exactly zero, or is None; `sources` are mean losses over the
    labels of each source with any in the step, by name.
    """

    loss: float
    losses: dict[str, float]
    aux_loss: float
    norms: dict[str, float]
    norm: float
    flags: tuple[int, ...]
    zeros: dict[str, int] | None
    sources: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether the update was applied, which means that every gradient and loss was finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


@dataclass(frozen=True, slots=True)
class PendingMetrics:
    """`StepMetrics` as float64 scalars on the device, for the update; `read` fetches them.

    `unshared_squares` are, per module of this rank, the squares of the segments that are not summed
    over tp, so that only this rank holds them; they help to find the cause of a bad step. `own` has
    the flags of this rank alone; None if there was nothing to learn, so no program ran. `sources`
    has the number of labels of each source.
    """

    loss: Tensor
    losses: tuple[str, ...]
    norm: Tensor
    squares: dict[str, Tensor]
    unshared_squares: dict[str, Tensor]
    num_flags: int
    host: HostCopy
    own: "PendingFlags | None" = None
    sources: Mapping[str, float] = field(default_factory=dict)

    @property
    def bad(self) -> Tensor:
        """1 if the update must not be applied, else 0; float32, for fused optimizers."""
        return (self.loss.isfinite() & self.norm.isfinite()).logical_not().float()

    def divisor(self, clip: float) -> Tensor:
        """Return the divisor of all gradients that makes their norm at most `clip`."""
        return (self.norm / clip).clamp(min=1)

    def read(self) -> StepMetrics:
        """Return the metrics. Waits until the device has them."""
        loss, norm, aux_loss, *rest = self.host.read()
        names, numbers = list(self.squares), iter(rest)
        losses = {name: next(numbers) for name in self.losses}
        norms = {name: next(numbers) ** 0.5 for name in names}
        flags = tuple(int(next(numbers)) for _ in range(self.num_flags))
        by_source = {name: next(numbers) for name in self.sources}
        sources = {name: each for name, each in by_source.items() if self.sources[name]}
        zeros = {name: int(count) for name, count in zip(names, numbers, strict=False)}
        return StepMetrics(loss, losses, aux_loss, norms, norm, flags, zeros or None, sources)


@dataclass(frozen=True, slots=True)
class SourceLosses:
    """This rank's part of the loss of each source of the data, [sources], given with their labels.

    `losses` is None on a rank that computes none.
    """

    labels: Mapping[str, float] = field(default_factory=dict)
    losses: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """Return the losses, or zeros."""
        if self.losses is not None:
            return self.losses
        return torch.zeros(len(self.labels), dtype=torch.float64, device=device)


def reduce_metrics(
    layout: Layout,
    modules: dict[str, RankModule],
    losses: Mapping[str, Tensor],
    flags: Sequence[int] = (),
    *,
    count_zeros: bool = False,
    sources: SourceLosses | None = None,
) -> PendingMetrics:
    """Return loss and gradient norms, equal on all ranks, without waiting for the device.

    `flags` are small integers of this rank (a signal arrived, a write failed) on which all ranks
    must act at the same step.

    Ranks: collective over the world; one all-reduce in float64. Each rank adds the squares of the
    elements that it counts; a NaN anywhere reaches every rank through the sum.
    """
    device = next(iter(losses.values())).device
    names = [module.name for module in layout.modules]
    squares = dict.fromkeys(names, torch.zeros((), dtype=torch.float64, device=device))
    zeros, unshared_squares = dict(squares), {}
    for name, module in modules.items():
        alone, shared = counted_gradients(module)
        unshared_squares[name] = sum_of_squares(alone, device)
        squares[name] = unshared_squares[name] + sum_of_squares(shared, device)
        if count_zeros:
            zeros[name] = num_zeros((*alone, *shared), device)
    aux_losses = (module.aux_loss for module in modules.values())
    none = torch.zeros((), dtype=torch.float64, device=device)
    aux_loss = sum((each.total for each in aux_losses if each is not None), start=none)
    noted = to_device(torch.tensor(flags, dtype=torch.float64), device)
    counts, sources = list(zeros.values()) if count_zeros else [], sources or SourceLosses()
    slots = torch.cat(
        [
            torch.stack([aux_loss, *losses.values(), *squares.values()]).double(),
            noted,
            sources.on(device),
            *(c[None] for c in counts),
        ]
    )
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(slots)
    first = 1 + len(losses)
    summed, per_module = slots[1:first], slots[first : first + len(names)]
    norm = per_module.sum().sqrt()
    weighted = [of.weight * each for of, each in zip(layout.losses, summed, strict=True)]
    loss = torch.stack(weighted).sum()
    return PendingMetrics(
        loss=loss,
        losses=tuple(losses),
        norm=norm,
        squares=dict(zip(names, per_module, strict=True)),
        unshared_squares=unshared_squares,
        num_flags=len(flags),
        host=HostCopy(torch.cat([loss[None], norm[None], slots])),
        sources=sources.labels,
    )


@dataclass(frozen=True, slots=True)
class NonFiniteFlags:
    """The flags of one rank for a bad step.

    `losses` are the (module, forward) pairs with a bad loss, `gradients` the (module, stage) pairs
    with a bad gradient before sums. `squares` has for each module the sum of squared gradients over
    the segments that only this rank holds.
    """

    losses: tuple[tuple[str, int], ...] = ()
    gradients: tuple[tuple[str, int], ...] = ()
    squares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingFlags:
    """The same flags while they are copied from the device, where the next step overwrites them."""

    forwards: tuple[tuple[str, int], ...]
    stages: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]
    host: HostCopy

    def read(self) -> NonFiniteFlags:
        """Return the flags. Waits for the device."""
        numbers = iter(self.host.read())
        losses = tuple(each for each in self.forwards if not math.isfinite(next(numbers)))
        gradients = tuple(place for place in self.stages if not math.isfinite(next(numbers)))
        # A sum over tp is the same on all tp ranks; `before_tp_sum` saw this rank's terms.
        before_tp_sum = [math.isfinite(next(numbers)) for _ in self.modules]
        squares = {
            name: square if finite else math.inf
            for name, finite, square in zip(self.modules, before_tp_sum, numbers, strict=False)
        }
        return NonFiniteFlags(losses, gradients, squares)


def note_flags(
    modules: Mapping[str, RankModule],
    losses: Mapping[tuple[str, int], Tensor],
    unshared_squares: Mapping[str, Tensor],
    device: torch.device,
) -> PendingFlags:
    """Copy this rank's flags of a step; `losses` are its losses by forward."""
    numbers = [
        *losses.values(),
        *(flag.value for module in modules.values() for flag in module.before_dp_sum.values()),
        *(module.before_tp_sum.value for module in modules.values()),
        *(unshared_squares[name] for name in modules),
    ]
    zero = torch.zeros((), device=device)  # For idle ranks, which have no flags.
    return PendingFlags(
        forwards=tuple(losses),
        stages=tuple((name, stage) for name in modules for stage in modules[name].before_dp_sum),
        modules=tuple(modules),
        host=HostCopy(torch.stack([number.double() for number in (*numbers, zero)])),
    )
