"""The parallelism of a layer: its groups, its part, and how regions begin and end.

Decides: which part of a weight this rank holds, and how its gradient is summed; which pair of
collectives surrounds a tensor-parallel region.
Relies on: `comm.autograd_collectives`.
Leaves: the maths to the layers.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from types import FunctionType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from mimo_launch.comm.autograd_collectives import enter_tp, exit_tp, gather_tokens, scatter_tokens
from mimo_launch.comm.process_groups import Group
from mimo_launch.kinds.layer import even_cut
from mimo_launch.kinds.weights import Adapter, Share, Terms, Weight
from mimo_launch.layers.parameter_segments import Segment, TpGrad
from mimo_launch.layers.pointwise import KERNELS
from mimo_launch.layers.te_fp8 import Fp8
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.values import NumberType

SINGLE = Group((0,), 0, None)


Result = TypeVar("Result")


@cache
def _compiled(function: Any, owner: str, call: Hashable) -> Any:
    """Return a compiled copy of a function, for one module and one way to call it (`_way`).

    Once torch.compile has seen two values of a size, it compiles for any value, which makes kernels
    several times slower if the size is not the first, the number of tokens. After eight ways to
    call some code it compiles no further one. It recognises code by its file, line and name. So
    each module and each way to call gets code with its own name. Outside of language each forward
    has other numbers of tokens, which the first call says, so that there is no code for one number
    first.
    """
    name = re.sub(r"\W+", "_", f"{owner} {function.__name__} {call}")
    code = function.__code__.replace(co_name=name)
    made = torch.compile(FunctionType(code, function.__globals__, name, function.__defaults__))
    is_seen = owner == LANGUAGE

    def first_call(first: Tensor, *more: Any) -> Any:
        nonlocal is_seen
        if not is_seen:
            is_seen = True
            for each in (first, *more):
                if isinstance(each, Tensor) and each.dim() > 1 and len(each) == len(first):
                    torch._dynamo.maybe_mark_dynamic(each, 0)
        return made(first, *more)

    return made if is_seen else first_call


def _way(argument: Any) -> Hashable:
    """Return what code for an argument depends on: whether a tensor has a gradient, or a value."""
    if isinstance(argument, Tensor):
        return argument.requires_grad
    return tuple(map(_way, argument)) if isinstance(argument, tuple) else argument


def torch_type(numbers: NumberType) -> torch.dtype:
    """Return torch's type of some numbers."""
    found: torch.dtype = getattr(torch, numbers.torch)
    return found


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """Parallelism of one module on one rank; the default is one rank alone.

    `dtype` is the dtype of stored weights, `compute_dtype` the dtype of activations. With
    `compiled`, passes over activations go through torch.compile, separately for each module
    (`owner`). `backend` provides the blocks. The experts of a layer are distributed over `ep`, and
    each is split over `expert_tp`. `replicas` (dp x cp) are the ranks that hold the same layers and
    different tokens; `copies` hold the same part of the weights. `fp8`: blocks multiply in 8 bits.
    `adapter` says which maps of a layer have an update beside them, `base` how its maps are kept
    if not in `dtype`. Blocks drop `dropout` of what they add to the stream, and `attention_dropout`
    of the weights of attention; `draws` is the seed if anything is dropped.
    """

    tp: Group = SINGLE
    cp: Group = SINGLE
    sequence_parallel: bool = False
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compiled: bool = False
    owner: str = ""
    backend: Literal["torch", "transformer_engine"] = "torch"
    fp8: Fp8 | None = None
    ep: Group = SINGLE
    expert_tp: Group = SINGLE
    replicas: Group = SINGLE
    copies: Group = SINGLE
    adapter: Adapter | None = None
    base: QuantizedBase | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    draws: int | None = None

    @property
    def bare(self) -> "ParallelContext":
        """The context of layers around the blocks: without an adapter, in `dtype`."""
        return replace(self, adapter=None, base=None)

    def of_layer(self, number: int) -> "ParallelContext":
        """Return the context of a block of the model, by its number."""
        own = self.adapter and self.adapter.of_layer(number)
        return self if own is self.adapter else replace(self, adapter=own)

    def inside(self, name: str) -> "ParallelContext":
        """Return the context of a layer inside another; only adapters tell them apart."""
        return self if self.adapter is None else replace(self, adapter=self.adapter.inside(name))

    def part(self, total: int) -> range:
        """Return this tp rank's share of `total` items."""
        return even_cut(total, self.tp.size, self.tp.index)

    @property
    def share(self) -> Share:
        """This rank's place among those that cut the module."""
        ep, expert_tp = self.ep, self.expert_tp
        return Share(
            self.tp.size, self.tp.index, ep.size, expert_tp.size, ep.index, expert_tp.index
        )

    def segments(self, weights: Iterable[Weight]) -> tuple[Segment, ...]:
        """Return this rank's parts of fused weights; for experts, only of its own experts."""
        own, found = list(weights), []
        if own[0].experts:
            numbers = even_cut(own[0].experts, self.ep.size, self.ep.index)
            own = [replace(w, name=w.name.format(expert=number)) for number in numbers for w in own]
        for weight in own:
            part = weight.part(self.share)
            found.append(Segment(weight, part.start, part.stop, *self._sum_of(weight)))
        return tuple(found)

    def _sum_of(self, weight: Weight) -> tuple[TpGrad, bool]:
        """Return the kind of a weight's gradient, and whether this rank counts it in norms."""
        if weight.axis is not None:
            copies = weight.copies(self.tp.size)
            first = self.tp.index % copies == 0
            # Experts have replicas of their own, and no copies.
            first = first and (bool(weight.experts) or self.copies.index == 0)
            return "partial" if copies > 1 else "sharded", weight.counted and first
        if weight.experts:
            # `layers.experts` has summed the terms of the ranks that split an expert.
            return "complete", weight.counted and self.expert_tp.index == 0
        if weight.role == "buffer":
            return "complete", self.counts and self.replicas.index == 0
        of_terms: dict[Terms, TpGrad] = {
            "tokens": self.token_grad,
            "region": self.inner_grad,
            "complete": "complete",
        }
        return of_terms[weight.terms], self.counts

    def enter(self, x: Tensor) -> Tensor:
        """Begin a tensor-parallel region: tokens in, all tokens out, [n or N, D] -> [N, D]."""
        return gather_tokens(x, self.tp) if self.sequence_parallel else enter_tp(x, self.tp)

    def leave(self, x: Tensor) -> Tensor:
        """End a tensor-parallel region by summing partial outputs, [N, D] -> [n or N, D]."""
        return scatter_tokens(x, self.tp) if self.sequence_parallel else exit_tp(x, self.tp)

    def fused(self, function: Callable[..., Result], first: Tensor, *more: Any) -> Result:
        """Call a function of tensors, in one pass over memory if the module is compiled.

        It is compiled for each set of sizes of `first`, except its first size, and for other values
        and gradients of arguments, unless torch has a kernel for it.
        """
        if not self.compiled or function in KERNELS:
            return function(first, *more)
        call = *first.shape[1:], torch.is_grad_enabled(), _way((first, *more))
        made: Callable[..., Result] = _compiled(function, self.owner, call)
        return made(first, *more)

    @property
    def token_grad(self) -> TpGrad:
        """Kind of gradient of a replicated weight that acts on the tokens between regions."""
        return "partial" if self.sequence_parallel else "complete"

    @property
    def inner_grad(self) -> TpGrad:
        """Kind of gradient of a replicated weight inside a tensor-parallel region."""
        return "partial" if self.tp.size > 1 else "complete"

    @property
    def counts(self) -> bool:
        """Whether this rank counts weights that tp does not cut in the gradient norm."""
        return self.tp.index == 0 and self.copies.index == 0
