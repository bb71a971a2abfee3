"""Documents the keys of a spec, for readers and for editors: a page and a JSON Schema.

Decides: the form of both. Run `python -m mimo_launch.spec.reference docs/spec-reference.md` after a
change of the types.
Relies on: the descriptions and examples of the types.
Leaves: concepts to the docs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from mimo_launch.spec.base import Strict, made_serializable
from mimo_launch.spec.fields import field_schema, listed_section, section_per_name
from mimo_launch.spec.of_kind import kind_of, models_in, words_in
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import expected, flow, listing


class _Schema(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        return super().encode_default(made_serializable(dft))


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a spec, with a description of each key."""
    schema = _clean(Spec.model_json_schema(by_alias=True, schema_generator=_Schema))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "mimo-launch spec",
    }


def _clean(part: Any) -> Any:
    """Drop keys that only our messages use, and titles that repeat a key."""
    if isinstance(part, list):
        return [_clean(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _clean(value)
        for key, value in part.items()
        if not (key in ("title", "expected", "format") and isinstance(value, str))
    }


_HEAD = """# Spec reference

Every key of a spec, made from the code by `python -m mimo_launch.spec.reference`. Unknown keys are
errors, values are never converted, and `mimo-launch schema` prints the same as JSON Schema for your
editor. A key without a default is required.
"""


def reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_section(Spec, ""), ""])


def _section(cls: type[Strict], path: str) -> Iterator[str]:
    """Yield the table of a section, then the sections inside it."""
    yield f"## `{path}`" if path else "## Top level"
    yield ""
    yield " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    yield ""
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    nested: list[tuple[type[Strict], str]] = []
    for name, field in cls.model_fields.items():
        key = field.alias or name
        where = f"{path}.{key}" if path else key
        if section_per_name(field.annotation):
            where += ".NAME"
        listed = listed_section(field.annotation)
        if listed is not None and listed not in {model for model, _ in nested}:
            nested.append((listed, f"{where}[N]"))
        models = _models(field)
        is_variant = len(models) > 1
        for model in models:
            kind = f", kind: {kind_of(model) or 'package.module:Name'}" if is_variant else ""
            nested.append((model, where + kind))
        yield f"| `{key}` | {_value(field)} | {_default(field)} | {field.description or ''} |"
    yield ""
    for model, where in nested:
        yield from _section(model, where)


def _models(field: FieldInfo) -> list[type[Strict]]:
    return models_in(section_per_name(field.annotation) or field.annotation)[0]


def _value(field: FieldInfo) -> str:
    models = _models(field)
    if section_per_name(field.annotation):
        return "section per name"
    if listed_section(field.annotation) and "anyOf" not in field_schema(field):
        return "a list of sections"
    if len(models) > 1:
        return "section, by kind"
    if models:
        return listing(["section", *(f"`{flow(word)}`" for word in words_in(field.annotation))])
    return expected(field_schema(field)).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    default: Any = field.default
    if isinstance(default, Strict):
        return "its defaults"
    if default is None:
        return "`null`" if words_in(field.annotation) else "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
