"""Checks that what a spec uses is installed: optional packages, and the classes of custom models.

Decides: which setting needs which package; that a run does not start if it cannot log as the spec
says; what `validate` and `plan` learn about a class without importing it: where the files of its
package are, and which names its source defines.
Relies on: Python's finders, which find a package without importing it; for classes, the current
folder comes first, as with `python -m`.
Leaves: whether a package works to the run; importing a class, and whether it builds stages, to
`models.custom_stages`.
"""

import ast
import os
import re
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.diag.installed import (
    AUDIO_PACKAGES,
    BITSANDBYTES,
    ENGINE,
    MLFLOW,
    SHARD_PACKAGES,
    TENSORBOARD,
    TRANSFORMER_ENGINE,
    TRANSFORMERS,
    WANDB,
    is_installed,
)
from mimo_launch.diag.users_code import find_module
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import CustomData, CustomModel, Spec, UserData


def log_packages_installed(spec: Spec) -> Findings:
    """TensorBoard, Weights & Biases and MLflow are optional packages."""
    if spec.log.tensorboard and not is_installed("tensorboard"):
        yield _missing("tensorboard", "TensorBoard event files", TENSORBOARD, "false")
    if spec.log.wandb is not None and not is_installed("wandb"):
        yield _missing("wandb", "reports to Weights & Biases", WANDB, "null")
    if spec.log.mlflow is not None and not is_installed("mlflow"):
        yield _missing("mlflow", "reports to MLflow", MLFLOW, "null")


def _missing(key: str, what: str, requirement: str, off: str) -> Diagnostic:
    return not_installed(
        requirement,
        ("log", key),
        f"`log.{key}` asks for {what}, which this package writes",
        f", or leave it out with --set log.{key}={off}",
    )


def not_installed(requirement: str, path: YamlPath, why: str, instead: str = "") -> Diagnostic:
    """Return the finding that a package is missing; `instead` follows the command for pip."""
    package = re.split(r"[\[>]", requirement)[0]
    return Diagnostic(
        code="missing-package",
        headline=f"`{package}` is not installed",
        path=path,
        why=why,
        help=f"pip install '{requirement}'{instead}",
    )


def shard_packages_installed(spec: Spec, data: UserData) -> Findings:
    """Decoders and tokenizers are optional packages."""
    hears = any(kind_of(module.model).clips is not None for module in spec.modules.values())
    wanted = SHARD_PACKAGES | (AUDIO_PACKAGES if hears else {})
    if data.processor == "transformers":
        wanted = wanted | {"transformers": TRANSFORMERS}
    missing = [needed for name, needed in wanted.items() if not is_installed(name)]
    if missing:
        yield Diagnostic(
            code="missing-package",
            headline=f"`{missing[0].partition('>')[0]}` is not installed",
            path=("data", "kind"),
            why="shards are read with it",
            help="pip install " + " ".join(f"'{each}'" for each in missing),
        )


def backends_are_here(spec: Spec) -> Iterator[Diagnostic]:
    """Every backend is installed on the host that uses it, and so are the kernels of NF4."""
    for name, module in spec.modules.items():
        base = module.quantize_base
        if base is not None and base.kind == "nf4" and not is_installed("bitsandbytes"):
            yield not_installed(
                BITSANDBYTES,
                ("modules", name, "quantize_base"),
                f"`kind: nf4` of `{name}` uses its numbers and kernels",
                f", or use 8 bits with --set modules.{name}.quantize_base.kind=int8",
            )
        if module.backend == ENGINE and not is_installed(ENGINE):
            yield not_installed(
                TRANSFORMER_ENGINE,
                ("modules", name, "backend"),
                f"`{name}` takes its layers from it",
                f", or use torch's layers with {torchs_layers(spec, name)}",
            )


def torchs_layers(spec: Spec, name: str) -> str:
    """Return the command-line options that give a module torch's layers."""
    eight_bits = "" if spec.modules[name].fp8 is None else f" --set modules.{name}.fp8=null"
    return f"--set modules.{name}.backend=torch{eight_bits}"


def class_is_there(spec: Spec, name: str, model: CustomModel) -> Findings:
    """The Python module of a class can be found, and defines the class."""
    yield from named_is_there(("modules", name, "model", "kind"), f"`{name}`: ", model.kind)


def data_class_is_there(spec: Spec, data: CustomData) -> Findings:
    """The Python module of a data set can be found, and defines its class."""
    yield from named_is_there(("data", "kind"), "", data.kind)


def named_is_there(at: YamlPath, before: str, kind: str) -> Findings:
    """The Python module that a `kind` names can be found, and defines the class or function.

    Headlines begin with `before`.
    """
    module, _, wanted = kind.partition(":")
    parts = module.split(".")
    found: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        found = find_module(path, found)
        if found is None:
            yield _not_found(
                at,
                f"{before}there is no module `{path}`",
                f"it was looked for in {os.getcwd()} and where this Python finds packages",
                "run the command in the folder that holds it, or install the package",
            )
            return
    names = None if found is None else _names(found)
    if found is not None and names is not None and wanted not in names:
        shown = sorted(each for each in names if not each.startswith("_"))
        listed = ", ".join(f"`{each}`" for each in shown[:8]) + (", ..." if len(shown) > 8 else "")
        yield _not_found(
            at,
            f"{before}`{module}` defines no `{wanted}`",
            f"its source is {found.origin}",
            did_you_mean(wanted, names, f"{module}:") or f"the names there are {listed}",
        )


def _names(module: ModuleSpec) -> set[str] | None:
    """Return the names that a module's source defines; None if only an import would show them."""
    if module.origin is None or not module.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(module.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # The import will report the error, better than this could.
    names: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        else:
            names.update(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
    return None if {"*", "__getattr__", "globals"} & names else names


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under `if`, `try` and `with`."""
    for node in body:
        inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
        inner += [handler.body for handler in getattr(node, "handlers", [])]
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in inner:
                yield from _statements(part)
        else:
            yield node


def _not_found(path: YamlPath, headline: str, why: str, help_: str) -> Diagnostic:
    return Diagnostic(
        code="class-not-found",
        headline=headline,
        path=path,
        why=why,
        help=help_,
    )
