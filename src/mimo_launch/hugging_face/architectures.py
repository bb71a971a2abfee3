"""Finds the transformers model that equals our modules, alone or together, or what prevents it.

Decides: that two models are equal if the configuration that we write, read back, gives our value
for every key.
Relies on: the families and parts, which read what they write.
Leaves: tensors and files to `export`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimo_launch.hugging_face import qwen2_5_omni, qwen2_5_omni_talker
from mimo_launch.hugging_face.family import Family, Part, value_of
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.registry import FAMILIES, QWEN_VL, WITH_TOWER, part_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import (
    AudioModel,
    DecoderModel,
    HybridModel,
    Model,
    TalkerModel,
    VitModel,
)
from mimo_launch.spec.wording import text_of


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers: its class, its configuration, and the part that each module is.

    `where` holds the keys that lead to the configuration of each part, unless it is the whole.
    """

    name: str
    config: Config
    parts: Mapping[str, Part[Any]]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Our modules by name: their models, the tokens of rows that language reads, and their widths.

    The vocabulary is a number, without padding. The width of a generator is the width of the rows
    that it reads. `like` holds the types of the models and parts that the weights came from; they
    are preferred where several models of transformers are equal.
    """

    models: Mapping[str, Model]
    tokens: Mapping[str, int]
    widths: Mapping[str, int]
    like: frozenset[str] = frozenset()


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
    """Return the architecture of all modules together; None if there is none."""
    if len(modules.models) == 1:
        return alone(modules, "language")
    by_kind = {model.kind: name for name, model in modules.models.items()}
    if len(by_kind) < len(modules.models):
        return None
    found = _assemblies(modules, by_kind)
    for name, config, where in sorted(found, key=lambda x: x[1]["model_type"] not in modules.like):
        parts = {each: part_of(config, model.kind) for each, model in modules.models.items()}
        if all(says(part, modules.models[each]) for each, part in parts.items()):
            paths = {each: where[model.kind] for each, model in modules.models.items()}
            return Architecture(name, config, parts, paths)
    return None


def says(part: Part[Any], model: Model) -> bool:
    """Return whether a part of a configuration and our model have equal values for every key."""
    if part.not_computed():
        return False
    return all(value_of(model, key) == there for key, there in part.keys().items())


def obstacles(model: Model) -> list[str]:
    """Return what each architecture lacks for a model, such as "no llama with `tied: true`"."""
    return [
        f"no {family.model_type} with {', '.join(_obstacles(family, model))}"
        for family in _kin(model)
    ]


# Language models that transformers has only as part of a whole model.
_IN_WHOLES = {
    *(w.text.model_type for w in QWEN_VL if not w.text.architecture.endswith("ForCausalLM")),
    qwen2_5_omni.TEXT.model_type,
}


def stands_alone(family: Family[Any]) -> bool:
    """Return whether a folder may hold this family and nothing else."""
    return family.model_type not in _IN_WHOLES


def _kin(model: Model) -> Iterator[Family[Any]]:
    """Yield the stand-alone architectures for a kind of model."""
    yield from filter(stands_alone, _alike(FAMILIES.values(), model))


def _alike(families: Iterable[Family[Any]], model: Model) -> Iterator[Family[Any]]:
    """Yield the families of a kind of model, separating decoders with and without experts."""
    has_experts = kind_of(model).moe is not None
    for family in families:
        both = family.kind != "decoder" or family.of_experts == has_experts
        if family.kind == model.kind and both:
            yield family


def _obstacles(family: Family[Any], model: Model) -> Iterator[str]:
    """Yield the settings of a model that a stand-alone architecture does not have."""
    yield from _differences(family, model)
    has_norm = kind_of(model).has_final_norm
    decides = family.kind != "vit" or "final_norm" in family.keys(family.config(model))
    if not decides and has_norm != family.norms_patches:
        yield f"`final_norm: {text_of(has_norm)}`"


def _differences(
    family: Family[Any], model: Model, but: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield the settings of a model that a family does not have, as "`key: value`".

    `but` holds keys that the model around it decides.
    """
    found = False
    for key, there in {**family.keys(family.config(model)), **(but or {})}.items():
        if value_of(model, key) != there:
            found, here = True, value_of(model, key)
            if isinstance(here, dict) and isinstance(there, dict):
                here = {each: value for each, value in here.items() if value != there[each]}
            yield f"`{key}: {text_of(here)}`"
    if not found and not family.fits(model):
        unlike = getattr(model, "positions", None) or getattr(model, "mrope", None)
        yield f"`{'positions' if hasattr(model, 'positions') else 'mrope'}: {text_of(unlike)}`"


Assembly = tuple[str, Config, Mapping[str, tuple[str, ...]]]


def _assemblies(modules: Modules, by_kind: Mapping[str, str]) -> Iterator[Assembly]:
    """Yield class, configuration and paths of each model that modules of these kinds may form."""
    models = {kind: modules.models[name] for kind, name in by_kind.items()}
    vision, speech = (models.get(kind) for kind in ("vit", "talker"))
    text = next(
        (each for each in models.values() if isinstance(each, DecoderModel | HybridModel)), None
    )
    if text is None:
        return
    token = modules.tokens.get(by_kind.get("vit", ""))
    encoders = [each for kind, each in models.items() if kind in ("vit", "audio")]
    if len(models) == 2 and len(encoders) == 1:
        [encoder] = encoders
        own = modules.tokens.get(by_kind[encoder.kind])
        if isinstance(encoder, VitModel | AudioModel) and own is not None:
            yield from _with_tower(encoder, text, own)
    if not isinstance(text, DecoderModel):
        return
    if not isinstance(speech, TalkerModel) or models.keys() - {"decoder", "vit", "talker"}:
        return
    families: dict[str, Family[Any]] = {
        "decoder": qwen2_5_omni.TEXT,
        "vit": qwen2_5_omni.VISION,
        "talker": qwen2_5_omni_talker.TALKER,
    }
    if all(_first((families[kind],), model) for kind, model in models.items()):
        tower = vision if isinstance(vision, VitModel) else None
        config = qwen2_5_omni.config_of(text, speech, tower, token)
        yield qwen2_5_omni.ARCHITECTURE, config, qwen2_5_omni.WHOLE.where


def _with_tower(
    encoder: VitModel | AudioModel, text: DecoderModel | HybridModel, token: int
) -> Iterator[Assembly]:
    for whole in (each for each in WITH_TOWER if each.kind == encoder.kind):
        tower, words = (
            _first(tuple(_alike(families.values(), model)), model, but)
            for families, model, but in (
                (whole.towers, encoder, {key: value_of(encoder, key) for key in whole.decides}),
                (whole.text, text, whole.text_fixed),
            )
        )
        if tower is not None and words is not None:
            config = whole.config_of(tower, encoder, words, text, token)
            where = {text.kind: ("text_config",), whole.kind: (whole.section,)}
            yield whole.architecture, config, where
    if isinstance(encoder, VitModel):
        where = {text.kind: ("text_config",), "vit": ("vision_config",)}
        for each in QWEN_VL:
            if _first(tuple(_alike((each.text,), text)), text) and _first((each.vision,), encoder):
                yield each.architecture, each.config_of(encoder, text, token), where


def _first(
    families: tuple[Family[Any], ...], model: Model, but: Mapping[str, Any] | None = None
) -> Family[Any] | None:
    return next((each for each in families if not list(_differences(each, model, but))), None)
