"""What autograd keeps in each forward of a real step on this rank, beside what is estimated.

Kernels of GPUs have stand-ins that keep what these keep and compute zeros; `torch.compile` stops
before it makes kernels.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tests.support.bf16_products import products_in_fp32
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.estimate.memory import stage_memory
from mimo_launch.estimate.workload import workload
from mimo_launch.layers import (
    attention,
    mamba,
    offload,
    recompute,
    recurrent,
    varlen_attention,
)  # fmt: skip
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.step_state import StepState
from mimo_launch.schedule.actions import Action
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession


def _attended(inputs: tuple[Tensor, ...], **lists: Any) -> tuple[Tensor, Tensor]:
    """`varlen_forward`."""
    q, *_ = inputs
    return torch.zeros_like(q), torch.zeros(q.shape[1], len(q))


def _attended_back(
    grad: Tensor, inputs: tuple[Tensor, ...], *kept: Tensor, **lists: Any
) -> tuple[Tensor, ...]:
    """`varlen_backward`."""
    return tuple(torch.zeros_like(each) for each in inputs)


class _Scan(torch.autograd.Function):
    """`mamba_chunk_scan_combined` of mamba-ssm 2.3."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(x, dt, *others, torch.empty_like(dt), out := torch.empty_like(x))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:-2])


class _Convolution(torch.autograd.Function):
    """`causal_conv1d_fn`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else torch.zeros_like(each) for each in ctx.saved_tensors)


@contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """Let all keep what it keeps on GPUs; sizes are dynamic, so that steps share what compiles."""

    compiles = partial(torch.compile, backend="aot_eager_decomp_partition", dynamic=True)
    with ExitStack() as patches:
        for owner, name, stand_in in (
            (varlen_attention, "varlen_forward", _attended),
            (varlen_attention, "varlen_backward", _attended_back),
            (attention, "takes_lists", lambda q: True),
            (mamba, "ssd", lambda given, **_: (_Scan.apply(*given), None)),
            (recurrent, "causal_conv", lambda *args, **_: _Convolution.apply(*args)),
            (torch, "compile", compiles),
        ):
            patches.enter_context(patch.object(owner, name, stand_in))
        patches.enter_context(products_in_fp32())
        yield


@dataclass(frozen=True)
class Kept:
    """One forward on a rank: bytes until its backward, by autograd and by estimate.

    `away` and `estimated_away` lie on the host.
    """

    module: str
    stage: int
    forward: int
    measured: int
    estimated: int
    away: int
    estimated_away: int


class _Watch:
    """Counts what each forward of a session keeps: saved tensors and outputs, each storage once.

    Weights are left out, and rows that arrived, which are in the buffers of bridges; so are masks
    [queries, keys], which GPUs do without.
    """

    def __init__(self, session: RankSession) -> None:
        self.session, self.found = session, list[Kept]()
        self.stages, self.outputs = session.executor.stages, session.executor.mail.outputs
        self.run, self.put, self.arrive = (
            self.stages.forward, self.outputs.put, self.stages._arrived,
        )  # fmt: skip
        self.held: dict[int, torch.UntypedStorage] = {}
        # Storages, not keys alone: a key is an address, which a freed one leaves to another.
        self.left_out: dict[int, torch.UntypedStorage] = {}
        self.stages.forward = self.forward  # type: ignore[method-assign]
        self.stages._arrived = self.arrived  # type: ignore[method-assign]
        self.outputs.put = self.note_output  # type: ignore[method-assign]

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.dim() != 2 or tensor.requires_grad or tensor.grad_fn or not self.is_mask(tensor):
            self.held[storage._cdata] = storage
        return tensor

    def is_mask(self, tensor: Tensor) -> bool:
        """Return whether it has a row of keys for each query of a chunk."""
        cp = self.session.layout.language.grid.size(Axis.CP)
        chunk = self.session.layout.seq // (2 * cp)
        return cp > 1 and tensor.shape[0] == chunk and not tensor.shape[1] % chunk

    def note_output(self, at: Any, tensor: Tensor) -> None:
        if tensor.requires_grad:
            self.note(tensor)
        self.put(at, tensor)

    def arrived(self, *which: Any) -> Any:
        rows, places = self.arrive(*which)
        storages = (each.untyped_storage() for each in rows.values())
        self.left_out |= {each._cdata: each for each in storages}
        return rows, places

    def forward(self, action: Action, step: StepState) -> None:
        self.held, session = {}, self.session
        away, pack = dict[Any, int](), offload._Stage._pack
        remade = recompute._Again.pack

        def note_packed(stage: Any, layer: Any, tensor: Tensor) -> Any:
            packed = pack(stage, layer, tensor)
            if isinstance(packed, Tensor):
                self.note(tensor)
            else:
                away[packed.kept] = tensor.untyped_storage().nbytes()
            return packed

        def note_beside(again: Any, tensor: Tensor) -> Any:
            packed = remade(again, tensor)
            return self.note(packed) if isinstance(packed, Tensor) else packed

        with (
            torch.autograd.graph.saved_tensors_hooks(self.note, lambda tensor: tensor),
            patch.object(offload._Stage, "_pack", note_packed),
            patch.object(recompute._Again, "pack", note_beside),
        ):
            self.run(action, step)
        weights = {
            local_tensor(weight).untyped_storage()._cdata
            for module in session.modules.values()
            for weight in module.parameters()
        }
        others = weights | self.left_out.keys()
        storages = (each for key, each in self.held.items() if key not in others)
        name, number = action.module, action.stage or 0
        layout, module = session.layout, session.layout[name]
        replica = module.grid.index(Axis.DP, session.rank)
        work = workload(step.views, module, replica, action.index)
        tp = module.grid.index(Axis.TP, session.rank)
        memory = stage_memory(session.spec, layout, module, module.stages[number], work, tp)
        measured = sum(each.nbytes() for each in storages)
        self.found.append(
            Kept(
                name,
                number,
                action.index,
                measured,
                memory.kept,
                sum(size for kept, size in away.items() if not kept.stays),
                memory.offloaded,
            )
        )


def kept_in_step(spec: Spec) -> list[Kept]:
    """Run the first step of a spec on this rank, and return its forwards."""
    dataset = build_dataset(spec)
    inputs = step_inputs(dataset, "train", global_order(spec, dataset).take(0), 0)
    with kernels_of_gpus(), RankSession(Plan.of(spec), randomise=True) as session:
        watch = _Watch(session)
        session.gradients(inputs).read()
        return watch.found
