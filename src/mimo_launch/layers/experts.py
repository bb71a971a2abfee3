"""The experts that a rank holds, and the dispatch of tokens to them and back.

Decides: how the experts' weights are fused, which kernel multiplies, and the order of tokens during
transfers and in the experts.
Relies on: `comm.autograd_collectives` for moving tokens.
Leaves: the choice of experts to `router`.

Legend: n tokens of this rank, k choices of each, D width, E experts, e experts on this rank; M
tokens that have arrived for them, in the order of the experts.

Over ep, each rank sends every token to the rank of its expert (dropless: MegaBlocks,
arXiv:2211.15841). If tp ranks split the experts, each of them gets all their tokens and computes a
part of each answer; the parts are summed on the way back.

Rows are only permuted: each gradient is the inverse permutation, so no kernel adds into rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.async_copies import HostCopy, to_device
from mimo_launch.comm.autograd_collectives import (
    exchange_counts,
    exchange_tokens,
    gather_uneven_tokens,
    scatter_uneven_tokens,
)
from mimo_launch.comm.torch_internals import grouped_matmul
from mimo_launch.kinds.layer import even_cut
from mimo_launch.kinds.mlp_shapes import ExpertsShape
from mimo_launch.layers.packed import packed_product
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS, GATED, scaled_tokens, widened
from mimo_launch.layers.router import Choice, RowOrder
from mimo_launch.layers.shaped_layer import ShapedLayer

# In a grouped product, the row size of each factor must be a multiple of this many bytes.
ALIGNMENT = 16
# Major compute capability of Hopper. On Blackwell an expert without tokens may get a nonzero
# gradient (pytorch/pytorch#172439, open at the time of writing).
GROUPED_ON = 9


class Experts(ShapedLayer[ExpertsShape]):
    """This rank's experts, [M, D] -> [M, D]; the caller sums over the ranks that split them.

    A separate module, because its weights have different replicas from the layers around it. An
    expert has the canonical tensors `NUMBER.gate.weight` (if it has a `gate`),
    `NUMBER.up.weight` and `NUMBER.down.weight`, and perhaps the biases of all three. Ranks
    that split an expert add different parts of its last bias, so that their sum includes it once.
    """

    inputs: Tensor
    outputs: Tensor
    input_bias: Tensor
    output_bias: Tensor
    adapter: Any

    def __init__(self, context: ParallelContext, shape: ExpertsShape) -> None:
        super().__init__(context, shape)
        self.width, self.has_bias = shape.width, shape.moe.bias
        self.between = GATED[shape.gate] if shape.gate else ACTIVATIONS[shape.activation]
        split = context.expert_tp
        self.num_own = len(even_cut(shape.moe.experts, context.ep.size, context.ep.index))
        self.inner = len(even_cut(shape.moe.width, split.size, split.index))
        self.part = even_cut(shape.width, split.size, split.index)

    def forward(self, x_MD: Tensor, runs: "ExpertRuns") -> Tensor:
        """Return the answers to the tokens, which are ordered by `runs`."""
        hidden = self._mapped("inputs", x_MD, runs)
        if self.has_bias:
            hidden = hidden + self._of_tokens(self.input_bias, runs.counts)
        if self.adapter is not None:
            hidden = hidden + self.adapter.of_inputs(x_MD, runs)
        hidden = self.context.fused(self.between, hidden)
        answers = self._mapped("outputs", hidden, runs)
        if self.adapter is not None:
            answers = answers + self.adapter.of_output(hidden, runs)
        if not self.has_bias:
            return answers
        others = self.part.start, self.width - self.part.stop
        return answers + F.pad(self._of_tokens(self.output_bias, runs.counts), others)

    def _mapped(self, attribute: str, x_M: Tensor, runs: "ExpertRuns") -> Tensor:
        """Return each row times the map of its expert, which may be kept in few bits."""
        weights, packed = getattr(self, attribute), self.segments[attribute][0].packed
        shape = (self.num_own, len(weights) // self.num_own, x_M.shape[1])
        if packed is None:
            return grouped_linear(x_M, weights.view(shape), runs)
        return packed_product(x_M, weights, packed, shape, partial(grouped_linear, runs=runs))

    def _of_tokens(self, bias: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Return the bias of each token's expert, [M, F].

        The gradient of each bias is a sum over consecutive rows, in a fixed order.
        """
        rows = bias.view(self.num_own, -1).unbind()
        return torch.cat([row.expand(num, -1) for row, num in zip(rows, counts, strict=True)])


