"""Saves a run while it trains: copy the state, write it in the background, complete it, prune.

Decides: an order in which a crash loses only the running save: write tensors and index to a folder
with a temporary name and sync them; write the marker; rename the folder; delete old ones. A save
that fails removes its files.
Relies on: `storage` for tensors; a separate gloo group, because a thread uses it during training.
Leaves: when to save to the loop.
"""

import shutil
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.checkpoint.boxes import WEIGHTS, Box, plain, state_boxes, update_counts
from mimo_launch.checkpoint.folder import (
    CHECKPOINTS,
    FORMAT,
    PARTIAL,
    Base,
    all_checkpoints,
    complete,
    crc_of,
    delete_old,
    folder_name,
    is_finite,
)
from mimo_launch.checkpoint.index import TENSORS
from mimo_launch.checkpoint.storage import CheckpointError, write_boxes
from mimo_launch.comm.finite_flags import not_finite
from mimo_launch.comm.objects import from_first, gather_objects
from mimo_launch.data.dataset import Contents
from mimo_launch.runtime.progress import Phase, RunState
from mimo_launch.spec.load import dump_spec
from mimo_launch.train.events import CheckpointFailed, CheckpointSaved, Event
from mimo_launch.train.rank_session import RankSession

Outcome = CheckpointSaved | CheckpointFailed


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts at the moment of a save: the run's, and the updates of each segment on this rank.

    `best` is the best evaluation until then, as a mapping.
    """

    run: dict[str, int]
    updates: dict[str, int]
    best: dict[str, float] | None


class CheckpointSaver:
    """Manages the checkpoints of a run; all ranks call every method."""

    def __init__(
        self,
        session: RankSession,
        run: Path,
        group: dist.ProcessGroup,
        data: Mapping[str, Contents] | None = None,
        bases: Mapping[str, Base] | None = None,
    ) -> None:
        """Save under `run/checkpoints`; `group` has all ranks, and only this object uses it.

        `data` are the contents of the data by split; without them, a resumed run cannot compare.
        `bases` has the weights of modules that are left out.

        Raises: ValueError if the spec disables saving.
        """
        settings = session.spec.saving
        if settings is None:
            raise ValueError("the spec says `checkpoint: none`")
        self._settings, self._session, self._run = settings, session, run
        self._group = group
        self._data = None
        if data is not None:
            self._data = {split: [astuple(each) for each in files] for split, files in data.items()}
        self._bases = dict(bases or {})
        self._left = frozenset(name for base in self._bases.values() for name in base.shapes)
        # While training runs during a save, only training counts as progress.
        self._beat = partial(session.progress.beat, Phase.SAVING)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Outcome] | None = None
        self._outcomes: list[Outcome] = []
        self._newest: Outcome | None = None
        self._buffers: dict[str, Tensor] = {}

    @property
    def error(self) -> str | None:
        """Return why the newest save failed, if it did."""
        return self._newest.reason if isinstance(self._newest, CheckpointFailed) else None

    def save(self, state: RunState) -> None:
        """Save weights, optimizer and `state`; return when training may continue.

        Waits first for a save that is still being written. Ranks: collective over the world.
        """
        started = time.perf_counter()
        self._collect()
        session = self._session
        boxes = [
            c
            for c in state_boxes(session.modules, session.updates)
            if c.counted and c.name not in self._left
        ]
        run = asdict(state)
        counts = Counts(
            best=run.pop("best"),
            run=run,
            updates=update_counts(session.modules, session.updates),
        )
        if not self._settings.asynchronous:
            self._note(self._write(boxes, counts, started, None))
            return
        copies = self._copy(boxes)
        stall = time.perf_counter() - started
        self._pending = self._writer.submit(self._write, copies, counts, started, stall)

    def poll(self) -> list[Event]:
        """Return the outcomes of saves since the last call.

        They are the same on all ranks, but not at the same time.
        """
        if self._pending is not None and self._pending.done():
            self._collect()
        outcomes, self._outcomes = self._outcomes, []
        return list(outcomes)

    def newest_finite(self) -> str | None:
        """Return the newest checkpoint with only finite weights. Ranks: collective."""
        found = None
        if dist.get_rank(self._group) == 0:
            found = next((str(p) for p in all_checkpoints(self._run) if is_finite(p)), None)
        best: str | None = from_first(found, self._group)
        return best

    def finish(self) -> None:
        """Wait for the running save."""
        self._collect()

    def _collect(self) -> None:
        if self._pending is not None:
            self._note(self._pending.result())
            self._pending = None

    def _note(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._newest = outcome

    def _copy(self, boxes: Iterable[Box]) -> list[Box]:
        """Return copies of the boxes in host memory, which the next save reuses."""
        copies = []
        for box in boxes:
            # A rank holds one part of a weight, so its name is enough.
            name = box.name
            if name not in self._buffers:
                pinned = box.tensor.is_cuda
                self._buffers[name] = torch.empty_like(box.tensor, device="cpu", pin_memory=pinned)
            self._buffers[name].copy_(box.tensor, non_blocking=True)
            copies.append(replace(box, tensor=self._buffers[name]))
        if self._session.device.type == "cuda":
            torch.cuda.synchronize()
        return copies

    def _write(
        self, boxes: list[Box], counts: Counts, started: float, stall: float | None
    ) -> Outcome:
        """Write one checkpoint and complete it; the outcome is the same on all ranks."""
        step = counts.run["step"]
        final = self._run / CHECKPOINTS / folder_name(step)
        unfinished = final.with_name(final.name + PARTIAL)
        # Of the copies, so that training does not wait for it.
        mine = not_finite([(plain(c.name), c.tensor) for c in boxes if c.name.startswith(WEIGHTS)])
        try:
            write_boxes(unfinished, boxes, self._group, self._beat)
            files = self._files(unfinished)
            bad = self._complete(unfinished, final, counts, mine, files)
        except CheckpointError as error:
            self._discard(unfinished)
            return CheckpointFailed(step=step, reason=str(error))
        seconds = time.perf_counter() - started
        return CheckpointSaved(
            step=step,
            checkpoint=str(final),
            num_bytes=sum(size for size, _ in files.values()),
            stall_s=seconds if stall is None else stall,
            seconds=seconds,
            not_finite=tuple(bad),
        )

    def _discard(self, unfinished: Path) -> None:
        """Remove the files of a failed save: metrics, logs and reports need the space."""
        for path in self._written(unfinished):
            with suppress(OSError):
                path.unlink()
        if dist.get_rank(self._group) == 0:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _written(self, folder: Path) -> list[Path]:
        """Return the files that this rank writes."""
        rank = dist.get_rank(self._group)
        return [*folder.glob(f"__{rank}_*"), *(folder.glob(TENSORS) if rank == 0 else ())]

    def _files(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Read every file back and return its size and checksum, on all ranks.

        Raises: CheckpointError on all ranks.
        """
        rank = dist.get_rank(self._group)
        mine = self._written(folder)
        sums, failed = {}, ""
        try:
            sums = {path.name: (path.stat().st_size, crc_of(path, self._beat)) for path in mine}
        except OSError as error:
            failed = f"rank {rank}: {error}"
        everyone = gather_objects((sums, failed), self._group)
        if reasons := [reason for _, reason in everyone if reason]:
            raise CheckpointError(reasons[0])
        return {name: entry for part, _ in everyone for name, entry in part.items()}

    def _complete(
        self,
        unfinished: Path,
        final: Path,
        counts: Counts,
        mine: list[str],
        files: dict[str, tuple[int, int]],
    ) -> list[str]:
        """Complete the folder on the first rank; return the weights that are not finite.

        `mine` are those of this rank.

        Raises: CheckpointError on all ranks.
        """
        updates: dict[str, int] = {}
        bad: set[str] = set()
        for part, names in gather_objects((counts.updates, mine), self._group):
            updates |= part
            bad.update(names)
        failed = ""
        if dist.get_rank(self._group) == 0:
            marker = {
                "format": FORMAT,
                "counts": counts.run,
                "updates": updates,
                "plan": self._session.plan.identity,
                "spec": dump_spec(self._session.spec),
                "torch": torch.__version__,
                "files": files,
                "not_finite": sorted(bad),
                "data": self._data,
                "bases": {name: asdict(base) for name, base in self._bases.items()},
                "best": counts.best,
            }
            try:
                # The first rank may not see the files of the others.
                for name, (size, _) in files.items():
                    path = unfinished / name
                    if not path.is_file() or path.stat().st_size != size:
                        raise OSError(
                            f"rank 0 does not see {path}; all hosts need one shared run folder"
                        )
                complete(unfinished, final, marker)
            except OSError as error:
                failed = f"{type(error).__name__}: {error}"
            else:
                # The checkpoint is complete in any case; the next save tries again.
                with suppress(OSError):
                    asked = self._settings
                    delete_old(self._run, asked.keep, asked.keep_every, keep_best=asked.keep_best)
        if reasons := [reason for reason in gather_objects(failed, self._group) if reason]:
            raise CheckpointError(reasons[0])
        return sorted(bad)
