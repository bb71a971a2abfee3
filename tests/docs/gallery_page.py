"""The page that shows every topology, its pictures, and those of the start page.

`python -m tests.docs.gallery_page` writes them anew.
"""

import re
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.files_page import ROOT

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.app import run
from mimo_launch.drawing.spans import planned
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.timeline import grid_lines, timeline_rows
from mimo_launch.layout.layout import Layout
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.base import LANGUAGE

TOPOLOGIES = ROOT / "topologies"
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "img" / "gallery"
START, START_PICTURES = ROOT / "docs" / "index.md", ROOT / "docs" / "img" / "start"
WIDTH = 78
# Pictures are for steps that are seen at a glance; a larger one has lines of text alone.
MAX_PICTURE = 20_000
HEAD = """# Gallery

Every spec in `topologies/`, with its step as `mimo-launch plan --full` draws it. Ranks that do the
same are one line. A column is the time of one forward or backward of a microbatch; transfers take
none. `F0` is the forward of microbatch 0 in `language`, `B0` its backward, `vF0` the forward in
`vision`; `.` waits, `---` goes on. Small ones have the picture of `mimo-launch plan --model-units
--timeline FILE.svg`, too. Each of them trains on CPUs:

```console
mimo-launch train topologies/mixed_placement.yaml
```
"""
SHARED, OWN, MIXED = "All modules on the same ranks", "Each module on its own ranks", "Mixed"


def placement(layout: Layout) -> str:
    """Return the heading that a topology belongs under."""
    held = [set(module.grid.ranks) for module in layout.modules]
    if all(ranks == held[0] for ranks in held):
        return SHARED
    return OWN if sum(map(len, held)) == len(set().union(*held)) else MIXED


def entry(file: Path) -> tuple[str, str, str]:
    """Return a topology's heading, its part of the page, and its picture, if that is small."""
    text = file.read_text(encoding="utf-8")
    checked = check_text(text, str(file))
    if checked.spec is None:
        raise ValueError(f"{file.name} does not validate: {checked.diagnostics}")
    plan = Plan.of(checked.spec)
    rows = timeline_rows(plan.layout, plan.simulation)
    names = [name for name in checked.spec.modules if name != LANGUAGE]
    comment = takewhile(lambda line: line.startswith("# "), text.splitlines())
    words = "  \n".join(line.removeprefix("# ") for line in comment if "$schema" not in line)
    # The last line says what the head of the page says.
    picture = grid_lines(rows, names, plan.simulation.makespan, WIDTH)[:-1]
    svg = render_svg(planned(plan), name=checked.spec.name, plan_hash=plan.identity)
    svg = svg if len(svg) <= MAX_PICTURE else ""
    image = [f"![The step of {file.stem}](img/gallery/{file.stem}.svg)", ""] * bool(svg)
    shown = "\n".join([f"### {file.stem}", "", words, "", *image, "```text", *picture, "```", ""])
    return placement(plan.layout), shown, svg


def page() -> tuple[str, dict[str, str]]:
    """Return the text of the page, and its pictures by the names of their files."""
    files = sorted(TOPOLOGIES.glob("*.yaml"))
    entries = [entry(file) for file in files]
    parts = [HEAD]
    for heading in (SHARED, OWN, MIXED):
        parts += [f"## {heading}\n", *(text for under, text, _ in entries if under == heading)]
    drawn = zip(files, entries, strict=True)
    return "\n".join(parts), {f"{file.stem}.svg": made[2] for file, made in drawn if made[2]}


def start_pictures() -> dict[str, str]:
    """Return the steps of the start page by their files: of its spec, and with the first advice."""
    spec = re.search(r'title="first.yaml"\n(.*?)^```', START.read_text(), re.DOTALL | re.MULTILINE)
    if spec is None:
        raise ValueError(f"{START} has no spec first.yaml")
    with TemporaryDirectory() as name:
        first, second = Path(name, "first.yaml"), Path(name, "second.yaml")
        first.write_text(spec[1], encoding="utf-8")
        for file, options in ((first, ["--apply", "1", "-o", str(second)]), (second, [])):
            run(["plan", str(file), "--timeline", str(file.with_suffix(".svg")), *options])
        return {path.name: path.read_text() for path in sorted(Path(name).glob("*.svg"))}


if __name__ == "__main__":
    text, pictures = page()
    PAGE.write_text(text, encoding="utf-8")
    for old in PICTURES.glob("*.svg"):
        old.unlink()
    for folder, drawn in ((PICTURES, pictures), (START_PICTURES, start_pictures())):
        folder.mkdir(exist_ok=True)
        for name, svg in drawn.items():
            (folder / name).write_text(svg, encoding="utf-8")
