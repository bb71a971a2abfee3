"""Every call of torch that its documentation does not promise, with the reason for each.

Decides: how each is called; tests/unit/test_torch_internals.py fails when a version of torch
changes one of them.
Relies on: torch 2.11 to 2.13.
Leaves: the use of their results to the callers. Internals of Transformer Engine are in
`layers.te_fp8`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as compiled_autograd
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

# Cycles a second; no GPU is known to be faster.
FASTEST_CLOCK = 3e9
KEPT_ORDER = torch.preserve_format


class FsdpParameter:
    """FSDP2's own record of a parameter of a unit.

    Why: FSDP2 adds up the gradients of a step's backwards itself, with an extra pass over memory
    for each. Only this record says where it keeps the sum and in which dtype it reduces it.
    """

    def __init__(self, record: Any, group: Any) -> None:
        """`record` is FSDP2's record of the parameter, `group` of all that is reduced with it."""
        self._record, self._group = record, group

    @property
    def owner(self) -> nn.Module:
        """The layer that has the parameter."""
        module: nn.Module = self._record._module_info.module
        return module

    @property
    def name(self) -> str:
        """Its name in that layer."""
        name: str = self._record._module_info.param_name
        return name

    @property
    def gradient(self) -> Tensor | None:
        """The unsharded gradient that FSDP2 will reduce, in the dtype of the reduction."""
        found: Tensor | None = self._record.unsharded_accumulated_grad
        return found

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        """Give FSDP2 the gradient to reduce."""
        self._record.unsharded_accumulated_grad = value

    @property
    def reduce_dtype(self) -> torch.dtype:
        """The dtype in which its gradient is reduced, known from the first forward on."""
        dtype: torch.dtype = self._record.reduce_dtype
        return dtype

    @property
    def reduces_now(self) -> bool:
        """Whether the current backward ends with a reduction."""
        return bool(self._group.reduce_grads)


def fsdp_parameters(unit: FSDPModule) -> list[FsdpParameter]:
    """Return the parameters that a unit gathers and reduces together."""
    group: Any = unit._get_fsdp_state()._fsdp_param_group
    records = () if group is None else group.fsdp_params
    return [FsdpParameter(record, group) for record in records]


@contextmanager
def shapes_of_operands() -> Iterator[None]:
    """Let DTensor give results of `detach`, `empty_like`, `zeros_like` the shape of their operand.

    Why: otherwise it runs them on fake tensors, once for each shape of a weight. In a rank of a
    small model that is half of the time in which it builds its modules, and most of that in which
    an optimizer makes its moments.
    """
    owner: Any = ShardingPropagator
    propagated = owner._propagate_tensor_meta_non_cached
    alike = {torch.ops.aten.empty_like.default, torch.ops.aten.zeros_like.default}

    def shape_of(propagator: ShardingPropagator, call: Any) -> Any:
        operand = call.args_schema[0]
        if call.op == torch.ops.aten.detach.default:
            return operand.tensor_meta
        # Others may ask for another dtype or order in memory.
        others = {name for name, asked in call.kwargs_schema.items() if asked is not KEPT_ORDER}
        if call.op in alike and not others - {"device", "pin_memory"}:
            shape, stride, _ = meta = operand.tensor_meta
            if stride == torch.empty(shape, device="meta").stride():
                return meta
        return propagated(propagator, call)

    owner._propagate_tensor_meta_non_cached = shape_of
    try:
        yield
    finally:
        owner._propagate_tensor_meta_non_cached = propagated


def zeros_like(weight: Tensor) -> Tensor:
    """Return a moment of a weight before the first update, sharded like it."""
    with shapes_of_operands():
        return torch.zeros_like(weight)


