"""What transformers has behind the layers of an encoder that we compute with.

Decides: that layers and norms behind those whose states become rows come from the source, so that
what was read comes back whole; without a source, that a norm is there which changes nothing.
Relies on: `architectures.says` to tell that the whole still is our model.
Leaves: reading the tensors to `checkpoint_tensors`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from mimo_launch.export.configs import PARTS
from mimo_launch.export.sources import Source
from mimo_launch.export.tensors import FileTensor
from mimo_launch.hugging_face.architectures import Architecture, says
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.model import Model, VitModel

# What a configuration says of those layers: of the tower, and of the model around it.
_IN_TOWER = ("vision_use_head", "num_hidden_layers")
_AROUND = {"vision_feature_layer", "vision_feature_select_strategy"}


def with_unused(
    found: Architecture,
    name: str,
    model: Model,
    source: Source | None,
    dtype_of: Callable[[str | None], torch.dtype],
) -> tuple[Architecture, list[FileTensor]]:
    """Return an architecture and the tensors that it has besides those of an encoder of ours.

    `dtype_of` gives their types by what the family of the source calls them, None: the usual one.
    """
    part = found.parts[name]
    if not isinstance(model, VitModel):
        return found, []
    if source is not None and source.part.family == part.family:
        whole = _as_in_source(found, source)
        new = whole.parts[name]
        if says(new, model) and whole.config["model_type"] == source.config.get("model_type"):
            return whole, [
                FileTensor(
                    new.file_name(inner),
                    header.shape,
                    dtype_of(inner),
                    copied=(source.folder / header.file, at),
                )
                for inner, at, header in source.unused(model)
            ]
    if model.final_norm:
        return found, []
    places = {1.0: part.place("norm.weight", model), 0.0: part.place("norm.bias", model)}
    return found, [
        FileTensor(part.file_name(at.name), (model.hidden,), dtype_of(None), filled=value)
        for value, at in places.items()
        if at is not None
    ]


def _as_in_source(found: Architecture, source: Source) -> Architecture:
    """Return an architecture with the layers of its tower's source."""
    config, key = dict(found.config), PARTS["vit"]
    ours = config.get(key, config)
    theirs = {each: source.part.config[each] for each in _IN_TOWER if each in source.part.config}
    tower = {each: value for each, value in ours.items() if each not in _IN_TOWER} | theirs
    config = {**config, key: tower} if key in config else tower
    around = config.keys() & source.config.keys() & _AROUND
    config |= {each: source.config[each] for each in around}
    parts = {each: part_of(config, part.family.kind) for each, part in found.parts.items()}
    return replace(found, config=config, parts=parts)
