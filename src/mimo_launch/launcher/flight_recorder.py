"""NCCL's flight recorder: the transfers that each rank started last, written when a run fails.

Decides: where dumps go, and that workers are asked for them before they are killed.
Relies on: torch, whose threads in each worker answer a named pipe, also while the worker hangs.
Leaves: naming the files to `failure_report`.

https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import os
import shutil
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from mimo_launch.launcher.worker_logs import RECORDER, attempt_folder

# The thread that answers looks once a second.
WAIT_SECONDS = 3.0
POLL_SECONDS = 0.05


class Recorder:
    """The flight recorders of one attempt's workers on this host."""

    def __init__(self, run: Path, attempt: int) -> None:
        self.folder = attempt_folder(run, attempt) / RECORDER
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not in the run folder: not every shared file system has named pipes.
        self._pipes = Path(tempfile.mkdtemp(prefix="mimo-launch-"))
        self._asked: dict[int, float] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What tells torch where its pipes are."""
        return {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(self._pipes / "rank_")}

    def ask(self, ranks: Collection[int]) -> None:
        """Ask workers for their dumps; one that has no pipe yet has nothing to tell."""
        for rank in ranks:
            with suppress(OSError):
                pipe = os.open(self._pipes / f"rank_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(pipe, b"1\n")
                finally:
                    os.close(pipe)
                self._asked[rank] = time.monotonic()

    def wait(self) -> None:
        """Wait until those that were asked have answered, but not for long."""
        while self._asked and time.monotonic() - max(self._asked.values()) < WAIT_SECONDS:
            for rank in [rank for rank in self._asked if self._has_text(rank)]:
                del self._asked[rank]
            time.sleep(POLL_SECONDS)
        self._asked.clear()

    def _has_text(self, rank: int) -> bool:
        file = self.folder / f"rank_{rank}"
        return file.exists() and file.stat().st_size > 0

    def close(self) -> None:
        """Remove the pipes, and the folder if nothing is in it."""
        shutil.rmtree(self._pipes, ignore_errors=True)
        with suppress(OSError):
            self.folder.rmdir()


def make_folder() -> None:
    """Make the folder that the environment of this worker names: torch does not."""
    if stem := os.environ.get("TORCH_FR_DUMP_TEMP_FILE"):
        Path(stem).parent.mkdir(parents=True, exist_ok=True)


def recorded_ranks(folder: Path) -> list[int]:
    """Return the ranks whose dumps are in a folder."""
    names = (path.name.removeprefix("rank_") for path in folder.glob("rank_*"))
    return sorted(int(name) for name in names if name.isdigit())
