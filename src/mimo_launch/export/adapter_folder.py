"""Writes the adapters of a run as a folder that peft loads beside the base model.

Decides: names, ranks and factors in the files of peft (https://huggingface.co/docs/peft). Maps that
a file of the base model fuses, as q, k and v, become one map: its A has the rows of all their As,
its B their Bs in blocks on the diagonal, its rank is the sum of theirs.
Relies on: `export_plan` for the tensors of the base model, under the names of a loaded model, and
the updates of each.
Leaves: updates merged into weights to `export`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.index import Checkpoint
from mimo_launch.checkpoint.storage import read_boxes
from mimo_launch.export.expert_updates import ExpertStack, expert_stacks
from mimo_launch.export.export import new_folder, write_json
from mimo_launch.export.export_plan import CannotExport, FolderPlan
from mimo_launch.export.original_folders import source_of
from mimo_launch.export.tensors import FileTensor, SavedUpdate
from mimo_launch.hugging_face.adapter_config import ADAPTER_WEIGHTS, DOWN, PREFIX, UP, wrapper_of
from mimo_launch.hugging_face.folder import ADAPTER
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """The maps of the base model with an update, by the names of their modules."""

    maps: Mapping[str, FileTensor]
    stacks: Sequence[ExpertStack]
    config: Mapping[str, Any]

    @property
    def updates(self) -> list[SavedUpdate]:
        """All updates."""
        of_maps = [part.update for each in self.maps.values() for part in each.parts if part.update]
        return of_maps + [each.update for stack in self.stacks for each in stack.maps]


def adapter_plan(spec: Spec, plans: Sequence[FolderPlan]) -> AdapterPlan:
    """Return what to write for a whole model. Raises: CannotExport with every reason."""
    reasons = [
        f"`{name}` trains weights that an adapter does not hold"
        for name, module in spec.modules.items()
        if module.projector_trains
    ]
    if not any(module.adapter for module in spec.modules.values()):
        reasons = ["no module has an adapter"]
    if len(plans) > 1:
        reasons.append("transformers has no model of all these modules together")
    others, stacks = expert_stacks(plans[0].tensors)
    maps = {tensor.name.removesuffix(".weight"): tensor for tensor in others}
    reasons += [
        f"{name} is no linear map of its own in the files of the base model"
        for name, tensor in maps.items()
        if any(part.place.stacked or part.place.transposed for part in tensor.parts)
        or not tensor.name.endswith(".weight")
    ]
    ranks = {name: _rank_and_factor(tensor) for name, tensor in maps.items()}
    tails: dict[str, set[tuple[int, float]]] = {}
    for name, found in ranks.items():
        tails.setdefault(_tail(name), set()).add(found)
    reasons += [
        f"maps `{tail}` of two modules differ in rank" for tail in tails if len(tails[tail]) > 1
    ]
    spared = _spared(plans[0].tensors, maps)
    if None in spared:
        reasons.append("names do not tell maps with an update from those without")
    if reasons:
        raise CannotExport(reasons, "leave out --adapter to write the whole model")
    config = _config(spec, {tail: next(iter(each)) for tail, each in tails.items()}, stacks)
    if spared:
        either = "|".join(sorted(each for each in spared if each))
        config["exclude_modules"] = rf"(.*\.)?({either})\..*"
    return AdapterPlan(maps, stacks, config)


def write_adapter(checkpoint: Checkpoint, plan: AdapterPlan, target: Path, *, force: bool) -> None:
    """Write the folder.

    Raises: InTheWay if the path is taken; CheckpointError; OSError, after which nothing is left.
    """
    pairs = [pair for each in plan.updates for pair in (each.down, each.up)]
    boxes = [
        Box(name, shape, (0,) * len(shape), torch.empty(shape), counted=False)
        for name, shape in pairs
    ]
    with new_folder(target, force=force) as unfinished:
        read_boxes(checkpoint.path, boxes, None, lambda: None)
        read = {box.name: box.tensor for box in boxes}
        tensors: dict[str, Tensor] = {}
        for name, tensor in plan.maps.items():
            down, up = _fused(tensor, read)
            tensors[f"{PREFIX}{name}{DOWN}"], tensors[f"{PREFIX}{name}{UP}"] = down, up
        for stack in plan.stacks:
            down, up = stack.matrices(read, plan.config["r"])
            name = f"{PREFIX}{wrapper_of(stack.module, stack.parameter)}"
            tensors[f"{name}{DOWN}"], tensors[f"{name}{UP}"] = down, up
        save_file(tensors, unfinished / ADAPTER_WEIGHTS, {"format": "pt"})
        write_json(unfinished / ADAPTER, plan.config)


def _fused(tensor: FileTensor, read: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return A and B of a map in the file, which may fuse several of our maps."""
    parts = [(part, part.update) for part in tensor.parts if part.update is not None]
    down = torch.cat([read[update.down[0]] for _, update in parts])
    up, column = torch.zeros(tensor.shape[0], len(down)), 0
    for part, update in parts:
        name, (rows, rank) = update.up
        here = replace(part, name=name, saved=(rows, rank), shape=(rows, rank), update=None)
        here.put({name: read[name]}, up.narrow(1, column, rank))
        column += rank
    return down, up


