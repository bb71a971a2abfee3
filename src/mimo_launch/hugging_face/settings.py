"""Settings that are keys of a model as they are: one table, read from and written to `config.json`.

Decides: that a setting is true or false where its default is, and a number otherwise.
Relies on: `folder` for numbers that may be missing or null.
Leaves: settings of which something is computed to the families.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face.family import value_of
from mimo_launch.hugging_face.folder import Config, number

Default = float | None | Callable[[Config], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """A table of settings, by our keys: their key, alone or with the default of their class.

    A setting without a default must be said. A default that is a function follows from others.
    """

    table: Mapping[str, str | tuple[str, Default]]

    def keys(self, config: Config, **defaults: Default) -> dict[str, Any]:
        """Return a configuration as keys of ours. Raises: ConfigError.

        `defaults` are those of some keys of ours, instead of the ones of the table.
        """
        return {ours: _read(config, *_key(x), defaults.get(ours)) for ours, x in self.table.items()}

    def config(self, model: Any) -> Config:
        """Return the same keys of a model, or of a section of one, as settings."""
        return {_key(each)[0]: value_of(model, ours) for ours, each in self.table.items()}


def _key(entry: str | tuple[str, Default]) -> tuple[str, Default]:
    return (entry, None) if isinstance(entry, str) else entry


def _read(config: Config, key: str, usual: Default, other: Default) -> float | bool:
    if isinstance(usual, bool):
        return bool(config.get(key, usual))
    default = usual if other is None else other
    return number(config, key, default(config) if callable(default) else default)
