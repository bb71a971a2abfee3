"""Knows where each key of a spec may be written.

Decides: which field of the models a path of a spec leads to, and which paths end in some key.
Relies on: the models.
Leaves: words of other trainers to `foreign_words`.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.base import Strict, kind_of, models_in, section_per_name
from mimo_launch.spec.spec import Spec

# The wildcard for the name of a module.
ANY = "*"


@cache
def places_of(key: str) -> tuple[YamlPath, ...]:
    """Return every path that ends in a key, those with few steps first; `*` is any module."""
    found = dict.fromkeys(path for path in all_paths() if path[-1] == key)
    return tuple(sorted(found, key=len))


@cache
def all_paths() -> tuple[YamlPath, ...]:
    """Return the path of every key; `*` is any module."""
    return tuple(_paths(Spec, ()))


def _paths(cls: type[Strict], path: YamlPath) -> Iterator[YamlPath]:
    for name, field in cls.model_fields.items():
        here = (*path, field.alias or name)
        yield here
        inner = section_per_name(field.annotation)
        below = (*here, ANY) if inner else here
        for model in models_in(inner or field.annotation)[0]:
            yield from _paths(model, below)


def in_modules(pattern: YamlPath, names: Iterable[str | int]) -> list[YamlPath]:
    """Return a path with each name in place of its `*`; by itself if it has none."""
    if ANY not in pattern:
        return [pattern]
    return [tuple(name if step == ANY else step for step in pattern) for name in names]


def field_at(path: YamlPath, data: Any) -> FieldInfo | None:
    """Return the field that a path leads to, by the kinds that the data name, or None."""
    classes: list[type[Strict]] = [Spec]
    field: FieldInfo | None = None
    per_name = False
    for step in path:
        if per_name:
            per_name = False
        else:
            fields = [item for cls in classes for item in cls.model_fields.items()]
            field = next((each for name, each in fields if (each.alias or name) == step), None)
            if field is None:
                return None
            inner = section_per_name(field.annotation)
            per_name = inner is not None
            classes = models_in(inner or field.annotation)[0]
        data = data.get(step) if isinstance(data, dict) else None
        kind = data.get("kind") if isinstance(data, dict) and len(classes) > 1 else None
        classes = [cls for cls in classes if kind_of(cls) == kind] if kind else classes
    return None if per_name else field


def value_at(path: YamlPath, data: Any) -> Any:
    """Return the value at a path; None if there is none."""
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data
