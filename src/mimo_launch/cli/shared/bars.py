"""Progress bars at the bottom of a terminal while a command works.

Decides: stdout and stderr are not redirected, since forked workers, and a file as stderr, would get
the drawing; output of the console in the meantime appears above the bar.
Relies on: Rich.
Leaves: the content to its users.
"""

import sys
from types import TracebackType
from typing import IO, Self

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from mimo_launch.cli.shared.console import Console


def rich_on(stream: IO[str], console: Console) -> RichConsole:
    """Return a Rich console for a stream, in colour if the command colours it."""
    return RichConsole(file=stream, no_color=not console.colors(stream))


class Bars(Live):
    """Draws `what` on `rich` until exit; terminal output of `console` appears above it."""

    def __init__(
        self, what: RenderableType, rich: RichConsole, console: Console, *, transient: bool = False
    ) -> None:
        super().__init__(
            what,
            console=rich,
            transient=transient,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._speaker = console

    def start(self, refresh: bool = False) -> None:
        """Start drawing."""
        super().start(refresh)
        self._speaker.above = self._above

    def stop(self) -> None:
        """Stop drawing."""
        self._speaker.above = None
        super().stop()

    def print(self, what: RenderableType, *, soft_wrap: bool = False) -> None:
        """Print above the bar.

        Rich notes where the bar is before it writes. If its own thread drew in between, that
        drawing would never be erased.
        """
        with self._lock:
            self.console.print(what, soft_wrap=soft_wrap)

    def _above(self, line: str) -> None:
        self.print(Text(line))


class CountScreen:
    """A bar that counts to `total` on a terminal, with messages above it; elsewhere nothing.

    With `plain` it draws no bar.
    """

    def __init__(self, console: Console, plain: bool, *, what: str, total: int) -> None:
        self._console = console
        terminal = rich_on(sys.stderr, console)
        self._draws = terminal.is_terminal and not plain
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn()
        self._bar = Progress(*columns, console=terminal)
        self._bars = Bars(self._bar, terminal, console, transient=True)
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
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

    def _count(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
