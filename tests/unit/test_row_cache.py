"""Files of kept rows: named by the picture, whole or missing, and no more than the limit."""

from pathlib import Path

import pytest
import torch
from tests.unit.test_checks_model import codes

from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.kept_rows import RowCache, State
from mimo_launch.models.patches import Patches
from mimo_launch.train.row_caches import bytes_in

SPAN = ImageSpan(position=3, height=2, width=1)
IMAGE = Patches(torch.arange(6.0).view(2, 3), torch.tensor([[0, 0], [1, 0]]))
ROWS = torch.arange(8.0).view(2, 4)


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
