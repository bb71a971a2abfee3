"""What a worker says of its own error, for its launcher to read.

Decides: whether an error is the worker's own or comes of a lost or late peer, and the form of
`error.json` (that of torch elastic, plus `final`).
Relies on: torch's exception types, and on the words of gloo, which has no type of its own.
Leaves: whose fault it was to `judge`.
"""

import json
import traceback
from pathlib import Path

from mimo_launch.runtime.whereabouts import Cause

# gloo throws plain RuntimeErrors; these are its words when a peer is late, or gone.
_LATE = ("Timed out waiting", "wait timeout after", "timed out after", "Timed out after")
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


def cause_of(error: BaseException) -> Cause:
    """Return what an error that ends a worker says about who is to blame.

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

    # Types that are re-exported under other names in the releases we support.
    is_network = isinstance(error, dist.DistError)
    if not is_network and not isinstance(error, RuntimeError):
        return Cause.OWN
    text = str(error)
    if any(words in text for words in _LATE):
        return Cause.TIMEOUT
    if is_network or any(words in text for words in _GONE):
        return Cause.LOST
    return Cause.OWN


def in_words(error: BaseException) -> str:
    """Return type and message of an error."""
    try:
        text = str(error)
    except Exception as fault:  # An error of a package may have one of its own.
        text = f"its message cannot be shown ({type(fault).__name__})"
    return f"{type(error).__name__}: {text}".strip().removesuffix(":")


def write_error(error: BaseException, path: Path) -> None:
    """Write `error.json`. Raises: OSError."""
    callstack = "".join(traceback.format_exception(error))
    message = {"message": in_words(error), "extraInfo": {"py_callstack": callstack}}
    path.write_text(json.dumps({"message": message}), encoding="utf-8")


def read_error(path: Path) -> str:
    """Return the message of an `error.json`, or nothing if there is none that can be read."""
    try:
        message = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    for _ in range(2):
        if isinstance(message, dict):
            message = message.get("message", message)
    return str(message)
