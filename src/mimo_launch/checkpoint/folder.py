"""The folders of checkpoints on disk: their names, and the file that completes one.

Decides: `checkpoints/step-00000100/` holds `checkpoint.json`, which is written last and lists every
other file with its size and CRC-32. A folder without it is incomplete; a folder that differs from
it is damaged. An incomplete folder ends in `.partial`; a damaged one is renamed to end in
`.damaged`. A run may continue with other settings and held-out samples than the file names. It
may continue with other training samples only if the spec allows that.
Relies on: no torch, so that the command line can look at checkpoints before it imports torch.
Leaves: tensors to `storage`.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mimo_launch.data.dataset import Contents, changed_files, contents_from
from mimo_launch.runtime.progress import Best, EndOfRun
from mimo_launch.spec.base import MAX_INTEGER
from mimo_launch.spec.files import read_json
from mimo_launch.spec.load import MARKER

CHECKPOINTS = "checkpoints"
PARTIAL, DAMAGED = ".partial", ".damaged"
FORMAT = 1
# A checkpoint in whose place a new one of the same step comes.
REPLACED = f".old{PARTIAL}"
_ENDS = "|".join(map(re.escape, (PARTIAL, DAMAGED, REPLACED)))
_NAME = re.compile(rf"step-(\d+)({_ENDS})?")
_CHECKSUM = "crc32"
_BLOCK = 1 << 22


class DamagedCheckpoint(Exception):
    """A checkpoint cannot be used; the message says why."""


Sums = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Base:
    """Weights of a module that a checkpoint leaves out: the folder that holds them.

    `files` has the size and the CRC-32 of each file that matters there, `shapes` the whole shapes
    of the weights by their names in a checkpoint.
    """

    folder: str
    files: Sums
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, raw: Any) -> "Base":
        """Return one as read from JSON. Raises: ValueError, LookupError, TypeError."""
        shapes = {str(name): tuple(map(int, shape)) for name, shape in raw["shapes"].items()}
        return cls(str(raw["folder"]), _sums(raw["files"]), shapes)

    def changed(self, files: Sums) -> str:
        """Return how the files there differ from those that a run started from, or ""."""
        differ = sorted(n for n in self.files | files if self.files.get(n) != files.get(n))
        if not differ:
            return ""
        more = " and others" if len(differ) > 3 else ""
        return f"{self.folder} has changed since it was read: {', '.join(differ[:3])}{more}"


def with_bases(files: Sums, bases: Mapping[str, Base]) -> Sums:
    """Return the files of a checkpoint, and those that hold what it leaves out."""
    left = {f"{n} of {name}": s for name, each in bases.items() for n, s in each.files.items()}
    return files | left


def _sums(raw: Any) -> Sums:
    return {str(name): (int(size), int(crc)) for name, (size, crc) in raw.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of `checkpoint.json`.

    `files` maps each file of the folder to its size and CRC-32. `counts` are from `RunState`,
    `updates` has the number of optimizer updates of each segment, `spec` is the resolved spec and
    `plan` the plan's hash. `not_finite` lists the weights that hold a NaN or an infinity, None if
    an earlier release saved them. `data` are the contents of the data by split, None if not
    recorded. `bases` has the weights of modules that are left out. `best` is from `RunState`.
    """

    format: int
    counts: dict[str, int]
    updates: dict[str, int]
    plan: str
    spec: dict[str, Any]
    torch: str
    files: Sums
    not_finite: list[str] | None = None
    data: dict[str, Contents] | None = None
    bases: dict[str, Base] = field(default_factory=dict)
    best: Best | None = None

    @property
    def evaluated(self) -> int:
        """The step of the last whole evaluation; earlier releases skipped one that was stopped."""
        return self.counts.get("evaluated", self.counts["step"])


def folder_name(step: int) -> str:
    """Return the folder name of the checkpoint of a step."""
    return f"step-{step:08d}"


def all_checkpoints(run: Path) -> list[Path]:
    """Return the folders under `run/checkpoints`, complete or not, the newest first.

    Those with other names are the user's, such as a copy.
    """
    found = [(_NAME.fullmatch(path.name), path) for path in (run / CHECKPOINTS).glob("step-*")]
    steps = [(int(match[1]), path) for match, path in found if match and path.is_dir()]
    return [path for _, path in sorted(steps, reverse=True)]


def is_complete(path: Path) -> bool:
    """Return whether a folder was completed (it may be damaged now)."""
    return path.suffix not in (PARTIAL, DAMAGED) and (path / MARKER).is_file()


