"""Settings and keys of a model: one table for reading and writing, and what many families share.

Decides: that a setting is a boolean if its default is one, and a number otherwise; our names of
activations; what a plain tower and a plain projector do not have.
Relies on: `folder` for numbers that may be missing or null.
Leaves: the tables to the families.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import value_of
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of

Default = float | None | Callable[[Config], float]
# Our activations by their names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
PLAIN: dict[str, Any] = {
    "qkv_bias": True, "block_bias": True, "qk_norm": False, "layer_scale": None,
    "rope_frequencies": "shared", "patch_norm": False, "registers": 0,
}  # fmt: skip
PLAIN_PROJECTOR: dict[str, Any] = {
    "projector_norm_eps": None, "projector_bias": True, "projector_mlp": None, "pooling": None,
    "tiles": None,
}  # fmt: skip
# A table of positions and nothing else.
LEARNED: dict[str, Any] = {
    "temporal_patch": 1, "positions": "learned", "windows": None, "interpolation": "bicubic",
    "deepstack": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a configuration for a model.

    `table`: settings by our keys, each alone or with the default of its class. A setting without a
    default is required. A default may be a function of the configuration. `besides`: our keys
    without a setting, each a value or a function of a configuration. `written`: settings that none
    of our keys covers, each a value or a function of a model.
    """

    table: Mapping[str, str | tuple[str, Default]]
    besides: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)

    def keys(self, config: Config, **defaults: Default) -> dict[str, Any]:
        """Return a configuration as our keys. Raises: ConfigError.

        `defaults` override defaults of the table, by our keys.
        """
        said: dict[str, Any] = {}
        for ours, entry in self.table.items():
            key, usual = _key(entry)
            if isinstance(usual, bool):
                said[ours] = bool(config.get(key, usual))
                continue
            other = defaults.get(ours)
            default = usual if other is None else other
            said[ours] = number(config, key, default(config) if callable(default) else default)
        return said | applied(self.besides, config)

    def config(self, model: Any) -> Config:
        """Return a model, or a section of one, as settings."""
        said = {_key(each)[0]: value_of(model, ours) for ours, each in self.table.items()}
        return said | applied(self.written, model)


def applied(entries: Mapping[str, Any], to: Any) -> dict[str, Any]:
    """Return entries with each function replaced by what it returns.

    `to` is the argument of the functions: a configuration, or a model.
    """
    return {key: entry(to) if callable(entry) else entry for key, entry in entries.items()}


def _key(entry: str | tuple[str, Default]) -> tuple[str, Default]:
    return (entry, None) if isinstance(entry, str) else entry


def theirs(activation: str, otherwise: str = "gelu") -> str:
    """Return the name of our activation in transformers, or `otherwise` if it has none."""
    names = (name for name, ours in ACTIVATIONS.items() if ours == activation)
    return next(names, otherwise)


def activation_of(config: Config, key: str = "hidden_act") -> str:
    """Return our activation for a setting; unknown ones are refused elsewhere."""
    return ACTIVATIONS.get(str(config.get(key, "gelu")), "gelu")


_OF_PROJECTOR = "projector_hidden_act"
activation_of_projector = partial(activation_of, key=_OF_PROJECTOR)
ACTIVATION_REFUSED = one_of(_OF_PROJECTOR, ACTIVATIONS, "gelu")


def theirs_of_projector(model: Any) -> str:
    """Return the name of the activation of our projector in transformers."""
    return theirs(model.projector_activation)
