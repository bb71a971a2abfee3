"""YAML text -> nodes, and the parser's complaints in our words.

Decides: what is said about text that is not YAML, or not one mapping.
Relies on: PyYAML for tokens and marks.
Leaves: values to `yaml_nodes`.
"""

import yaml

from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.yaml_scalars import CoreLoader, TooLarge


def compose(text: str) -> tuple[list[yaml.Node], Diagnostic | None]:
    """Return the root node of each document, or the fault that ends the reading."""
    loader: CoreLoader | None = None
    nodes: list[yaml.Node] = []
    try:
        loader = CoreLoader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                nodes.append(node)
    except TooLarge as error:
        return [], _too_large(error)
    except yaml.MarkedYAMLError as error:
        return [], _syntax_fault(error, text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        return [], Diagnostic(
            code="yaml-syntax",
            headline=f"character U+{int(error.character):04X} is not allowed in YAML",
            why="YAML allows printable text, tabs and line ends only",
            help="delete the character",
            line=before.count("\n") + 1,
            column=len(before) - (before.rfind("\n") + 1) + 1,
        )
    finally:
        if loader is not None:
            loader.dispose()
    return nodes, None


def _too_large(error: yaml.MarkedYAMLError) -> Diagnostic:
    mark = error.problem_mark
    return Diagnostic(
        code="yaml-syntax",
        headline=error.problem or "",
        why="no spec has as many, so this file is none, and was not read further",
        help="check that this file is the spec; a list of shards may be a pattern",
        line=mark.line + 1 if mark else 1,
        column=mark.column + 1 if mark else 1,
    )


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> Diagnostic:
    """Turn PyYAML's words into ours: where, what, and what to do."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    indent = shown[: len(shown) - len(shown.lstrip())]
    problem = error.problem or ""
    if "\t" in indent or ("'\\t'" in problem):
        headline = "a tab stands where YAML wants spaces"
        column = shown.index("\t") + 1 if "\t" in shown else column
        help_ = "replace each tab by two spaces"
    elif "mapping values are not allowed" in problem:
        headline = "a second `:` on this line, or a line that is indented too far"
        help_ = "quote text that contains `: `, or align the key with the one above it"
    elif "undefined alias" in problem:
        headline = "an alias `*name` without an anchor `&name` before it"
        help_ = "write `&name` at the value to be repeated, above this line"
    elif "found duplicate anchor" in problem:
        headline = "this anchor name is used twice"
        help_ = "give one of the two another name"
    elif "expected ',' or" in problem or "expected the node content" in problem:
        headline = "a bracket or a comma is missing, or one is too many"
        help_ = "check that each `{` and `[` above is closed and that commas stand between items"
    elif "could not find expected ':'" in problem:
        headline = "a line without `:` where a key is expected"
        help_ = "write `key: value`"
    elif "unexpected end of stream" in problem:
        headline = "a quotation mark is opened and never closed"
        help_ = "add the closing quotation mark"
    else:
        headline = f"this is not YAML ({problem or 'unknown fault'})"
        help_ = "compare the indentation and the punctuation with the lines above"
    return Diagnostic(
        code="yaml-syntax",
        headline=headline,
        why="the file cannot be read past this point, so nothing after it was checked",
        help=help_,
        line=line,
        column=column,
    )


def document_fault(nodes: list[yaml.Node]) -> Diagnostic | None:
    """Return what is wrong with the documents of a file as a whole."""
    if not nodes or (isinstance(nodes[0], yaml.ScalarNode) and nodes[0].value == ""):
        return Diagnostic(
            code="empty-file",
            headline="the file says nothing",
            why="a spec needs at least `version`, `name`, `modules`, `batch` and `data`",
            help="start from a file in `topologies/`",
            line=1,
        )
    if len(nodes) > 1:
        return Diagnostic(
            code="several-documents",
            headline=f"{len(nodes)} YAML documents in one file",
            why="a spec is one document; which of them to run would be a guess",
            help="keep one and delete the `---` lines, or split the file",
            line=nodes[1].start_mark.line + 1,
            column=nodes[1].start_mark.column + 1,
        )
    if not isinstance(nodes[0], yaml.MappingNode):
        kind = "list" if isinstance(nodes[0], yaml.SequenceNode) else "single value"
        return Diagnostic(
            code="top-level-not-mapping",
            headline=f"the file is a {kind}, not `key: value` lines",
            why="a spec is a mapping with keys such as `modules` and `batch`",
            help="start with `version: 1`",
            line=nodes[0].start_mark.line + 1,
            column=nodes[0].start_mark.column + 1,
        )
    return None
