"""Puts types and values into words, for messages and the reference page, and values into YAML.

Decides: the words for types and found values; one-line YAML, from which `spec` reads
every number back as the same number.
Relies on: JSON Schema fragments, so that it never depends on the wording of pydantic's errors.
Leaves: the messages to `findings`, lines and comments to the commands.
"""

from typing import Any

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "`true` or `false`",
    "array": "a list",
    "object": "a mapping (`key: value` lines)",
    "null": "`null`",
}


def expected(schema: dict[str, Any]) -> str:
    """Return in words what a JSON Schema fragment accepts."""
    if "expected" in schema:
        return str(schema["expected"])
    if "const" in schema:
        return _literal(schema["const"])
    if "enum" in schema:
        return listing([_literal(value) for value in schema["enum"]])
    if "anyOf" in schema:
        return listing([expected(each) for each in schema["anyOf"]])
    kind = schema.get("type", "")
    if kind == "array":
        items = schema.get("prefixItems")
        each = expected(items[0] if items else schema.get("items", {}))
        least = schema.get("minItems")
        number = len(items) if items else least and f"{least} or more"
        return f"a list of {number}, each {each}" if number else f"a list, each item {each}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        limits = f" from {_number(low)} to {_number(high)}"
    else:
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        signs = {">=": low, ">": above, "<=": high, "<": below}
        given = (f" {sign} {_number(each)}" for sign, each in signs.items() if each is not None)
        limits = " and".join(given)
    return _TYPES.get(kind, "a value") + limits


def listing(words: list[str]) -> str:
    """Return `a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def found(value: Any) -> str:
    """Return a value of the file in words, such as `"abc"`, text."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`, a boolean"
    if isinstance(value, str):
        return f"`{value if len(value) <= 40 else value[:37] + '...'}`, text"
    if isinstance(value, int):
        return f"`{value}`, a whole number"
    if isinstance(value, float):
        return (
            f"`{value}`, a number with a fraction" if value % 1 else f"`{value}`, a decimal number"
        )
    return f"a list of {len(value)}" if isinstance(value, list) else "a mapping"


def json_type(value: Any) -> str:
    """Return the JSON Schema name of a value's type."""
    if value is None:
        return "null"
    names = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def allowed_types(schema: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema fragment accepts; a number may be a whole one."""
    if "anyOf" in schema:
        return set().union(*(allowed_types(each) for each in schema["anyOf"]))
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    types = {json_type(value) for value in values} or {schema.get("type", "object")}
    return types | {"integer"} if "number" in types else types


def _literal(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def text_of(value: Any) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {text_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(text_of(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def flow(value: object) -> str:
    """Return a value, a list or a mapping as one line of YAML."""
    # Here, so that `--help` does not import the reader of specs.
    import yaml

    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        style = '"' if len(value.splitlines()) > 1 or value.endswith("\n") else None
        if _is_number(value):
            style = "'"  # PyYAML writes numbers of YAML 1.2, such as 1e5, as if they were words.
        # In a list, so that a word that needs quotes inside one gets them.
        line = yaml.safe_dump(
            [value], default_flow_style=True, default_style=style, width=1 << 18, allow_unicode=True
        )
        return str(line).strip()[1:-1]
    return text_of(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
