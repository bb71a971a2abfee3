"""One field of a section by itself: its type, its schema, its validator.

Decides: how an annotation is taken apart.
Relies on: pydantic's field descriptions.
Leaves: whole sections to `parse` and `reference`.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, TypeAdapter
from pydantic.fields import FieldInfo

from mimo_launch.spec.base import Strict


def models_in(annotation: Any) -> tuple[list[type[Strict]], bool]:
    """Return the section types of an annotation, and whether it may be null."""
    parts = list(_alternatives(annotation))
    models = [part for part in parts if isinstance(part, type) and issubclass(part, Strict)]
    return models, type(None) in parts


def words_in(annotation: Any) -> list[str]:
    """Return the words that may stand in place of a section."""
    parts = (part for part in _alternatives(annotation) if get_origin(part) is Literal)
    return [word for part in parts for word in get_args(part)]


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, of unions inside it as well."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    else:
        yield annotation


def section_per_name(annotation: Any) -> Any:
    """Return the type of the sections of a mapping from names to sections, None if it is none."""
    if get_origin(annotation) is not dict:
        return None
    value = get_args(annotation)[1]
    return value if models_in(value)[0] else None


def kind_of(model: type[Strict]) -> str | None:
    """Return the `kind` that selects a variant of a section; None if it stands for many."""
    choices = get_args(model.model_fields["kind"].annotation)
    return str(choices[0]) if choices else None


def may_be_kind_alone(field: FieldInfo) -> bool:
    """Return whether a section may be written as its kind alone, when that is all it says."""
    return any(isinstance(each, BeforeValidator) for each in field.metadata)


def leaf_adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return a validator of the single value of a field."""
    # Not the field itself: alias and default belong to its section, and pydantic warns about them.
    annotated: Any = Annotated
    leaf = annotated[(field.annotation, *(field.metadata or [None]))]
    return TypeAdapter(leaf, config={"strict": True})


def field_schema(field: FieldInfo) -> dict[str, Any]:
    """Return the JSON Schema of a single value; of a section only what a message needs."""
    is_section = models_in(field.annotation)[0] or section_per_name(field.annotation)
    schema: dict[str, Any] = {"type": "object"} if is_section else leaf_adapter(field).json_schema()
    schema["description"] = field.description or ""
    schema["examples"] = field.examples or (["{...}"] if is_section else [])
    if not is_section and not field.is_required():
        schema["default"] = field.default
    extra = field.json_schema_extra
    return {**schema, **extra} if isinstance(extra, dict) else schema
