"""Reports a worker's own error, for its launcher to read.

Decides: whether an error is the worker's own or due to a lost or late peer; the message for a full
GPU; the format of `error.json`, which torch elastic defines.
Relies on: torch's exception types, and the messages of gloo and NCCL, which have no types.
Leaves: the rank to blame to `verdict`.
"""

import json
import re
import time
import traceback
from pathlib import Path

from mimo_launch.layout.layout import Layout
from mimo_launch.runtime.progress import Cause

# gloo raises plain RuntimeErrors, NCCL one type for everything. These are their messages when a
# peer is late or gone, and NCCL's when this rank itself is at fault.
_LATE = (
    "Timed out waiting",
    "wait timeout after",
    "timed out after",
    "Timed out after",
    "collective operation timeout",
)
_OWN = (
    "ncclUnhandledCudaError",
    "ncclInvalid",
    "ncclInternalError",
    "Cuda failure",
    "CUDA error",
    "Duplicate GPU",
)
_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "connectFullMesh failed",
    "Read error",
    "Write error",
    "gloo/transport",
)
# The first match is the cause, later ones are consequences.
_NCCL_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: .*"
    r"|watchdog thread terminated with exception: .*"
)
_TAIL_BYTES = 200_000


class OutOfGpuMemory(RuntimeError):
    """A GPU has too little memory; the message says how full it is, and what saves memory."""

    @classmethod
    def on(cls, layout: Layout, rank: int, error: BaseException) -> "OutOfGpuMemory":
        """Return the error for a rank that failed to allocate memory with `error`."""
        import torch

        gib = 2**30
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        total = torch.cuda.mem_get_info()[1]
        holds = [m.name for m in layout.modules_of(rank)]
        return cls(
            f"the GPU of rank {rank} ({', '.join(holds) or 'no module'}) is full: "
            f"{allocated / gib:.1f} GiB in tensors, {reserved / gib:.1f} GiB reserved of "
            f"{total / gib:.1f} GiB\n"
            f"less is needed by smaller microbatches (schedule.microbatches), and under "
            f"{' or '.join(f'modules.{name}' for name in holds) or 'a module'} by "
            "`recompute: full`, `sharding: full`, or more ranks\n"
            f"{str(error).partition('. GPU')[0]}"
        )


def cause_of(error: BaseException) -> Cause:
    """Return whether an error that ends a worker is its own or due to a peer.

    An exception class with `restartable = False` ends the run for good.
    """
    causes = []
    link: BaseException | None = error
    while link is not None:
        if not getattr(link, "restartable", True):
            return Cause.FINAL
        causes.append(_cause(link))
        link = link.__cause__
    return next((cause for cause in causes if cause is not Cause.OWN), Cause.OWN)


def _cause(error: BaseException) -> Cause:
    import torch.distributed as dist

    # The torch releases that we support export its error types under different names.
    is_network = isinstance(error, dist.DistError)
    if not is_network and not isinstance(error, RuntimeError):
        return Cause.OWN
    text = str(error)
    if any(words in text for words in _LATE):
        return Cause.TIMEOUT
    if any(words in text for words in _OWN):
        return Cause.OWN
    if is_network or any(words in text for words in _GONE):
        return Cause.LOST
    return Cause.OWN


def nccl_watchdog_words(path: Path) -> tuple[Cause, str]:
    """Return the cause that NCCL's watchdog logged before it ended the process, and its words.

    The watchdog ends the process with SIGABRT when a collective or transfer takes longer than its
    group allows: a peer is late or gone. Returns (Cause.NONE, "") if the log has no such line.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return Cause.NONE, ""
    found = _NCCL_WATCHDOG.search(text)
    if found is None:
        return Cause.NONE, ""
    words = " ".join(found[0].split())
    if any(said in words for said in _LATE):
        return Cause.TIMEOUT, words
    own = any(said in words for said in _OWN)
    return (Cause.OWN if own else Cause.LOST), words


def in_words(error: BaseException) -> str:
    """Return the type and message of an error."""
    try:
        text = str(error)
    except Exception as fault:  # Formatting another package's error may fail.
        text = f"its message cannot be shown ({type(fault).__name__})"
    return f"{type(error).__name__}: {text}".strip().removesuffix(":")


def write_error(error: BaseException, path: Path) -> None:
    """Write `error.json`. Raises: OSError."""
    callstack = "".join(traceback.format_exception(error))
    # torchrun needs both extra keys.
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    message = {"message": in_words(error), "extraInfo": extra}
    path.write_text(json.dumps({"message": message}), encoding="utf-8")


def read_error(path: Path) -> str:
    """Return the message of an `error.json`, or "" if it cannot be read."""
    try:
        message = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    for _ in range(2):
        if isinstance(message, dict):
            message = message.get("message", message)
    return str(message)
