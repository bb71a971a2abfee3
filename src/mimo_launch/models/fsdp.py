"""Wraps a stage in FSDP2, with sums where it would take means.

Decides: which layers are gathered together, over which ranks, and in which types.
Relies on: FSDP2, over dp x cp, and for experts over their own replicas.
Leaves: when to reduce to `runtime`.
"""

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from mimo_launch.comm.finite_flags import FiniteFlag, watch
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.estimate.parameters import MIN_PARAMETERS_PER_UNIT
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.linear import accumulate_in_products


class _Stage(Protocol):
    layers: nn.ModuleDict


def shard(
    network: nn.Module, grids: GridSet, name: str, sharding: str, precision: str, flag: FiniteFlag
) -> None:
    """Wrap a module in FSDP2 over dp x cp, with sums instead of means everywhere.

    Experts are wrapped first, over their own replicas. `flag` watches the summed gradients.
    """
    low = precision == "bf16"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if low else None,
        reduce_dtype=torch.float32 if low else None,
        cast_forward_inputs=False,
    )
    mesh, reshard = grids.mesh(name), sharding == "full"
    experts = [module for module in network.modules() if isinstance(module, Experts)]
    replicas = grids.mesh(name, "expert_dp") if experts else mesh
    for each in experts:
        fully_shard(each, mesh=replicas, mp_policy=policy, reshard_after_forward=reshard)
    blocks = list(cast(_Stage, network).layers.values())
    for unit in [[block] for block in blocks] if reshard else _units(blocks):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(network, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for module in fsdp_modules(network):
        # The loss is already divided by the global number of labels, so every reduction is a sum.
        # The factor does not recurse; without the second call fp32 and bf16 would use a scaled
        # sum that gloo does not have.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if (replicas if isinstance(module, Experts) else mesh).size() > 1:
            watch(module, flag)
        if low and not reshard:
            accumulate_in_products(module)


def _units(blocks: list[nn.Module]) -> list[list[nn.Module]]:
    """Return runs of blocks that are large enough for a unit; without any, the root has them."""
    units: list[list[nn.Module]] = []
    run: list[nn.Module] = []
    for block in blocks:
        run.append(block)
        # Those that are sharded already belong to units inside of the blocks.
        left = (p for each in run for p in each.parameters() if not isinstance(p, DTensor))
        if sum(p.numel() for p in left) >= MIN_PARAMETERS_PER_UNIT:
            units.append(run)
            run = []
    if run and units:
        units[-1] += run
    return units


def fsdp_modules(network: nn.Module) -> Iterator[FSDPModule]:
    """Yield every FSDP unit of a module, the root first."""
    return (module for module in network.modules() if isinstance(module, FSDPModule))