def read_marker(path: Path) -> Marker:
    """Return the marker of a checkpoint; check the sizes of its files, not their contents.

    Raises: DamagedCheckpoint.
    """
    try:
        if not is_complete(path):
            raise DamagedCheckpoint(f"it was not completed: there is no {MARKER}")
        raw: Any = read_json(path / MARKER)
        checksum = raw.pop(_CHECKSUM)
        if raw["format"] != FORMAT:
            raise DamagedCheckpoint(f"its format is {raw['format']}, this release reads {FORMAT}")
        if checksum != _checksum(raw):
            raise DamagedCheckpoint(f"{MARKER} is damaged: its checksum is another")
        for name, count in {**raw["counts"], **raw["updates"]}.items():
            if type(count) is not int or not 0 <= count <= MAX_INTEGER:
                raise DamagedCheckpoint(f"{MARKER} is damaged: {name} is not a count")
        if (data := raw.pop("data", None)) is not None:
            raw["data"] = {split: contents_from(files) for split, files in data.items()}
        raw["files"] = _sums(raw["files"])
        raw["bases"] = {name: Base.of(each) for name, each in raw.get("bases", {}).items()}
        if (best := raw.pop("best", None)) is not None:
            raw["best"] = Best(int(best["step"]), float(best["value"]), int(best["since"]))
        marker = Marker(
            **{each.name: raw[each.name] for each in fields(Marker) if each.name in raw}
        )
        if (match := _NAME.fullmatch(path.name)) and int(match[1]) != marker.counts["step"]:
            raise DamagedCheckpoint(f"{MARKER} is that of step {marker.counts['step']}")
        for name, (size, _) in marker.files.items():
            found = (path / Path(name).name).stat().st_size
            if found != size:
                raise DamagedCheckpoint(f"{name} has {found} bytes instead of {size}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"it cannot be read: {error!r}") from error
    return marker


def is_finite(path: Path) -> bool:
    """Return whether all weights of a checkpoint were checked to be finite when it was saved."""
    try:
        return read_marker(path).not_finite == []
    except DamagedCheckpoint:
        return False


def is_best(path: Path) -> bool:
    """Return whether a checkpoint was saved after the best evaluation until then."""
    try:
        marker = read_marker(path)
    except DamagedCheckpoint:
        return False
    return marker.best is not None and marker.best.step == marker.counts["step"]


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def crc_of(path: Path, beat: Callable[[], None]) -> int:
    """Return the CRC-32 of a file; call `beat` while reading."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
            beat()
    return value


def sync_folder(path: Path) -> None:
    """Make sure that the names in a folder survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def complete(partial: Path, final: Path, marker: dict[str, Any]) -> None:
    """Write the marker of a folder with all files on disk, and give the folder its final name."""
    # Compute the checksum over the content as read back: JSON has no tuples.
    content = json.loads(json.dumps(marker))
    with (partial / MARKER).open("w", encoding="utf-8") as file:
        json.dump({_CHECKSUM: _checksum(content), **content}, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    # The same step may have been saved before: a run has resumed from an older one since, or it has
    # made up for an evaluation. Deleting takes long, so the new one comes first.
    old = final.with_name(final.name + REPLACED)
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it does not count as a checkpoint or block a new one.

    The remains of a killed save are removed: nothing will complete them, and they fill the disk.
    """
    if path.suffix == PARTIAL:
        shutil.rmtree(path, ignore_errors=True)
    elif is_complete(path):
        aside = path.with_name(path.name + DAMAGED)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)


def delete_old(
    run: Path, keep: int, keep_every: int | None = None, *, keep_best: bool = False
) -> None:
    """Delete all complete checkpoints except the newest `keep`, and incomplete ones of older steps.

    Those of each `keep_every` steps stay, too. With `keep_best`, so does the newest that was saved
    after the best evaluation until then; the save of a better one may have failed. If all of the
    newest hold a non-finite weight, also keep the newest one with only finite weights. Damaged ones
    stay: parts of them may be of use.
    """
    found = [path for path in all_checkpoints(run) if path.suffix != DAMAGED]
    whole = [path for path in found if is_complete(path)]
    kept = whole[:keep]
    if not any(map(is_finite, kept)):
        kept += [path for path in whole[keep:] if is_finite(path)][:1]
    if keep_every is not None:
        kept += [path for path in whole if int(path.name.partition("-")[2]) % keep_every == 0]
    if keep_best:
        kept += [path for path in whole if is_best(path)][:1]
    for path in found:
        if kept and path not in kept and path.name < kept[0].name:
            # Rename first: the remains of an interrupted deletion must not look like a checkpoint.
            doomed = path if path.suffix else path.with_name(path.name + PARTIAL)
            if path != doomed:
                path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


class DataHasChanged(EndOfRun):
    """A run would continue with other training samples than it was saved with."""


def changed_data(
    checkpoint: Path,
    old: Mapping[str, Contents] | None,
    data: Mapping[str, Contents],
    agree: Callable[[list[list[str]]], list[list[str]]],
    *,
    allowed: bool,
) -> list[str]:
    """Return the differences from the `old` data of a checkpoint; both are by split.

    Hosts may have copies of their own, so ranks `agree` on what they found. Raises: DataHasChanged
    if training samples differ, unless that is `allowed`.
    """
    if old is None:
        return ["data: not recorded in the checkpoint"] * any(data.values())
    train, heldout = agree(
        [changed_files(old.get(split, ()), data.get(split, ())) for split in ("train", "heldout")]
    )
    if train and not allowed:
        raise DataHasChanged(
            f"the samples of `data` are not those that {checkpoint} was saved with: "
            f"{'; '.join(train)}\n`--set train.allow_changed_data=true` goes on, and some samples "
            "of the epoch may come twice or not at all; `--no-resume` starts a new run"
        )
    if not {"heldout"} <= old.keys() & data.keys():
        heldout = []  # One of the two runs does not evaluate; the changed settings show that.
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
