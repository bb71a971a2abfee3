"""Mutants of a source: one small wrong change each, as bytes to replace.

Left alone: docstrings, annotations, decorators, imports, texts and what is raised; attributes set
by `__init__`, paths, and keywords that the callee has no default for: those end in a TypeError.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Change = tuple[str, ast.expr | ast.stmt, str]

ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
COMPARISON = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
REDUCTIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "enter_tp", "exit_tp")
# Return their first argument, or its type, in at least fp32.
WIDENING = ("widened", "promote_types")
AXES = {"tp": "cp", "cp": "tp", "dp": "cp"}
DIMENSIONS = {0: 1, 1: 0, -1: -2, -2: -1}
TAKE_DIMENSION = ("sum", "cat", "stack", "split", "chunk", "size", "unsqueeze", "squeeze", "unbind")
SECOND_ARGUMENT = ("cat", "stack", "split", "chunk")
SETTINGS = ("spec", "model", "common", "own", "schedule", "settings")
TEXTS = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)
# Files and functions that need a GPU, or kernels that only GPUs have.
GPU_ONLY = {
    "te_layers", "te_fp8", "te_attention", "te_block", "ssd_kernels", "warm",
    "set_allocator", "_p2p_options", "_seconds",
}  # fmt: skip
# What a statement that only GPUs run speaks of.
GPU_WORDS = ("cuda", "fp8", "set_allocator(")
# Keywords that guard only, or that only GPUs see.
GUARDS = {"strict", "encoding", "device", "non_blocking", "pin_memory"}
SKIPPED = ("annotation", "returns", "decorator_list", "bases")


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    line: int
    start: int
    stop: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator}: `{self.before}` -> `{self.after}`"


def required_keywords(folder: Path) -> dict[str, set[str]]:
    """Return, by name of function or class of `folder`, what a call must not leave out."""
    found: dict[str, set[str]] = {"field": {"default", "default_factory"}}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                fields = [f for f in node.body if isinstance(f, ast.AnnAssign) and not f.value]
                names = {ast.unparse(f.target) for f in fields}
                inits = [f for f in node.body if getattr(f, "name", "") == "__init__"]
                names |= {name for init in inits for name in _required(init)}
            elif isinstance(node, ast.FunctionDef):
                names = _required(node)
            else:
                continue
            found.setdefault(node.name, set()).update(names)
    return found


def _required(function: ast.AST) -> set[str]:
    args = function.args  # type: ignore[attr-defined]
    plain = args.args[: len(args.args) - len(args.defaults)]
    only = [a for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
    return {argument.arg for argument in (*plain, *only)}


def mutants(path: Path, required: dict[str, set[str]]) -> list[Mutant]:
    """Return all mutants of a file."""
    source, starts, found = path.read_bytes(), [0], []
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for operator, node, after in _changes(ast.parse(source), required):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = " ".join(source[start:stop].decode().split())
        found.append(Mutant(str(path), operator, node.lineno, start, stop, before, after))
    return found


def compiles(mutant: Mutant) -> bool:
    """Return whether the file with the mutant compiles without a warning."""
    try:
        with warnings.catch_warnings(action="error"):
            compile(mutant.apply(Path(mutant.path).read_bytes()), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def _changes(node: ast.AST, required: dict[str, set[str]]) -> Iterator[Change]:
    """Yield every change below a node."""
    starts = isinstance(node, ast.FunctionDef) and node.name == "__init__"
    skipped = (*SKIPPED, "body") if isinstance(node, ast.If) and _asks_for_gpu(node) else SKIPPED
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            imports = isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom)
            if name in skipped or is_text or imports or not isinstance(child, ast.AST):
                continue
            if _is_for_gpus(child) or (isinstance(child, ast.keyword) and child.arg in GUARDS):
                continue
            if isinstance(child, ast.stmt) and not (starts and isinstance(child, ast.Assign)):
                yield from _of_statement(child)
            if isinstance(child, ast.Raise):
                continue
            if isinstance(child, ast.Attribute):
                if not isinstance(node, ast.Attribute | ast.Subscript) and name != "func":
                    yield from _of_attribute(child)
            elif isinstance(child, ast.Call):
                yield from _of_call(child, required)
            elif isinstance(child, ast.expr):
                yield from _of_expression(child)
            yield from _changes(child, required)


def _asks_for_gpu(node: ast.If) -> bool:
    test = ast.unparse(node.test)
    return test.endswith((".is_cuda", "== 'cuda'")) and not test.startswith("not ")


def _is_for_gpus(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in GPU_ONLY
    simple = isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.For)
    return simple and any(word in ast.unparse(node) for word in GPU_WORDS)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if isinstance(node, ast.AugAssign | ast.Raise) or effect or stored:
        yield "removed statement", node, "pass"
    if isinstance(node, ast.If | ast.While):
        yield "negated condition", node.test, f"not ({ast.unparse(node.test)})"


def _of_attribute(node: ast.Attribute) -> Iterator[Change]:
    names = ast.unparse(node).removeprefix("self.").split(".")
    if node.attr in AXES:
        yield "swapped axis", node, f"{ast.unparse(node.value)}.{AXES[node.attr]}"
    elif isinstance(node.ctx, ast.Load) and names[0] in SETTINGS:
        yield "dropped setting", node, "1"


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            is_path = isinstance(op, ast.Div) and (_is_path(left) or _text(right))
            if not (is_path or _text(left) or _text(right)):
                after = ast.BinOp(left, ARITHMETIC[type(op)](), right)
                yield "arithmetic", node, f"({ast.unparse(after)})"
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISON:
            after = ast.Compare(left, [COMPARISON[type(op)]()], [right])
            yield "comparison", node, f"({ast.unparse(after)})"
        case ast.IfExp(test, body, orelse):
            yield "negated condition", node, f"({ast.unparse(ast.IfExp(test, orelse, body))})"
        case ast.Constant(bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", node, str({0: 1, 1: 0}.get(value, value + 1))
        case ast.Constant(str() as value) if value in AXES:
            yield "swapped axis", node, repr(AXES[value])
        case ast.Subscript(ast.Attribute(_, "shape"), index) if _integer(index) in DIMENSIONS:
            yield "swapped axis", index, str(DIMENSIONS[_integer(index)])
    for test in [test for each in getattr(node, "generators", ()) for test in each.ifs]:
        yield "negated condition", test, f"(not ({ast.unparse(test)}))"


def _of_call(node: ast.Call, required: dict[str, set[str]]) -> Iterator[Change]:
    callee = ast.unparse(node.func)
    owner, _, name = callee.rpartition(".")
    first = ast.unparse(node.args[0]) if node.args else ""
    if name == "sum" and owner:
        yield "dropped reduction", node.func, f"{owner}.mean"
    elif name == "sum":
        yield "dropped reduction", node, f"next(iter(({first})), 0)"
    elif name.startswith(REDUCTIONS) and first:
        yield "dropped reduction", node, first
    elif name in WIDENING and first:
        yield "less precision", node, first
    second = owner == "torch" or name in SECOND_ARGUMENT
    places = [a for a in node.args[second : second + 1] if name in TAKE_DIMENSION]
    places += [k.value for k in node.keywords if k.arg in ("dim", "axis")]
    for place in places:
        if _integer(place) in DIMENSIONS:
            yield "swapped axis", place, str(DIMENSIONS[_integer(place)])
    for keyword in node.keywords:
        if keyword.arg and keyword.arg not in {"dim", "axis", *GUARDS, *required.get(name, ())}:
            rest = [k for k in node.keywords if k is not keyword]
            yield "dropped setting", node, ast.unparse(ast.Call(node.func, node.args, rest))


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def _text(node: ast.expr) -> bool:
    return isinstance(node, TEXTS) or isinstance(getattr(node, "value", None), str)


def _is_path(node: ast.expr) -> bool:
    text = ast.unparse(node).lower()
    return any(word in text for word in ("folder", "path", "_run"))
