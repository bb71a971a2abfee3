"""A family of Hugging Face models is a declaration: short enough to be read at once."""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from mimo_launch.hugging_face import registry

MOST = 150
ROOM = "mimo_launch.hugging_face"


def families() -> list[ModuleType]:
    """Return the modules of which the registry takes families or whole models."""
    tree = ast.parse(inspect.getsource(registry))
    imported = [
        name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == ROOM
        for name in node.names
    ]
    # In its lists, not in its functions.
    used = {
        each.value.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
    }
    return [import_module(f"{ROOM}.{name}") for name in imported if name in used]


@pytest.mark.parametrize("module", families(), ids=lambda module: module.__name__)
def test_a_family_is_short(module: ModuleType) -> None:
    lines = len(Path(str(module.__file__)).read_text(encoding="utf-8").splitlines())
    assert lines <= MOST, "leave to the family what it says, and share how it is read"


def test_every_family_is_of_such_a_module() -> None:
    names = {module.__name__ for module in families()}
    assert {f"{ROOM}.{name}" for name in ("decoder", "nemotron_h", "vit", "llava")} <= names
    assert f"{ROOM}.quantized" not in names
