"""Wraps a stage in FSDP2, with sums of gradients in place of means.

Decides: over which ranks weights are sharded, and in which dtypes they are gathered; in which
backwards gradients are reduced.
Relies on: FSDP2, over dp x cp, and for experts over their own replicas; `layout.stages` for units.
Leaves: the choice of the last backward to `runtime`.
"""

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from mimo_launch.comm.finite_flags import FiniteFlag, watch
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.linear import accumulate_in_products
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.layout.stages import fsdp_units
from mimo_launch.models.mtp import MtpDepth
from mimo_launch.spec.base import Axis
from mimo_launch.spec.values import Precision, Sharding


class _Stage(Protocol):
    layers: nn.ModuleDict


def shard(
    network: nn.Module, grids: GridSet, module: ModuleLayout, numbers: Precision, flag: FiniteFlag
) -> None:
    """Wrap a module in FSDP2 over dp x cp, with sums instead of means everywhere.

    Experts are wrapped first, over their own replicas. `flag` watches the gradients before they are
    summed.
    """
    low, name = numbers.is_mixed, module.name
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if low else None,
        reduce_dtype=torch.float32 if low else None,
        cast_forward_inputs=False,
    )
    mesh, reshard = grids.mesh(name), module.sharding.every_backward
    experts = [each for each in network.modules() if isinstance(each, Experts)]
    replicas = grids.mesh(name, Axis.EXPERT_DP) if experts else mesh
    for each in experts:
        fully_shard(each, mesh=replicas, mp_policy=policy, reshard_after_forward=reshard)
    blocks = list(cast(_Stage, network).layers.values())
    for unit in fsdp_units([_own_parameters(block) for block in blocks], full_sharding=reshard):
        fully_shard(
            blocks[unit.start : unit.stop],
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard,
        )
    # An evaluation does not run these, so they share no unit with layers.
    for depth in [each for each in network.modules() if isinstance(each, MtpDepth)]:
        fully_shard(depth, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(network, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for wrapped in fsdp_modules(network):
        # The loss is already divided by the global number of labels, so every reduction is a sum.
        # The factor does not recurse; without the second call, fp32 and bf16 would use a scaled
        # sum, which gloo lacks.
        wrapped.set_gradient_divide_factor(1.0)
        wrapped.set_force_sum_reduction_for_comms(True)
        if (replicas if isinstance(wrapped, Experts) else mesh).size() > 1:
            watch(wrapped, flag)
        if low and not reshard:
            accumulate_in_products(wrapped)


def _own_parameters(block: nn.Module) -> int:
    """Return the number of a block's parameter elements that belong to no unit yet (experts do)."""
    return sum(p.numel() for p in block.parameters() if not isinstance(p, DTensor))


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
        unit.set_reshard_after_backward(reduces, recurse=False)
        unit.set_is_last_backward(is_last)
