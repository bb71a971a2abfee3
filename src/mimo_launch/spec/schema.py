"""The JSON Schema of a spec, for editors.

Decides: how the schema that pydantic derives is cleaned for people.
Relies on: descriptions and examples in the models.
Leaves: the reference page to `reference`.
"""

from typing import Any

from mimo_launch.spec.model import Spec


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a spec, with a description of each key."""
    schema = _clean(Spec.model_json_schema(by_alias=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "mimo-launch spec",
    }


def _clean(part: Any) -> Any:
    """Drop what only our messages use, and titles that repeat the key."""
    if isinstance(part, list):
        return [_clean(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _clean(value)
        for key, value in part.items()
        if not (key in ("title", "expected") and isinstance(value, str))
    }
