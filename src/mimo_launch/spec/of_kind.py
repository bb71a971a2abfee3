"""Sections of several kinds: the classes in an annotation, and which of them reads a section.

Decides: that the class that `kind` names reads a section, or else that of users' own classes.
Relies on: pydantic, which makes the schema of a class when it reads its first section. The schemas
of all kinds would take a tenth of the time of `validate`.
Leaves: messages about other kinds to `parse`.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    WrapSerializer,
)
from pydantic.json_schema import JsonSchemaValue

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import Strict, made_serializable


@frozen
class OfKind:
    """Marks an annotation with several kinds of a section, `kinds`."""

    kinds: Any

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return a validator that leaves a section to its class."""
        classes = {kind_of(cls): cls for cls in models_in(self.kinds)[0]}
        known = tuple(classes.values())

        def validated(value: Any) -> Strict:
            if isinstance(value, known):
                return value
            kind = value.get("kind") if isinstance(value, dict) else None
            cls = classes.get(kind if isinstance(kind, str) else None) or classes.get(None)
            if cls is None:
                raise ValueError(f"no kind {kind}")
            return cls.model_validate(value)

        def serialized(value: Any, serialize: SerializerFunctionWrapHandler) -> Any:
            return serialize(made_serializable(value))

        of_kind = Annotated[Any, BeforeValidator(validated), WrapSerializer(serialized)]
        return handler.generate_schema(of_kind)

    def __get_pydantic_json_schema__(
        self, _: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of all kinds."""
        return handler(TypeAdapter(self.kinds).core_schema)


def kind_of(model: type[Strict]) -> str | None:
    """Return the `kind` that selects a variant of a section; None if class paths select it."""
    choices = get_args(model.model_fields["kind"].annotation)
    return str(choices[0]) if choices else None


def models_in(annotation: Any) -> tuple[list[type[Strict]], bool]:
    """Return the section types of an annotation, and whether it may be null."""
    parts = list(alternatives(annotation))
    models = [part for part in parts if isinstance(part, type) and issubclass(part, Strict)]
    return models, type(None) in parts


def words_in(annotation: Any) -> list[str | bool]:
    """Return the words that may replace a section, and false and true if they may."""
    parts = list(alternatives(annotation))
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return [False, True, *words] if bool in parts else words


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, and of the unions inside it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from alternatives(part)
    else:
        yield annotation
