"""Streams, colour and verbosity of one run of the command line.

Decides: answers go to stdout, everything else to stderr, and which of them are coloured.
Relies on: NO_COLOR (https://no-color.org), FORCE_COLOR and `--color`.
Leaves: progress bars to `progress`.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

import typer


class Color(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Console:
    """Where a command writes; commands get it by `console_of`."""

    color: Color = Color.AUTO
    verbosity: int = 0

    def answer(self, text: str) -> None:
        """Write what the user asked for to stdout."""
        typer.echo(text)

    def note(self, text: str) -> None:
        """Write diagnostics and remarks to stderr."""
        typer.echo(text, err=True, color=self.colors(sys.stderr))

    def colors(self, stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
        """Return whether to colour what goes to `stream`; the flag wins over the environment."""
        environ = os.environ if environ is None else environ
        if self.color is not Color.AUTO:
            return self.color is Color.ALWAYS
        if environ.get("NO_COLOR"):
            return False
        if environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and environ.get("TERM") != "dumb"


def console_of(ctx: typer.Context) -> Console:
    """Return the console of the running command."""
    console = ctx.find_object(Console)
    return console if console is not None else Console()
