"""Settings of a model: one table that reads `config.json` as our keys, and writes it from a model.

Decides: the kinds of entries: a number or a boolean, a word (`Named`), a value that no
configuration has (`Fixed`), a section of our keys (`InnerSettings`), and two functions
(`Computed`); that keys without an entry have the defaults of our model, except keys that a folder
does not decide.
Relies on: `folder` for numbers that may be missing or null.
Leaves: the tables to the families.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.spec.base import Strict
from mimo_launch.spec.hybrid import DeltaNetSizes
from mimo_launch.spec.layers import Moe, Mtp
from mimo_launch.spec.spec import Model

Default = float | None | Callable[[Config], float]


# A value of a key that some configurations of a family do not decide.
UNDECIDED = object()


class TwoWay(Protocol):
    """An entry of a table, in both directions."""

    def read(self, config: Config) -> Any:
        """Return our value. Raises: ConfigError."""

    def write(self, ours: str, model: Any) -> Config:
        """Return the settings for our key of a model, or of a section."""


# Keys with a default, and the property of the model that applies it.
_DERIVED = {
    "kv_heads": "num_kv_heads",
    "head_dim": "head_size",
    "mlp": "mlp_width",
    "projector_mlp": "projector_mlp_width",
    "predictor": "whole_predictor",
}


def agree(key: str, here: Any, there: Any) -> bool:
    """Return whether a model's value of a key is that of a folder.

    Grids of tiles that are alike are a choice of who makes the images, not of the model.
    """
    if key == "tiles" and here and there and there["whole"] == "last":
        return bool(here == {**there, "grids": here["grids"]})
    return bool(here == there)


def value_of(model: Model, key: str) -> Any:
    """Return a model's value for one of its keys, with defaults applied.

    For a section, only the keys that decide what is computed, not how it is computed or trained.
    """
    derived = _DERIVED.get(key, key)
    found = getattr(model, derived if hasattr(model, derived) else key)
    if isinstance(found, Moe | Mtp | DeltaNetSizes):
        return found.architecture()
    return found.model_dump() if isinstance(found, Strict) else found


@frozen
class Number:
    """A number, or a boolean if its default is one.

    Without a default it is required. A default may be a function of the configuration; the last one
    is for a setting that is null, and may be None.
    """

    key: str
    defaults: tuple[Default, ...] = ()

    def read(self, config: Config) -> Any:
        """Return our value. Raises: ConfigError."""
        if self.defaults and isinstance(self.defaults[0], bool):
            return bool(config.get(self.key, self.defaults[0]))
        if config.get(self.key) is None and self.defaults[-1:] == (None,):
            return None
        usual = (each(config) if callable(each) else each for each in self.defaults)
        return number(config, self.key, *usual)

    def write(self, ours: str, model: Any) -> Config:
        """Return the setting."""
        return {self.key: value_of(model, ours)}


@frozen
class Named:
    """A word, and our value for each; words that we do not know are refused elsewhere."""

    key: str
    values: Mapping[str, Any]
    default: str

    def read(self, config: Config) -> Any:
        """Return our value."""
        said = str(config.get(self.key, self.default))
        return self.values.get(said, self.values.get(self.default))

    def write(self, ours: str, model: Any) -> Config:
        """Return the setting."""
        value = getattr(model, ours)
        words = (word for word, each in self.values.items() if each == value)
        return {self.key: next(words, self.default)}


@frozen
class Fixed:
    """A value that no configuration has: it is the same in every model of the family."""

    value: Any

    def read(self, _config: Config) -> Any:
        """Return our value."""
        return self.value

    def write(self, _ours: str, _model: Any) -> Config:
        """Return nothing."""
        return {}


@frozen
class Computed:
    """A value that one function reads, and settings that another one writes from a model.

    `words` say on the page of families where the value comes from.
    """

    from_config: Callable[[Config], Any]
    to_config: Callable[[Any], Config] = lambda _: {}
    words: str = ""

    def read(self, config: Config) -> Any:
        """Return our value. Raises: ConfigError."""
        return self.from_config(config)

    def write(self, _ours: str, model: Any) -> Config:
        """Return the settings."""
        return self.to_config(model)


def also(key: str, default: bool) -> Computed:
    """Return the entry of another of our keys that follows a setting, which one entry writes."""
    words = f"`{key}`; {str(default).lower()}"
    return Computed(lambda config: bool(config.get(key, default)), words=words)


@frozen
class InnerSettings:
    """A section of our keys with a separate table; None where a configuration lacks it.

    Without `is_there` every configuration has it. A model without the section is written as if it
    had `otherwise`, if there is one.
    """

    settings: "Settings"
    is_there: Callable[[Config], bool] | None = None
    otherwise: Any = None

    def read(self, config: Config) -> dict[str, Any] | None:
        """Return our section. Raises: ConfigError."""
        is_there = self.is_there is None or self.is_there(config)
        return self.settings.keys(config) if is_there else None

    def write(self, ours: str, model: Any) -> Config:
        """Return the settings."""
        found = getattr(model, ours)
        section = self.otherwise if found is None else found
        return {} if section is None else self.settings.config(section)


@frozen
class Settings:
    """The settings of a configuration for a model, or for a section of one.

    `table`: by our keys, a `TwoWay`, or a setting alone or with its defaults (see `Number`).
    `written`: settings that none of our keys covers, each a value or a function of a model.
    `rest`: our keys that a folder decides although they have no entry, with their values.
    """

    table: Mapping[str, TwoWay | str | tuple[Any, ...]]
    written: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, TwoWay]:
        """The table, with an entry for every key."""
        return {ours: _entry(each) for ours, each in self.table.items()}

    def keys(self, config: Config) -> dict[str, Any]:
        """Return a configuration as our keys. Raises: ConfigError."""
        said = {ours: each.read(config) for ours, each in self.entries.items()}
        found = said | {key: value for key, value in self.rest.items() if key not in said}
        return {key: value for key, value in found.items() if value is not UNDECIDED}

    def config(self, model: Any) -> Config:
        """Return a model, or a section of one, as settings."""
        said: Config = {}
        for ours, each in self.entries.items():
            said |= each.write(ours, model)
        return said | applied(self.written, model)

    def but(self, table: Mapping[str, Any], written: Mapping[str, Any] | None = None) -> "Settings":
        """Return these settings with other entries; an entry of None is left out."""
        entries = {key: each for key, each in {**self.table, **table}.items() if each is not None}
        return replace(self, table=entries, written={**self.written, **(written or {})})


NO_SETTINGS = Settings({})


def _entry(said: TwoWay | str | tuple[Any, ...]) -> TwoWay:
    if isinstance(said, str):
        return Number(said)
    return Number(said[0], said[1:]) if isinstance(said, tuple) else said


def applied(entries: Mapping[str, Any], to: Any) -> dict[str, Any]:
    """Return entries with each function replaced by what it returns.

    `to` is the argument of the functions: a configuration, or a model.
    """
    return {key: entry(to) if callable(entry) else entry for key, entry in entries.items()}


def defaults_of(model: type[Strict], *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the defaults of a model's keys, without keys that are required or named."""
    fields = model.model_fields.items()
    return {key: x.default for key, x in fields if key not in but and not x.is_required()}


def architecture(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of `moe` that decide what is computed: these, and the defaults of the others."""
    return {**defaults_of(Moe, but=Moe.TRAINING), **said}
