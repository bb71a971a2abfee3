"""Makes the index of shards before any worker starts, and reports on it.

Decides: that the index exists before any process group does, so that no rank waits for it in one.
Relies on: `data.webdataset.index`, where one process of a host makes the index and others wait.
Leaves: reading samples to the workers.
"""

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.shared.console import Console

if TYPE_CHECKING:
    from mimo_launch.data.webdataset.index import IndexProgress, Say
    from mimo_launch.spec.spec import Spec


def ready_shards(spec: "Spec", console: Console, *, speaks: bool) -> None:
    """Make the indexes of a spec's shards where they are missing or out of date.

    Does nothing for other kinds of data. With `speaks`, reports what was found and left out.

    Raises: typer.Exit if there is nothing to train on, or an index cannot be made.
    """
    from mimo_launch.spec.spec import WebdatasetData

    if not isinstance(spec.data, WebdatasetData):
        return
    from mimo_launch.data.webdataset.samples import ShardSamples

    try:
        with ExitStack() as stack:
            say = _progress(console, stack) if speaks else lambda progress: None
            found = ShardSamples(spec, spec.data, say)
    except (OSError, ValueError) as error:
        if speaks:
            console.note(f"error: {error}")
        raise typer.Exit(1) from error
    if speaks:
        for note in found.notes:
            console.note(f"warning: {note}")
        for split in found.splits.values():
            console.note(f"data: {split.summary()}")


def _progress(console: Console, stack: ExitStack) -> "Say":
    """Return a function that shows progress: as a bar on a terminal, else a line per split."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from mimo_launch.cli.shared.bars import Bars, rich_on

    rich = rich_on(sys.stderr, console)
    told: set[tuple[str, str]] = set()

    def tell(progress: "IndexProgress") -> None:
        if (progress.split, progress.why) not in told:
            told.add((progress.split, progress.why))
            shards = f"{progress.shards:,} shard{'s' * (progress.shards != 1)}"
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
