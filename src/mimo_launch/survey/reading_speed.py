"""Reads steps as training would: what cannot be read, and how fast the rest is.

Decides: which ranks stand for all, and that ranks of one host share its processors.
Relies on: the very functions by which training reads, with as many threads as it has.
Leaves: whether that is fast enough to whoever knows the speed of the GPUs.

A rank reads one step while it computes the one before. So it keeps up if it reads a step in less
than a step takes: alone, by the clock, and together with the other ranks of its host, by the time
of processors that all of them need. Ranks that read the same kinds of things stand for each other;
of each kind the one with the most rows of a step is measured. The cache of the file system may be
warm.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mimo_launch.data.dataset import Dataset
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.sample_readers import Reads, reads_of
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.model import Spec, WebdatasetData
from mimo_launch.survey.facts import first_steps
from mimo_launch.train.loader import DatasetInputs, read_step

Kind = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadingSpeed:
    """How fast steps are read, in tokens of a whole step per second.

    Args:
        steps: Steps that were read.
        tokens: Tokens of them, image rows included and padding left out.
        alone: What every rank can do that has a host to itself.
        slowest: What the slowest kind of ranks reads, and its seconds a step.
        together: What all ranks of a host can do together on `processors`.
        host_ranks: Ranks of that host.
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
        """What the job can do: it needs both."""
        return min(self.alone, self.together)


@dataclass(frozen=True, slots=True)
class Read:
    """Outcome of reading: `bad` records by id with the reason, of `records` that were read."""

    records: int
    bad: dict[int, str]
    speed: ReadingSpeed


def read_steps(spec: Spec, layout: Layout, dataset: Dataset, num_steps: int) -> Read:
    """Read whole steps once for what is bad, and parts of them as ranks do for the speed."""
    bad: dict[int, str] = {}
    records = tokens = steps = 0
    wall: dict[Kind, float] = defaultdict(float)
    cpu: dict[Kind, float] = defaultdict(float)
    kinds = {rank: _kind(spec, layout, rank) for rank in range(layout.world_size)}
    with _threads(spec) as threads:
        for _, _, data in first_steps(spec, dataset, num_steps, dataset.num_samples("train")):
            source = DatasetInputs(dataset, "train", data)
            inputs, reasons = read_step(source, _all(spec, data), spec, _rest, threads=threads)
            bad |= {inputs.record(number).id: why for number, why in reasons.items()}
            views = StepViews(layout, data)
            for kind in set(kinds.values()) - {()}:
                reads = _most(views, [rank for rank in kinds if kinds[rank] == kind])
                begin = time.perf_counter(), time.process_time()
                read_step(source, reads, spec, _rest, threads=threads)
                wall[kind] += time.perf_counter() - begin[0]
                cpu[kind] += time.process_time() - begin[1]
            records += sum(len(sample.records) for sample in data.samples)
            tokens += sum(sample.num_tokens for sample in data.samples)
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


def _kind(spec: Spec, layout: Layout, rank: int) -> Kind:
    """Return the names of what a rank reads, whatever the step."""
    return tuple(
        module.name
        for module in layout.modules_of(rank)
        if module.is_language or module.grid.index("pp", rank) == 0
    )


def _most(views: StepViews, ranks: list[int]) -> Reads:
    """Return what the rank reads that has the most rows of a step, then the most texts."""

    def size(reads: Reads) -> tuple[int, int]:
        rows = sum(
            views.data.samples[position].rows(encoder)
            for encoder, positions in reads.images.items()
            for position in positions
        )
        return rows, len(reads.texts)

    return max((reads_of(views, rank, decode=False) for rank in ranks), key=size)


def _all(spec: Spec, data: StepData) -> Reads:
    every = tuple(range(len(data.samples)))
    return Reads(every, every, (), dict.fromkeys(spec.encoders, every))


@contextmanager
def _threads(spec: Spec) -> Iterator[ThreadPoolExecutor | None]:
    """Open the threads that decode, as each rank has them."""
    if not isinstance(spec.data, WebdatasetData):
        yield None
        return
    with ThreadPoolExecutor(spec.data.decode_threads) as threads:
        yield threads


def _rest() -> None:
    """Do nothing: nobody watches for progress."""
