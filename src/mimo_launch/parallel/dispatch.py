"""Brings tokens to the ranks of their experts and the answers back.

Decides: the order in which tokens travel, and in which experts get them.
Relies on: `comm.dispatch` for moving them.
Leaves: the experts to `experts`, weighting the answers to `modules.moe`.

Legend: n tokens of this rank, k choices of each, D width, E experts, of which this rank holds e;
M tokens that have come for them, in the order of the experts.

Over ep, each rank sends every token to the rank of its expert (dropless: MegaBlocks,
arXiv:2211.15841). Where tp ranks split the experts, each of them gets the tokens of all and
computes a part of each answer; the parts are summed on the way back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.comm.dispatch import (
    exchange_counts,
    exchange_tokens,
    gather_uneven_tokens,
    scatter_uneven_tokens,
)
from mimo_launch.parallel.context import ParallelContext


@dataclass(frozen=True, slots=True)
class Trip:
    """How the tokens of one layer and microbatch travel, made by `plan_trip`.

    `order` [n * k] puts this rank's copies of tokens in the order of their experts; `send` and
    `receive` say how many go to each ep rank and come from it; `gathered` how many each rank that
    splits these experts got. `arrival` [M] puts those in the order of the experts, which get
    `counts` each.
    """

    order: Tensor
    send: tuple[int, ...]
    receive: tuple[int, ...]
    gathered: tuple[int, ...]
    arrival: Tensor
    counts: tuple[int, ...]


def plan_trip(context: ParallelContext, experts_nk: Tensor, num_experts: int) -> Trip:
    """Return how tokens get to the experts chosen for them.

    The one place where the host waits for the device: sizes of what is sent depend on the choices.

    Ranks: collective over ep and over the ranks that split the experts.
    """
    ep, tp = context.ep, context.expert_tp
    chosen = experts_nk.flatten()
    counts_E = chosen.new_zeros(num_experts).scatter_add_(0, chosen, torch.ones_like(chosen))
    with context.clock.meeting(ep, tp):
        theirs = exchange_counts(counts_E, ep, tp)
        sent, *blocks = _on_host(counts_E.view(ep.size, -1), theirs)
    num_own = num_experts // ep.size
    by_source = [[sum(row) for row in block] for block in blocks]
    counts = [sum(row[own] for block in blocks for row in block) for own in range(num_own)]
    owner = torch.arange(theirs.numel(), device=chosen.device) % num_own
    owners_M = owner.repeat_interleave(theirs.flatten(), output_size=sum(counts))
    return Trip(
        order=chosen.argsort(stable=True),
        send=tuple(sum(row) for row in sent),
        receive=tuple(by_source[tp.index]),
        gathered=tuple(map(sum, by_source)),
        arrival=owners_M.argsort(stable=True),
        counts=tuple(counts),
    )


def _on_host(mine: Tensor, theirs: Tensor) -> list[list[list[int]]]:
    """Return [what is sent, ...what each rank that splits the experts gets], in one transfer."""
    found: list[list[list[int]]] = torch.cat([mine[None], theirs]).tolist()
    return found


def to_experts(x_nD: Tensor, trip: Trip, context: ParallelContext) -> Tensor:
    """Return the tokens that have come for this rank's experts, [M, D].

    Copies of a token stand side by side before they are put in order, so that no two ranks or
    kernels ever add into the same row.
    """
    num_choices = trip.order.shape[0] // max(1, x_nD.shape[0])
    copies = x_nD.repeat_interleave(num_choices, dim=0)[trip.order]
    clock = context.clock
    received = exchange_tokens(copies, trip.send, trip.receive, context.ep, clock)
    return gather_uneven_tokens(received, trip.gathered, context.expert_tp, clock)[trip.arrival]


def from_experts(y_MD: Tensor, trip: Trip, context: ParallelContext) -> Tensor:
    """Return the answers to this rank's tokens, [n * k, D], those to one token side by side."""
    answers, clock = y_MD[_inverse(trip.arrival)], context.clock
    summed = scatter_uneven_tokens(answers, trip.gathered, context.expert_tp, clock)
    returned = exchange_tokens(summed, trip.receive, trip.send, context.ep, clock)
    return returned[_inverse(trip.order)]


def _inverse(order: Tensor) -> Tensor:
    places = torch.arange(order.shape[0], device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)
