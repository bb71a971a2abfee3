"""Folders of modules that transformers does not have: connectors, flows and talkers.

Decides: that `config.json` holds the keys of `model` unchanged, under our own `model_type`, and the
files hold the weights under our names, including the projector of a connector.
Relies on: `spec.load`, which reads keys of a model.
Leaves: writing to `export`, finding families to `registry`.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family, Place, value_of
from mimo_launch.hugging_face.folder import CONFIG, Config, ConfigError
from mimo_launch.hugging_face.refusals import Refusals
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import ConnectorModel, FlowModel, Model, TalkerModel

# Prefix of weights that read rows of another module; the name of that module comes next.
READS = "reads."


def keys(kind: str, model_class: type[Model], config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    given = {key: config[key] for key in model_class.model_fields if key in config}
    try:
        model = model_from_data({**given, "kind": kind})
    except ValueError as error:
        raise ConfigError(f"in {CONFIG}, {error}") from error
    return _keys_of(model)


def _keys_of(model: Model) -> dict[str, Any]:
    names = type(model).model_fields
    return {name: value_of(model, name) for name in names if name != "kind"}


def _family(kind: str, model_class: type[Model], stage: str, **rest: Any) -> Family[Any]:
    model_type = f"mimo_launch_{kind}"
    return Family(
        model_type=model_type,
        kind=kind,
        not_computed=Refusals(),
        random=(),
        keys=partial(keys, kind, model_class),
        place=lambda name, _: Place(name),
        is_ignored=lambda *_: False,
        config=lambda model: {"model_type": model_type, **_keys_of(model)},
        architecture=stage,
        **rest,
    )


FAMILIES = (
    _family("connector", ConnectorModel, "ConnectorStage", row_width="row_width"),
    _family("flow", FlowModel, "FlowStage"),
    _family("talker", TalkerModel, "TalkerStage"),
)
