"""Finds the family of a configuration, and the parts of a folder that are our modules.

Decides: that every family and every whole model of a file in `families` is one.
Relies on: one file per family.
Leaves: the meaning of their configurations to these files.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args

from mimo_launch.hugging_face import families, quantized
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, short
from mimo_launch.hugging_face.heads_by_layer import BY_LAYER
from mimo_launch.hugging_face.part import NoSuchPart, Part, Whole, alone
from mimo_launch.hugging_face.refusals import only
from mimo_launch.hugging_face.rotary import TWO_ROPES
from mimo_launch.spec.encoders import GeneratorKinds
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.module import MODELS


def _found() -> tuple[dict[str, Family], dict[str, Whole]]:
    """Return families and whole models by type, first those that are written before others."""
    alone: dict[str, Family] = {}
    parts: dict[str, Family] = {}
    wholes: dict[str, Whole] = {}
    for _, _, each in _declared():
        if isinstance(each, Family):
            alone[each.model_type] = each
        else:
            wholes[each.model_type] = each
            parts |= {part.model_type: part for part in each.families}
    # A whole may have a part that differs from the family of the same type.
    return _ordered(parts | alone), _ordered(wholes)


def _declared() -> Iterator[tuple[str, str, Family | Whole]]:
    """Yield families and whole models, with the names of their files and of them there."""
    for file in iter_modules(families.__path__):
        for name, each in vars(import_module(f"{families.__name__}.{file.name}")).items():
            if isinstance(each, Family | Whole) and not isinstance(each, type):
                yield file.name, name, each


def declared_at(family: Family) -> tuple[str, str]:
    """Return the name of the file that declares a family, and what it is there."""
    inside = ("", "")
    for file, name, each in _declared():
        if each is family:
            return file, name
        if isinstance(each, Whole):
            numbers = (n for n, part in enumerate(each.families) if part is family)
            inside = next(((file, f"{name}.families[{n}]") for n in numbers), inside)
    return inside


def _ordered(each: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(each.items(), key=lambda item: (item[1].rank, item[0])))


FAMILIES, WHOLES = _found()
# Attention to later tokens, as in gte-Qwen2; settings of single layers.
_BOTH_WAYS, _BY_LAYER = only("is_causal", True), only(BY_LAYER, None)
# Encoders, language models, generators.
KINDS = tuple(sorted(MODELS, key=lambda kind: MODELS[kind] in get_args(GeneratorKinds)))


def part_of(config: Config, kind: str) -> Part:
    """Return the part of a folder for a kind of module. Raises: NoSuchPart; ConfigError."""
    part = _part_of(config, kind)
    unread = (*quantized.refused(config), *quantized.refused(part.config), *_unread(part))
    return replace(part, refused=(*part.refused, *dict.fromkeys(unread)))


def _unread(part: Part) -> Iterator[str]:
    """Yield, as `key: value`, what any configuration of transformers may say and we do not read."""
    known = {rule.key for rule in part.family.refused.rules}
    is_text = issubclass(MODELS[part.family.kind], CausalModel)
    for rule in (TWO_ROPES, _BY_LAYER, *((_BOTH_WAYS,) if is_text else ())):
        if rule.key not in known:
            yield from rule.found(part.config)


def _part_of(config: Config, kind: str) -> Part:
    name = config.get("model_type")
    if isinstance(name, str) and name in WHOLES:
        return WHOLES[name].part(config, kind)
    if isinstance(name, str) and name in FAMILIES:
        return alone(FAMILIES[name], config, kind)
    raise NoSuchPart(f"model_type: {name if isinstance(name, str) else short(name)}")


def parts_of(config: Config) -> list[Part]:
    """Return the parts of a folder that are our modules, encoders first. Raises: ConfigError."""
    found = []
    for kind in KINDS:
        try:
            found.append(part_of(config, kind))
        except NoSuchPart:
            continue
    return found


def model_types(kind: str) -> tuple[list[str], list[str]]:
    """Return the `model_type`s of modules of a kind, and those of whole models that hold one."""
    names = [name for name, family in FAMILIES.items() if family.kind == kind]
    holds = [n for n, whole in WHOLES.items() if kind in {x.kind for x in whole.families}]
    return sorted(names), sorted(holds)