class ExpertRuns:
    """The rows for each expert of this rank, in consecutive runs.

    `ends_e` are the ends of the runs, int32 on the device of the rows.
    """

    def __init__(self, counts_e: Tensor, read: Callable[[], tuple[int, ...]]) -> None:
        """Take the numbers of rows on the device, and a function that returns them on the host."""
        self.ends_e = counts_e.cumsum(0, dtype=torch.int32)
        self._read = read

    @classmethod
    def of(cls, counts: tuple[int, ...], device: torch.device) -> "ExpertRuns":
        """Return the runs for counts that the host knows."""
        return cls(to_device(torch.tensor(counts), device), lambda: counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each run; the host may wait for it."""
        if not self.ends_e.is_cuda:
            # Derived from the ends that a kernel gets, so that tests without a GPU check the ends.
            return tuple(self.ends_e.diff(prepend=self.ends_e.new_zeros(1)).tolist())
        return self._read()


def grouped_linear(x_MD: Tensor, weights_eFD: Tensor, runs: ExpertRuns) -> Tensor:
    """Return each row times the weight of its expert, [M, F].

    An expert without tokens also takes part: its gradient is zero, not absent, because its replicas
    wait for it in a reduction.
    """
    if _is_grouped(x_MD, weights_eFD):
        return grouped_matmul(x_MD, weights_eFD.transpose(1, 2), runs.ends_e)
    parts = torch.split(x_MD, list(runs.counts))
    return torch.cat([F.linear(x, w) for x, w in zip(parts, weights_eFD.unbind(), strict=True)])


def _is_grouped(x_MD: Tensor, weights_eFD: Tensor) -> bool:
    """Return whether one kernel can multiply for all experts: in bf16, with aligned rows."""
    if not x_MD.is_cuda or torch.cuda.get_device_capability(x_MD.device)[0] != GROUPED_ON:
        return False
    sizes = [size * x_MD.element_size() for size in weights_eFD.shape[1:]]
    aligned = all(size % ALIGNMENT == 0 for size in sizes)
    return x_MD.dtype == torch.bfloat16 and aligned and x_MD.shape[0] > 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How the tokens of one layer and microbatch travel.

    `departure` [n * k] sorts this rank's copies of tokens, `choices` of each, by expert; `send` and
    `receive` count the copies that go to each ep rank and come from it; `gathered` counts the
    copies received by each rank that splits these experts. `arrival` [M] sorts the tokens of all
    these ranks by expert, into `runs`; it is None if no token travels, because they are then sorted
    already.
    """

    choices: int
    departure: RowOrder
    send: tuple[int, ...]
    receive: tuple[int, ...]
    gathered: tuple[int, ...]
    arrival: RowOrder | None
    runs: ExpertRuns


class PlannedDispatch:
    """A dispatch before the host knows its sizes, which depend on the choices.

    The host waits for them only if tokens travel; otherwise kernels read them on the device.
    """

    def __init__(self, context: ParallelContext, choice: Choice) -> None:
        """Start to exchange the token counts between all ranks, without waiting.

        Ranks: collective over ep and over the ranks that split the experts.
        """
        ep, tp = context.ep, context.expert_tp
        with (ep if ep.size > 1 else tp).noted():
            self._theirs = exchange_counts(choice.counts, ep, tp)
        mine = choice.counts.view(1, ep.size, -1)
        self._sizes = HostCopy(torch.cat([mine, self._theirs]).flatten(), sleeps=False)
        self._context, self._choices = context, choice.experts.shape[1]
        self._departure = choice.order

    def dispatch(self) -> Dispatch:
        """Return the dispatch; within a step, the host waits for the device only here."""
        theirs, tp = self._theirs, self._context.expert_tp
        num_own = theirs.shape[2]
        if theirs.numel() == num_own:
            runs = ExpertRuns(theirs.flatten(), lambda: self._numbers()[:num_own])
            return Dispatch(self._choices, self._departure, (), (), (), None, runs)
        numbers = self._numbers()
        rows = [numbers[i : i + num_own] for i in range(0, len(numbers), num_own)]
        # First this rank's tokens by ep rank, then the tokens of each rank that splits, by ep rank.
        by_rank = [
            tuple(map(sum, rows[i : i + theirs.shape[1]]))
            for i in range(0, len(rows), theirs.shape[1])
        ]
        counts = tuple(map(sum, zip(*rows[theirs.shape[1] :], strict=True)))
        owner = torch.arange(theirs.numel(), device=theirs.device) % num_own
        owners_M = owner.repeat_interleave(theirs.flatten(), output_size=sum(counts))
        return Dispatch(
            choices=self._choices,
            departure=self._departure,
            send=by_rank[0],
            receive=by_rank[1 + tp.index],
            gathered=tuple(map(sum, by_rank[1:])),
            arrival=RowOrder.by(owners_M),
            runs=ExpertRuns(theirs.sum((0, 1)), lambda: counts),
        )

    def _numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self._sizes.read())


