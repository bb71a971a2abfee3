"""Builds this rank's stages from the spec, with weights that have no values yet.

Decides: which modules a rank holds, and in which dtypes.
Relies on: `layout` and `comm`.
Leaves: wrapping them in FSDP2 to `fsdp`, running them to `runtime`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.comm.host_link import HostLink
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.comm.torch_internals import shapes_of_operands
from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.language import LOSS
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.layers.dropout import name_dropouts
from mimo_launch.layers.offload import offload_layers
from mimo_launch.layers.parallel_context import SINGLE, ParallelContext, torch_type
from mimo_launch.layers.parameter_segments import (
    DeclaredParameter,
    declared_parameters,
    local_tensor,
)
from mimo_launch.layers.router import AuxLoss
from mimo_launch.layers.te_fp8 import Fp8
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.stages import Stage
from mimo_launch.models.custom_stages import plain_values
from mimo_launch.models.fsdp import shard
from mimo_launch.models.language_input import TextForward
from mimo_launch.models.stage_interface import ListForward, StageClass
from mimo_launch.models.unfilled_weights import UnfilledWeights
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec


@dataclass(frozen=True, slots=True)
class RankModule:
    """One module on this rank: its layout, its context and its wrapped stages by index.

    `unfilled` has the weights without values. `before_dp_sum` watches this rank's gradients of each
    stage before they are summed over dp x cp, `before_tp_sum` the gradients that are then summed
    over tp or between tied stages. `aux_loss` adds up the balance losses of experts.
    """

    layout: ModuleLayout
    context: ParallelContext
    stages: dict[int, nn.Module]
    unfilled: UnfilledWeights
    before_dp_sum: dict[int, FiniteFlag]
    before_tp_sum: FiniteFlag
    maker: type[StageClass]
    aux_loss: AuxLoss | None = None

    @property
    def name(self) -> str:
        """Name in the spec."""
        return self.layout.name

    def run(self, stage: int, hidden: Tensor | None, forward: ListForward | TextForward) -> Any:
        """Return the result of one forward of a stage.

        Raises: RuntimeError if weights have no values.
        """
        self.unfilled.check()
        network = self.stages[stage]
        return network(hidden, self.maker.inputs(network, forward))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the live parameters of all stages."""
        for network in self.stages.values():
            yield from network.parameters()

    def declared(self) -> Iterator[DeclaredParameter]:
        """Yield the live parameters of all stages with their segments."""
        for network in self.stages.values():
            yield from declared_parameters(self.name, network)

    def begin_step(self) -> None:
        """Forget the flags and losses of the step before; no gradients are reduced for now."""
        self.before_tp_sum.clear()
        if self.aux_loss is not None:
            self.aux_loss.clear()
        for flag in self.before_dp_sum.values():
            flag.clear()

    def note_unreduced_gradients(self) -> None:
        """Show the gradients of parameters without replicas to the flags of their stages.

        FSDP2's reduction has already shown the others (`comm.finite_flags`).
        """
        for stage, network in self.stages.items():
            found = [p.grad for p in network.parameters() if p.grad is not None]
            own = [g for g in found if not (isinstance(g, DTensor) and g.device_mesh.size() > 1)]
            self.before_dp_sum[stage].show_all([local_tensor(g) for g in own])


def build_modules(spec: Spec, layout: Layout, grids: GridSet) -> dict[str, RankModule]:
    """Return this rank's modules by name, sharded and with unfilled weights.

    Ranks: collective over the dp x cp group of each module, in the order of the layout.
    """
    modules = {}
    for module in layout.modules_of(grids.rank):
        context = _context(spec, module, grids)
        stages: dict[int, nn.Module] = {}
        before_dp_sum: dict[int, FiniteFlag] = {}
        for stage in module.stages_of(grids.rank):
            # Weights get memory only after they are sharded: no rank ever holds a whole model.
            with torch.device("meta"):
                network = build_network(spec, stage, context)
            _freeze(network, spec, module.name)
            for each in network.parameters():
                if each.is_floating_point():
                    held = spec.train.numbers.held(trains=each.requires_grad, ndim=each.ndim)
                    each.data = each.data.to(torch_type(held))
            flag = before_dp_sum[stage.index] = FiniteFlag(context.device)
            with shapes_of_operands():
                shard(network, stage, grids, module.sharding, spec.train.numbers, flag)
                constants = {n: b for n, b in network.named_buffers() if not b.is_meta}
                network.to_empty(device=context.device)
            for path, values in constants.items():
                network.get_buffer(path).copy_(values)
            stages[stage.index] = network
        if context.fp8 is not None:
            context.fp8.allocate()
        before_tp_sum = FiniteFlag(context.device)
        aux_loss = None if module.experts is None else AuxLoss(context.device, spec.batch.global_)
        given = partial(plain_values, spec, module.name)
        modules[module.name] = RankModule(
            module,
            context,
            stages,
            UnfilledWeights(module.name, stages, spec.train.seed, given),
            before_dp_sum,
            before_tp_sum,
            _maker(spec, module.name),
            aux_loss,
        )
    return modules


