"""Files of an export: whole tensors, in files that are no larger than asked, all or nothing."""

import json
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checkpoint import whole
from mimo_launch.checkpoint.boxes import Box
from mimo_launch.export import export
from mimo_launch.export.export import NOTE, InTheWay, new_folder, write_tensors
from mimo_launch.export.export_plan import Exporter
from mimo_launch.export.tensors import FileTensor, file_tensors
from mimo_launch.hugging_face.architectures import alone
from mimo_launch.hugging_face.folder import read_headers
from mimo_launch.hugging_face.tensors import Place, Runs

# Its children come from a process without threads: one that holds a lock may not be copied.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["mimo_launch.export.export"])
SEGMENTS = {
    "q.weight": (4, 6), "k.weight": (2, 6), "v.weight": (2, 6), "patch.weight": (3, 8),
    "embedding.weight": (10, 6),
}  # fmt: skip
FUSED = {"q": (0, 4), "k": (4, 2), "v": (6, 2)}


def place(name: str) -> Place:
    layer = name.partition(".")[0]
    if layer in FUSED:
        first, rows = FUSED[layer]
        return Place("qkv.weight", first, rows)
    return Place(name, shape=(3, 2, 2, 2) if layer == "patch" else None)


def planned(**changed: tuple[int, ...]) -> list[FileTensor]:
    segments = {**SEGMENTS, **{name.replace("_", "."): shape for name, shape in changed.items()}}
    return file_tensors(segments, place, lambda _: torch.float32, prefix="weights/m.", vocab=7)


def test_fused_reshaped_and_padded_segments_fill_the_tensors_of_a_file() -> None:
    made = {each.name: each for each in planned()}
    shapes = {name: each.shape for name, each in made.items()}
    assert shapes == {
        "qkv.weight": (8, 6), "patch.weight": (3, 2, 2, 2), "embedding.weight": (7, 6),
    }  # fmt: skip
    for each in made.values():
        tensor = torch.full(each.shape, torch.nan)
        for number, chunk in enumerate(each.boxes(tensor)):
            assert chunk.name.startswith("weights/m.")
            assert all(size <= n for size, n in zip(chunk.tensor.shape, chunk.shape, strict=True))
            chunk.tensor.fill_(number)
        assert not tensor.isnan().any()
    tensor = torch.empty(8, 6)
    for number, chunk in enumerate(made["qkv.weight"].boxes(tensor)):
        chunk.tensor.fill_(number)
    assert tensor[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_rows_in_runs_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader loads all that is stored around a box, so each further box would load it again."""
    at = {
        "q.weight": Place("qk.weight", 0, 4, runs=Runs(2, 3)),
        "k.weight": Place("qk.weight", 2, 2, runs=Runs(1, 3)),
    }
    saved = {"w.q.weight": torch.arange(8.0).view(4, 2), "w.k.weight": -torch.ones(2, 2)}
    segments = {name: tuple(saved[f"w.{name}"].shape) for name in at}
    made = file_tensors(segments, at.__getitem__, lambda _: torch.bfloat16, prefix="w.")
    read: list[str] = []

    def read_boxes(_folder: Path, boxes: Sequence[Box], *_: object) -> None:
        for each in boxes:
            assert (each.shape, each.offsets) == (tuple(saved[each.name].shape), (0, 0))
            each.tensor.copy_(saved[each.name])
            read.append(each.name)

    monkeypatch.setattr(whole, "read_boxes", read_boxes)
    there = SimpleNamespace(path=Path("checkpoint"), bases={})
    [found] = export.read_tensors(there, made)  # type: ignore[arg-type]
    assert sorted(read) == ["w.k.weight", "w.q.weight"]
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[0, 1], [2, 3], [-1, -1], [4, 5], [6, 7], [-1, -1]]


def test_the_rows_of_a_tower_are_as_wide_as_its_connector() -> None:
    vit = {"layers": 2, "hidden": 24, "heads": 2, "patch": 4, "shuffle": 2, "projector": "merger"}
    as_qwen = {"positions": "rope2d", "patch_bias": False, "norm_eps": 1e-6, "temporal_patch": 2}
    made = spec(
        {
            "vision": box(
                0, model={**vit, **as_qwen, "activation": "quick_gelu", "mlp": 96, "channels": 3}
            ),
            "merger": box(0, model={"kind": "connector", "hidden": 40}, reads=["vision"]),
            "language": box(0, model={"hidden": 32}),
            "drawer": box(0, model={"kind": "flow"}, reads=["language"]),
        }
    )
    exporter = Exporter(SimpleNamespace(spec=made))  # type: ignore[arg-type]
    found = alone(exporter.modules, "vision")
    assert found is not None
    assert found.config["hidden_size"] == 40


def test_what_files_hold_in_fp32_is_written_so_whatever_is_asked_for() -> None:
    checkpoint = SimpleNamespace(spec=spec({"language": box(0)}))
    places = {"weight": Place("w"), "bias": Place("b", at_least_fp32=True), "loss": None}
    for asked, usual, least in (
        ("bf16", torch.bfloat16, torch.float32),
        ("fp64", torch.float64, torch.float64),
    ):
        of = Exporter(checkpoint, asked)._dtypes("language", places)
        assert [of(name) for name in places] == [usual, least, usual]


def test_a_tensor_that_is_not_filled_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"qkv\.weight .* is not filled"):
        planned(k_weight=(1, 6))


@pytest.mark.parametrize("max_bytes", [1, 200, 10**6])
@pytest.mark.parametrize("batch", [1, 10**6])
def test_files_are_cut_and_indexed(
    max_bytes: int, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH", batch)
    made = [
        FileTensor(f"t{i}", shape, dtype)
        for i, (shape, dtype) in enumerate(
            [((3, 5), torch.float32), ((7,), torch.bfloat16), ((2, 9), torch.float64)]
        )
    ]
    values = {each.name: torch.randn(each.shape).to(each.dtype) for each in made}
    written: list[int] = []

    def read(asked: Sequence[FileTensor]) -> list[Tensor]:
        assert len(asked) == 1 or sum(each.num_bytes for each in asked) <= batch
        return [values[each.name] for each in asked]

    write_tensors(tmp_path, made, max_bytes, read, written.append)
    assert sum(written) == sum(each.num_bytes for each in made)
    headers = read_headers(tmp_path)
    assert headers.keys() == values.keys()
    for name, header in headers.items():
        with safe_open(tmp_path / header.file, framework="pt") as opened:
            assert torch.equal(opened.get_tensor(name), values[name])
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(names) == {1: 3, 200: 2, 10**6: 1}[max_bytes]
    if len(names) > 1:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) == names
        assert index["metadata"]["total_size"] == sum(written)


def test_all_that_is_written_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes a file, such as safetensors that of an adapter, need not sync it."""
    synced = set[int]()

    def note(fd: int) -> None:
        if not (tmp_path / "out").exists():
            synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    with new_folder(tmp_path / "out", force=False) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "model").write_text("weights")
    there = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert {path.stat().st_ino for path in there} == synced


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_goes_wrong_leaves_the_earlier_export(
    error: type[BaseException], tmp_path: Path
) -> None:
    target = tmp_path / "out"
    with new_folder(target, force=False) as folder:
        (folder / NOTE).write_text("first")
        assert not target.exists()

    def fail() -> None:
        with new_folder(target, force=True) as folder:
            (folder / NOTE).write_text("second")
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / NOTE).read_text() == "first"
    with pytest.raises(InTheWay, match="--force"), new_folder(target, force=False):
        pass
    with new_folder(target, force=True) as folder:
        (folder / NOTE).write_text("second")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / NOTE).read_text() == "second"


