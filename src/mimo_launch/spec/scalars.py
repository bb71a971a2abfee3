"""What a plain YAML word means: the core rules of YAML 1.2, not those of 1.1.

Decides: `3e-4` is a number, `no` and `12:30` are text, only `true` and `false` are booleans.
Relies on: PyYAML's resolver tables, filled here from scratch.
Leaves: walking the document to `source`.
"""

import re
from typing import Any

import yaml

# One entry per tag: pattern, and the first characters that make it worth trying.
_CORE = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)

# Longer integers cannot be a setting, and Python refuses to parse very long ones.
_MAX_DIGITS = 400
# No honest spec comes near this many values, written out or by aliases of aliases.
MAX_VALUES = 20_000


class TooManyValuesError(yaml.MarkedYAMLError):
    """A text holds more values than a spec has."""


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2; used for nodes only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, as long as there are not too many: each value has a key at most."""
        self.num_nodes += 1
        if self.num_nodes > 2 * MAX_VALUES:
            raise TooManyValuesError(problem_mark=self.get_mark())
        return super().compose_node(parent, index)


for _tag, _pattern, _first in _CORE:
    CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def scalar_value(node: yaml.ScalarNode) -> object:
    """Return the Python value of a scalar.

    Raises:
        ValueError: when the text does not have the form that its tag asks for.
    """
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if kind in ("str", "merge"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return _bool(text)
    if kind in ("int", "float"):
        return _number(kind, text)
    raise ValueError(f"the tag `{node.tag}` is not used here")


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"`{text}` is not a boolean; write `true` or `false`")
    return text.lower() == "true"


def _number(kind: str, text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} characters is too long")
    special = text.lower().lstrip("+-")
    if special in (".inf", ".nan"):
        return float(text.lower().replace(".", ""))
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a number") from None
