"""Changes of settings and data since a checkpoint was saved.

Decides: that a run continues with other held-out samples, but not with other training samples,
unless that is allowed.
Relies on: `data.contents` to compare data.
Leaves: the choice of what to load to `loading`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mimo_launch.comm.collectives import from_first
from mimo_launch.data.contents import Contents, changed_files
from mimo_launch.train.run_state import EndOfRun


class DataHasChanged(EndOfRun):
    """A run would continue with other training samples than it was saved with."""


def changed_data(
    checkpoint: Path,
    old: Mapping[str, Contents] | None,
    data: Mapping[str, Contents],
    group: dist.ProcessGroup,
    *,
    allowed: bool,
) -> list[str]:
    """Return the differences from the `old` data of a checkpoint; both are by split.

    Ranks: collective over `group`. Raises: DataHasChanged if training samples differ, unless that
    is `allowed`.
    """
    if old is None:
        return ["data: not recorded in the checkpoint"] * any(data.values())
    # Hosts may have their own copies, so the first rank decides.
    train, heldout = from_first(
        [changed_files(old.get(split, ()), data.get(split, ())) for split in ("train", "heldout")],
        group,
    )
    if train and not allowed:
        raise DataHasChanged(
            f"the samples of `data` are not those that {checkpoint} was saved with: "
            f"{'; '.join(train)}\n`--set train.allow_changed_data=true` goes on, and some samples "
            "of the epoch may come twice or not at all; `--no-resume` starts a new run"
        )
    if not {"heldout"} <= old.keys() & data.keys():
        heldout = []  # It was or is not evaluated; the changed settings show that.
    return [*(f"data.shards {each}" for each in train), *(f"data.eval_shards {h}" for h in heldout)]


def changed_settings(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield the settings that differ, as `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from changed_settings(
                old.get(key), new.get(key), f"{path}.{key}" if path else key
            )
    elif old != new:
        yield f"{path}: {_as_yaml(old)} -> {_as_yaml(new)}"


def _as_yaml(value: Any) -> str:
    """Return a value as written in a spec."""
    return value if isinstance(value, str) else json.dumps(value)
