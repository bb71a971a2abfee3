"""The page of each code: what `mimo-launch explain` prints and `docs/errors` holds.

Decides: the form of a page. Run `python -m mimo_launch.diag.pages docs/errors` to write them all.
Relies on: the table of codes.
Leaves: linking the pages to the docs configuration.
"""

import sys
import textwrap
from pathlib import Path

from mimo_launch.diag.code import Code
from mimo_launch.diag.codes import CODES


def page(code: Code) -> str:
    """Return the page of one code as Markdown that reads well as plain text, too."""
    severity = "warning" if code.is_warning else "error"
    return "\n".join(
        [
            f"# {code.name}",
            "",
            f"*{severity}* - {code.summary}",
            "",
            textwrap.fill(code.explanation, 96, break_on_hyphens=False, break_long_words=False),
            "",
            "Wrong:",
            "",
            *_fragment(code.example),
            "",
            "Right:",
            "",
            *_fragment(code.instead),
            "",
        ]
    )


def index() -> str:
    """Return the page that lists every code."""
    rows = [
        f"| [{code.name}]({code.name}.md) | {'warning' if code.is_warning else 'error'} "
        f"| {code.summary} |"
        for code in sorted(CODES.values(), key=lambda code: code.name)
    ]
    head = ["# Codes", "", "Every finding of `mimo-launch validate` has one of these codes.", ""]
    return "\n".join([*head, "| code | kind | what |", "| --- | --- | --- |", *rows, ""])


def all_pages() -> dict[str, str]:
    """Return every file of the folder: name -> text."""
    pages = {f"{name}.md": page(code) for name, code in CODES.items()}
    return {"index.md": index(), **pages}


def _fragment(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in all_pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
