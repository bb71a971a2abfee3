"""What `sample` shows while it runs and at its end.

Decides: only the places of the files go to stdout; a bar is drawn only on a terminal.
Relies on: events of `train.samples`.
Leaves: starting to `command`.
"""

from mimo_launch.cli.shared.bars import CountScreen
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.lines import other_lines
from mimo_launch.train.events import Event, SamplesWritten


class SampleScreen(CountScreen):
    """Listener that draws a bar of `total` samples, then says what was written.

    With `plain` it draws no bar.
    """

    def __init__(self, console: Console, plain: bool, *, total: int) -> None:
        super().__init__(console, plain, what="samples", total=total)
        self._total = total

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
                self._count(min(event.samples, self._total))
            case _:
                for line in other_lines(event):
                    self._console.note(line)
