"""The files that `plan --timeline` and `plan --trace` write.

Decides: when they are written (before the answer, so that a failure prints none) and what is said.
Relies on: `plan.svg` and `plan.trace` for the content.
Leaves: nothing.
"""

from pathlib import Path

import typer

from mimo_launch.cli.console import Console
from mimo_launch.plan.report import build_timeline
from mimo_launch.plan.rows import Header
from mimo_launch.spec.model import Spec

EXIT_UNWRITABLE = 1


def check_targets(spec_file: Path, svg: Path | None, trace: Path | None) -> None:
    """Refuse, before anything is read, to write over the spec or one file over the other.

    Raises: typer.BadParameter.
    """
    taken = {spec_file.resolve(): "the spec"}
    for path, option in ((svg, "--timeline"), (trace, "--trace")):
        if path is None:
            continue
        if path.resolve() in taken:
            message = f"{path} would be written over {taken[path.resolve()]}"
            raise typer.BadParameter(message, param_hint=option)
        taken[path.resolve()] = f"the file of {option}"


def write_drawings(
    spec: Spec,
    header: Header,
    console: Console,
    *,
    rank: int | None,
    svg: Path | None,
    trace: Path | None,
) -> None:
    """Write what was asked for, and say where.

    Raises: typer.Exit if a file cannot be written.
    """
    timeline = build_timeline(spec)
    if svg is not None:
        from mimo_launch.plan.svg import render_svg

        text = render_svg(timeline, name=header.name, plan_hash=header.plan_hash, rank=rank)
        _write(svg, text, "--timeline", console)
    if trace is not None:
        from mimo_launch.plan.trace import render_trace

        text = render_trace(timeline, name=header.name, rank=rank)
        _write(trace, text, "--trace", console)


def _write(path: Path, text: str, option: str, console: Console) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        console.note(f"error: cannot write {path}: {error.strerror or error}")
        console.note(f"   = help: give {option} a file in a folder that exists and is yours")
        raise typer.Exit(EXIT_UNWRITABLE) from None
    console.note(f"wrote {path}")
