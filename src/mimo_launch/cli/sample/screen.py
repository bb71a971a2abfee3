"""What `sample` shows while it runs and at its end.

Decides: only the places of the files go to stdout; a bar is drawn only on a terminal.
Relies on: events of `train.samples`.
Leaves: starting to `command`.
"""

import sys
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mimo_launch.cli.shared.bars import Bars, rich_on
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.lines import other_lines
from mimo_launch.train.events import Event, SamplesWritten


class SampleScreen:
    """Listener that draws a bar of `total` samples, then says what was written.

    With `plain` it draws no bar.
    """

    def __init__(self, console: Console, plain: bool, *, total: int) -> None:
        self._console, self._total = console, total
        terminal = rich_on(sys.stderr, console)
        self._draws = terminal.is_terminal and not plain
        columns = TextColumn("samples"), BarColumn(), MofNCompleteColumn()
        self._bar = Progress(*columns, console=terminal)
        self._bars = Bars(self._bar, terminal, console, transient=True)
        self._task = self._bar.add_task("samples", total=total)

    def __enter__(self) -> "SampleScreen":
        if self._draws:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case SamplesWritten(is_last=True):
                self._bars.stop()
                self._console.answer(
                    f"wrote {event.samples} samples to {event.folder}: "
                    + ", ".join(["samples.jsonl", *event.sheets])
                )
            case SamplesWritten():
                self._bar.update(self._task, completed=min(event.samples, self._total))
            case _:
                for line in other_lines(event):
                    self._console.note(line)
