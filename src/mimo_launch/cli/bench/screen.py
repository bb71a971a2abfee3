"""What a bench shows while it runs and at its end.

Decides: only the answer goes to stdout, as tables or JSON; a bar is drawn only on a terminal.
Relies on: events of `train`, which a bench emits, too.
Leaves: the tables to `tables`.
"""

import json
import shutil
from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.console import RenderableType

from mimo_launch.cli.bench.tables import Earlier, Record, compared, constants_table, tables
from mimo_launch.cli.shared.bars import CountScreen
from mimo_launch.cli.shared.console import Console, run_output
from mimo_launch.cli.shared.lines import other_lines
from mimo_launch.train.events import BenchFinished, CalibrationFinished, Event, StepFinished

# Wide enough for the tables where there is no terminal.
WIDTH_WITHOUT_TERMINAL = 100


class BenchScreen(CountScreen):
    """Listener that draws a bar of `steps` steps, then the result, compared with `old` if given.

    With `plain` it draws no bar.
    """

    def __init__(
        self, console: Console, plain: bool, *, steps: int, as_json: bool, old: Earlier | None
    ) -> None:
        super().__init__(console, plain, what="step", total=steps)
        self._as_json, self._old = as_json, old

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case StepFinished():
                self._count(event.step)
            case BenchFinished():
                self._bars.stop()
                self._answer(event.record)
            case CalibrationFinished():
                self._bars.stop()
                wrote = [] if event.file is None else [f"wrote {event.file}"]
                self._print([constants_table(event), *wrote])
            case _:
                for line in other_lines(event):
                    self._console.note(line)

    def _answer(self, record: Record) -> None:
        if self._old is not None:
            record = {**record, "compared": compared(record, self._old)}
        if self._as_json:
            self._console.answer(json.dumps(record, indent=1))
        else:
            self._print(tables(record))

    def _print(self, parts: Iterable[RenderableType]) -> None:
        output = run_output()
        width = shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns
        colors = self._console.colors(output)
        rich = RichConsole(file=output, width=width, no_color=not colors)
        for part in parts:
            rich.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