def _context(spec: Spec, module: ModuleLayout, grids: GridSet) -> ParallelContext:
    """Return the parallelism of one module on this rank."""
    name, written, numbers = module.name, spec.modules[module.name], spec.train.numbers
    tp, cut = grids.group(name, Axis.TP), module.sharding
    replicas = grids.group(name, Axis.DP, Axis.CP)
    copies = grids.group(name, *cut.replicate) if cut.replicate else SINGLE
    compiled = written.compile
    if compiled == "auto":
        # Compile where it pays: on GPUs, but not in fp64, the precision of proofs.
        compiled = grids.device.type == "cuda" and not numbers.is_exact
    fp8 = None
    if written.fp8 is not None:
        # Gradients of a mean over all tokens become about 1, far from both ends of the range.
        tokens = spec.batch.global_ * spec.batch.seq
        fp8 = Fp8(written.fp8, tp, replicas, grad_scale=2.0 ** tokens.bit_length())
    ep = expert_tp = SINGLE
    if module.experts is not None:
        ep, expert_tp = (grids.group(name, axis) for axis in (Axis.EP, Axis.EXPERT_TP))
    return ParallelContext(
        tp=tp,
        cp=grids.group(name, Axis.CP),
        sequence_parallel=module.sequence_parallel,
        dtype=torch_type(numbers.stored),
        compute_dtype=torch_type(numbers.computed),
        device=grids.device,
        compiled=compiled,
        owner=name,
        backend=written.backend,
        fp8=fp8,
        ep=ep,
        expert_tp=expert_tp,
        replicas=replicas,
        copies=copies,
        dropout=written.dropout,
        attention_dropout=written.attention_dropout,
        draws=spec.train.seed if written.drops else None,
    )


def build_network(spec: Spec, stage: Stage, context: ParallelContext) -> nn.Module:
    """Return the layers of one stage with unset weights, built by the class that its kind names.

    Raises: CustomClassError for a user's class that cannot be used.
    """
    module = spec.modules[stage.module]
    adapted = replace(context, adapter=adapter_of(module), base=module.quantize_base)
    network: Any = _maker(spec, stage.module).build(spec, stage, adapted)
    name_dropouts(stage.module, network)
    if module.offloads:
        layers = {f"layer {n} of `{stage.module}`": each for n, each in network.layers.items()}
        for n, depth in enumerate(getattr(network, "mtp", ())):
            layers[f"depth {n} of `{stage.module}`"] = depth
        offload_layers(layers, HostLink(context.device))
    made: nn.Module = network
    return made


def _maker(spec: Spec, module: str) -> type[StageClass]:
    """Return the class that a module's kind names."""
    file, _, name = kind_of(spec.modules[module].model).stage.partition(":")
    maker: type[StageClass] = getattr(import_module(file), name)
    return maker


def keep_activations(spec: Spec) -> Spec:
    """Return the spec with all that layers keep for their backward on the device."""
    kept = {"recompute": "none", "offload": ()}
    modules = {n: m.model_copy(update=kept) for n, m in spec.modules.items()}
    return spec.model_copy(update={"modules": modules})


def _freeze(network: nn.Module, spec: Spec, name: str) -> None:
    """Freeze the weights that the spec or their declaration freezes."""
    module = spec.modules[name]
    before = kind_of(module.model).names_before(ends_of(spec, name, is_first=True, is_last=False))
    for part, layers in network.named_children():
        trains = module.projector_trains if part == "projector" else module.body_trains
        if part == LOSS:
            trains = module.frozen is not True
        layers.requires_grad_(module.layer_trains(0) if part in before else trains)
    if module.frozen_layers:
        for number, layer in network.get_submodule("layers").named_children():
            layer.requires_grad_(module.layer_trains(int(number)))
    for declared in declared_parameters("", network):
        if declared.is_adapter:
            declared.parameter.requires_grad_(True)
        elif not declared.trains:
            declared.parameter.requires_grad_(False)
