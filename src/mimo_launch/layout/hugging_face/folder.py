"""A Hugging Face folder as files: is it one, its `config.json`, and numbers in that.

Decides: which files are looked at, and how a number is read that may be missing or null.
Relies on: the names that transformers gives its files.
Leaves: what a configuration means to the families, reading tensors to `train.checkpoint`.
"""

import json
from pathlib import Path
from typing import Any

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
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
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


def short(value: Any) -> str:
    """Return a value of the file in a few characters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
