"""Settings and keys of a model by one table, which is read from `config.json` and written to it.

Decides: that a setting is true or false where its default is, and a number otherwise.
Relies on: `folder` for numbers that may be missing or null.
Leaves: the tables to the families.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimo_launch.hugging_face.family import value_of
from mimo_launch.hugging_face.folder import Config, number

Default = float | None | Callable[[Config], float]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration says of a model.

    `table`: settings by our keys, each alone or with the default of its class. A setting without a
    default must be said. A default that is a function follows from others. `besides`: keys of
    ours that are no setting, each a value or a function of a configuration. `written`: settings
    that are no key of ours, each a value or a function of a model.
    """

    table: Mapping[str, str | tuple[str, Default]]
    besides: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)

    def keys(self, config: Config, **defaults: Default) -> dict[str, Any]:
        """Return a configuration as keys of ours. Raises: ConfigError.

        `defaults` are those of some keys of ours, instead of the ones of the table.
        """
        said = {ours: _read(config, *_key(x), defaults.get(ours)) for ours, x in self.table.items()}
        return said | _applied(self.besides, config)

    def config(self, model: Any) -> Config:
        """Return a model, or a section of one, as settings."""
        said = {_key(each)[0]: value_of(model, ours) for ours, each in self.table.items()}
        return said | _applied(self.written, model)


def _applied(entries: Mapping[str, Any], to: Any) -> dict[str, Any]:
    return {key: entry(to) if callable(entry) else entry for key, entry in entries.items()}


def _key(entry: str | tuple[str, Default]) -> tuple[str, Default]:
    return (entry, None) if isinstance(entry, str) else entry


def _read(config: Config, key: str, usual: Default, other: Default) -> float | bool:
    if isinstance(usual, bool):
        return bool(config.get(key, usual))
    default = usual if other is None else other
    return number(config, key, default(config) if callable(default) else default)
