"""Wraps a stage in FSDP2, with sums of gradients in place of means.

Decides: in which dtypes weights are gathered; in which backwards gradients are reduced.
Relies on: FSDP2, over the replicas of a stage, and for experts over their own; the plan for the
layers that are a unit.
Leaves: the choice of the last backward to `runtime`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.comm.gradient_reduction import GradientReduction
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.linear import accumulate_in_products
from mimo_launch.layers.parallel_context import torch_type
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.base import Axis
from mimo_launch.spec.values import Precision, Sharding


class _Stage(Protocol):
    layers: nn.ModuleDict


def shard(
    network: nn.Module,
    stage: Stage,
    grids: GridSet,
    sharding: Sharding,
    numbers: Precision,
    flag: FiniteFlag,
) -> None:
    """Wrap the units of a stage in FSDP2 over their replicas, with sums in place of means.

    Experts are wrapped first, over their own replicas. `flag` watches the gradients before they are
    summed.
    """
    reshard, low = sharding.every_backward, numbers.is_mixed
    policy = MixedPrecisionPolicy(
        param_dtype=torch_type(numbers.computed) if low else None,
        reduce_dtype=torch_type(numbers.stored) if low else None,
        cast_forward_inputs=False,
    )
    experts = [each for each in network.modules() if isinstance(each, Experts)]
    mesh = grids.mesh(stage.module)
    replicas = grids.mesh(stage.module, Axis.EXPERT_DP) if experts else mesh
    meshes = {weight: replicas for each in experts for weight in each.parameters()}
    computed = torch_type(numbers.computed)
    whole = {
        weight
        for weight in network.parameters()
        if _is_whole(weight, meshes.get(weight, mesh), computed, reshards=reshard)
    }
    wrap = partial(
        fully_shard, mp_policy=policy, reshard_after_forward=reshard, ignored_params=whole
    )
    for each in experts:
        wrap(each, mesh=replicas)
    blocks = list(cast(_Stage, network).layers.values())
    for unit in stage.units:
        wrap(blocks[unit.start : unit.stop], mesh=mesh)
    # An evaluation does not run the depths of multi-token prediction: they share no unit.
    for depth in getattr(network, "mtp", ()):
        wrap(depth, mesh=mesh)
    wrap(network, mesh=mesh)
    for wrapped in fsdp_modules(network):
        # The loss is already divided by the global number of labels, so every reduction is a sum.
        # Neither setting recurses. Unless a sum is forced, fp32 and bf16 use a scaled one, which
        # gloo lacks.
        wrapped.set_force_sum_reduction_for_comms(True)
        own = replicas if isinstance(wrapped, Experts) else mesh
        sums = own.size() > 1
        # One rank alone has nothing to sum; a factor would cost it two passes over its gradients.
        if sums:
            wrapped.set_gradient_divide_factor(1.0)
        reduction = GradientReduction(
            flag if sums else None, alone=own.size(-1) == 1, kept=not reshard
        )
        wrapped.set_custom_reduce_scatter(reduction)  # type: ignore[arg-type]
        if low and not reshard:
            accumulate_in_products(wrapped)


def _is_whole(
    weight: nn.Parameter, mesh: DeviceMesh, computed: torch.dtype, *, reshards: bool
) -> bool:
    """Return whether ranks hold a weight whole, without the shard that FSDP would keep beside it.

    It does not train, and either is packed, where FSDP does not reshard, or has no other replica.
    """
    if weight.requires_grad:
        return False
    if weight.dtype == torch.uint8:
        return not reshards
    return mesh.size() == 1 and weight.dtype == computed


def fsdp_modules(network: nn.Module) -> Iterator[FSDPModule]:
    """Yield every FSDP unit of a module, the root first."""
    return (module for module in network.modules() if isinstance(module, FSDPModule))


def set_gradient_sync(stage: nn.Module, sharding: Sharding, *, is_last: bool) -> None:
    """Reduce gradients over dp x cp only at a stage's last backward of the step.

    Fully sharded modules reduce at every backward and accumulate shards instead, so that no
    unsharded gradient stays in memory.
    """
    reduces = is_last or sharding.every_backward
    for unit in fsdp_modules(stage):
        unit.set_requires_gradient_sync(reduces, recurse=False)
        # Copies are summed once in a step.
        unit.set_requires_all_reduce(is_last, recurse=False)
        unit.set_reshard_after_backward(reduces, recurse=False)
        unit.set_is_last_backward(is_last)
