"""Files that workers write to.

Decides: `logs/attempt-N/rank-R/` with `stdout.log`, `stderr.log`, `error.json` and `stack.txt`, by
global rank. Flight recorders of GPUs write to `logs/attempt-N/flight-recorder/rank_R`.
Relies on: torch elastic to redirect.
Leaves: what is written to `worker`, showing it to `output_streams`.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

LOGS = "logs"
STDOUT, STDERR, ERROR, STACK = "stdout.log", "stderr.log", "error.json", "stack.txt"
RECORDER = "flight-recorder"
_ATTEMPT = re.compile(r"attempt-(\d+)")


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


def parse_ranks(text: str) -> frozenset[int]:
    """Return the ranks of a text such as `0,5-7`.

    Raises: ValueError if it is not one.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{part.strip()!r} is not a rank or a range of ranks such as 0 or 5-7")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def log_files(run: Path, attempt: int) -> "LogsSpecs":
    """Return where torch elastic is to send the output of workers."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class Files(LogsSpecs):
        """One folder per global rank."""

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            """Create the folders of this host's workers; `envs` is by local rank."""
            found: dict[str, dict[int, Any]] = {STDOUT: {}, STDERR: {}, ERROR: {}}
            for local_rank, env in envs.items():
                folder = rank_folder(run, attempt, int(env["RANK"]))
                folder.mkdir(parents=True, exist_ok=True)
                for name, files in found.items():
                    files[local_rank] = str(folder / name)
                env["TORCHELASTIC_ERROR_FILE"] = found[ERROR][local_rank]
            return LogsDest(
                stdouts=found[STDOUT],
                stderrs=found[STDERR],
                error_files=found[ERROR],
            )

        @property
        def root_log_dir(self) -> str:
            """The folder of the attempt."""
            return str(attempt_folder(run, attempt))

    return Files()
