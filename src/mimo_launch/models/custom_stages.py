"""Encoders and generators in a user's package: importing them, building and checking stages.

Decides: which networks are refused; the initial values of plain parameters.
Relies on: `diag.users_code` for importing, `custom_encoder` for the protocol,
`layers.parameter_segments` for plain parameters.
Leaves: reporting errors before workers start to `launcher.forking`.
"""

import inspect
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from mimo_launch.comm.process_groups import Group
from mimo_launch.diag.users_code import CustomClassError, failed, import_named
from mimo_launch.kinds.language import LOSS
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import (
    SegmentedModule,
    adopt_parameters,
    declared_parameters,
)
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.stages import Stage
from mimo_launch.models.custom_encoder import EncoderInput
from mimo_launch.models.custom_loss import build_loss, cast_network, check_loss, without_memory
from mimo_launch.models.stage_interface import ListForward
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

MAX_NAMES = 5


class CustomStages:
    """The stage class of a user's kind: it builds stages of the user's class, and their inputs."""

    @staticmethod
    def build(spec: Spec, stage: Stage, context: ParallelContext) -> nn.Module:
        """Return a stage with parameters on the meta device. Raises: CustomClassError."""
        return build_custom_stage(spec, stage, context)

    @staticmethod
    def inputs(network: nn.Module, forward: ListForward) -> EncoderInput:
        """Return the input of a forward, whatever the network."""
        return EncoderInput.of_forward(forward)


def build_custom_stage(spec: Spec, stage: Stage, context: ParallelContext) -> nn.Module:
    """Return a stage of a user's class with parameters on the meta device and real buffers.

    Raises: CustomClassError
    """
    with without_memory():
        network = _build(spec, stage, context)
    for complaint in _complaints(spec, stage, network, context):
        raise CustomClassError(f"{_where(spec, stage.module)} {complaint}")
    cast_network(network, context)
    return network


