"""Prepares work on a spec for several commands: shows findings, imports classes, indexes shards.

Decides: that messages go to stderr, and their words; that the index of shards exists before any
process group does, so that no rank waits for the index inside a group.
Relies on: `diag.text` for findings; `launcher.forking`, which imports custom classes in a child
process; the simulator's list of stuck ranks; `data.index`, where one process of a host
makes the index and others wait.
Leaves: other consequences to the commands, reading samples to the workers.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.shared.console import Console, terminal_width

if TYPE_CHECKING:
    from mimo_launch.checks.load_and_check import Checked
    from mimo_launch.data.index.open_index import IndexProgress, Say
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.schedule.deadlock_proof import DeadlockError
    from mimo_launch.spec.spec import Spec


def show_findings(checked: "Checked", console: Console) -> None:
    """Write errors and warnings of a spec, if any, to stderr."""
    from mimo_launch.diag.text import render

    if checked.diagnostics:
        color, width = console.colors(sys.stderr), terminal_width(sys.stderr)
        text = render(checked.diagnostics, checked.source, color=color, width=width)
        console.note(text, painted=color)


def sound_spec(file: Path, overrides: Sequence[str] | None, console: Console) -> "Spec":
    """Return the spec of a file, for work without GPUs, and show its findings.

    Raises: typer.Exit if there are errors.
    """
    from mimo_launch.checks.load_and_check import load_and_check

    checked = load_and_check(file, overrides or (), on_gpus=False)
    show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    return checked.spec


def custom_classes_fail(
    spec: "Spec", console: Console, stop: "StopRequest | None" = None
) -> int | None:
    """If a class that the spec names cannot be used, say why and return the exit code.

    Raises: Interrupted.
    """
    from mimo_launch.launcher.forking import custom_class_fault

    fault = custom_class_fault(spec, stop)
    if not fault:
        return None
    console.note(f"error: {fault}")
    return 2


SHOWN = 8


def show_deadlock(error: "DeadlockError", file: Path, console: Console) -> None:
    """Write to stderr which ranks are stuck, and in which actions."""
    stuck = error.stuck
    console.note(f"error: the schedule of {file} does not end: {len(stuck)} ranks wait for others")
    for number, line in enumerate(stuck[:SHOWN]):
        console.note(f"   {'= said:' if number == 0 else '       '} {line}")
    if len(stuck) > SHOWN:
        console.note(f"           and {len(stuck) - SHOWN} more")
    console.note("   = why:  the simulator ran every rank's actions; training would hang there")
    console.note("   = help: this is a bug in mimo-launch, not in your spec; please open an issue")


def ready_shards(spec: "Spec", console: Console, *, speaks: bool) -> None:
    """Make the indexes of a spec's shards if they are missing or out of date.

    Do nothing for other kinds of data. With `speaks`, report what was found and left out.

    Raises: typer.Exit if there is nothing to train on, or an index cannot be made.
    """
    from mimo_launch.spec.spec import UserData

    if not isinstance(spec.data, UserData):
        return
    from mimo_launch.data.expected_steps import look_again
    from mimo_launch.data.index.split_report import summary_of
    from mimo_launch.data.samples.template_program import TemplateRefused
    from mimo_launch.data.shard_samples import ShardSamples
    from mimo_launch.data.sources.fetching import SourceGone

    try:
        with ExitStack() as stack:
            say = _progress(console, stack) if speaks else lambda progress: None
            found = ShardSamples(spec, spec.data, say)
    except (OSError, ValueError, SourceGone) as error:
        if speaks:
            whose = f"the chat template in {spec.data.tokenizer} cannot be used: "
            console.note(f"error: {whose if isinstance(error, TemplateRefused) else ''}{error}")
        raise typer.Exit(1) from error
    look_again()
    if speaks:
        for note in found.notes:
            console.note(f"warning: {note}")
        for split in found.splits.values():
            console.note(f"data: {summary_of(split)}")


def _progress(console: Console, stack: ExitStack) -> "Say":
    """Return a function that shows progress: as a bar on a terminal, else as a line per split."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from mimo_launch.cli.shared.bars import Bars, rich_on
    from mimo_launch.diag.quantities import counted

    rich = rich_on(sys.stderr, console)
    shown: set[tuple[str, str]] = set()

    def tell(progress: "IndexProgress") -> None:
        if (progress.split, progress.why) not in shown:
            shown.add((progress.split, progress.why))
            shards = counted(progress.shards, "shard")
            console.note(f"data: indexing {shards} ({progress.split}): {progress.why}")

    if not rich.is_terminal:
        return tell
    bar = Bar(
        TextColumn("shards"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[samples]:,} samples, {task.fields[bad]:,} bad"),
        TimeRemainingColumn(),
        console=rich,
    )
    stack.enter_context(Bars(bar, rich, console, transient=True))
    task = bar.add_task("shards", total=None, samples=0, bad=0)

    def draw(progress: "IndexProgress") -> None:
        tell(progress)
        done, shards = progress.done, progress.shards
        bar.update(task, total=shards, completed=done, samples=progress.samples, bad=progress.bad)

    return draw
