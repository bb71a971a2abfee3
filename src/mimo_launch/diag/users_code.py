"""A user's classes and functions, named `package.module:Name`: finding and importing them.

Decides: that the current folder comes first, as with `python -m`; the words for an error in a
user's code, with its file and line.
Relies on: Python's finders, which find a module without importing it.
Leaves: what is called, and what it must return, to `models` and `data`.
"""

import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any


class CustomClassError(ValueError):
    """A user's class cannot be imported, or does not build or return what it should."""

    restartable = False


def find_module(module: str, package: ModuleSpec | None) -> ModuleSpec | None:
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


def file_of(kind: str) -> Path:
    """Return the file that defines a class, without importing it; the module if none does."""
    module, _, _ = kind.partition(":")
    parts, found = module.split("."), None
    for depth in range(1, len(parts) + 1):
        found = find_module(".".join(parts[:depth]), found)
        if found is None:
            break
    return Path(found.origin if found is not None and found.origin else module)


def import_named(kind: str, where: str) -> Callable[..., Any]:
    """Return the class or function that a spec names; `where` begins the message of an error.

    Raises: CustomClassError.
    """
    path, _, attribute = kind.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(path), attribute, None)
    except Exception as error:
        raise CustomClassError(f"{where} importing `{path}` {failed(error)}") from error
    if not callable(found):
        raise CustomClassError(f"{where} `{path}` has no class or function `{attribute}`")
    return found  # type: ignore[no-any-return]


def failed(error: Exception) -> str:
    """Return the error and its place, preferring a line of the user's code to library code.

    A call with wrong arguments fails in a line of ours, which would mislead: it has no place.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.dirname(__file__))
    libraries = ("<", sys.prefix, sys.base_prefix)
    others = [frame for frame in frames if not frame.filename.startswith(ours)]
    own = [frame for frame in others if not frame.filename.startswith(libraries)]
    own = own or [frame for frame in frames[-1:] if frame in others]
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) or not own:
        return f"failed: {text}"
    return f"failed in {own[-1].filename}, line {own[-1].lineno}: {text}"


def named_place(named: Any) -> str:
    """Return the name of a class or function, with the file and line that define it."""
    name = getattr(named, "__qualname__", type(named).__qualname__)
    try:
        file, (_, line) = inspect.getsourcefile(named), inspect.getsourcelines(named)
    except (TypeError, OSError):
        return f"`{name}`"
    return f"`{name}` ({file}, line {max(1, line)})"
