"""Finds the transformers model that equals our modules, alone or together, or what prevents it.

Decides: that two models are equal if the configuration that we write, read back, gives our value
for every key.
Relies on: the families and parts, which read what they write.
Leaves: tensors and files to `export`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.nested import NestedWhole
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES, part_of
from mimo_launch.hugging_face.settings import agree, value_of
from mimo_launch.hugging_face.wholes import TowerAndDecoder
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import Model
from mimo_launch.spec.wording import text_of

# How many architectures a message compares a model with.
_NEAREST = 6


@frozen
class Architecture:
    """A model of transformers: its class, its configuration, and the part that each module is.

    `where` holds the keys that lead to the configuration of each part, unless it is the whole.
    """

    name: str
    config: Config
    parts: Mapping[str, Part]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@frozen(kw_only=True)
class Modules:
    """Our modules by name: their models, the tokens of rows that language reads, and their widths.

    The vocabulary is a number, without padding. The width of a generator is the width of the rows
    that it reads. `like` holds the types of the models and parts that the weights came from; they
    are preferred where several models of transformers are equal; `of_language` is the type of the
    folder of language, from which `export` can copy other parts.
    """

    models: Mapping[str, Model]
    tokens: Mapping[str, int]
    widths: Mapping[str, int]
    like: frozenset[str] = frozenset()
    of_language: str = ""


def alone(modules: Modules, name: str) -> Architecture | None:
    """Return the architecture of a module by itself; None if there is none."""
    model = modules.models[name]
    for family in sorted(_kin(model), key=lambda each: each.model_type not in modules.like):
        if not list(_obstacles(family, model)):
            config = family.config(model)
            if family.row_width is not None:
                config[family.row_width] = modules.widths[name]
            part = part_of(config, model.kind)
            # The width of rows may imply other keys, as in a GLM-4.1V.
            if says(part, model):
                return Architecture(family.architecture, config, {name: part})
    return None


def together(modules: Modules) -> Architecture | None:
    """Return the architecture of all modules together; None if there is none.

    A language model alone may be the one module of a whole that its folder has other parts of.
    """
    is_alone = len(modules.models) == 1
    by_kind = {model.kind: name for name, model in modules.models.items()}
    if len(by_kind) < len(modules.models):
        return None
    models = {kind: modules.models[name] for kind, name in by_kind.items()}
    tokens = {kind: modules.tokens.get(name) for kind, name in by_kind.items()}
    for whole in sorted(WHOLES.values(), key=lambda each: each.model_type not in modules.like):
        only = isinstance(whole, NestedWhole) and len(whole.parts) == 1
        if is_alone and not (only and whole.model_type == modules.of_language):
            continue
        if (made := whole.made_of(models, tokens)) is None:
            continue
        copies = isinstance(whole, NestedWhole | TowerAndDecoder) and whole.lacks(models)
        if copies and whole.model_type != modules.of_language:
            continue
        config, where = made
        parts = {each: part_of(config, model.kind) for each, model in modules.models.items()}
        if all(says(part, modules.models[each]) for each, part in parts.items()):
            paths = {each: where[model.kind] for each, model in modules.models.items()}
            return Architecture(whole.architecture, config, parts, paths)
    return alone(modules, "language") if is_alone else None


def says(part: Part, model: Model) -> bool:
    """Return whether a part of a configuration and our model have equal values for every key."""
    if part.not_computed():
        return False
    return all(agree(key, value_of(model, key), there) for key, there in part.keys().items())


def obstacles(model: Model) -> list[str]:
    """Return what the nearest architectures lack for a model: "no llama with `tied: true`"."""
    lacks = {family.model_type: list(_obstacles(family, model)) for family in _kin(model)}
    nearest = sorted(lacks.items(), key=lambda each: len(each[1]))[:_NEAREST]
    return [f"no {model_type} with {', '.join(found)}" for model_type, found in nearest]


def _kin(model: Model) -> Iterator[Family]:
    """Yield the families of a kind that may be alone, decoders with experts or without."""
    has_experts = kind_of(model).moe is not None
    for family in FAMILIES.values():
        both = family.kind != "decoder" or family.is_of(experts=has_experts)
        if family.stands_alone and family.kind == model.kind and both:
            yield family


def _obstacles(family: Family, model: Model) -> Iterator[str]:
    """Yield the settings of a model that a stand-alone architecture does not have."""
    yield from family.differences(model)
    has_norm = kind_of(model).has_final_norm
    decides = not family.is_vision or "final_norm" in family.keys(family.config(model))
    if not decides and has_norm != family.norms_patches:
        yield f"`final_norm: {text_of(has_norm)}`"
