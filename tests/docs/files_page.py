"""The page that lists every source file: `python -m tests.docs.files_page` writes it anew."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "mimo_launch"
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Every file

What each file is for, in the words at its top. Rooms are in the order of the
[tour](tour.md): each imports only those above it.
"""


def rooms() -> list[str]:
    """Return the rooms, the lowest first, as the import contract has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for line in reversed(layers) for name in line.split("|")]
    folders = [name.removeprefix("mimo_launch.") for name in names]
    return [name for name in folders if (SOURCES / name).is_dir()]


def first_line(file: Path) -> str:
    """Return the first line of the docstring of a file."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for room in rooms():
        lines = [f"## {room}\n", f"{first_line(SOURCES / room / '__init__.py')}\n"]
        lines += ["| file | what it is for |", "| --- | --- |"]
        for file in sorted((SOURCES / room).rglob("*.py")):
            if file.name != "__init__.py":
                name = file.relative_to(SOURCES / room).as_posix()
                lines.append(f"| `{name}` | {first_line(file)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
