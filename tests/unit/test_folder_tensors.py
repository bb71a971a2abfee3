"""Which values of a Hugging Face folder are compared with others."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.support.quantized import in_fp8

from mimo_launch.checkpoint import folder_tensors
from mimo_launch.checkpoint.folder_tensors import FolderTensors
from mimo_launch.hugging_face.quantized import read_tensors


@pytest.mark.parametrize(
    ("rows", "columns", "is_equal"),
    [
        (range(10), range(4), False),
        (range(7), range(4), True),
        (range(8), range(4), False),
        (range(8, 10), range(4), True),
        (range(10), range(3), True),
        (range(7, 8), range(3, 4), False),
    ],
)
def test_only_values_in_the_box_of_a_rank_are_compared(
    rows: range, columns: range, is_equal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows at a time; the value in row 7 and column 3 differs."""
    monkeypatch.setattr(folder_tensors, "ROWS", 3)
    one = torch.arange(40.0).view(10, 4)
    other = one.clone()
    other[7, 3] += 1
    save_file({"one": one, "other": other}, tmp_path / "model.safetensors")
    headers, beats = read_tensors(tmp_path), list[int]()
    with FolderTensors(tmp_path) as there:
        pair = [(name, headers[name]) for name in ("one", "other")]
        found = there.equal(*pair, rows, [columns], lambda: beats.append(1))
    assert found is is_equal
    if found:
        assert len(beats) == -(-len(rows) // 3)


def test_a_quantized_tensor_is_read_whole(tmp_path: Path) -> None:
    given = {"up_proj.weight": torch.randn(200, 130), "norm.weight": torch.randn(130)}
    save_file(given, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    stood = in_fp8(tmp_path)
    headers = read_tensors(tmp_path)
    with FolderTensors(tmp_path) as there:
        for name, wanted in stood.items():
            assert torch.equal(there.whole(name, headers[name]), wanted), name
