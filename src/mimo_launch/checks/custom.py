"""Checks that the class of a custom encoder exists.

Decides: what `validate` and `plan` learn about a package without importing it: where its files are,
and which names its source defines.
Relies on: Python's finders of files, with the current folder first, like `python -m`.
Leaves: importing the class, and whether it builds stages, to `models.custom_stages`.
"""

import ast
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.spec.spec import CustomModel, Spec
from mimo_launch.spec.wording import did_you_mean


def class_is_there(spec: Spec, name: str, model: CustomModel) -> Findings:
    """The module of a class can be found, and defines it."""
    module, _, wanted = model.kind.partition(":")
    parts = module.split(".")
    found: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        found = _find(path, found)
        if found is None:
            yield _not_found(
                name,
                f"there is no module `{path}`",
                f"it was looked for in {os.getcwd()} and where this Python finds packages",
                "run the command in the folder that holds it, or install the package",
            )
            return
    names = None if found is None else _names(found)
    if found is not None and names is not None and wanted not in names:
        shown = sorted(each for each in names if not each.startswith("_"))
        listed = ", ".join(f"`{each}`" for each in shown[:8]) + (", ..." if len(shown) > 8 else "")
        yield _not_found(
            name,
            f"`{module}` defines no `{wanted}`",
            f"its source is {found.origin}",
            did_you_mean(wanted, names) or f"the names there are {listed}",
        )


def _find(module: str, package: ModuleSpec | None) -> ModuleSpec | None:
    """Return the location of a module, inside its package if it has one.

    `importlib.util.find_spec` would import that package. A package later on the path is preferred
    to a folder without `__init__.py`.
    """
    folders = [os.getcwd(), *sys.path] if package is None else package.submodule_search_locations
    portions: list[str] = []
    for importer in map(pkgutil.get_importer, folders or []):
        found = importer.find_spec(module) if importer is not None else None
        if found is not None and found.loader is not None:
            return found
        portions += found.submodule_search_locations or [] if found is not None else []
    if package is None:
        # Other finders know built-in modules, and packages installed in editable mode.
        others = (finder.find_spec(module, None) for finder in sys.meta_path)
        known = next((found for found in others if found is not None and found.loader), None)
        if known is not None:
            return known
    if not portions:
        return None
    folder = ModuleSpec(module, None, is_package=True)
    folder.submodule_search_locations = portions
    return folder


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


def _not_found(name: str, headline: str, why: str, help_: str) -> Diagnostic:
    return Diagnostic(
        code="class-not-found",
        headline=f"`{name}`: {headline}",
        path=("modules", name, "model", "kind"),
        why=why,
        help=help_,
    )
