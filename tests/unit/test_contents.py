"""A resumed run knows whether the samples of its shards are those that it was saved with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.shard_runs import shard_spec
from tests.support.shards import image_bytes, write_shard

from mimo_launch.checkpoint.folder import changed_data, complete, read_marker
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Contents, FileContents, changed_files, contents_from


def said(answer: str, question: str = "?") -> dict[str, Any]:
    user, assistant = (
        {"role": r, "content": c} for r, c in (("user", question), ("assistant", answer))
    )
    return {"messages": [user, assistant]}


def two_shards(folder: Path) -> None:
    write_shard(folder / "000.tar", [(f"a{n}", {"json": said(f"red {n}")}) for n in range(4)])
    image = image_bytes(40, 40)
    shown = {"png": image, "json": said("blue", "<image>?")}
    write_shard(folder / "001.tar", [("b0", shown), ("b1", {"json": said("green")})])


def contents(folder: Path, shards: str = "*.tar", **sections: Any) -> Contents:
    made = shard_spec(folder, 1, placed="same", **sections)
    data = made.data.model_copy(update={"shards": f"{folder}/{shards}"})
    return build_dataset(made.model_copy(update={"data": data})).contents("train")


def spoil_image(folder: Path) -> None:
    """Another picture in a file of the same length."""
    path = folder / "001.tar"
    whole = bytearray(path.read_bytes())
    at = whole.index(b"IDAT") + 20
    whole[at] ^= 1
    path.write_bytes(whole)


def add(folder: Path) -> None:
    write_shard(folder / "002.tar", [("c0", {"json": said("one")})])


def swap(folder: Path) -> None:
    (folder / "000.tar").rename(folder / "002.tar")


def answer_otherwise(folder: Path) -> None:
    """As many letters, bytes and tokens as before."""
    write_shard(folder / "000.tar", [(f"a{n}", {"json": said(f"red {n + 1}")}) for n in range(4)])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda folder: None, []),
        (lambda folder: (folder / "000.tar").touch(), []),
        (lambda folder: (folder / "000.tar").rename(folder / "0.tar"), []),
        (lambda folder: write_shard(folder / "00.tar", []), []),
        (add, ["002.tar: none -> 1 sample"]),
        (lambda folder: (folder / "001.tar").unlink(), ["001.tar: 2 samples -> none"]),
        (lambda folder: shutil.copy(folder / "000.tar", folder / "001.tar"),
         ["001.tar: 2 samples -> 4 samples"]),
        (answer_otherwise, ["000.tar: 4 samples -> 4 other samples"]),
        (spoil_image, ["001.tar: 2 samples -> 2 other samples"]),
        (swap, ["order of files: 000.tar, 001.tar -> 001.tar, 002.tar"]),
        (lambda folder: (add(folder), answer_otherwise(folder)),
         ["000.tar: 4 samples -> 4 other samples", "002.tar: none -> 1 sample",
          "samples: 6 -> 7"]),
    ],
)  # fmt: skip
def test_other_samples_or_another_order_are_found_but_not_other_names_or_times(
    tmp_path: Path, change: Callable[[Path], Any], found: list[str]
) -> None:
    two_shards(tmp_path)
    before = contents(tmp_path)
    assert [(each.name, each.samples) for each in before] == [("000.tar", 4), ("001.tar", 2)]
    change(tmp_path)
    assert changed_files(before, contents(tmp_path)) == found


def test_data_in_another_folder_are_the_same(tmp_path: Path) -> None:
    two_shards(tmp_path / "here")
    two_shards(tmp_path / "there")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_a_shard_that_counts_twice_or_loses_long_samples_has_other_contents(tmp_path: Path) -> None:
    two_shards(tmp_path)
    once = contents(tmp_path)
    assert changed_files(once, contents(tmp_path, "{000,000,001}.tar")) == [
        "000.tar: 4 samples -> 8 samples"
    ]
    made = shard_spec(tmp_path, 1, placed="same")
    longest = max(build_dataset(made).length("train", index) for index in range(6))
    short = made.model_copy(update={"batch": made.batch.model_copy(update={"seq": longest - 1})})
    assert changed_files(once, build_dataset(short).contents("train")) == [
        "001.tar: 2 samples -> 1 sample"
    ]


def test_of_many_changes_the_first_are_listed() -> None:
    def files(first: int) -> Contents:
        return tuple(FileContents(f"{n}.tar", 2, first + n) for n in range(9))

    *listed, more, total = changed_files(files(0), files(100))
    assert listed == [f"{n}.tar: 2 samples -> 2 other samples" for n in range(5)]
    assert (more, total) == ("4 more files: changed", "samples: 18 -> 18")


def test_held_out_samples_are_compared_if_both_runs_evaluate() -> None:
    train, held = (FileContents("a.tar", 2, 7),), (FileContents("h.tar", 1, 5),)
    alone, both = {"train": train}, {"train": train, "heldout": held}

    def changes(old: dict[str, Contents], new: dict[str, Contents]) -> list[str]:
        return changed_data(Path("step"), old, new, lambda found: found, allowed=False)

    assert changes(alone, both) == changes(both, alone) == changes(both, both) == []
    other = both | {"heldout": (FileContents("h.tar", 2, 6),)}
    assert changes(both, other) == ["data.eval_shards h.tar: 1 sample -> 2 samples"]


def test_a_marker_of_an_earlier_release_says_nothing_of_data(tmp_path: Path) -> None:
    counts = {"step": 3, "samples": 24, "skipped": 0, "bad_samples": 0}
    content = {"format": 1, "counts": counts, "updates": {}, "plan": "", "spec": {}, "torch": ""}
    for step, data in ((3, {}), (4, {"data": {"train": [["a.tar", 2, 7]]}})):
        unfinished = tmp_path / "checkpoints" / f"step-0000000{step}.partial"
        unfinished.mkdir(parents=True)
        marker = content | {"counts": counts | {"step": step}, "files": {}} | data
        complete(unfinished, unfinished.with_suffix(""), marker)
    folder = tmp_path / "checkpoints"
    assert read_marker(folder / "step-00000003").data is None
    found = read_marker(folder / "step-00000004").data
    assert found == {"train": contents_from(json.loads('[["a.tar", 2, 7]]'))}
    with pytest.raises(ValueError, match="no names and counts"):
        contents_from([[1, 2, 3]])