class LocalKernels:
    """Mixin placed before a torch optimizer: its kernels get the local shards of DTensors.

    Why: a fused kernel over DTensors costs the host more time than the kernel takes. The state
    stays with its parameter, sharded like it. `_init_group` is where torch's optimizers collect
    the tensors of a group for their kernel. Of a state `on_host`, the kernel gets copies on the
    device, which go back before the next group and after the last one.
    """

    on_host = False
    _lent: tuple[tuple[Tensor, Tensor], ...] = ()

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        self._return_state()
        for weight in group["params"] if self.on_host else ():
            if weight.grad is not None and weight not in self.state:  # type: ignore[attr-defined]
                first = self.initial_state(weight)  # type: ignore[attr-defined]
                self.state[weight] = on_host(first)  # type: ignore[attr-defined]
        with shapes_of_operands():  # Before the first step it makes the state.
            answer: bool = super()._init_group(group, *lists)  # type: ignore[misc]
        for tensors in lists:
            tensors[:] = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        if self.on_host:
            self._lend_state(group, lists)
        return answer

    def _lend_state(self, group: dict[str, Any], lists: Iterable[list[Tensor]]) -> None:
        """Put copies on the device in the place of tensors on the host."""
        lent: dict[int, tuple[Tensor, Tensor]] = {}
        for weight in group["params"]:
            for name, kept in self.state.get(weight, {}).items():  # type: ignore[attr-defined]
                if name != "step":
                    there = kept.to(weight.device, non_blocking=True, copy=True)
                    lent[id(kept)] = kept, there
        for tensors in lists:
            tensors[:] = [lent[id(t)][1] if id(t) in lent else t for t in tensors]
        self._lent = tuple(lent.values())

    def _return_state(self) -> None:
        for kept, there in self._lent:
            kept.copy_(there, non_blocking=True)
        self._lent = ()

    def step(self, closure: Any = None) -> Any:
        """Update all groups."""
        answer = super().step(closure)  # type: ignore[misc]
        self._return_state()
        return answer