def _rank_and_factor(tensor: FileTensor) -> tuple[int, float]:
    """Return the rank of a map's update in the file, and the factor of the product."""
    updates = [part.update for part in tensor.parts if part.update is not None]
    return sum(each.down[1][0] for each in updates), updates[0].scale


def _tail(name: str) -> str:
    """Return the end of a name that is alike in all layers, such as `self_attn.q_proj`."""
    return re.split(r"\.\d+\.", name)[-1]


def _spared(tensors: Sequence[FileTensor], maps: Mapping[str, FileTensor]) -> set[str | None]:
    """Return the parts with maps that are called like maps with an update; None: unclear.

    A part is a component of names that no map with an update has.
    """
    ends = tuple(f".{_tail(name)}" for name in maps)
    within = {word for name in maps for word in name.split(".")}
    names = (tensor.name.removesuffix(".weight") for tensor in tensors)
    alike = [name for name in names if name not in maps and name.endswith(ends)]
    return {next((w for w in each.split(".") if w not in within), None) for each in alike}


def _model_name(folder: Path) -> str:
    """Return what `transformers` calls a folder: its name on the hub if it lies in the cache."""
    found = re.fullmatch(r"models--(.+)--(.+)", folder.parent.parent.name)
    return str(folder) if found is None else "/".join(found.groups())


def _config(
    spec: Spec, ranks: Mapping[str, tuple[int, float]], stacks: Sequence[ExpertStack]
) -> dict[str, Any]:
    """Return `adapter_config.json`; ranks and factors are by the ends of names."""
    if stacks:  # Parameters take the rank of no pattern.
        rank, factor = max(each.rank for each in stacks), stacks[0].maps[0].update.scale
    else:
        rank, factor = next(iter(ranks.values()))
    others = {tail: each for tail, each in ranks.items() if each != (rank, factor)}
    base = source_of(spec, LANGUAGE)
    adapters = [module.adapter for module in spec.modules.values()]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if len(spec.modules) == 1 else None,
        "base_model_name_or_path": None if base is None else _model_name(base.folder),
        "r": rank,
        "lora_alpha": factor * rank,
        "rank_pattern": {tail: own for tail, (own, _) in others.items()},
        "alpha_pattern": {tail: own * by for tail, (own, by) in others.items()},
        "target_modules": sorted(ranks),
        "target_parameters": sorted({_tail(f"{each.module}.{each.parameter}") for each in stacks}),
        "lora_dropout": next((own.dropout for own in adapters if own), 0.0),
        "bias": "none",
        "inference_mode": True,
    }
