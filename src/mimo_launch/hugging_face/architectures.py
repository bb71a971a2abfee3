"""Which model of transformers modules of ours are, alone or together, or what prevents that.

Decides: that they are one if its configuration, read back, says the same by every key.
Relies on: the families and parts, which read what they write.
Leaves: tensors and files to `export`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face import decoder, llava, moe_decoder, qwen2_vl, vit
from mimo_launch.hugging_face.family import Family, Part
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.registry import FAMILIES, part_of
from mimo_launch.spec.model import DecoderModel, Model, Moe, Strict, VitModel

# What a key means where it is left out, by the property of the model that says so.
_DERIVED = {"kv_heads": "num_kv_heads", "head_dim": "head_size", "mlp": "mlp_width"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers: its class, its configuration, and the part that each module is."""

    name: str
    config: Config
    parts: Mapping[str, Part[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Modules of ours, by name: their models and, for encoders, the tokens of their rows.

    `width` is that of the language model. The vocabulary is a number, without padding.
    """

    models: Mapping[str, Model]
    tokens: Mapping[str, int]
    width: int


def alone(modules: Modules, name: str) -> Architecture | None:
    """Return the architecture that a module is by itself, None if it is none."""
    model = modules.models[name]
    for family in _kin(model):
        if not list(_obstacles(family, model)):
            config = family.config(model)
            if family.model_type == qwen2_vl.VISION:
                config["hidden_size"] = modules.width
            return Architecture(family.architecture, config, {name: part_of(config, model.kind)})
    return None


def together(modules: Modules) -> Architecture | None:
    """Return the architecture that all modules are together, None if it is none."""
    if len(modules.models) == 1:
        return alone(modules, "language")
    encoders = [name for name in modules.models if name != "language"]
    if len(encoders) > 1 or modules.models[encoders[0]].kind != "vit":
        return None
    for name, build in _ASSEMBLIES.items():
        config = build(modules, encoders[0])
        if config is None:
            continue
        parts = {each: part_of(config, model.kind) for each, model in modules.models.items()}
        if all(says(part, modules.models[each]) for each, part in parts.items()):
            return Architecture(name, config, parts)
    return None


def says(part: Part[Any], model: Model) -> bool:
    """Return whether a part of a configuration is a model of ours, by every key."""
    if part.not_computed():
        return False
    return all(value_of(model, key) == there for key, there in part.keys().items())


def obstacles(model: Model) -> list[str]:
    """Return, per architecture, what keeps a model from being it: "no llama with `tied: true`"."""
    return [
        f"no {family.model_type} with {', '.join(_obstacles(family, model))}"
        for family in _kin(model)
    ]


def _kin(model: Model) -> Iterator[Family[Any]]:
    """Yield the architectures for a kind of model that transformers has by themselves.

    Decoders with experts are not those without.
    """
    unlike = {qwen2_vl.TEXT}
    if isinstance(model, DecoderModel):
        unlike |= moe_decoder.KINDS.keys() if model.moe is None else decoder.KINDS.keys()
    for family in FAMILIES.values():
        if family.kind == model.kind and family.model_type not in unlike:
            yield family


def _obstacles(family: Family[Any], model: Model) -> Iterator[str]:
    """Yield the settings of a model that an architecture by itself does not have."""
    yield from _differences(family, model)
    if isinstance(model, VitModel) and model.final_norm == (family.model_type == vit.CLIP):
        # What a CLIP says of patches is said before its last norm, which is for pooling.
        yield f"`final_norm: {text_of(model.final_norm)}`"


def _differences(family: Family[Any], model: Model) -> Iterator[str]:
    """Yield the settings of a model that a family does not have, as "`key: value`"."""
    found = False
    for key, there in family.keys(family.config(model)).items():
        if value_of(model, key) != there:
            found, here = True, value_of(model, key)
            if isinstance(here, dict) and isinstance(there, dict):
                here = {each: value for each, value in here.items() if value != there[each]}
            yield f"`{key}: {text_of(here)}`"
    if not found and not family.fits(model):
        unlike = getattr(model, "positions", None) or getattr(model, "mrope", None)
        yield f"`{'positions' if hasattr(model, 'positions') else 'mrope'}: {text_of(unlike)}`"


def _llava(modules: Modules, encoder: str) -> Config | None:
    vision, text = modules.models[encoder], modules.models["language"]
    tower = _first(vit.FAMILIES, vision)
    words = _first(decoder.FAMILIES, text)
    if tower is None or words is None:
        return None
    token = modules.tokens[encoder]
    return llava.config_of(vision, tower.config(vision), text, words.config(text), token)  # type: ignore[arg-type]


def _qwen2_vl(modules: Modules, encoder: str) -> Config | None:
    vision, text = modules.models[encoder], modules.models["language"]
    words, tower = qwen2_vl.FAMILIES
    if _first((words,), text) is None or _first((tower,), vision) is None:
        return None
    token = modules.tokens[encoder]
    return qwen2_vl.config_of(tower.config(vision), text, words.config(text), token)  # type: ignore[arg-type]


_ASSEMBLIES: dict[str, Callable[[Modules, str], Config | None]] = {
    "LlavaForConditionalGeneration": _llava,
    "Qwen2VLForConditionalGeneration": _qwen2_vl,
}


def _first(families: tuple[Family[Any], ...], model: Model) -> Family[Any] | None:
    return next((each for each in families if not list(_differences(each, model))), None)


def value_of(model: Model, key: str) -> Any:
    """Return what a model says by a key of its own, defaults applied.

    Of experts that is what they compute, not how they are trained.
    """
    derived = _DERIVED.get(key, key)
    found = getattr(model, derived if hasattr(model, derived) else key)
    if isinstance(found, Moe):
        return found.architecture()
    return found.model_dump() if isinstance(found, Strict) else found


def text_of(value: Any) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {text_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(text_of(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
