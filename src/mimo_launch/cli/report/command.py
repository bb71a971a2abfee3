"""`mimo-launch report`: curves of one or several runs in one file.

Decides: the format of the file by its suffix, the names of runs, and the exit code.
Relies on: `train.history` to read runs; the other files of this folder to show them.
Leaves: live metrics of a run to `train`, TensorBoard and Weights & Biases.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mimo_launch.cli.shared.console import Console, console_of

HELP = """
\b
Examples:
  mimo-launch report runs/quickstart
  mimo-launch report runs/small runs/large --smooth 20 -o compared.html
  mimo-launch report runs/quickstart -o loss.png

Draw loss, gradient norms, learning rates and throughput of runs, which may still be running. The
suffix of the file sets its format: .html (with tables of the runs and of the settings that differ;
nothing is fetched to show it), .png or .svg. Needs matplotlib. Exits with 0, with 2 when a run
cannot be read, or with 1 when the file cannot be written.
"""

SUFFIXES = (".html", ".png", ".svg")
REQUIREMENT = "matplotlib>=3.8"  # As in the extra `report` of pyproject.toml.


def report(
    ctx: typer.Context,
    *,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or their metrics.jsonl.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File; default: report.html in the first run's folder.",
        ),
    ] = None,
    smooth: Annotated[
        int, typer.Option(min=1, metavar="N", help="Average over the last N steps.")
    ] = 1,
) -> None:
    """Draw the curves of runs, as HTML, PNG or SVG."""
    from mimo_launch.checks.packages import is_installed
    from mimo_launch.cli.report.figure import color_of, draw_panels, draw_png, draw_svg
    from mimo_launch.cli.report.page import page
    from mimo_launch.train.history import NoHistory, read_history

    console = console_of(ctx)
    if output is not None and output.suffix.lower() not in SUFFIXES:
        message = f"{output} ends in none of {', '.join(SUFFIXES)}"
        raise typer.BadParameter(message, param_hint="--output")
    if not is_installed("matplotlib"):
        _refuse(console, "matplotlib, which draws reports, is not installed", _INSTALL)
    try:
        found = [read_history(path) for path in runs]
    except NoHistory as error:
        _refuse(console, str(error), error.help)
    histories = list({each.file.resolve(): each for each in found}.values())
    # Runs whose folders have the same name get their whole paths as names.
    names = [each.name for each in histories]
    histories = [
        replace(each, name=str(each.run)) if names.count(each.name) > 1 else each
        for each in histories
    ]
    for each in histories:
        if each.num_other_lines:
            lines = f"{each.num_other_lines} line" + "s" * (each.num_other_lines != 1)
            console.note(f"warning: {each.file}: left out {lines}, no record of a step")
    target = output or histories[0].run / "report.html"
    try:
        if target.suffix.lower() == ".png":
            content = draw_png(histories, smooth)
        elif target.suffix.lower() == ".svg":
            content = draw_svg(histories, smooth).encode()
        else:
            colors = [color_of(number) for number in range(len(histories))]
            content = page(histories, draw_panels(histories, smooth), colors).encode()
        target.write_bytes(content)
    except OSError as error:
        console.note(f"error: cannot write {target}: {error.strerror or error}")
        console.note("   = help: give --output a file in a folder that exists and is yours")
        raise typer.Exit(1) from None
    console.answer(f"wrote {target}")


_INSTALL = f"pip install '{REQUIREMENT}'"


def _refuse(console: Console, message: str, help_: str) -> NoReturn:
    console.note(f"error: {message}")
    console.note(f"   = help: {help_}")
    raise typer.Exit(2)
