"""Begins a run: from its newest usable checkpoint, of any layout, or with `init_from`.

Decides: what must be in a checkpoint for a run to resume from it, and what the user is told of
changes; that weights are drawn only after all others have been read.
Relies on: `usable` for the checkpoint, `starts` for weights that it leaves out and for `init_from`.
Leaves: whether a run may resume at all to the command line, which empties or keeps its folder.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed as dist

from mimo_launch.checkpoint.boxes import (
    FP8,
    WEIGHTS,
    WeightsDoNotFit,
    differences,
    fit,
    note_filled,
    set_update_counts,
    state_boxes,
)
from mimo_launch.checkpoint.folder import (
    CHECKPOINTS,
    DataHasChanged,
    Marker,
    changed_data,
    changed_settings,
)
from mimo_launch.checkpoint.saver import CheckpointSaver
from mimo_launch.checkpoint.starts import Start, Starts
from mimo_launch.checkpoint.storage import CheckpointError, read_boxes
from mimo_launch.checkpoint.usable import Usable, newest_usable
from mimo_launch.comm.objects import from_first
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Contents, Dataset
from mimo_launch.data.order.mixture import begun_phases
from mimo_launch.data.random_draws import Split
from mimo_launch.runtime.progress import Phase, RunState
from mimo_launch.spec.load import dump_spec, spec_from_data, with_defaults
from mimo_launch.spec.optimizers import STATE
from mimo_launch.spec.spec import Spec
from mimo_launch.train.best_evaluation import evaluates_alike
from mimo_launch.train.events import Listener, RunResumed
from mimo_launch.train.rank_session import RankSession


def load_state(
    session: RankSession, usable: Usable, group: dist.ProcessGroup, left: frozenset[str]
) -> tuple[RunState, tuple[str, ...]]:
    """Fill weights and optimizers; return the state of the run and modules without saved moments.

    A module that was frozen or had another optimizer when it was saved starts with zero moments.
    The checkpoint leaves out the weights `left` of this rank, which are there.

    Ranks: collective over the world. Raises: WeightsDoNotFit if a weight is missing, has another
    shape or would be lost; CheckpointError if a file cannot be read.
    """
    saved = usable.shapes()
    # Scales of another backend or history length are not loaded: they adapt within a few steps.
    boxes = [
        box
        for box in state_boxes(session.modules, session.updates)
        if saved.get(box.name) == box.shape
        or not (box.name.startswith(FP8) or (box.name in left and box.name not in saved))
    ]
    fitting = fit(saved, boxes, group, f"{WEIGHTS}/")
    missing_moments = tuple(
        name for name in fitting.missing if name.startswith(tuple(f"{each}/" for each in STATE))
    )
    missing_weights = [name for name in fitting.missing if name not in missing_moments]
    if missing_weights or fitting.misfits or fitting.unused:
        raise WeightsDoNotFit(
            # The remedy first: names of tensors may be cut off.
            f"{usable.path} is of another model or adapter, so the run cannot resume from it: "
            "train under another `name`, with `init_from` and `init_partial: true` for what fits\n"
            + differences(
                missing_there=missing_weights,
                there_only=fitting.unused,
                of_another_shape=fitting.misfits,
            )
        )
    read_boxes(usable.path, fitting.boxes, group, session.progress.beat)
    note_filled(session.modules, fitting.boxes)
    set_update_counts(session.modules, session.updates, usable.marker.updates)
    fresh = {name.partition("/")[2].partition(".")[0] for name in missing_moments}
    state = run_state(usable.marker)
    return state, tuple(sorted(fresh))


def run_state(marker: Marker) -> RunState:
    """Return the state of a run as it was saved."""
    # Earlier releases had one order of samples, and did not write its version.
    counts = {"order": 1, "evaluated": marker.evaluated, **marker.counts}
    return RunState(**counts, best=marker.best)


def refuse_other_mixture(usable: Usable, spec: Spec, dataset: Dataset) -> None:
    """Raise DataHasChanged if sources were mixed otherwise up to where a run goes on."""
    marker = usable.marker
    with suppress(ValueError):  # A spec of an earlier release may not be one any more.
        before, now = (
            begun_phases(each, dataset.sources(), marker.counts["samples"])
            for each in (spec_from_data(marker.spec), spec)
        )
        if before == now:
            return
        step = marker.counts["step"]
        raise DataHasChanged(
            f"the samples of `data` before step {step:,} were mixed otherwise when {usable.path} "
            "was saved, so some would come twice or not at all: write the weights and the batch "
            "as they were, and other weights as `weight_changes: "
            f"[{{step: {step}, weights: ...}}]`\n`--set train.allow_changed_data=true` goes on all "
            "the same; `--no-resume` starts a new run"
        )


def load_all_weights(session: RankSession, path: Path, emit: Listener) -> None:
    """Fill the weights of every module from a checkpoint or a run folder, saved on any layout.

    Weights that it lacks are drawn.

    Ranks: collective over the world. Raises: CheckpointError, WeightsDoNotFit.
    """
    session.progress.enter(Phase.LOADING)
    timeout = timedelta(seconds=session.spec.train.timeout)
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    usable = newest_usable(path, group, emit, session.progress.beat, own=False)
    if usable is None:
        raise CheckpointError(f"{path} has no usable checkpoint")
    starts = Starts(session, group, emit, {})
    for module in session.layout.modules:
        allowed = session.spec.modules[module.name].init_partial
        starts.load_from_run(module.name, usable, partial=allowed)
    session.draw_rest()


def _forget_best(state: RunState, differs: bool) -> Iterator[str]:
    """Forget the best evaluation if later ones are of something else; say so as a change."""
    if differs and state.best is not None:
        yield f"best evaluation: that of step {state.best.step} -> none"
        state.best = None


def start_run(
    session: RankSession, run: Path, emit: Listener, dataset: Dataset | None = None
) -> tuple[RunState, CheckpointSaver | None]:
    """Load from the run folder or `init_from`; return the state of the run, and its saver.

    Weights that come from neither are drawn.

    `dataset` is the spec's data set; if None, it is built.

    Ranks: collective over the world. Raises: CheckpointError, WeightsDoNotFit, DataHasChanged.
    """
    spec = session.spec
    session.progress.enter(Phase.LOOKING)
    # Use a separate group: saves run during training, and exchange objects on the host.
    timeout = timedelta(seconds=spec.train.timeout)
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    # Hosts may see a shared folder at different moments, so the first rank decides.
    has_checkpoints = from_first((run / CHECKPOINTS).is_dir(), group)
    data: dict[str, Contents] = {}
    if has_checkpoints or spec.saving is not None:
        dataset = dataset or build_dataset(spec)
        splits: tuple[Split, ...] = ("train",) if spec.eval is None else ("train", "heldout")
        data = {split: dataset.contents(split) for split in splits}
    starts, usable, state = Starts(session, group, emit, {}), None, RunState()
    if has_checkpoints:
        usable = newest_usable(run, group, emit, session.progress.beat, own=True)
    if usable is not None:
        session.progress.enter(Phase.LOADING)
        allowed, agree = spec.train.allow_changed_data, partial(from_first, group=group)
        changed = changed_data(usable.path, usable.marker.data, data, agree, allowed=allowed)
        if dataset is not None and not allowed:
            refuse_other_mixture(usable, spec, dataset)
        begun = _left_out(spec, usable, starts)
        left = frozenset[str]().union(*(each.names for each in begun.values()))
        state, fresh = load_state(session, usable, group, left)
        before, now = with_defaults(usable.marker.spec), dump_spec(spec)
        changes = (
            *changed_settings(before, now),
            *changed,
            *_forget_best(state, not evaluates_alike(before, now) or bool(changed)),
            *(f"optimizer state of {name}: none saved -> zero" for name in fresh),
        )
        emit(RunResumed(step=state.step, resumed_from=str(usable.path), changes=changes))
    else:
        begun = _begun(spec, starts, lambda: session.progress.enter(Phase.LOADING))
    saver = None
    if spec.saving is not None:
        bases = starts.bases(begun, packed=spec.saving.frozen_weights)
        saver = CheckpointSaver(session, run, group, data, bases)
    # Last, so that a rank waits for no other while it is said to draw.
    session.draw_rest()
    return state, saver


def _begun(spec: Spec, starts: Starts, loads: Callable[[], None]) -> dict[str, Start]:
    """Fill what `init_from` names; return the start of each module that has one."""
    begun = {}
    for name, module in spec.modules.items():
        if module.init_from is None:
            continue
        loads()
        begun[name] = start = starts.load(name, Path(module.init_from))
        if module.adapter is not None and module.adapter.init_from is not None:
            starts.load_adapter(name, Path(module.adapter.init_from), start.folder)
    return begun


def _left_out(spec: Spec, usable: Usable, starts: Starts) -> dict[str, Start]:
    """Fill what the checkpoint of a run leaves out; return the start of each such module."""
    begun = {}
    for name, base in usable.marker.bases.items():
        folder = spec.modules[name].init_from if name in spec.modules else None
        if folder is None:
            raise WeightsDoNotFit(
                f"{usable.path} leaves out weights of `{name}`; write `init_from: {base.folder}` "
                "in it again"
            )
        start = starts.load(name, Path(folder), base)
        begun[name] = replace(start, names=start.names & base.shapes.keys())
    return begun
