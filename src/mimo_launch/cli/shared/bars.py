"""Progress bars at the bottom of a terminal while a command works.

Decides: stdout and stderr are not redirected, since forked workers, and a file as stderr, would get
the drawing; what the console writes in the meantime appears above the bar.
Relies on: Rich.
Leaves: the content to its users.
"""

from typing import IO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mimo_launch.cli.shared.console import Console


def rich_on(stream: IO[str], console: Console) -> RichConsole:
    """Return a Rich console for a stream, in colour if the command colours it."""
    return RichConsole(file=stream, no_color=not console.colors(stream))


class Bars(Live):
    """Draws `what` on `rich` until it is exited; terminal output of `console` goes above it."""

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

    def _above(self, line: str) -> None:
        self.console.print(Text(line))
