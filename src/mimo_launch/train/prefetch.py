"""Reads steps ahead, and has all ranks agree on the samples that cannot be read.

Decides: that a bad sample is left out on every rank alike, and how many a run may have.
Relies on: `layout.sample_readers` for who reads what; every rank having the same StepData.
Leaves: what damage looks like to `loader` and the data sets.

The agreement costs an all-reduce of one number per step. Without it the ranks that could not read
a sample would disagree with the others on rows, routes and N, and hang.

One thread reads one step ahead of the one that runs and starts the agreement on it; the main thread
waits for both when it comes to the step. The agreement has a gloo group of its own, so that it
waits for no device. What was read ahead counts for nothing until its step comes: a run that is
stopped and goes on counts the same bad samples as one that was not.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from mimo_launch.comm.async_copies import SumOverRanks
from mimo_launch.comm.collectives import gather_objects
from mimo_launch.comm.world import group_timeout
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.random_draws import Split
from mimo_launch.data.sample_order import Sample
from mimo_launch.layout.sample_readers import reads_of
from mimo_launch.layout.step_views import Imbalance, StepViews
from mimo_launch.runtime.progress import Phase
from mimo_launch.spec.model import WebdatasetData
from mimo_launch.train.events import BadSamples, Listener, Reading
from mimo_launch.train.loader import ReadInputs, read_step, step_inputs
from mimo_launch.train.run_state import EndOfRun, RunState
from mimo_launch.train.session import RankSession

_MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class _Read:
    """What this rank has read of a step, and how many samples all ranks could not read."""

    inputs: ReadInputs
    reasons: dict[int, str]
    num_bad: SumOverRanks
    seconds: float


class TooManyBadSamples(EndOfRun):
    """More samples could not be read than a run may leave out."""


class StepReader:
    """Reads this rank's part of steps, and counts what could not be read in `state`."""

    def __init__(
        self, session: RankSession, dataset: Dataset, state: RunState, emit: Listener
    ) -> None:
        """Create the group of the agreements. Ranks: collective over the world."""
        self.dataset = dataset
        self._session, self._state, self._emit = session, state, emit
        # Evaluation decodes and scores answers, of data that have any.
        self._decodes: set[Split] = set() if dataset.answer_end is None else {"heldout"}
        self._known: set[int] = set()
        timeout = group_timeout(session.spec.train.timeout, session.device)
        self._group = dist.new_group(backend="gloo", timeout=timeout, group_desc="reader")
        # One thread, so that ranks start their agreements in the same order.
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="reader", initializer=_use, initargs=(session.device,)
        )
        data = session.spec.data
        self._decoders: ThreadPoolExecutor | None = None
        if isinstance(data, WebdatasetData):
            self._decoders = ThreadPoolExecutor(
                data.decode_threads, "decoder", initializer=_use, initargs=(session.device,)
            )
        self._ahead: tuple[tuple[Sample, ...], int, Future[_Read]] | None = None

    def __enter__(self) -> "StepReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the thread.

        Where all ranks end alike, a step that is being read ahead is waited for: none of them must
        leave the others in its agreement.
        """
        if self._ahead is not None and (kind is None or issubclass(kind, EndOfRun)):
            future = self._ahead[-1]
            wait([future])
            if future.exception() is None:
                with suppress(RuntimeError):  # A peer met an error in a step that nobody will run.
                    future.result().num_bad.wait()
        for threads in (self._thread, self._decoders):
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Start to read the next step of training; at most one is read ahead.

        Ranks: collective over the world.
        """
        self._ahead = (ids, step, self._start("train", ids, step))

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadInputs:
        """Return the samples `ids` of a step, which is counted from 0.

        Those that any rank cannot read are left out.

        Ranks: collective over the world. Raises, on all ranks alike: TooManyBadSamples.
        """
        progress, begin = self._session.progress, time.perf_counter()
        if split == "train":
            progress.enter(Phase.READING, step + 1)
        read = self._taken(split, ids, step).result()
        if split == "train":
            progress.enter(Phase.AGREEING)
        bad = agree(read.reasons, read.num_bad, self._group)
        inputs = read.inputs
        if self._decoders is not None:
            waited = time.perf_counter() - begin
            inputs = replace(inputs, reading=Reading(waited_s=waited, read_s=read.seconds))
        if not bad:
            return inputs
        named = {inputs.record(number).id: why for number, why in bad.items()}
        self._report(split, step, named, len(bad))
        return inputs.without(bad)

    def _taken(self, split: Split, ids: tuple[Sample, ...], step: int) -> "Future[_Read]":
        """Return the reading of a step that has been read ahead, or start it now."""
        if split == "train" and self._ahead is not None:
            (*asked, future), self._ahead = self._ahead, None
            if asked == [ids, step]:
                return future
        if self._ahead is not None:
            # An error of what is read ahead comes before the next agreement of the group, which
            # the other ranks would take for theirs of that step.
            self._ahead[-1].result()
        return self._start(split, ids, step)

    def _start(self, split: Split, ids: tuple[Sample, ...], step: int) -> "Future[_Read]":
        return self._thread.submit(self._read, split, ids, step)

    def _read(self, split: Split, ids: tuple[Sample, ...], step: int) -> _Read:
        """Read a step and start to agree on it, in the thread."""
        begin = time.perf_counter()
        # Its progress counts only while the main thread waits for it.
        phase = Phase.READING if split == "train" else Phase.EVALUATING
        beat: Callable[[], None] = partial(self._session.progress.beat, phase)
        source = step_inputs(self.dataset, split, ids, step)
        session, pinned = self._session, self._session.device.type == "cuda"
        views = StepViews(session.layout, source.data)
        reads = reads_of(views, session.rank, decode=split in self._decodes)
        inputs, reasons = read_step(
            source, reads, session.spec, beat, pinned=pinned, threads=self._decoders
        )
        inputs = replace(inputs, views=views)
        if split == "train":
            inputs = replace(inputs, imbalance=_imbalances(views))
        seconds = time.perf_counter() - begin
        return _Read(inputs, reasons, SumOverRanks(len(reasons), self._group), seconds)

    def _report(self, split: Split, step: int, reasons: dict[int, str], count: int) -> None:
        if split == "heldout":
            # Every evaluation reads the same samples: each of them counts once.
            count = len(reasons.keys() - self._known)
            self._known |= reasons.keys()
        self._state.bad_samples += count
        total, allowed = self._state.bad_samples, self._session.spec.data.max_bad_samples
        self._emit(BadSamples(step=step + 1, reasons=reasons, total=total, split=split))
        if total > allowed:
            last = list(reasons.items())[-_MOST_LISTED:]
            listed = "\n".join(f"sample {sample} ({split}): {why}" for sample, why in last)
            raise TooManyBadSamples(
                f"{total} samples could not be read, `data.max_bad_samples` allows {allowed}; "
                f"the last of them:\n{listed}"
            )


def _use(device: torch.device) -> None:
    """Make a GPU the current one of a thread: pinned memory belongs to one, 0 by default."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _imbalances(views: StepViews) -> dict[str, Imbalance]:
    """Return how even the encoders' shares of a step are; looks at all samples of it."""
    shared = (module for module in views.layout.encoders if module.grid.size("dp") > 1)
    return {module.name: views.imbalance(module) for module in shared}


def agree(reasons: dict[int, str], num_bad: SumOverRanks, group: ProcessGroup) -> dict[int, str]:
    """Return by number every record of a step that some rank cannot read, with a reason.

    `reasons` are those of this rank, `num_bad` the sum of their numbers over `group`, already on
    its way. Where ranks differ in the reason, the lowest rank's counts.

    Ranks: collective over `group`. Traffic: one number, which gloo reduces several times faster
    than even a few bytes per rank; records and reasons only if any rank has some.
    """
    if not num_bad.wait():
        return {}
    found = gather_objects(reasons, group)
    merged = {number: why for rank in reversed(found) for number, why in rank.items()}
    return dict(sorted(merged.items()))
