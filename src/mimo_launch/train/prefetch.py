"""Reads steps ahead, and makes all ranks agree on unreadable samples.

Decides: that a bad sample is left out on all ranks, and how many a run may have.
Relies on: `layout.step_views` for the samples that each rank reads; the same StepData on all ranks.
Leaves: detecting damage to `loader` and the data sets.

The agreement costs an all-reduce of a few numbers per step. Without it, the ranks that could not
read a sample would disagree with the others on rows, routes and N, and hang. The same all-reduce
carries the peak memory of the ranks, by module, the rows of their replicas, and whether a rank
lacks kept rows of an encoder: if one does, all of its ranks compute the rows of the step, since
they gather weights together. So a rank deals out the samples of its own island only, and all ranks
know the most rows of any replica. With held-out samples it carries stop signals, so that all ranks
end an evaluation before the same batch.

A thread reads one step ahead of the running step, and starts the agreement on it; the main thread
waits for both when it reaches that step. The agreement has its own gloo group, so that it waits for
no device. Bad samples that were read ahead count only when their step runs: a run that stops and
resumes counts the same samples as a run that does not.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from mimo_launch.comm.async_copies import MaxOverRanks
from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.world import group_timeout, peak_memory
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.record_order import Sample
from mimo_launch.data.random_draws import Split
from mimo_launch.layout.step_views import Imbalance, StepViews, reads_of
from mimo_launch.models.kept_rows import ERRORS, State
from mimo_launch.runtime.progress import EndOfRun, Phase, RunState
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import UserData
from mimo_launch.train.events import BadSamples, Listener, ListenerFailed, Reading
from mimo_launch.train.loader import ReadStep, read_step, step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.row_caches import open_caches, reason_of

if TYPE_CHECKING:
    from mimo_launch.layout.step_data import Int64s

_MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class _RankPart:
    """This rank's part of a step, and the maxima that the ranks exchange with it.

    `most` has the largest number of samples that any rank could not read, the stop signal of any
    rank, then for each module the largest peak memory of its ranks, then for each module of `even`
    the most rows of any replica, then for each module that keeps rows the worst state of them.
    `even` has the rows of each replica by the even cut, for the modules among whose replicas
    samples may move.
    """

    inputs: ReadStep
    reasons: dict[int, str]
    most: MaxOverRanks
    seconds: float
    even: "dict[str, Int64s]"


class TooManyBadSamples(EndOfRun):
    """More samples are unreadable than a run may leave out."""


class StepReader:
    """Reads this rank's part of steps, and counts unreadable samples of training in `state`."""

    def __init__(
        self,
        session: RankSession,
        dataset: Dataset,
        state: RunState,
        emit: Listener,
        *,
        answers: bool | None = None,
        caches: bool = True,
        stop: Callable[[], int] | None = None,
    ) -> None:
        """Create the group of the agreements; `answers`: read true ones, by default if scored.

        Without `caches`, every step computes its rows, and none is kept. `stop` returns a signal
        that ends an evaluation, or 0.

        Ranks: collective over the world.
        """
        self.dataset = dataset
        self._session, self._state, self._emit = session, state, emit
        self._decodes: set[Split] = {"heldout"} if dataset.scores or answers else set()
        self._known: set[int] = set()
        self._stop = stop or (lambda: 0)
        self._caches, self._folders = open_caches(session) if caches else ({}, {})
        self._least = 0 if caches else State.MISSING * ERRORS
        self._told = set[tuple[str, int]]()
        timeout = group_timeout(session.spec.train.timeout, session.device)
        self._group = dist.new_group(backend="gloo", timeout=timeout, group_desc="reader")
        # One thread, so that ranks start their agreements in the same order.
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="reader", initializer=_use, initargs=(session.device,)
        )
        data = session.spec.data
        self._decoders: ThreadPoolExecutor | None = None
        if isinstance(data, UserData):
            self._decoders = ThreadPoolExecutor(
                data.decode_threads, "decoder", initializer=_use, initargs=(session.device,)
            )
        self._ahead: tuple[tuple[Sample, ...], int, Future[_RankPart]] | None = None

    def __enter__(self) -> "StepReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the threads.

        If all ranks end in the same way, wait for the step that is being read ahead: no rank may
        abandon the others in its agreement.
        """
        if self._ahead is not None and (kind is None or issubclass(kind, EndOfRun)):
            future = self._ahead[-1]
            wait([future])
            if future.exception() is None:
                with suppress(RuntimeError):  # A peer failed in a step that no rank will run.
                    future.result().most.wait()
        for threads in (self._thread, self._decoders):
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Start to read the next step of training; at most one step is read ahead.

        Ranks: collective over the world.
        """
        self._ahead = (ids, step, self._start("train", ids, step))

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadStep:
        """Return the samples `ids` of a step, which is counted from 0.

        Samples that some rank cannot read are left out.

        Ranks: collective over the world. Raises, on all ranks: TooManyBadSamples.
        """
        progress, begin = self._session.progress, time.perf_counter()
        if split == "train":
            progress.enter(Phase.READING, step + 1)
        read = self._taken(split, ids, step).result()
        if split == "train":
            progress.enter(Phase.AGREEING)
        bad = agree(read.reasons, read.most, self._group)
        _, signal, *most = read.most.wait()
        names = [module.name for module in self._session.layout.modules]
        memory, most = most[: len(names)], most[len(names) :]
        loads, caches = most[: len(read.even)], most[len(read.even) :]
        even = zip(read.even.items(), loads, strict=True)
        waited = time.perf_counter() - begin
        inputs = replace(
            read.inputs,
            peak_memory=dict(zip(names, memory, strict=True)),
            imbalance={name: Imbalance.of(rows, after) for (name, rows), after in even},
            reading=Reading(waited_s=waited, read_s=read.seconds),
            from_cache=self._from_cache(caches),
            stop=signal,
        )
        if not bad:
            return inputs
        named = {inputs.record(number).id: why for number, why in bad.items()}
        self._report(split, step, named, len(bad))
        return inputs.without(bad)

    def _taken(self, split: Split, ids: tuple[Sample, ...], step: int) -> "Future[_RankPart]":
        """Return the step that is being read ahead, or start to read this one."""
        if split == "train" and self._ahead is not None:
            (*asked, future), self._ahead = self._ahead, None
            if asked == [ids, step]:
                return future
        if self._ahead is not None:
            # Raise any error of the step ahead before the next agreement of the group: the other
            # ranks would mistake that for the agreement on the step ahead.
            self._ahead[-1].result()
        return self._start(split, ids, step)

    def _start(self, split: Split, ids: tuple[Sample, ...], step: int) -> "Future[_RankPart]":
        return self._thread.submit(self._read, split, ids, step)

    def _read(self, split: Split, ids: tuple[Sample, ...], step: int) -> _RankPart:
        """Read a step and start the agreement on it, in the thread."""
        begin = time.perf_counter()
        # This is progress of the rank only while the main thread waits for it.
        phase = Phase.READING if split == "train" else Phase.EVALUATING
        beat: Callable[[], None] = partial(self._session.progress.beat, phase)
        source = step_inputs(self.dataset, split, ids, step)
        session, pinned = self._session, self._session.device.type == "cuda"
        for loss in session.layout.losses:
            # The step keeps these sums. To count them, synthetic samples draw all of their tokens,
            # which the main thread need not wait for. An evaluation has no depths.
            if split == "train" or not loss.depth:
                source.data.num_terms(loss.module, loss.depth)
        views = StepViews(session.layout, source.data)
        reads = reads_of(views, session.rank, decode=split in self._decodes)
        inputs, reasons = read_step(
            *(source, reads, session.spec, beat),
            pinned=pinned,
            threads=self._decoders,
            caches=self._caches,
        )
        inputs = replace(inputs, views=views)
        moving = session.layout.moving if split == "train" else ()
        even = {module.name: views.even_loads(module) for module in moving}
        loads = [
            views.load(module, module.grid.index(Axis.DP, session.rank))
            if session.rank in module.grid
            else 0
            for module in moving
        ]
        seconds = time.perf_counter() - begin
        # A step of training hears of signals with its metrics.
        signal = self._stop() if split == "heldout" else 0
        mine = len(reasons), signal, *self._memory(), *loads, *self._missing(inputs)
        return _RankPart(inputs, reasons, MaxOverRanks(mine, self._group), seconds, even)

    def _memory(self) -> list[int]:
        """Return the peak memory of this rank for each of its modules, and 0 for the others."""
        session = self._session
        mine = {module.name for module in session.layout.modules_of(session.rank)}
        used = peak_memory(session.device)
        return [used if module.name in mine else 0 for module in session.layout.modules]

    def _missing(self, inputs: ReadStep) -> list[int]:
        """Return what this rank says of the kept rows of a step, by module that keeps rows."""
        return [
            max((each.told for each in inputs.kept_of(module.name)), default=self._least)
            for module in self._session.layout.modules
            if module.keeps_rows
        ]

    def _from_cache(self, worst: list[int]) -> frozenset[str]:
        """Return the modules for which no rank lacks kept rows; say once if a cache is in need."""
        names = [module.name for module in self._session.layout.modules if module.keeps_rows]
        for name, number in zip(names, worst, strict=True):
            if (name, number) in self._told or name not in self._folders:
                continue
            self._told.add((name, number))
            if reason := reason_of(number, name, self._folders):
                effect = f"{name} makes the rows of pictures that are missing again"
                cache = f"cache of {name}"
                self._emit(ListenerFailed(listener=cache, reason=reason, effect=effect))
        return frozenset(name for name, number in zip(names, worst, strict=True) if not number)

    def _report(self, split: Split, step: int, reasons: dict[int, str], count: int) -> None:
        if split == "heldout":
            # Every evaluation reads the same samples, also after a resume; they count only once.
            self._known |= reasons.keys()
        else:
            self._state.bad_samples += count
        total = self._state.bad_samples + len(self._known)
        allowed = self._session.spec.data.max_bad_samples
        self._emit(BadSamples(step=step + 1, reasons=reasons, total=total, split=split))
        if total > allowed:
            last = list(reasons.items())[-_MOST_LISTED:]
            listed = "\n".join(f"sample {sample} ({split}): {why}" for sample, why in last)
            raise TooManyBadSamples(
                f"{total} samples could not be read, `data.max_bad_samples` allows {allowed}; "
                f"the last of them:\n{listed}"
            )


def _use(device: torch.device) -> None:
    """Make a GPU the current one of a thread: pinned memory belongs to the current GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def agree(reasons: dict[int, str], most: MaxOverRanks, group: ProcessGroup) -> dict[int, str]:
    """Return every record of a step that some rank cannot read, by number, with a reason.

    `reasons` are this rank's; `most` begins with the largest number of them over `group`. If ranks
    give different reasons, the lowest rank's reason is returned.

    Ranks: collective over `group`. Traffic: a number, and one per module, which gloo reduces
    several times faster than even a few bytes per rank; records and reasons only if a rank has any.
    """
    if not most.wait()[0]:
        return {}
    found = gather_objects(reasons, group)
    merged = {number: why for rank in reversed(found) for number, why in rank.items()}
    return dict(sorted(merged.items()))
