"""The folder of one run: what was asked for, what was planned, what happened.

Decides: names of files, and that a folder of an earlier run is moved aside, never overwritten.
Relies on: nothing.
Leaves: metrics to `train.metrics`, worker logs to torch elastic.
"""

from pathlib import Path

import yaml

from mimo_launch.spec.model import Spec


def open_run_folder(root: Path, spec: Spec, plan_json: str) -> tuple[Path, Path | None]:
    """Create `root/NAME` with the resolved spec and the plan in it.

    Returns the folder, and where an earlier run of that name was moved (`NAME.1`, `NAME.2`, ...).
    Raises: OSError if the folder cannot be written.
    """
    folder = root / spec.name
    moved = _unused(root, spec.name) if folder.exists() else None
    if moved is not None:
        folder.rename(moved)
    folder.mkdir(parents=True)
    resolved = spec.model_dump(mode="json", by_alias=True)
    (folder / "spec.yaml").write_text(
        yaml.safe_dump(resolved, sort_keys=False, default_flow_style=None), encoding="utf-8"
    )
    (folder / "plan.json").write_text(plan_json + "\n", encoding="utf-8")
    return folder, moved


def _unused(root: Path, name: str) -> Path:
    number = 1
    while (root / f"{name}.{number}").exists():
        number += 1
    return root / f"{name}.{number}"
