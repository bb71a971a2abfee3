"""A key of a spec is declared once: its field says all that messages, page and editors show."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from mimo_launch.spec.base import Strict
from mimo_launch.spec.fields import section_per_name, takes
from mimo_launch.spec.of_kind import kind_of, models_in
from mimo_launch.spec.reference import reference, spec_schema
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.yaml_source import parse_value

PAGE, SCHEMA = reference(), spec_schema()


def declared(cls: type[Strict], seen: set[type[Strict]]) -> Iterator[tuple[type[Strict], str]]:
    """Yield each section below one, with its keys."""
    if cls in seen:
        return
    seen.add(cls)
    for name, field in cls.model_fields.items():
        yield cls, name
        inner = section_per_name(field.annotation) or field.annotation
        for model in models_in(inner)[0]:
            yield from declared(model, seen)


KEYS = [pytest.param(c, n, id=f"{c.__name__}.{n}") for c, n in declared(Spec, set()) if n != "kind"]


def read(example: Any) -> Any:
    """Return an example as a spec has it: some are texts of YAML."""
    return parse_value(example)[0] if isinstance(example, str) else example


@pytest.mark.parametrize(("section", "name"), KEYS)
def test_a_key_has_what_messages_page_and_editors_show(section: type[Strict], name: str) -> None:
    field: FieldInfo = section.model_fields[name]
    key = field.alias or name
    assert field.description
    assert field.description.rstrip().endswith(".")
    assert f"| `{key}` |" in PAGE
    assert field.description in PAGE
    assert key in SCHEMA["$defs"].get(section.__name__, SCHEMA)["properties"]
    if not models_in(field.annotation)[0]:
        assert all(takes(field, read(example)) for example in field.examples or ())


@pytest.mark.parametrize(("section", "name"), KEYS)
def test_help_for_a_missing_key_can_show_a_value(section: type[Strict], name: str) -> None:
    field = section.model_fields[name]
    is_section = models_in(field.annotation)[0] or section_per_name(field.annotation)
    assert not field.is_required() or field.examples or is_section


def test_no_two_kinds_of_a_section_have_one_name() -> None:
    for section, name in (param.values for param in KEYS):
        models, _ = models_in(section.model_fields[name].annotation)  # type: ignore[attr-defined]
        kinds = [kind_of(each) for each in models] if len(models) > 1 else []
        assert len(set(kinds)) == len(kinds)
