"""Finds the dotted path that a `--set` was meant to have.

Decides: that `/` and `[0]` stand for dots, that a module may stand without `modules`, and that a
key of its own leads to the places that have it.
Relies on: `places` and `synonyms`.
Leaves: applying it to `load`, misspelt keys to `findings`.
"""

import re
import shlex
from typing import Any

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.places import ANY, all_paths, field_at
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.synonyms import synonym

_MOST = 4


def meant_paths(dotted: str, data: Any) -> list[str]:
    """Return the dotted paths that another one stands for; nothing if it needs no change."""
    keys = [key for key in re.split(r"[./\[\]\s]+", dotted) if key]
    modules = data.get("modules") if isinstance(data, dict) else None
    names = list(modules) if isinstance(modules, dict) else []
    if not keys:
        return []
    if keys[0] == "modules" and len(keys) > 1 and keys[1].isdecimal() and int(keys[1]) < len(names):
        keys[1] = names[int(keys[1])]
    tops = {field.alias or name for name, field in Spec.model_fields.items()}
    if keys[0] in names and keys[0] not in tops:
        keys = ["modules", *keys]
    if keys[0] in tops:
        plain = ".".join(keys)
        return [plain] if plain != dotted else []
    known = synonym("", keys[-1])
    end = tuple(known.key.split(".")) if known is not None and known.key else tuple(keys)
    found = dict[str, None]()
    for pattern in all_paths():
        if pattern[-len(end) :] == end:
            for path in _in_modules(pattern, names):
                if field_at(path, data) is not None:
                    found[".".join(map(str, path))] = None
    # A setting of the whole run, if there is one, rather than its overrides in modules.
    common = [path for path in found if not path.startswith("modules.")]
    return common or (list(found) if len(found) <= _MOST else [])


def _in_modules(pattern: YamlPath, names: list[str]) -> list[YamlPath]:
    if ANY not in pattern:
        return [pattern]
    return [tuple(name if step == ANY else step for step in pattern) for name in names]


def set_line(dotted: str, value: str) -> str:
    """Return a `--set` as a shell reads it, in backticks."""
    return f"`--set {shlex.quote(f'{dotted}={value}')}`"
