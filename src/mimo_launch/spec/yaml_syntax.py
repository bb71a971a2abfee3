"""Turns YAML text into nodes, by the core rules of YAML 1.2, not 1.1.

Decides: that `3e-4` is a number, `no` and `12:30` are text, only `true` and `false` are booleans;
the messages about text that is not YAML, or not one mapping.
Relies on: PyYAML for tokens and marks; its resolver tables are filled here from scratch.
Leaves: values to `yaml_source`.
"""

import re
from typing import Any

import yaml

from mimo_launch.diag.diagnostic import Diagnostic, YamlPath

# One entry per tag: the pattern, and the first characters of texts that may match it.
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


# A prompt may be long, but not a number; no setting has more than 64 bits.
_MAX_CHARACTERS, _MAX_DIGITS = 65_536, 400
_MAX_INTEGER = 2**63 - 1
# No real spec comes near these limits; aliases and merges count as if written out.
MAX_VALUES, MAX_DEPTH = 20_000, 48


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2 and with limits; used for nodes only."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._num_nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node. Raises: TooLarge if there are too many, or it is nested too deeply."""
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
    """A file has more values, or nests them deeper, than any spec."""


CoreLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _CORE:
    CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def scalar_value(node: yaml.ScalarNode) -> object:
    """Return the Python value of a scalar.

    Raises:
        ValueError: when the text does not have the form of its tag.
    """
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"a text of {len(text):,} characters is too long")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not a character") from None
    if kind in ("str", "merge"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(f"`{text}` is not a boolean; write `true` or `false`")
        return text.lower() == "true"
    if kind in ("int", "float"):
        return _number(kind, text)
    raise ValueError(f"the tag `{node.tag}` is not used here")


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


def fault(
    at: tuple[int, int], headline: str, why: str, help_: str, code: str = "yaml-syntax"
) -> Diagnostic:
    """Report a fault at a line and column, both counted from 1."""
    line, column = at
    return Diagnostic(code=code, headline=headline, why=why, help=help_, line=line, column=column)


def place_of(mark: yaml.Mark | None) -> tuple[int, int]:
    """Return line and column of a mark; those of the first character for none."""
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def compose(text: str) -> tuple[list[yaml.Node], Diagnostic | None]:
    """Return the root node of each document, or the fault that stopped the parser."""
    loader: CoreLoader | None = None
    nodes: list[yaml.Node] = []
    try:
        loader = CoreLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                nodes.append(node)
    except TooLarge as error:
        return [], fault(
            place_of(error.problem_mark),
            error.problem or "",
            "no spec has that many, so this file is not one, and was not read further",
            "check that this file is the spec; a pattern can replace a long list of shards",
        )
    except yaml.MarkedYAMLError as error:
        return [], _syntax_fault(error, text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        return [], fault(
            (before.count("\n") + 1, len(before) - before.rfind("\n")),
            f"character U+{int(error.character):04X} is not allowed in YAML",
            "YAML allows printable text, tabs and line ends only",
            "delete the character",
        )
    finally:
        if loader is not None:
            loader.dispose()
    return nodes, None


# Parts of PyYAML's message for a fault, our headline, and what to do. "" is in every message.
_FAULTS = (
    (
        ("mapping values are not allowed",),
        "a second `:` on this line, or a line that is indented too far",
        "quote text that contains `: `, or align the key with the one above it",
    ),
    (
        ("undefined alias",),
        "an alias `*name` without an anchor `&name` before it",
        "write `&name` at the value to be repeated, above this line",
    ),
    (
        ("found duplicate anchor",),
        "this anchor name is used twice",
        "give one of the two another name",
    ),
    (
        ("expected ',' or", "expected the node content"),
        "a bracket or a comma is missing, or there is one too many",
        "check that each `{` and `[` above is closed and that commas stand between items",
    ),
    (
        ("could not find expected ':'",),
        "a line without `:` where a key is expected",
        "write `key: value`",
    ),
    (
        ("unexpected end of stream",),
        "a quoted text is never closed",
        "add the closing quotation mark",
    ),
    (
        ("",),
        "this is not YAML ({})",
        "compare the indentation and the punctuation with the lines above",
    ),
)


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Diagnostic:
    """Turn PyYAML's error into a finding that says what to do."""
    line, column = place_of(error.problem_mark or error.context_mark)
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    if variable := variable_in(shown):
        return variable_fault(variable, (), "", (line, shown.index(variable) + 1))
    if (found := _glued_at(lines, error)) is not None:
        number, glued = found
        return fault(
            (number + 1, glued.start(1) + 1),
            f"`{glued[1]}` has no space after the `:`",
            "without a space it is one word, not a key and its value",
            f"write `{glued[2]}: {glued[3]}`",
        )
    problem = error.problem or ""
    indent = shown[: len(shown) - len(shown.lstrip())]
    if "\t" in indent or "'\\t'" in problem:
        headline = "there is a tab where YAML wants spaces"
        column = shown.index("\t") + 1 if "\t" in shown else column
        help_ = "replace each tab by two spaces"
    else:
        headline, help_ = next(
            (headline.format(problem or "unknown fault"), help_)
            for signs, headline, help_ in _FAULTS
            if any(sign in problem for sign in signs)
        )
    why = "the file cannot be read past this point, so nothing after it was checked"
    return fault((line, column), headline, why, help_)


def _glued_at(lines: list[str], error: yaml.MarkedYAMLError) -> tuple[int, re.Match[str]] | None:
    """Return the number and match of the line with a `key:value` that stopped the parser."""
    marks = [mark.line for mark in (error.context_mark, error.problem_mark) if mark]
    for number in sorted({n for mark in marks for n in (mark - 1, mark)}):
        match = _GLUED.fullmatch(lines[number]) if 0 <= number < len(lines) else None
        if match is not None:
            return number, match
    return None


_VARIABLE = re.compile(r"\$\{[A-Za-z_][^{}\s]*\}|\$[A-Za-z_]\w*|\{\{ *[A-Za-z_][\w.]* *\}\}")
_GLUED = re.compile(r"\s*(?:- )?(([A-Za-z_]\w*):([^\s:/\\]\S*))\s*(?:#.*)?")


def variable_in(text: str) -> str:
    """Return the first variable in a text, such as `${NAME}`; "" if there is none."""
    match = _VARIABLE.search(text)
    return match[0] if match else ""


def template_in(node: yaml.Node) -> str | None:
    """Return the template variable that a node spells, such as `{{ name }}`; None if it is none."""
    for _ in range(2):
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
            return None
        ((node, value),) = node.value
        if not isinstance(value, yaml.ScalarNode) or value.value:
            return None
    return f"{{{{ {node.value} }}}}" if isinstance(node, yaml.ScalarNode) else None


def variable_fault(variable: str, path: YamlPath, value: str, at: tuple[int, int]) -> Diagnostic:
    """Report a variable, which nothing replaces."""
    help_ = f"write the value in place of `{variable}`"
    if path and all(isinstance(step, str) for step in path):
        dotted = ".".join(map(str, path))
        help_ += f', or delete the line and add `--set "{dotted}={value}"`'
    headline = f"`{variable}` is a variable, and a spec has none"
    return fault(at, headline, "a spec means the same in every shell and on every host", help_)


def document_fault(nodes: list[yaml.Node]) -> Diagnostic | None:
    """Return what is wrong with the documents of a file as a whole."""
    if not nodes or (isinstance(nodes[0], yaml.ScalarNode) and nodes[0].value == ""):
        return Diagnostic(
            code="empty-file",
            headline="the file has no content",
            why="a spec needs at least `version`, `name`, `modules`, `batch` and `data`",
            help="start from a file in `topologies/`",
            line=1,
        )
    if len(nodes) > 1:
        return fault(
            place_of(nodes[1].start_mark),
            f"{len(nodes)} YAML documents in one file",
            "a spec is one document; which of them to run would be a guess",
            "keep one and delete the `---` lines, or split the file",
            code="several-documents",
        )
    if not isinstance(nodes[0], yaml.MappingNode):
        kind = "list" if isinstance(nodes[0], yaml.SequenceNode) else "single value"
        return fault(
            place_of(nodes[0].start_mark),
            f"the file is a {kind}, not `key: value` lines",
            "a spec is a mapping with keys such as `modules` and `batch`",
            "start with `version: 1`",
            code="top-level-not-mapping",
        )
    return None
