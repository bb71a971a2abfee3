"""The speed of reading a spec's data, and the whole report of `mimo-launch data`.

Decides: the contents of the report; which ranks represent all; that ranks share a host's
processors.
Relies on: `index_statistics`, `shown_samples`; the functions and threads with which training reads.
Leaves: drawing to `cli`; to the user, who knows the speed of the GPUs, whether reading keeps up.

A rank reads a step while it computes the previous one. So it keeps up if reading a step takes less
time than computing a step: in wall time for each rank alone, and in CPU time for all ranks of a
host together. Ranks that read the same modules are of one kind; in each kind, the rank with the
most rows in a step is measured. The cache of the file system may be warm.
"""

import os
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

from mimo_launch.data.dataset import Dataset
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.step_views import Reads, StepViews, needs_arrays, reads_of
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec, UserData
from mimo_launch.survey.index_statistics import Facts, find_facts, first_steps
from mimo_launch.survey.shown_samples import Shown, show_samples
from mimo_launch.train.loader import UnreadStep, read_step

Kind = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadingSpeed:
    """The speed of reading steps, in tokens of a whole step per second.

    Args:
        steps: Number of steps that were read.
        tokens: Number of their tokens, with image rows and without padding.
        alone: The speed if every rank had its own host.
        slowest: The modules that the slowest kind of rank reads, in `slowest_s` seconds per step.
        together: The speed of all ranks of a host together on `processors`.
        host_ranks: Number of ranks of that host.
    """

    steps: int
    tokens: int
    alone: float
    slowest: Kind
    slowest_s: float
    together: float
    host_ranks: int
    processors: int

    @property
    def tokens_per_s(self) -> float:
        """The speed of the job, limited by `alone` and `together`."""
        return min(self.alone, self.together)


@dataclass(frozen=True, slots=True)
class Read:
    """The result of reading `records` records; `bad` maps the ids of bad ones to reasons."""

    records: int
    bad: dict[int, str]
    speed: ReadingSpeed


def read_steps(spec: Spec, layout: Layout, dataset: Dataset, num_steps: int) -> Read:
    """Read whole steps once to find bad records, and the parts of single ranks for the speed."""
    bad: dict[int, str] = {}
    records = tokens = steps = 0
    wall: dict[Kind, float] = defaultdict(float)
    cpu: dict[Kind, float] = defaultdict(float)
    # The names of the modules that each rank reads in any step.
    kinds = {
        rank: tuple(
            module.name
            for module in layout.modules_of(rank)
            if module.is_language or needs_arrays(module, rank)
        )
        for rank in range(layout.world_size)
    }
    arrays = [module.name for module in layout.modules if module.reads_arrays]
    shards = spec.data if isinstance(spec.data, UserData) else None
    pool: AbstractContextManager[ThreadPoolExecutor | None] = (
        ThreadPoolExecutor(shards.decode_threads) if shards else nullcontext()
    )
    with pool as threads:
        for _, _, data in first_steps(spec, dataset, num_steps, dataset.num_samples("train")):
            source = UnreadStep(dataset, "train", data)
            every = tuple(range(len(data.samples)))
            all_reads = Reads(every, every, (), dict.fromkeys(arrays, every), every)
            inputs, reasons = read_step(source, all_reads, spec, _rest, threads=threads)
            bad |= {inputs.record(number).id: why for number, why in reasons.items()}
            views = StepViews(layout, data)
            for kind in set(kinds.values()) - {()}:
                reads = _most(views, [rank for rank in kinds if kinds[rank] == kind])
                begin = time.perf_counter(), time.process_time()
                read_step(source, reads, spec, _rest, threads=threads)
                wall[kind] += time.perf_counter() - begin[0]
                cpu[kind] += time.process_time() - begin[1]
            records += data.num_records
            tokens += data.num_tokens
            steps += 1
    per_host = spec.nodes.gpus if spec.nodes else layout.world_size
    hosts = [range(first, first + per_host) for first in range(0, layout.world_size, per_host)]
    busiest = max(sum(cpu[kinds[rank]] for rank in host if rank in kinds) for host in hosts)
    slowest, seconds = max(wall.items(), key=lambda item: item[1])
    processors = len(os.sched_getaffinity(0))
    return Read(
        records=records,
        bad=bad,
        speed=ReadingSpeed(
            steps=steps,
            tokens=tokens,
            alone=tokens / seconds,
            slowest=slowest,
            slowest_s=seconds / steps,
            together=tokens * processors / busiest,
            host_ranks=min(per_host, layout.world_size),
            processors=processors,
        ),
    )


def _most(views: StepViews, ranks: list[int]) -> Reads:
    """Return the reads of the rank with the most rows in a step or, if equal, the most texts."""

    def size(of_rank: tuple[int, Reads]) -> tuple[int, int]:
        rank, reads = of_rank
        modules = map(views.layout.__getitem__, reads.images)
        loads = (views.load(each, each.grid.index(Axis.DP, rank)) for each in modules)
        return sum(loads), len(reads.texts)

    found = ((rank, reads_of(views, rank, decode=False)) for rank in ranks)
    return max(found, key=size)[1]


def _rest() -> None:
    """Do nothing: no watchdog waits for progress."""


MOST_BAD = 5


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The records that are left out: `bad` ones, and ones that are `too_long` for a sequence.

    `first_bad` maps the names of some bad records to reasons; `file` lists all of them. `ignored`
    counts the other records by content that is not read.
    """

    bad: int
    first_bad: dict[str, str]
    file: str
    too_long: int
    are_cut: bool
    ignored: dict[str, int]


@dataclass(frozen=True, slots=True)
class Survey:
    """The whole report; `left_out` is None for generated data."""

    name: str
    kind: str
    seq: int
    global_batch: int
    facts: Facts
    left_out: LeftOut | None
    read: Read
    shown: list[Shown]


def survey(spec: Spec, dataset: Dataset, *, records: int, steps: int, show: int) -> Survey:
    """Survey at most `records` records in the index, read `steps` steps, show `show` samples."""
    layout = build_layout(spec)
    # Nothing is new after the first epoch, but its last step reaches into the second.
    first = first_steps(spec, dataset, show, 2 * dataset.num_samples("train"))
    return Survey(
        name=spec.name,
        kind=spec.data.kind,
        seq=spec.batch.seq,
        global_batch=spec.batch.global_,
        facts=find_facts(spec, layout, dataset, records),
        left_out=_left_out(spec, dataset),
        read=read_steps(spec, layout, dataset, steps),
        shown=show_samples(spec, dataset, (s for _, _, data in first for s in data.samples), show),
    )


def _left_out(spec: Spec, dataset: Dataset) -> LeftOut | None:
    if not isinstance(spec.data, UserData):
        return None
    from mimo_launch.data.index.columns import BAD
    from mimo_launch.data.shard_samples import ShardSamples

    if not isinstance(dataset, ShardSamples):
        raise TypeError(f"shards are no {type(dataset).__name__}")
    split = dataset.splits["train"]
    first = islice(split.index.bad(), MOST_BAD)
    return LeftOut(
        bad=split.index.num_bad,
        first_bad={f"{each['shard']} {each['key']}": each["why"] for each in first},
        file=str(split.index.folder / BAD),
        too_long=split.rows.num_too_long,
        are_cut=spec.data.too_long == "truncate",
        ignored=split.index.ignored,
    )
