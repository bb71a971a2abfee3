"""Files that workers write to: their output, errors and stacks, and NCCL's flight recorder.

Decides: `logs/attempt-N/rank-R/` with `stdout.log`, `stderr.log`, `error.json` and `stack.txt`, by
global rank, and `logs/attempt-N/flight-recorder/rank_R`: the last transfers that each rank on a GPU
started, which the launcher requests from workers before it kills them. Lines of shown ranks are
passed on as they arrive.
Relies on: torch elastic to redirect output; a thread of torch in each worker, which answers a named
pipe even while the worker hangs.
Leaves: the contents to `worker`, naming the files to `failure_report`.

https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimo_launch.diag.text import visible

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

LOGS = "logs"
STDOUT, STDERR, ERROR, STACK = "stdout.log", "stderr.log", "error.json", "stack.txt"
RECORDER = "flight-recorder"
_ATTEMPT = re.compile(r"attempt-(\d+)")
FOLLOW_SECONDS = 0.1
# A line without an end is shown in pieces of this size.
CHUNK = 1 << 16
# The answering thread looks once a second.
DUMP_SECONDS = 3.0
DUMP_POLL_SECONDS = 0.05


def next_attempt(run: Path) -> int:
    """Return the number of the first attempt that has no folder of logs yet."""
    found = (_ATTEMPT.fullmatch(path.name) for path in (run / LOGS).glob("attempt-*"))
    return max((int(match[1]) + 1 for match in found if match), default=0)


def attempt_folder(run: Path, attempt: int) -> Path:
    """Return the folder of one attempt's logs."""
    return run / LOGS / f"attempt-{attempt}"


def rank_folder(run: Path, attempt: int, rank: int) -> Path:
    """Return the folder of one rank's logs."""
    return attempt_folder(run, attempt) / f"rank-{rank}"


def logged_ranks(run: Path, attempt: int) -> list[int]:
    """Return the ranks that have logs of an attempt."""
    return _numbers_in(attempt_folder(run, attempt), "rank-")


def parse_ranks(text: str) -> frozenset[int]:
    """Return the ranks of a text such as `0,5-7`.

    Raises: ValueError if the text has another form.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{part.strip()!r} is not a rank or a range of ranks such as 0 or 5-7")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def log_files(run: Path, attempt: int) -> "LogsSpecs":
    """Return where torch elastic sends the output of workers."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Files(LogsSpecs):
        """The logs of workers: one folder per global rank."""

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            """Create the folders of this host's workers; `envs` is by local rank."""
            found: dict[str, dict[int, Any]] = {STDOUT: {}, STDERR: {}, ERROR: {}}
            for local_rank, env in envs.items():
                folder = rank_folder(run, attempt, int(env["RANK"]))
                folder.mkdir(parents=True, exist_ok=True)
                for name, files in found.items():
                    files[local_rank] = str(folder / name)
                env["TORCHELASTIC_ERROR_FILE"] = found[ERROR][local_rank]
            return LogsDest(stdouts=found[STDOUT], stderrs=found[STDERR], error_files=found[ERROR])

        @property
        def root_log_dir(self) -> str:
            """The folder of the attempt."""
            return str(attempt_folder(run, attempt))

    return Files()


class Follower(threading.Thread):
    """Passes on the lines that workers append to files, until it is stopped and has read all.

    `files` maps each file to the receiver of its lines, which get no line ends.
    """

    def __init__(self, files: Mapping[Path, Callable[[str], None]]) -> None:
        super().__init__(daemon=True)
        self._tails = [_Tail(path, tell) for path, tell in files.items()]
        self._ended = threading.Event()

    def stop(self) -> None:
        """Read all files to the end and stop; no process may still write to them."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Pass lines on until stopped."""
        while True:
            ended = self._ended.wait(FOLLOW_SECONDS)
            for tail in self._tails:
                tail.read(ended=ended)
            if ended:
                return


class _Tail:
    """One growing file."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path, self._tell = path, tell
        self._place, self._rest = 0, b""

    def read(self, *, ended: bool) -> None:
        """Pass on new lines; pass on an unfinished line only if the file has `ended`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                while new := file.read(CHUNK):
                    self._place += len(new)
                    *lines, self._rest = (self._rest + new).split(b"\n")
                    if len(self._rest) > CHUNK:
                        lines, self._rest = [*lines, self._rest], b""
                    for line in lines:
                        self._say(line)
        except OSError:
            return
        if ended and self._rest:
            self._say(self._rest)

    def _say(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").rstrip("\r")
        # A progress bar overwrites its line: keep what a terminal would finally show.
        self._tell(visible(text.rpartition("\r")[2]))


class Recorder:
    """The flight recorders of one attempt's workers on this host."""

    def __init__(self, run: Path, attempt: int) -> None:
        self.folder = attempt_folder(run, attempt) / RECORDER
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not in the run folder: some shared file systems have no named pipes.
        self._pipes = Path(tempfile.mkdtemp(prefix="mimo-launch-"))
        self._asked: dict[int, float] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable with the place of torch's pipes."""
        return {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(self._pipes / "rank_")}

    def ask(self, ranks: Collection[int]) -> None:
        """Ask workers for their dumps; one without a pipe has nothing to dump yet."""
        for rank in ranks:
            with suppress(OSError):
                pipe = os.open(self._pipes / f"rank_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(pipe, b"1\n")
                finally:
                    os.close(pipe)
                self._asked[rank] = time.monotonic()

    def wait(self) -> None:
        """Wait at most a few seconds for the dumps that were requested."""
        while self._asked and time.monotonic() - max(self._asked.values()) < DUMP_SECONDS:
            for rank in [rank for rank in self._asked if self._has_text(rank)]:
                del self._asked[rank]
            time.sleep(DUMP_POLL_SECONDS)
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
    """Create the recorder's folder from this worker's environment, as torch does not."""
    if stem := os.environ.get("TORCH_FR_DUMP_TEMP_FILE"):
        Path(stem).parent.mkdir(parents=True, exist_ok=True)


def recorded_ranks(folder: Path) -> list[int]:
    """Return the ranks that have a dump in a folder."""
    return _numbers_in(folder, "rank_")


def _numbers_in(folder: Path, prefix: str) -> list[int]:
    names = (path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*"))
    return sorted(int(name) for name in names if name.isdigit())
