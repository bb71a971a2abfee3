"""How files at addresses such as `s3://bucket/x.tar` are fetched, request by request.

Decides: which addresses are fetched, and with which package; that a request that fails is repeated
for as long as the spec says, and that the run then ends and names the file, because a source that
is gone does not make its samples bad; that the ranks of a host ask for a size once.
Relies on: `fsspec` for requests, credentials and end points (those of its packages: environment
variables and files of the user).
Leaves: which bytes are fetched to `remote_files`.
"""

import hashlib
import json
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from mimo_launch.data.sources.block_cache import BlockCache
from mimo_launch.data.sources.kept_files import cache_folder
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.installed import REMOTE_PACKAGES, is_installed
from mimo_launch.spec.user_data import UserData

_ADDRESS = re.compile(r"(s3|gs|https?)://", re.IGNORECASE)
# Seconds for which a size or a list of names is kept: the ranks of a host ask at almost one time.
_FRESH = 60.0
# Most seconds of a request, and between two; tries after errors that do not pass.
_REQUEST, _LONGEST, FEW = 60.0, 10.0, 3
# Parallel requests of one process.
REQUESTS = 32
V = TypeVar("V")


class SourceGone(RuntimeError):
    """A file cannot be fetched any more, or has changed; the message says what to do."""


class NotFetched(FileNotFoundError):
    """A command that uses no network asks for what has not been fetched."""


def is_address(name: str) -> bool:
    """Return whether a name is an address to fetch from."""
    return _ADDRESS.match(name) is not None


def package_of(name: str) -> str:
    """Return the packages that are missing to fetch an address, for pip; "" if none."""
    found = _ADDRESS.match(name)
    packages = REMOTE_PACKAGES[found[1].lower()] if found else {}
    return " ".join(f"'{each}'" for name, each in packages.items() if not is_installed(name))


@frozen
class Fetching:
    """How files are fetched into a cache: `patience` in seconds; nothing is if not `is_on`."""

    cache: BlockCache
    patience: float
    is_on: bool = True


def fetching_of(data: UserData, *, is_on: bool) -> Fetching:
    """Return how the files of a spec are fetched."""
    asked = data.fetch
    folder = Path(asked.folder) if asked.folder is not None else cache_folder("files")
    return Fetching(BlockCache(folder, round(asked.gib * 2**30)), asked.patience, is_on)


def known(fetching: Fetching, what: str, name: str, ask: Callable[[], V]) -> V:
    """Return an answer that this host got a moment ago, or ask now; if not `is_on`, any old one.

    Raises: SourceGone; NotFetched if there is none and `fetching` is not on.
    """
    path = fetching.cache.folder / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"
    with suppress(OSError, ValueError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not fetching.is_on or time.time() - kept["time"] < _FRESH:
            found: V = kept["value"]
            return found
    if not fetching.is_on:
        raise NotFetched(f"{name} has not been looked at")
    value = patiently(fetching, name, ask)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}.{random.random()}.tmp")
    text = json.dumps({"time": time.time(), "value": value})
    made.write_text(text, encoding="utf-8")
    made.rename(path)
    return value


def patiently(fetching: Fetching, name: str, ask: Callable[[], V]) -> V:
    """Return what a request returns, and repeat it if it fails. Raises: SourceGone."""
    if missing := package_of(name):
        raise SourceGone(f"{name} cannot be fetched without a package: pip install {missing}")
    begin, tries = time.monotonic(), 0
    while True:
        try:
            return ask()
        except Exception as error:  # Each package has errors of its own.
            tries += 1
            tried, last = time.monotonic() - begin, error
        is_final = isinstance(last, (FileNotFoundError, PermissionError)) and tries >= FEW
        if is_final or tried >= fetching.patience:
            why = " ".join(str(last).split())[:200]
            raise SourceGone(
                f"{name} could not be fetched in {tries} tries over {tried:.0f} s: "
                f"{type(last).__name__}: {why}; check that it is there and may be read, or wait "
                "longer with `fetch: {patience: SECONDS}` in `data`; then start the run again"
            ) from last
        time.sleep(min(pause(tries), max(0.0, fetching.patience - tried)))


def pause(tries: int) -> float:
    """Return the seconds before another try, drawn so that ranks do not all ask together."""
    longest = min(_LONGEST, 0.1 * 2.0 ** min(tries, 10))
    return longest * (0.5 + random.random() / 2)


def file_system(name: str) -> Any:
    """Return the file system of an address, which `fsspec` keeps."""
    import fsspec

    found, _ = fsspec.url_to_fs(name, use_listings_cache=False)
    return found


def in_time(fs: Any, request: Callable[..., Any], name: str, **options: int) -> Any:
    """Return the answer of a request. Raises: TimeoutError and others."""
    from fsspec.asyn import sync

    return sync(fs.loop, request, name, timeout=_REQUEST, **options)
