"""Defines the state of a run besides weights and optimizer, and the ways in which it ends early.

Decides: which counts a checkpoint holds, so that a resumed run continues exactly; which signals
stop a run.
Relies on: data order and random numbers being pure functions of (seed, position).
Leaves: weights and moments to `checkpoint`.
"""

import signal
from dataclasses import dataclass

# On any of these signals, a run ends after its current step.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class RunState:
    """Counts since the start of the run: steps, samples, skipped steps, unreadable samples.

    `samples` is the position in the order of samples; see `data.sample_order` for packs.
    """

    step: int = 0
    samples: int = 0
    skipped: int = 0
    bad_samples: int = 0


class EndOfRun(Exception):
    """The run ends on purpose: all ranks raise this after the same step.

    A new attempt would end in the same way, unless the subclass is `restartable`.
    """

    restartable = False
