"""Processes that make the index of shards together, one shard each.

Decides: how many processes read shards, and when one is faster; that they exit with their parent.
Relies on: `indexer` for the samples of a shard.
Leaves: where an index is kept, and which process makes it, to `index`.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mimo_launch.data.webdataset.indexer import SampleIndexer, index_shard
from mimo_launch.data.webdataset.shard_rows import ShardIndex
from mimo_launch.spec.spec import Spec, WebdatasetData

# With fewer bytes of shards, one process finishes before others have started.
SMALL = 32 << 20
# The indexer of a worker process: made once, because a tokenizer loads slowly.
_INDEXERS: list[SampleIndexer] = []


def _start(spec: Spec) -> None:
    # Ctrl-C reaches the whole process group, but the parent stops its pool itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if isinstance(spec.data, WebdatasetData):
        _INDEXERS.append(SampleIndexer(spec, spec.data))


def _end_with_parent() -> None:
    """Exit when the parent is killed, which the queues of a pool do not notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _task(number: int, path: Path) -> ShardIndex:
    return index_shard(_INDEXERS[0], number, path)


def indexed_shards(indexer: SampleIndexer, shards: Sequence[Path]) -> Iterator[ShardIndex]:
    """Yield the index of each shard in order, made by one process per processor.

    Raises: OSError if a process is killed.
    """
    workers = min(len(shards), len(os.sched_getaffinity(0)))
    small = sum(path.stat().st_size for path in shards) < SMALL
    if workers == 1 or small or multiprocessing.current_process().daemon:
        for number, path in enumerate(shards):
            yield index_shard(indexer, number, path)
        return
    # Not "fork": this process may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start, initargs=(indexer.spec,)
    ) as pool:
        try:
            yield from pool.map(_task, range(len(shards)), shards)
        except BrokenProcessPool as error:
            raise OSError("a process that made the index was killed; out of memory?") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
