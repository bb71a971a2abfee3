"""What happens between building the modules and the first step: weights and state of earlier runs.

Decides: that a run goes on from its newest usable checkpoint, and otherwise takes the weights that
`init_from` names.
Relies on: `checkpoint`.
Leaves: whether a run may go on at all to the command line, which empties or keeps its folder.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mimo_launch.checkpoint.folder import CHECKPOINTS
from mimo_launch.checkpoint.hugging_face import load_hugging_face
from mimo_launch.checkpoint.loading import load_state, load_weights, newest_usable
from mimo_launch.checkpoint.saver import CheckpointSaver
from mimo_launch.checkpoint.storage import CheckpointError
from mimo_launch.comm.host_objects import from_first
from mimo_launch.hugging_face.folder import is_hugging_face
from mimo_launch.runtime.progress import Phase
from mimo_launch.spec.load import dump_spec
from mimo_launch.train.events import Listener, RunResumed
from mimo_launch.train.run_state import RunState
from mimo_launch.train.session import RankSession


def start_run(
    session: RankSession, run: Path, emit: Listener
) -> tuple[RunState, CheckpointSaver | None]:
    """Load what the run folder and `init_from` offer; return where the run stands, and its saver.

    Ranks: collective over the world. Raises: CheckpointError, WeightsDoNotFit.
    """
    spec = session.spec
    starts = {name: Path(m.init_from) for name, m in spec.modules.items() if m.init_from}
    session.progress.enter(Phase.LOADING)
    # Its own group: saves run beside training, and what travels are host objects.
    timeout = timedelta(seconds=spec.train.timeout)
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    # Hosts may see a shared folder at different moments: the first rank says what is there.
    found = from_first((run / CHECKPOINTS).is_dir(), group)
    saver = None if spec.saving is None else CheckpointSaver(session, run, group)
    usable = newest_usable(run, group, emit, session.progress.beat, own=True) if found else None
    if usable is not None:
        state, fresh = load_state(session, usable, group)
        changes = (
            *_changes(usable.marker.spec, dump_spec(spec), ""),
            *(f"optimizer state of {name}: none saved -> zero" for name in fresh),
        )
        emit(RunResumed(step=state.step, checkpoint=str(usable.path), changes=changes))
        return state, saver
    for name, start in starts.items():
        # As `checks` sees it: a checkpoint of ours has no config.json.
        if from_first(is_hugging_face(start), group):
            emit(load_hugging_face(session, name, start, group))
            continue
        usable = newest_usable(start, group, emit, session.progress.beat, own=False)
        if usable is None:
            raise CheckpointError(f"`init_from` of `{name}`: {start} has no usable checkpoint")
        emit(load_weights(session, name, usable, group))
    return RunState(), saver


def _changes(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yield the settings that differ, as `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield f"{path}: {_as_yaml(old)} -> {_as_yaml(new)}"


def _as_yaml(value: Any) -> str:
    """Return a value as a spec writes it."""
    return value if isinstance(value, str) else json.dumps(value)