class _Reorder(torch.autograd.Function):
    """Permutes rows; autograd's gradient of an index would sort and add instead of permuting."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x[places]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad[back], None, None


class _Copies(torch.autograd.Function):
    """`choices` copies of each row, in a given order of all copies."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, choices: int, places: Tensor, back: Tensor, context: ParallelContext
    ) -> Tensor:
        ctx.choices, ctx.context = choices, context
        ctx.save_for_backward(back)
        return x[places // choices]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        of_rows = ctx.context.fused(_sum_of_copies, grad, *ctx.saved_tensors, ctx.choices)
        return of_rows, None, None, None, None


def _reordered(x: Tensor, order: RowOrder | None) -> Tensor:
    if order is None:
        return x
    out: Tensor = _Reorder.apply(x, order.places, order.back)  # type: ignore[no-untyped-call]
    return out


def to_experts(
    x_nD: Tensor, dispatch: Dispatch, context: ParallelContext, scores_nk: Tensor | None = None
) -> Tensor:
    """Return the tokens that have arrived for this rank's experts, [M, D].

    Each copy of a token is multiplied by its score, if there are `scores_nk`.
    """
    leaving = dispatch.departure
    copies = _Copies.apply(x_nD, dispatch.choices, leaving.places, leaving.back, context)  # type: ignore[no-untyped-call]
    if scores_nk is not None:
        scores = scores_nk.flatten().index_select(0, leaving.places)
        copies = context.fused(scaled_tokens, copies, scores)
    received = exchange_tokens(copies, dispatch.send, dispatch.receive, context.ep)
    gathered = gather_uneven_tokens(received, dispatch.gathered, context.expert_tp)
    return _reordered(gathered, dispatch.arrival)


def from_experts(
    y_MD: Tensor, dispatch: Dispatch, context: ParallelContext, weights_nk: Tensor | None = None
) -> Tensor:
    """Return the sums of the answers to each of this rank's tokens, times any weights, [n, D]."""
    arrived = dispatch.arrival and dispatch.arrival.reversed()
    answers = _reordered(y_MD, arrived)
    summed = scatter_uneven_tokens(answers, dispatch.gathered, context.expert_tp)
    returned = exchange_tokens(summed, dispatch.receive, dispatch.send, context.ep)
    left = dispatch.departure
    if weights_nk is None:
        copies = _reordered(returned, left.reversed())
        return copies.view(-1, dispatch.choices, copies.shape[1]).sum(dim=1)
    out: Tensor = _WeightedSum.apply(returned, weights_nk, left.places, left.back, context)  # type: ignore[no-untyped-call]
    return out


class _WeightedSum(torch.autograd.Function):
    """The sums of the answers to each token times their weights; answers lie by expert.

    Forward and backward each read answers where they lie: neither writes them in another order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y_nkD: Tensor,
        weights_nk: Tensor,
        places: Tensor,
        back: Tensor,
        context: ParallelContext,
    ) -> Tensor:
        ctx.context = context
        ctx.save_for_backward(y_nkD, weights_nk, places, back)
        choices = weights_nk.shape[1]
        out: Tensor = context.fused(_sum_of_copies, y_nkD, back, choices, weights_nk)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        of_answers, of_weights = ctx.context.fused(_weighted_sum_back, grad, *ctx.saved_tensors)
        return of_answers, of_weights, None, None, None


def _sum_of_copies(
    x_nkD: Tensor, back: Tensor, choices: int, weights_nk: Tensor | None = None
) -> Tensor:
    """Return the sums of the copies of each token, times any weights, in the dtype of x, [n, D].

    Copy by copy: compiled as a sum over an axis, this reads rows of a few numbers.
    """
    places_nk = back.view(-1, choices)

    def copy(choice: int) -> Tensor:
        x_nD = widened(x_nkD[places_nk[:, choice]])
        return x_nD if weights_nk is None else x_nD * weights_nk[:, choice, None]

    total = copy(0)
    for choice in range(1, choices):
        total = total + copy(choice)
    return total.to(x_nkD.dtype)


def _weighted_sum_back(
    grad_nD: Tensor, y_nkD: Tensor, weights_nk: Tensor, places: Tensor, back: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of answers, by expert, and of weights."""
    weights, token = weights_nk.flatten()[places], places // weights_nk.shape[1]
    of_answers = (grad_nD[token] * weights.unsqueeze(-1)).to(y_nkD.dtype)
    answers_nkD = widened(y_nkD[back]).view(*weights_nk.shape, y_nkD.shape[1])
    return of_answers, (answers_nkD * grad_nD.unsqueeze(1)).sum(dim=-1).to(weights_nk.dtype)
