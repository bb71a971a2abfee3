"""A Hugging Face folder as files: is it one, its `config.json`, and numbers in that.

Decides: which files are looked at, and how a number is read that may be missing or null.
Relies on: the names that transformers gives its files.
Leaves: what a configuration means to the families, reading tensors to `checkpoint`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mimo_launch.spec.files import read_json

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

Config = dict[str, Any]


class ConfigError(ValueError):
    """`config.json` cannot be read, or lacks what it must say; the message is one line."""


def is_hugging_face(folder: Path) -> bool:
    """Return whether a folder is that of a Hugging Face model, whatever the model."""
    return (folder / CONFIG).is_file()


def has_weights(folder: Path) -> bool:
    """Return whether there are safetensors under the names that transformers gives them."""
    return (folder / WEIGHTS).is_file() or (folder / INDEX).is_file()


def read_config(folder: Path) -> Config:
    """Return `config.json`. Raises: ConfigError."""
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG} is no JSON object")
    return config


def number(config: Config, key: str, *defaults: float | None) -> int | float:
    """Return a number, or the first default that is one.

    A key that is there and null follows from other keys: the last default. Raises: ConfigError.
    """
    options = [None, *defaults[-1:]] if key in config else list(defaults)
    found = next((x for x in (config.get(key), *options) if x is not None), None)
    if found is None:
        raise ConfigError(f"{CONFIG} does not say `{key}`")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ConfigError(f"`{key}` in {CONFIG} is {short(found)}, not a number")
    return found


def section(config: Config, key: str) -> Config:
    """Return a configuration inside another; a missing one is empty. Raises: ConfigError."""
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"`{key}` in {CONFIG} is {short(found)}, not an object")
    return found


@contextmanager
def reading_config() -> Iterator[None]:
    """Raise ConfigError where something is of another type than any model has there.

    Configurations come from anywhere, and say of a dozen models some hundred things.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG} is malformed: {error!r}") from error


def short(value: Any) -> str:
    """Return a value of the file in a few characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
