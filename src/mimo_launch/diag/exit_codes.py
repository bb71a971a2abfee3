"""The exit codes of all commands.

Decides: the numbers. A lost host or a killed process has a separate code (EX_TEMPFAIL of
sysexits.h), so that a script restarts only runs that may succeed elsewhere.
Leaves: the choice of a failed run's code to `launcher.verdict`; the page is docs/exit-codes.md.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, by what a script may conclude from them."""

    DONE = 0
    FAILED = 1
    WRONG = 2
    ELSEWHERE = 75
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


def after_signal(number: int) -> int:
    """Return the exit code of a run that a signal ended."""
    return 128 + number
