"""What happens between building the modules and the first step: weights and state of earlier runs.

Decides: that a run goes on from its newest usable checkpoint.
Relies on: `checkpoint`.
Leaves: whether a run may go on at all to the command line, which empties or keeps its folder.
"""

from pathlib import Path

from mimo_launch.train.events import Listener
from mimo_launch.train.loop import Saver
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import RunState


def start_run(session: RankSession, run: Path, emit: Listener) -> tuple[RunState, Saver | None]:
    """Load what the run folder and `init_from` offer; return where the run stands, and its saver.

    Ranks: collective over the world.
    """
    return RunState(), None
