"""A family of Hugging Face models is a declaration: short enough to be read at once."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from mimo_launch.hugging_face import families
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES

# Lines of a file for each architecture that it declares.
MOST = 200
FILES = [each.name for each in iter_modules(families.__path__, f"{families.__name__}.")]
ALL: dict[str, Any] = {**FAMILIES, **WHOLES}


@pytest.mark.parametrize("name", FILES)
def test_a_family_is_short(name: str) -> None:
    module = import_module(name)
    lines = len(Path(str(module.__file__)).read_text(encoding="utf-8").splitlines())
    declared = sum(any(value is each for each in ALL.values()) for value in vars(module).values())
    assert 0 < lines <= MOST * declared, (
        "leave to the family what it says, and share how it is read"
    )


def test_a_file_is_found_without_a_list() -> None:
    assert {f"{families.__name__}.{name}" for name in ("llama", "nemotron_h", "whisper")} <= {
        *FILES
    }
    assert {"llama", "nemotron_h", "voxtral", "glm46v", "siglip"} <= ALL.keys()


def test_settings_are_read_as_they_were_written() -> None:
    """No entry of a table writes what another one reads otherwise."""
    for family in FAMILIES.values():
        written = [key for each in family.settings.table.values() for key in named(each)]
        assert len({*written}) == len(written), family.model_type


def named(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [entry[0]] if isinstance(entry, tuple) else []