def die_exporting(target: Path, moment: str) -> None:
    """Die while an export is written, or when an earlier one has made room for it."""

    def die_after_a_rename(folder: Path) -> None:
        rename = Path.rename

        def rename_and_die(path: Path, to: Path) -> None:
            rename(path, to)
            os._exit(9)

        Path.rename = rename_and_die  # type: ignore[assignment, method-assign]

    if moment == "replacing":
        export.sync_folder = die_after_a_rename
    with new_folder(target, force=True) as folder:
        (folder / NOTE).write_text("killed")
        if moment == "writing":
            os._exit(9)


def test_an_export_that_was_killed_leaves_nothing_once_the_next_has_come(tmp_path: Path) -> None:
    """Killed as it wrote, or as it replaced an earlier one, which then comes back."""
    target = tmp_path / "out"
    for moment, there in (("writing", ""), ("writing", "first"), ("replacing", "first")):
        process = FRESH.Process(target=die_exporting, args=(target, moment))
        process.start()
        process.join(timeout=60)
        assert process.exitcode == 9
        assert any(path.name.startswith(".out") for path in tmp_path.iterdir())
        if there:
            with pytest.raises(InTheWay, match="--force"), new_folder(target, force=False):
                pass
        with new_folder(target, force=True) as folder:
            assert not any(path.name != NOTE for path in folder.iterdir())
            assert (target / NOTE).is_file() is bool(there)
            assert not there or (target / NOTE).read_text() == there
            (folder / NOTE).write_text("first")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_exports_to_one_place_do_not_meet(tmp_path: Path) -> None:
    """Nor does the second one empty the note of the first, which may be written already."""
    with new_folder(tmp_path / "out", force=False) as first:
        (first / NOTE).write_text("first")
        with (
            pytest.raises(InTheWay, match="another export writes"),
            new_folder(tmp_path / "out", force=False),
        ):
            pass
    assert first.parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / NOTE).read_text() == "first"
