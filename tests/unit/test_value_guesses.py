"""Guesses of values: each is one that its key takes, as YAML reads it."""

from typing import Any

import pytest
from tests.unit.test_spec_keys import KEYS

from mimo_launch.spec.base import Strict
from mimo_launch.spec.fields import field_schema, section_per_name, takes
from mimo_launch.spec.of_kind import models_in
from mimo_launch.spec.value_guesses import guess_values
from mimo_launch.spec.wording import flow
from mimo_launch.spec.yaml_source import parse_value

# Texts that YAML might read as something else.
TEXTS = (
    "1e5", "1.5e3", "+1E05", ".5", "5.", "010", "0x1f", "0o17", "1_000", "12:30", "2026-01-01",
    "yes", "NO", "true", "null", "~", "", " a ", "<<", "=", "a: b", "a #b", "- x", "a\nb",
    "\t", "\r", "\x07", "\u2028", "\u00e9", "\u6a21\u578b", "\U0001f600", "@x", "%x", "'", '"',
    "a\n\n b\n", "\\d", "[a", "a, b", "{a}", "*a", "&a", "!a", "|", ">", "? a", "nan", ".inf",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *TEXTS, "4k", "1,000", "1 2", "1x2", "a b", "a,b", "3%", "2**10", "8*4", "10m", "80GB", "#1",
    "0", "-1", "-0", "1.0", "\u0663", "1e400", "9" * 30, "[1,2]", "0,1,2", "3 steps", "none",
    True, False, None, 0, 1, 2, -1, 3.0, 0.5, 1e300, float("inf"), 10**30, [], [1], ["a"], {},
    {"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_text_is_written_in_one_line_that_reads_as_that_text(text: str, inside: bool) -> None:
    written = flow([text, "b"] if inside else text)
    assert "\n" not in written
    assert parse_value(written) == ([text, "b"] if inside else text, "")


@pytest.mark.parametrize(("section", "name"), KEYS)
def test_what_is_offered_for_a_wrong_value_is_taken(section: type[Strict], name: str) -> None:
    field = section.model_fields[name]
    if models_in(field.annotation)[0] or section_per_name(field.annotation):
        return
    schema = field_schema(field)
    # Ranges of ranks and sizes have limits of their own; `dp: -1` is a number when it is looked at.
    if name == "dp" or any("format" in each for each in (schema, *schema.get("anyOf", ()))):
        return
    for value in VALUES:
        for guess in [] if takes(field, value) else guess_values(name, value, schema):
            read, fault = parse_value(guess)
            assert not fault, (value, guess)
            assert takes(field, read), (value, guess)
