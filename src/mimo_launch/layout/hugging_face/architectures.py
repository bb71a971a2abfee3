"""Which architecture of transformers a model of ours is, or which of its settings prevents that.

Decides: that a model is one if its configuration, read back, says the same by every key.
Relies on: the families, which read what they write.
Leaves: tensors and files to `train.export`.
"""

from collections.abc import Iterator
from typing import Any

from mimo_launch.layout.hugging_face.family import Family
from mimo_launch.layout.hugging_face.folder import Config
from mimo_launch.layout.hugging_face.registry import FAMILIES
from mimo_launch.spec.model import DecoderModel, Model, Spec

# What a key means where it is left out, by the property of the model that says so.
_DERIVED = {"kv_heads": "num_kv_heads", "head_dim": "head_size", "mlp": "mlp_width"}

_OUTDATED = {"torch_dtype", "rope_theta", "rope_scaling", "layer_types", "transformers_version"}


def value_of(model: Model, key: str) -> Any:
    """Return what a model says by a key of its own, defaults applied."""
    derived = _DERIVED.get(key, key)
    return getattr(model, derived if hasattr(model, derived) else key)


def exported_model(spec: Spec, name: str, vocab: int) -> Model:
    """Return the model of a module with its vocabulary as a number, padding left out."""
    model = spec.modules[name].model
    return model.model_copy(update={"vocab": vocab}) if isinstance(model, DecoderModel) else model


def family_that_is(model: Model) -> Family[Any] | None:
    """Return the architecture that a model is, None if it is none of them."""
    kin = [family for family in FAMILIES.values() if family.kind == model.kind]
    return next((family for family in kin if not list(differences(family, model))), None)


def obstacles(model: Model) -> list[str]:
    """Return, per architecture, what keeps a model from being it, as `llama: qk_norm: true`."""
    return [
        f"no {family.model_type} with {', '.join(differences(family, model))}"
        for family in FAMILIES.values()
        if family.kind == model.kind
    ]


def differences(family: Family[Any], model: Model) -> Iterator[str]:
    """Yield the settings of a model that an architecture does not have, as "`key: value`"."""
    config = family.config(model)
    read = family.keys(config)
    found = False
    for key, there in read.items():
        if value_of(model, key) != there:
            found = True
            yield f"`{key}: {text_of(value_of(model, key))}`"
    if not found and not family.fits(model):
        yield "its other settings"


def text_of(value: Any) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{', '.join(text_of(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def with_base(config: Config, base: Config | None, defaults: Config) -> Config:
    """Return a configuration with what else a folder of the same type says, such as ids of tokens.

    `defaults` say it where there is no such folder. What would contradict `config` is left out: the
    names by which older versions of transformers say the same, and kinds of layers one by one.
    """
    if base is None or base.get("model_type") != config["model_type"]:
        return defaults | config
    kept = {key: value for key, value in base.items() if key not in _OUTDATED}
    return defaults | kept | config
