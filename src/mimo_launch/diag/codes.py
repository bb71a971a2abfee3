"""Reads the code of each finding from its Markdown page in `pages/`.

Decides: the form of a page, which `mimo-launch explain` prints and the docs show.
Relies on: the pages next to this file, which are part of the package.
Leaves: headlines with values to the checks.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# The code; error or warning, and what is wrong; why; a fragment with the fault, and one without.
_FORM = re.compile(
    r"# (?P<name>[a-z0-9-]+)\n\n"
    r"\*(?P<severity>error|warning)\* - (?P<summary>[^\n]+)\n\n"
    r"(\S[^\n]*\n)+\n"
    r"Wrong:\n\n(    [^\n]+\n)+\n"
    r"Right:\n\n(    [^\n]+\n)+"
)


@dataclass(frozen=True, slots=True)
class Code:
    """A code, and the page that explains it.

    Attributes:
        name: Names the wrong pattern.
        is_warning: Whether a command continues in spite of it.
        summary: One sentence that says what is wrong.
        page: The whole page, as Markdown that reads well as plain text.
    """

    name: str
    is_warning: bool
    summary: str
    page: str


@cache
def all_codes() -> dict[str, Code]:
    """Return every code under its name, in alphabetical order."""
    pages = files("mimo_launch.diag") / "pages"
    names = {page.name.removesuffix(".md") for page in pages.iterdir()} - {"index"}
    codes = {}
    for name in sorted(names):
        page = (pages / f"{name}.md").read_text(encoding="utf-8")
        found = _FORM.fullmatch(page)
        if found is None or found["name"] != name:
            raise ValueError(f"diag/pages/{name}.md does not have the form of the other pages")
        codes[name] = Code(name, found["severity"] == "warning", found["summary"], page)
    return codes
