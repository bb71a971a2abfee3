"""The values that a key of a spec may have, by its field, and the places of each key.

Decides: which field of the models a path of a spec leads to, and which paths end in some key; which
values a field takes.
Relies on: the models; `of_kind` for the sections in an annotation.
Leaves: words of other trainers to `foreign_words`.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.base import Strict
from mimo_launch.spec.of_kind import alternatives, kind_of, models_in, words_in
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.yaml_source import UNREADABLE

# The wildcard for the name of a module.
ANY = "*"


@cache
def places_of(key: str) -> tuple[YamlPath, ...]:
    """Return every path that ends in a key, short paths first; `*` is any module."""
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
    """Return a path with each name in place of its `*`, or only the path if it has none."""
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


def is_word(value: Any, words: Iterable[str | bool]) -> bool:
    """Return whether a value is one of these words; 1 is not true."""
    return any(type(value) is type(word) and value == word for word in words)


def section_per_name(annotation: Any) -> Any:
    """Return the section type of a mapping from names to sections; None for other types."""
    if get_origin(annotation) is not dict:
        return None
    value = get_args(annotation)[1]
    return value if models_in(value)[0] else None


def listed_section(annotation: Any) -> type[Strict] | None:
    """Return the section type of the items of a list, or of lists by name; None for others."""
    for part in alternatives(annotation):
        inner = get_args(part)
        if get_origin(part) is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return next(iter(models_in(inner[0])[0]), None)
    return None


def may_be_kind_alone(field: FieldInfo) -> bool:
    """Return whether a section that has only a kind may be written as that kind."""
    # Those of an optional section are inside the annotation.
    inside = (each for part in get_args(field.annotation) for each in get_args(part))
    return any(isinstance(each, BeforeValidator) for each in (*field.metadata, *inside))


@cache  # Making one takes longer than all that it validates.
def leaf_adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return a validator of the single value of a field."""
    # Not the field itself: alias and default belong to its section, and pydantic warns about them.
    annotated: Any = Annotated
    leaf = annotated[(field.annotation, *(field.metadata or [None]))]
    return TypeAdapter(leaf, config={"strict": True})


def field_schema(field: FieldInfo) -> dict[str, Any]:
    """Return the JSON Schema of a single value; for a section, only what a message needs."""
    is_section = models_in(field.annotation)[0] or section_per_name(field.annotation)
    schema: dict[str, Any] = {"type": "object"} if is_section else leaf_adapter(field).json_schema()
    schema["description"] = field.description or ""
    schema["examples"] = field.examples or (["{...}"] if is_section else [])
    if not is_section and not field.is_required():
        schema["default"] = field.default
    extra = field.json_schema_extra
    return {**schema, **extra} if isinstance(extra, dict) else schema


def may_have(field: FieldInfo, value: Any) -> bool:
    """Return whether a key may have a value of this form: a section, a switch or another."""
    if models_in(field.annotation)[0] or section_per_name(field.annotation):
        single = is_word(value, words_in(field.annotation)) or may_be_kind_alone(field)
        return isinstance(value, dict) or value is None or value is UNREADABLE or single
    if field.annotation is bool:
        return isinstance(value, bool | str) or value in (0, 1)
    return not isinstance(value, dict)


def takes(field: FieldInfo, value: Any) -> bool:
    """Return whether a key takes a value unchanged."""
    if models_in(field.annotation)[0]:
        if isinstance(value, dict) or is_word(value, words_in(field.annotation)):
            return True
        if not isinstance(value, str) or str not in alternatives(field.annotation):
            return False
    try:
        leaf_adapter(field).validate_python(value)
    except ValidationError:
        return False
    return True


def item_schema(schema: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the schema of an item of a list, given the schema of the list."""
    # The schema of an optional list is a union with null.
    types = (schema, *schema.get("anyOf", ()))
    array: dict[str, Any] = next((each for each in types if each.get("type") == "array"), {})
    prefix = array.get("prefixItems", [])
    item = prefix[index] if index < len(prefix) else array.get("items", {})
    return dict(item) if isinstance(item, dict) else {}
