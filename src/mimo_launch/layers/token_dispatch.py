"""Brings tokens to the ranks of their experts and the answers back.

Decides: the order in which tokens travel, and in which experts get them.
Relies on: `comm.token_exchange` for moving them.
Leaves: the experts to `experts`, weighting the answers to `models.mixture_of_experts`.

Legend: n tokens of this rank, k choices of each, D width, E experts, of which this rank holds e;
M tokens that have come for them, in the order of the experts.

Over ep, each rank sends every token to the rank of its expert (dropless: MegaBlocks,
arXiv:2211.15841). Where tp ranks split the experts, each of them gets the tokens of all and
computes a part of each answer; the parts are summed on the way back.

Rows only ever change places: each gradient is the way back, so that no kernel adds into rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.pending_numbers import HostCopy
from mimo_launch.comm.token_exchange import (
    exchange_counts,
    exchange_tokens,
    gather_uneven_tokens,
    scatter_uneven_tokens,
)
from mimo_launch.layers.parallel_context import ParallelContext


@dataclass(frozen=True, slots=True)
class Order:
    """Rows in a new order: `places` they are taken from, and `back`, its inverse."""

    places: Tensor
    back: Tensor

    @classmethod
    def by(cls, keys: Tensor) -> "Order":
        """Return the order of increasing keys."""
        places = keys.argsort(stable=True)
        numbers = torch.arange(places.shape[0], device=places.device)
        return cls(places, torch.empty_like(places).scatter_(0, places, numbers))

    def reversed(self) -> "Order":
        """Return the order that undoes this one."""
        return Order(self.back, self.places)


@dataclass(frozen=True, slots=True)
class Trip:
    """How the tokens of one layer and microbatch travel.

    `departure` [n * k] puts this rank's copies of tokens, `choices` of each, in the order of their
    experts; `send` and `receive` say how many go to each ep rank and come from it; `gathered` how
    many each rank that splits these experts got. `arrival` [M] puts those in the order of the
    experts, which get `counts` each.
    """

    choices: int
    departure: Order
    send: tuple[int, ...]
    receive: tuple[int, ...]
    gathered: tuple[int, ...]
    arrival: Order
    counts: tuple[int, ...]


class PlannedTrip:
    """A trip of which the host does not know the sizes yet: they depend on the choices."""

    def __init__(self, context: ParallelContext, experts_nk: Tensor, num_experts: int) -> None:
        """Ask all ranks for their numbers of tokens; nobody waits for the answer yet.

        Ranks: collective over ep and over the ranks that split the experts.
        """
        ep, tp = context.ep, context.expert_tp
        chosen = experts_nk.flatten()
        counts_E = chosen.new_zeros(num_experts).scatter_add_(0, chosen, torch.ones_like(chosen))
        with context.clock.meeting(ep, tp):
            self._theirs = exchange_counts(counts_E, ep, tp)
        mine = counts_E.view(1, ep.size, -1)
        self._sizes = HostCopy(torch.cat([mine, self._theirs]).flatten(), sleeps=False)
        self._context, self._choices = context, experts_nk.shape[1]
        self._departure = Order.by(chosen)

    def trip(self) -> Trip:
        """Return the trip. The one place where the host waits for the device within a step."""
        theirs, tp = self._theirs, self._context.expert_tp
        num_own = theirs.shape[2]
        numbers = [int(number) for number in self._sizes.read()]
        rows = [numbers[i : i + num_own] for i in range(0, len(numbers), num_own)]
        # First what each ep rank gets from here, then what each rank that splits has from each.
        by_rank = [
            tuple(map(sum, rows[i : i + theirs.shape[1]]))
            for i in range(0, len(rows), theirs.shape[1])
        ]
        counts = tuple(map(sum, zip(*rows[theirs.shape[1] :], strict=True)))
        owner = torch.arange(theirs.numel(), device=theirs.device) % num_own
        owners_M = owner.repeat_interleave(theirs.flatten(), output_size=sum(counts))
        return Trip(
            choices=self._choices,
            departure=self._departure,
            send=by_rank[0],
            receive=by_rank[1 + tp.index],
            gathered=tuple(map(sum, by_rank[1:])),
            arrival=Order.by(owners_M),
            counts=counts,
        )


class _Reorder(torch.autograd.Function):
    """Rows in another order; the gradient of an index would sort them and add them up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x[places]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad[back], None, None


class _Copies(torch.autograd.Function):
    """So many copies of each row, in an order given for all of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, choices: int, places: Tensor, back: Tensor) -> Tensor:
        ctx.choices = choices
        ctx.save_for_backward(back)
        return x[places // choices]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        copies_nkD = grad[back].view(-1, ctx.choices, grad.shape[1])
        return copies_nkD.sum(dim=1), None, None, None


def _reordered(x: Tensor, order: Order) -> Tensor:
    out: Tensor = _Reorder.apply(x, order.places, order.back)  # type: ignore[no-untyped-call]
    return out


def to_experts(x_nD: Tensor, trip: Trip, context: ParallelContext) -> Tensor:
    """Return the tokens that have come for this rank's experts, [M, D]."""
    leaving, clock = trip.departure, context.clock
    copies = _Copies.apply(x_nD, trip.choices, leaving.places, leaving.back)  # type: ignore[no-untyped-call]
    received = exchange_tokens(copies, trip.send, trip.receive, context.ep, clock)
    gathered = gather_uneven_tokens(received, trip.gathered, context.expert_tp, clock)
    return _reordered(gathered, trip.arrival)


def from_experts(y_MD: Tensor, trip: Trip, context: ParallelContext) -> Tensor:
    """Return the answers to this rank's tokens, [n * k, D], those to one token side by side."""
    answers, clock = _reordered(y_MD, trip.arrival.reversed()), context.clock
    summed = scatter_uneven_tokens(answers, trip.gathered, context.expert_tp, clock)
    returned = exchange_tokens(summed, trip.receive, trip.send, context.ep, clock)
    return _reordered(returned, trip.departure.reversed())
