"""Recomputes activations in the backward that the forward did not keep.

Decides: how layers recompute: a function from its arguments, or one input of a layer alone; that a
function inside a recomputed one does not run a third time.
Relies on: `torch.utils.checkpoint`, and autograd's hooks on what it saves.
Leaves: the choice of layers to `models` and to the layers themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

# Makes a tensor again that was not kept.
Remake = Callable[[], Tensor]
# The size, the strides and the offset of a tensor that is not kept.
_View = tuple[tuple[int, ...], tuple[int, ...], int]


class _Thread(local):
    """Whether this thread computes a result that is recomputed; backwards run in their own."""

    inside = False


_thread = _Thread()


def recomputed(
    compute: Callable[..., Any], *args: Any, nested: bool = False, apart: bool = False
) -> Any:
    """Return a layer's result for `args`; it keeps only `args` and recomputes in the backward.

    Inside another such result it would run a third time, to save memory while that one runs
    backward; it does so only if `nested`.

    `apart`: the result is one tensor, gradients reach other layers by the tensors among `args`
    alone, and torch's generators draw nothing for it. Then the forward makes no graph; the backward
    makes one and runs it by itself. Both together take a host a quarter less time.

    Call it inside the layer's forward, so that FSDP's hooks are outside and run once.
    """
    if torch.is_grad_enabled() and (nested or not _thread.inside):
        # Without an input that has a gradient, autograd would not come back for the weights.
        apart = apart and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        return checkpoint(
            _run_inside, compute, *args, use_reentrant=apart, preserve_rng_state=not apart
        )
    return compute(*args)


def _run_inside(compute: Callable[..., Any], *args: Any) -> Any:
    before, _thread.inside = _thread.inside, True
    try:
        return compute(*args)
    finally:
        _thread.inside = before


def remake(compute: Callable[[Tensor], Tensor], x: Tensor) -> Remake:
    """Return how to make `compute(x)` again; x is kept like any tensor that a layer saves."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return partial(compute, x)
    # The node that saves x ends with its result: torch 2.11 then frees x, 2.13 does not.
    saved: Any = _Saved.apply(x)  # type: ignore[no-untyped-call]
    return lambda: compute(*saved.grad_fn.saved_tensors)


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError("nothing depends on this")


@contextmanager
def remade(x: Tensor, make: Remake | None) -> Iterator[None]:
    """Let what runs inside keep, in place of its input x, the function that makes it again.

    In the backward x is made once, and is gone when its gradient is there.
    """
    if make is None or not torch.is_grad_enabled():
        yield
        return
    again = _Again(x, make)
    with saved_tensors_hooks(again.pack, again.unpack):
        yield


class _Again:
    """Hooks that keep everything but one tensor and its views."""

    def __init__(self, x: Tensor, make: Remake) -> None:
        self._place = x.untyped_storage().data_ptr()
        self._make: Remake | None = make
        self._made: Tensor | None = None
        if x.requires_grad:
            x.register_hook(self._forget)  # type: ignore[no-untyped-call]

    def pack(self, tensor: Tensor) -> Tensor | _View:
        """Return what to keep of a tensor."""
        if tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != self._place:
            return tensor
        return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())

    def unpack(self, kept: Tensor | _View) -> Tensor:
        """Return the tensor."""
        if isinstance(kept, Tensor):
            return kept
        if self._made is None:
            if self._make is None:
                raise RuntimeError("a backward needs a tensor after the gradient of it was there")
            with torch.no_grad():
                self._made = self._make()
        return self._made.as_strided(*kept)

    def _forget(self, gradient: Tensor) -> None:
        # x holds this hook, and the function that makes x again holds the graph before x.
        self._made = self._make = None
