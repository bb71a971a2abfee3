"""Folders of modules that transformers does not have: connectors, flows and talkers.

`config.json` holds the keys of `model` unchanged, under our own `model_type`, and the files hold
the weights under our names, including the projector of a connector.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import CONFIG, Config, ConfigError
from mimo_launch.hugging_face.settings import Settings, value_of
from mimo_launch.hugging_face.tensors import Place, Tensors
from mimo_launch.spec.encoders import ConnectorModel, FlowModel
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import Model, TalkerModel

# Prefix of weights that read rows of another module; the name of that module comes next.
READS = "reads."


@frozen
class _OwnSettings(Settings):
    """Keys of a model, as they are."""

    table: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    model: type[Model] = ConnectorModel

    def keys(self, config: Config) -> dict[str, Any]:
        """Return a configuration as our keys. Raises: ConfigError."""
        given = {key: config[key] for key in self.model.model_fields if key in config}
        try:
            return self.config(model_from_data({**given, "kind": self.kind}))
        except ValueError as error:
            raise ConfigError(f"in {CONFIG}, {error}") from error

    def config(self, model: Any) -> Config:
        """Return a model as settings."""
        return {key: value_of(model, key) for key in self.model.model_fields if key != "kind"}


class _OwnTensors(Tensors):
    """Tensors under our names."""

    def place(self, name: str, model: Any) -> Place:
        """Return the place of our tensor."""
        del model
        return Place(name)


def _family(kind: str, model: type[Model], stage: str, **rest: Any) -> Family:
    return Family(
        model_type=f"mimo_launch_{kind}",
        kind=kind,
        architecture=stage,
        settings=_OwnSettings(kind=kind, model=model),
        tensors=_OwnTensors({}),
        random=(),
        **rest,
    )


CONNECTOR = _family("connector", ConnectorModel, "ConnectorStage", row_width="row_width")
FLOW = _family("flow", FlowModel, "FlowStage")
TALKER = _family("talker", TalkerModel, "TalkerStage", rank=1)
FAMILIES = (CONNECTOR, FLOW, TALKER)
