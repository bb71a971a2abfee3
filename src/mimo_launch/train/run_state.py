"""Where a run stands, as far as it is neither weights nor optimizer; and what ends it early.

Decides: what a checkpoint must hold for a resumed run to go on exactly; the signals that stop one.
Relies on: data order and random numbers being pure functions of (seed, position).
Leaves: weights and moments to `checkpoint`.
"""

import signal
from dataclasses import dataclass

# After any of these a run ends with the step that it is in.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class RunState:
    """Counts since the start of the run: steps, samples, and what was skipped or could not be read.

    `samples` is the place in the order of samples; see `data.sample_order` for packs.
    """

    step: int = 0
    samples: int = 0
    skipped: int = 0
    bad_samples: int = 0


class EndOfRun(Exception):
    """The run ends itself, on purpose: all ranks raise it alike, after the same step.

    Starting again would end in the same way.
    """

    restartable = False