def on_host(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a weight with the local parts of all but its count on the host.

    Why: torch copies between a device and pinned memory without waiting.
    """
    return {name: each if name == "step" else _on_host(each) for name, each in state.items()}


def _on_host(tensor: Tensor) -> Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return torch.zeros_like(local, device="cpu", pin_memory=local.is_cuda).copy_(local)


def norms(
    tensors: list[Tensor], order: float, dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Return the norm of each tensor, summed in `dtype`.

    Why: one kernel for all of them, and no copy in a wider type.
    """
    return tuple(torch._foreach_norm(tensors, order, dtype=dtype))


def divide_(tensors: list[Tensor], divisor: Tensor) -> None:
    """Divide tensors in place by a scalar of the device. Why: one kernel for all of them."""
    torch._foreach_div_(tensors, divisor)


def copy_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors in place. Why: one kernel for all of them."""
    torch._foreach_copy_(targets, sources)


def grouped_matmul(x_MD: Tensor, weights_eDF: Tensor, ends_e: Tensor) -> Tensor:
    """Return each run of rows times its own matrix, [M, F]; `ends_e` are the ends of the runs.

    Why: one kernel for all experts of a rank.
    """
    out: Tensor = torch._grouped_mm(x_MD, weights_eDF, offs=ends_e)
    return out


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which has a wider dtype than a and b.

    Why: on CUDA the matmul adds to the sum in its epilogue, without rounding the product.
    """
    if a.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def scaled_product(a_NK: Tensor, b_FK: Tensor, *, is_fast: bool) -> Tensor:
    """Return a times the transpose of b in bf16, both in 8 bits with a scale of 1, [N, F].

    Why: Transformer Engine's products in FP8 do the same, without and with the slower, more precise
    sums that it takes for gradients; torch has no documented call for them.
    """
    one = torch.ones((), device=a_NK.device)
    out: Tensor = torch._scaled_mm(
        a_NK, b_FK.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=is_fast
    )
    return out


def hold_back(seconds: float) -> None:
    """Make the current GPU wait for at least this long before it runs the next kernels.

    Why: the kernels launched meanwhile then run back to back, as fast as the GPU can.
    """
    torch.cuda._sleep(int(seconds * FASTEST_CLOCK))  # type: ignore[no-untyped-call]


def record_memory() -> None:
    """Start to record allocations on this process's GPU, with the lines that made them.

    Why: there is no public call; PyTorch's memory viewer is documented with this one. The lines
    that free memory are not recorded: in torch 2.11 this loses the exception that ends a
    recomputation (pytorch/pytorch#179536).
    """
    torch.cuda.memory._record_memory_history(context="alloc")


def dump_memory(file: Path) -> None:
    """Write the record for PyTorch's memory viewer, and stop recording."""
    try:
        torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def shut_down_groups() -> None:
    """Wait for the transfers of every process group and shut down its NCCL communicators.

    Why: `destroy_process_group` also closes the connections of gloo. If a peer closes its end at
    that moment, gloo in torch 2.11 aborts the process ("enforce fail at pair.cc"), so a run that
    has done its work fails. Here the connections stay open until the process ends.
    """
    names = c10d._world.pg_names
    # In the order of `destroy_process_group`.
    for group in sorted(names, key=names.__getitem__, reverse=True):
        group.shutdown()


def set_allocator(settings: str) -> None:
    """Give the allocator of CUDA its settings, in the form of PYTORCH_ALLOC_CONF.

    Why: torch reads the variable when it is imported, which is before a forked worker sets it.
    """
    torch._C._accelerator_setAllocatorSettings(settings)


def varlen_forward(
    inputs: tuple[Tensor, Tensor, Tensor],
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scale: float | None,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Return attention inside each sequence of a list, [N, h, K], and its log-sum-exp, [h, N].

    Why: `varlen_attn` is a custom operator of Python, which takes the host longer than the kernel's
    own call; it gives the kernel the same arguments.
    """
    out, log_sum_exp, *_ = torch.ops.aten._flash_attention_forward(
        *inputs, *bounds, *longest, 0.0, window == (-1, 0), return_debug_mask=False,
        scale=scale, window_size_left=window[0], window_size_right=window[1],
    )  # fmt: skip
    return out, log_sum_exp


def varlen_backward(
    grad_NhK: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    out_NhK: Tensor,
    lse_hN: Tensor,
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scale: float | None,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values of `varlen_forward`.

    Why: as above; with a different output and log-sum-exp, they are the gradients of attention with
    sinks.
    """
    # The random state, which only dropout uses.
    state = torch.empty(0, dtype=torch.uint64, device=grad_NhK.device)
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad_NhK, *inputs, out_NhK, lse_hN, *bounds, *longest, 0.0, window == (-1, 0), state, state,
        scale=scale, window_size_left=window[0], window_size_right=window[1],
    )  # fmt: skip
    return grads


def attend_to_keys(
    q_BhsK: Tensor, k_BgmK: Tensor, v_BgmK: Tensor, *, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention to these keys, [B, h, s, K], and its log-sum-exp, [B, h, s].

    Why: `scaled_dot_product_attention` keeps the log-sum-exp, which merging attention to several
    parts of the keys needs. These are its kernels: cuDNN's on GPUs, flash attention on CPUs.
    """
    call = {"is_causal": is_causal, "scale": scale}
    if q_BhsK.is_cuda:
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        out, total, *_ = cudnn(q_BhsK, k_BgmK, v_BgmK, None, True, **call)
        return out, total.view(out.shape[:3])
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, total = flash(q_BhsK, k_BgmK, v_BgmK, **call)
    return out, total


def gradients_of_keys(
    grad_BhsK: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    out_BhsK: Tensor,
    sum_Bhs: Tensor,
    *,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values of `attend_to_keys`.

    Why: `scaled_dot_product_attention` has no backward that takes another output. If the output and
    the log-sum-exp are those over all parts of the keys, the gradients are those of this part.
    """
    if not grad_BhsK.is_cuda:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        on_cpu: tuple[Tensor, Tensor, Tensor] = flash(
            grad_BhsK, *inputs, out_BhsK, sum_Bhs, 0.0, is_causal, scale=scale
        )
        return on_cpu
    # The random state, which only dropout uses.
    state = torch.empty(0, dtype=torch.uint64, device=grad_BhsK.device)
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    on_gpu: tuple[Tensor, Tensor, Tensor] = cudnn(
        grad_BhsK, *inputs, out_BhsK, sum_Bhs.unsqueeze(3).contiguous(), state, state,
        None, None, None, queries, keys, 0.0, is_causal, scale=scale,
    )  # fmt: skip
    return on_gpu


def keep_for_second_backwards() -> None:
    """Let functions that are compiled from now on keep what a second backward needs.

    Why: kernels are timed by repeating a backward. A compiled backward otherwise writes its results
    over what the forward kept, and refuses `retain_graph`.
    """
    compiled_autograd.donated_buffer = False
