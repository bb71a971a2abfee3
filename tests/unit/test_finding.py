"""Looking for checkpoints beside a run that completes and deletes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_run_folder import tiny

from mimo_launch.checkpoint import index
from mimo_launch.checkpoint.folder import CHECKPOINTS, FORMAT, PARTIAL, complete, folder_name
from mimo_launch.checkpoint.index import TENSORS, NoCheckpoint, open_checkpoint
from mimo_launch.spec.load import MARKER, dump_spec


def save(run: Path, step: int) -> Path:
    """Make a checkpoint that has an index, as a run does; delete all older ones."""
    folder = run / CHECKPOINTS / folder_name(step)
    unfinished = folder.with_name(folder.name + PARTIAL)
    unfinished.mkdir(parents=True)
    entry = {"shape": [2], "dtype": "float32", "chunks": [[[0], [2], "part", 0, 8]]}
    (unfinished / TENSORS).write_text(json.dumps({"weights/vision.w": entry}))
    (unfinished / "part").write_bytes(bytes(8))
    content = {"format": FORMAT, "counts": {"step": step}, "updates": {}, "plan": "", "torch": ""}
    files = {path.name: [path.stat().st_size, 0] for path in unfinished.iterdir()}
    complete(unfinished, folder, content | {"spec": dump_spec(tiny()), "files": files})
    for other in set((run / CHECKPOINTS).iterdir()) - {folder}:
        shutil.rmtree(other)
    return folder


def test_the_size_of_a_checkpoint_is_that_of_all_its_files_but_the_marker(tmp_path: Path) -> None:
    files = [path for path in save(tmp_path, 4).iterdir() if path.name != MARKER]
    assert len(files) == 2
    found = open_checkpoint(tmp_path, None).num_bytes
    assert found == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("moment", ["is_complete", "read_marker", "read_index"])
@pytest.mark.parametrize("step", [6, 4])
def test_a_checkpoint_that_is_replaced_meanwhile_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, step: int
) -> None:
    """By that of a later step, or of the same one; but one that is damaged is not."""
    save(tmp_path, 4)
    real, calls = getattr(index, moment), []

    def racing(path: Path) -> Any:
        calls.append(path)
        if len(calls) == 1:
            shutil.rmtree(path)
            found = real(path) if moment == "is_complete" else None
            save(tmp_path, step)
            if found is None:
                path = path.with_name("gone")
        return real(path)

    monkeypatch.setattr(index, moment, racing)
    found = open_checkpoint(tmp_path, None)
    assert (found.step, found.segments("vision")) == (step, {"w": (2,)})
    (found.path / TENSORS).write_text("{")
    with pytest.raises(NoCheckpoint, match=r"damaged|cannot be read"):
        open_checkpoint(tmp_path, None)


def test_files_that_differ_from_their_checksums_or_are_gone_are_no_checkpoint(
    tmp_path: Path,
) -> None:
    folder = save(tmp_path, 4)
    found, read = open_checkpoint(tmp_path, None), list[int]()
    with pytest.raises(NoCheckpoint, match="the checksum of part is another"):
        found.check(read.append)
    (folder / "part").unlink()
    with pytest.raises(NoCheckpoint, match="cannot be read"):
        found.check(read.append)
    assert read == []