def plain_values(spec: Spec, name: str, network: nn.Module) -> dict[str, Tensor]:
    """Return the initial values of a module's plain parameters, by full name.

    Empty if `network`, a stage of the module, has none. The whole module is built once, under
    torch's CPU generator with a seed derived from (train.seed, name), so that all layouts start
    from the same values.

    Raises: CustomClassError
    """
    placed = (p for declared in declared_parameters(name, network) for p in declared.placed)
    if not any(each.segment.weight.init == "given" for each in placed):
        return {}
    whole = whole_stage(spec, name)
    digest = blake2b(f"{spec.train.seed}/{name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        if kind_of(spec.modules[name].model).is_custom:
            made = _build(spec, whole, ParallelContext(owner=name))
            adopt_parameters(made)
        else:
            made = nn.ModuleDict({LOSS: build_loss(spec, ParallelContext(owner=name))})
    return {
        placed.name: declared.parameter.detach()
        for declared in declared_parameters(name, made)
        for placed in declared.placed
        if placed.segment.weight.init == "given"
    }


def whole_stage(spec: Spec, name: str) -> Stage:
    """Return a module as one stage."""
    return Stage(name, 0, 0, spec.modules[name].model.layers, is_first=True, is_last=True)


def check_custom_classes(spec: Spec) -> None:
    """Build every stage of every user class, without memory and without other ranks.

    Raises: CustomClassError
    """
    for module in build_layout(spec).modules:
        if kind_of(spec.modules[module.name].model).is_custom:
            tp, cp = (Group(tuple(range(module.grid.size(a))), 0, None) for a in (Axis.TP, Axis.CP))
            context = ParallelContext(tp, cp, module.sequence_parallel, owner=module.name)
            for stage in module.stages:
                build_custom_stage(spec, stage, context)
    check_loss(spec)


def _build(spec: Spec, stage: Stage, context: ParallelContext) -> nn.Module:
    """Import the class of a module, and call it."""
    module, where = spec.modules[stage.module], _where(spec, stage.module)
    found = import_named(module.model.kind, where)
    given: dict[str, Any] = {"language_width": spec.row_width(stage.module)}
    if kind_of(module.model).computes_loss:
        sources = spec.sources_of(stage.module)
        given = {"sources": {name: spec.row_width(name) for name in sources}}
    given["recompute"] = module.recomputes
    call = partial(found, context, module.model, stage, **given)
    try:
        inspect.signature(found).bind(*call.args, **call.keywords)
    except TypeError as error:
        wanted = f"(context, model, stage, *, {', '.join(given)})"
        raise CustomClassError(f"{where} it is called with {wanted}: {error}") from None
    except ValueError:
        pass  # Some C callables have no signature.
    try:
        network = call()
    except Exception as error:
        raise CustomClassError(f"{where} building stage {stage.index} {failed(error)}") from error
    if not isinstance(network, nn.Module):
        raise CustomClassError(f"{where} it built no torch.nn.Module, but {type(network).__name__}")
    return network


def _complaints(
    spec: Spec, stage: Stage, network: nn.Module, context: ParallelContext
) -> Iterator[str]:
    """Yield the faults of a stage; declare its plain and its frozen parameters."""
    module = spec.modules[stage.module]
    expected = [str(stage.first_layer + i) for i in range(stage.num_layers)]
    layers = getattr(network, "layers", None)
    if not isinstance(layers, nn.ModuleDict) or list(layers) != expected:
        found = list(layers) if isinstance(layers, nn.ModuleDict) else type(layers).__name__
        yield f"its `layers` must be a ModuleDict with the keys {expected}, and is {found}"
    cuts = getattr(network, "cuts", (Axis.TP, Axis.CP, Axis.PP))
    for axis in (Axis.TP, Axis.CP, Axis.PP):
        if axis not in cuts and getattr(module.grid, axis) > 1:
            yield f"it cannot be cut over {axis} (`cuts` does not name it); write `{axis}: 1`"
    projector = getattr(network, "projector", None)
    only_projector = module.frozen == "except_projector" and stage.is_last
    if only_projector and not isinstance(projector, nn.Module):
        yield "it has no `projector`, which is all that `except_projector` trains"
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    saved = set(network.state_dict()) - parameters
    if saved:
        remedy = "register constants with `persistent=False`"
        if any(name.endswith("running_mean") for name in saved):
            remedy = (
                "statistics of a batch (BatchNorm) would differ from rank to rank; "
                "`torch.nn.GroupNorm` and `LayerNorm` keep none"
            )
        yield (
            f"checkpoints hold parameters only, and it has saved buffers: {_listed(saved)}; "
            + remedy
        )
    # FSDP2 would cast them to the type of the computation.
    if whole := {n for n, each in network.named_parameters() if not each.is_floating_point()}:
        yield (
            f"weights are floating-point numbers, and these are not: {_listed(whole)}; register "
            "tables as buffers, with `persistent=False`"
        )
    try:
        plain = adopt_parameters(network)
    except ValueError as error:
        yield str(error)
        return
    if plain and context.tp.size > 1:
        yield (
            f"with tp {context.tp.size} every parameter must be declared as segments, which these "
            f"are not: {_listed(plain)}; write `tp: 1`, or use the layers of mimo_launch.custom"
        )
    _keep_frozen(network)
    if module.frozen is False and stage.is_first and not _trains(network):
        # Later stages pass on the gradients of their inputs even if they train nothing.
        yield "nothing of its first stage trains; write `frozen: true`, or a smaller `pp`"
    if only_projector and projector is not None and not _trains(projector):
        yield "nothing of its `projector` trains, which is all that `except_projector` would train"


def _keep_frozen(network: nn.Module) -> None:
    """Declare as frozen the parameters of our layers that have `requires_grad` false."""
    for layer in network.modules():
        if isinstance(layer, SegmentedModule):
            for attribute, segments in layer.segments.items():
                if not attrgetter(attribute)(layer).requires_grad:
                    layer.segments[attribute] = tuple(
                        replace(each, weight=replace(each.weight, trains=False))
                        for each in segments
                    )


def _trains(network: nn.Module) -> bool:
    return any(declared.trains for declared in declared_parameters("", network))


def _where(spec: Spec, name: str) -> str:
    return f"modules.{name}.model.kind, `{spec.modules[name].model.kind}`:"


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:MAX_NAMES]
    rest = len(names) - len(shown)
    return ", ".join(f"`{name}`" for name in shown) + (f" and {rest} more" if rest else "")
