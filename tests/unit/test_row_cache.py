"""Files of kept rows: named by the picture, whole or missing, and no more than the limit."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.specs import box, spec
from tests.unit.test_checks_model import codes

from mimo_launch.layers.parameter_segments import LocalSegment, replicated
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.kept_rows import RowCache, State
from mimo_launch.models.patches import Patches
from mimo_launch.train import row_caches
from mimo_launch.train.row_caches import bytes_in, reason_of

SPAN = ImageSpan(position=3, height=2, width=1)
IMAGE = Patches(torch.arange(6.0).view(2, 3), torch.tensor([[0, 0], [1, 0]]))
ROWS = torch.arange(8.0).view(2, 4)

RECIPE = "0" * 32


def failing(code: int) -> Callable[..., Any]:
    """Return a function that fails with an error of the system."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def cache(folder: Path, room: int = 1000) -> RowCache:
    return RowCache(folder, width=4, dtype=torch.float32, room=room)


def test_rows_are_read_as_they_were_written_wherever_the_picture_stands(tmp_path: Path) -> None:
    first = cache(tmp_path)
    missing = first.look_up(IMAGE, SPAN)
    assert (missing.state, missing.rows) == (State.MISSING, None)
    first.keep(missing.key, ROWS)
    found = cache(tmp_path).look_up(IMAGE, SPAN.moved(5))
    assert found.state is State.KEPT
    assert found.rows is not None
    assert torch.equal(found.rows, ROWS)


@pytest.mark.parametrize(
    ("image", "span"),
    [
        (Patches(IMAGE.values + 1, IMAGE.positions), SPAN),
        (Patches(IMAGE.values.double(), IMAGE.positions), SPAN),
        (Patches(IMAGE.values, IMAGE.positions.flip(1)), SPAN),
        (IMAGE, ImageSpan(position=3, height=1, width=2)),
        (IMAGE, replace(SPAN, loose=1)),
        (IMAGE, replace(SPAN, shown=((1, 2), (4, 4)))),
    ],
)
def test_another_picture_has_other_rows(tmp_path: Path, image: Patches, span: ImageSpan) -> None:
    first = cache(tmp_path)
    first.keep(first.look_up(IMAGE, SPAN).key, ROWS)
    assert first.look_up(image, span).state is State.MISSING


@pytest.mark.parametrize("harm", [lambda b: b[:-1], lambda b: b"x" + b[1:], lambda b: b""])
def test_a_damaged_file_counts_as_missing_and_is_written_again(tmp_path: Path, harm) -> None:  # type: ignore[no-untyped-def]
    first = cache(tmp_path)
    key = first.look_up(IMAGE, SPAN).key
    first.keep(key, ROWS)
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    path.write_bytes(harm(path.read_bytes()))
    assert first.look_up(IMAGE, SPAN).state is State.DAMAGED
    first.keep(key, ROWS)
    assert first.look_up(IMAGE, SPAN).state is State.KEPT


def test_a_full_or_unwritable_folder_keeps_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, room in ((tmp_path / "new", 63), (tmp_path / "file", 1000)):
        full = cache(folder, room)
        full.keep(full.look_up(IMAGE, SPAN).key, ROWS)
        assert full.stopped
    assert not list((tmp_path / "new").rglob("*"))
    assert full.look_up(IMAGE, SPAN).state is not State.KEPT


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    first = cache(tmp_path / RECIPE)
    first.keep(first.look_up(IMAGE, SPAN).key, ROWS)
    monkeypatch.setattr(Path, "read_bytes", failing(code))
    found = first.look_up(IMAGE, SPAN)
    assert found.state is State.NOT_READ
    reason = reason_of(found.told, "vision", {"vision": tmp_path / RECIPE})
    assert reason == f"a file in {tmp_path} cannot be read: {os.strerror(code)}"
    monkeypatch.undo()
    assert first.look_up(IMAGE, SPAN).state is State.KEPT


