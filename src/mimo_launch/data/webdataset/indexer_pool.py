"""Many shards at once: a pool of processes that look at samples.

Decides: how many processes there are, and when one is quicker.
Relies on: `indexer`, which each process runs on a shard at a time.
Leaves: what is made of the answers to `index`.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mimo_launch.data.webdataset.indexer import Looker, ShardIndex, index_shard
from mimo_launch.spec.model import Spec, WebdatasetData

# Below so many bytes of shards one process is done before others have started.
SMALL = 32 << 20

# The looker of a process of the pool: made once, a tokenizer takes a while to load.
_LOOKERS: list[Looker] = []


def _start(spec: Spec) -> None:
    # Ctrl-C reaches the whole group: the process that waits for these ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if isinstance(spec.data, WebdatasetData):
        _LOOKERS.append(Looker(spec, spec.data))


def _end_with_parent() -> None:
    """Leave when the process that asked is killed: the queues of a pool would not tell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _task(number: int, path: Path) -> ShardIndex:
    return index_shard(_LOOKERS[0], number, path)


def looked_at(looker: Looker, shards: Sequence[Path]) -> Iterator[ShardIndex]:
    """Yield the index of each shard in order, made by as many processes as there are processors.

    Raises: OSError if one of them is killed.
    """
    workers = min(len(shards), len(os.sched_getaffinity(0)))
    small = sum(path.stat().st_size for path in shards) < SMALL
    if workers == 1 or small or multiprocessing.current_process().daemon:
        for number, path in enumerate(shards):
            yield index_shard(looker, number, path)
        return
    # Not forked: this process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start, initargs=(looker.spec,)
    ) as pool:
        try:
            yield from pool.map(_task, range(len(shards)), shards)
        except BrokenProcessPool as error:
            raise OSError("a process that made the index was killed; out of memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
