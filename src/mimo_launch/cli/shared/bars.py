"""What is drawn at the bottom of a terminal while a command works.

Decides: streams are left as they are (workers that are forked and files that stderr goes to would
get what is drawn); what the console says meanwhile appears above.
Relies on: Rich.
Leaves: what is drawn to its users.
"""

from typing import IO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mimo_launch.cli.shared.console import Console


def rich_on(stream: IO[str], console: Console) -> RichConsole:
    """Return what draws on a stream, in colours if the command has them there."""
    return RichConsole(file=stream, no_color=not console.colors(stream))


class Bars(Live):
    """Draws `what` on `rich` until it is left; lines of `console` for a terminal go above it."""

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
        """Begin to draw."""
        super().start(refresh)
        self._speaker.above = self._above

    def stop(self) -> None:
        """Draw no more."""
        self._speaker.above = None
        super().stop()

    def _above(self, line: str) -> None:
        self.console.print(Text(line))
