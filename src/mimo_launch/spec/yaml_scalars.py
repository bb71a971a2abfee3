"""What a plain YAML word means: the core rules of YAML 1.2, not those of 1.1.

Decides: `3e-4` is a number, `no` and `12:30` are text, only `true` and `false` are booleans.
Relies on: PyYAML's resolver tables, filled here from scratch.
Leaves: walking the document to `yaml_source`.
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

# A prompt may be long, a number not; integers beyond 64 bits are no setting.
_MAX_CHARACTERS, _MAX_DIGITS = 65_536, 400
_MAX_INTEGER = 2**63 - 1
# No honest spec comes near these; aliases and merges count as what they stand for.
MAX_VALUES, MAX_DEPTH = 20_000, 48


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2, and bounds; used for nodes only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._num_nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, unless there are too many or it stands too deep."""
        self._num_nodes, self._depth = self._num_nodes + 1, self._depth + 1
        at = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth > MAX_DEPTH:
            raise TooLarge(problem="lists or mappings nested too deeply", problem_mark=at)
        if self._num_nodes > 2 * MAX_VALUES:  # Each has a key at most.
            problem = f"the file has more than {MAX_VALUES:,} values"
            raise TooLarge(problem=problem, problem_mark=at)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class TooLarge(yaml.MarkedYAMLError):
    """A file has more than any spec would have."""


for _tag, _pattern, _first in _CORE:
    CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def scalar_value(node: yaml.ScalarNode) -> object:
    """Return the Python value of a scalar.

    Raises:
        ValueError: when the text does not have the form that its tag asks for.
    """
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a text of {len(text):,} characters is too long")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
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
        value = int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a number") from None
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise ValueError(f"`{text}` is beyond the largest whole number, {_MAX_INTEGER}")
    return value
