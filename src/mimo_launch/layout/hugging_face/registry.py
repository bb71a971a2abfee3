"""Finds the family of a configuration, and of a model of ours.

Decides: which families there are.
Relies on: one file per architecture.
Leaves: what they say to them.
"""

from typing import Any

from mimo_launch.layout.hugging_face import decoder
from mimo_launch.layout.hugging_face.family import Family
from mimo_launch.layout.hugging_face.folder import Config
from mimo_launch.spec.model import Model

FAMILIES: dict[str, Family[Any]] = {each.model_type: each for each in decoder.FAMILIES}


def family_of(config: Config) -> Family[Any] | None:
    """Return the family that a configuration names, None if it is not one of ours."""
    name = config.get("model_type")
    return FAMILIES.get(name) if isinstance(name, str) else None


def family_for(model: Model) -> Family[Any] | None:
    """Return the first family that can say what a model of ours is, for export."""
    return next((x for x in FAMILIES.values() if x.kind == model.kind and x.fits(model)), None)


def model_types(kind: str) -> list[str]:
    """Return the `model_type`s that are read for a kind of model."""
    return [name for name, family in FAMILIES.items() if family.kind == kind]