@pytest.mark.parametrize(
    ("name", "code"),
    [("replace", errno.ENOSPC), ("exists", errno.EACCES), ("mkdir", errno.EROFS)],
)
def test_a_failed_write_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    first = cache(tmp_path / RECIPE)
    key = first.look_up(IMAGE, SPAN).key
    monkeypatch.setattr(Path, name, failing(code))
    first.keep(key, ROWS)
    monkeypatch.undo()
    found = first.look_up(IMAGE, SPAN)
    assert found.state is State.NOT_WRITTEN
    reason = reason_of(found.told, "vision", {"vision": tmp_path / RECIPE})
    assert reason == f"{tmp_path} cannot be written: {os.strerror(code)}"
    assert bytes_in(tmp_path) == 0


def test_a_full_folder_names_the_rows_that_this_run_does_not_use(tmp_path: Path) -> None:
    full = cache(tmp_path / RECIPE, 63)
    full.keep(full.look_up(IMAGE, SPAN).key, ROWS)
    told = full.look_up(IMAGE, SPAN).told
    folders = {"vision": tmp_path / RECIPE, "audio": tmp_path / ("1" * 32)}
    for name in (RECIPE, "1" * 32, "photographs"):
        (tmp_path / name).mkdir()
    assert reason_of(told, "vision", folders) == f"{tmp_path} is full, see `limit_gib`"
    old = ["2" * 32, "3" * 32]
    for name in old:
        (tmp_path / name).mkdir()
    assert reason_of(told, "vision", folders).endswith(
        f"; delete what no other run uses of {old[0]}, {old[1]}"
    )


def test_rows_that_may_be_kept_give_no_reason(tmp_path: Path) -> None:
    found = cache(tmp_path / RECIPE).look_up(IMAGE, SPAN)
    assert reason_of(found.told, "vision", {"vision": tmp_path / RECIPE}) == ""


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        (["vision.frozen=true"], False),
        ([], True),
        (["vision.frozen=except_projector"], True),
        (["vision.frozen={layers: 0}"], True),
        (["vision.frozen=true", "vision.dropout=0.1"], True),
        (["vision.frozen=true", "vision.quantize_base={kind: int8, block: 16}"], True),
        (["language.cache=true", "language.frozen=true", "vision.cache=false"], True),
    ],
)
def test_only_what_makes_the_same_rows_again_is_kept(overrides: list[str], wrong: bool) -> None:
    found = codes(*(f"modules.{each}" for each in ("vision.cache=true", *overrides)))
    assert ("cache-cannot" in found) is wrong, found


def test_another_release_or_library_makes_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    small = spec({"vision": box(frozen=True)})
    other = small.replace(
        modules={**small.modules, "vision": small.modules["vision"].replace(backend="other")}
    )
    recipes = [row_caches._recipe(each, "vision", 7) for each in (small, other)]
    for module in (row_caches, torch):
        monkeypatch.setattr(module, "__version__", "1")
        recipes.append(row_caches._recipe(small, "vision", 7))
    assert len(set(recipes)) == len(recipes)


def test_weights_are_marked_by_name_place_and_value() -> None:
    """So layers that exchange their weights make rows again, and so do permuted weights."""
    segment = replicated("weight", (4, 3), "complete", counted=True)
    one, other = torch.rand(2, 4, 3)

    def mark(**weights: torch.Tensor) -> int:
        parts = (LocalSegment(f"{n}.weight", segment, each, 0) for n, each in weights.items())
        return sum(map(row_caches._hash, parts)) % 2**64

    first = mark(up=one, down=other)
    others = [
        mark(up=other, down=one),
        mark(up=one.flip(0), down=other),
        mark(up=one.flip(1), down=other),
        mark(up=one, down=-other),
    ]
    assert len({first, *others}) == 5
    assert first == mark(down=other, up=one)


def test_a_file_that_another_run_renames_meanwhile_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(b"12")
    (tmp_path / "new.part").write_bytes(b"345")
    is_file = Path.is_file

    def renamed(path: Path) -> bool:
        found = is_file(path)
        if path.suffix == ".part":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", renamed)
    assert bytes_in(tmp_path) == 2
