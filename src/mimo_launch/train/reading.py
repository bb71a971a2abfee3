"""Reads a step before it runs, and has all ranks agree on the samples that cannot be read.

Decides: that a bad sample is left out on every rank alike, and how many a run may have.
Relies on: `layout.reads` for who reads what; every rank having the same DataPlan.
Leaves: what damage looks like to `loader` and the data sets.

The agreement costs an all-reduce of one number per step. Without it the ranks that could not read
a sample would disagree with the others on rows, routes and N, and hang.
"""

import torch
import torch.distributed as dist

from mimo_launch.comm.objects import gather_objects
from mimo_launch.layout.reads import reads_of
from mimo_launch.runtime.whereabouts import Phase
from mimo_launch.train.data.dataset import Dataset
from mimo_launch.train.data.draws import Split
from mimo_launch.train.events import BadSamples, Listener
from mimo_launch.train.loader import ReadInputs, read_ahead, step_inputs
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import EndOfRun, RunState

_MOST_LISTED = 5


class TooManyBadSamples(EndOfRun):
    """More samples could not be read than a run may leave out."""


class StepReader:
    """Reads this rank's part of steps, and counts what could not be read in `state`."""

    def __init__(
        self, session: RankSession, dataset: Dataset, state: RunState, emit: Listener
    ) -> None:
        self.dataset = dataset
        self._session, self._state, self._emit = session, state, emit
        # Answers are decoded and judged in evaluation, for data that have any.
        decodes = session.spec.data.kind == "digits"
        self._reads = {
            "train": reads_of(session.layout, session.rank, decode=False),
            "heldout": reads_of(session.layout, session.rank, decode=decodes),
        }
        self._known: set[int] = set()

    def read(self, split: Split, ids: tuple[int, ...], step: int) -> ReadInputs:
        """Return the samples `ids` of a step (counted from 0), without those that any rank cannot
        read.

        Ranks: collective over the world. Raises, on all ranks alike: TooManyBadSamples.
        """  # noqa: D205
        session, where = self._session, self._session.where
        if split == "train":
            where.enter(Phase.READING, step + 1)
        source = step_inputs(self.dataset, split, ids, step)
        inputs, reasons = read_ahead(source, self._reads[split], session.spec, where.beat)
        if split == "train":
            where.enter(Phase.AGREEING)
        bad = agree(reasons, session.device)
        if not bad:
            return inputs
        self._report(split, step, {ids[position]: why for position, why in bad.items()}, len(bad))
        return inputs.without(bad)

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


def agree(reasons: dict[int, str], device: torch.device) -> dict[int, str]:
    """Return by position every sample of a step that some rank cannot read, with a reason.

    `reasons` are those of this rank. Where ranks differ in the reason, the lowest rank's counts.

    Ranks: collective over the world. Traffic: one number, which gloo reduces several times faster
    than even a few bytes per rank; positions and reasons only if any rank has some.
    """
    count = torch.tensor(len(reasons), device=device)
    dist.all_reduce(count)
    if not count:
        return {}
    found = gather_objects(reasons)
    merged = {position: why for rank in reversed(found) for position, why in rank.items()}
    return dict(sorted(merged.items()))
