"""Files of strangers that lie: an index with holes, offsets that lead nowhere, endless JSON."""

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.checkpoint.folder import DamagedCheckpoint, complete, read_marker
from mimo_launch.checkpoint.index import read_index, uncovered
from mimo_launch.hugging_face.folder import ConfigError, FilesError, read_config, read_headers
from mimo_launch.processors.files import TokenizerError
from mimo_launch.processors.tokenizer import num_tokens
from mimo_launch.train.history import NoHistory, read_history

DEEP = "[" * 100_000
# Two halves of a tensor of 4 x 6, and one of a single number.
INDEX = {
    "weights/a": {
        "shape": [4, 6],
        "dtype": "float32",
        "chunks": [[[0, 0], [4, 3], "0.distcp", 0, 48], [[0, 3], [4, 3], "0.distcp", 48, 48]],
    },
    "weights/b": {"shape": [], "dtype": "float32", "chunks": [[[], [], "0.distcp", 96, 4]]},
}


def with_chunks(*chunks: Any, **more: Any) -> dict[str, Any]:
    return {
        "weights/a": {**INDEX["weights/a"], **({"chunks": [*chunks]} if chunks else {}), **more}
    }


HALF = [[0, 0], [4, 3], "0.distcp", 0, 48]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (with_chunks(HALF), "12 of 24 elements are there"),
        (with_chunks(HALF, [[0, 2], [4, 3], "0.distcp", 0, 48]), "there twice"),
        (with_chunks(HALF, [[0, 4], [4, 3], "0.distcp", 0, 48]), "reaches beyond the shape"),
        (with_chunks(HALF, [[0, 3], [4, 3], "0.distcp", 60, 48]), "is not in 0.distcp"),
        (with_chunks(HALF, [[0, 3], [4, 3], "../1.distcp", 0, 48]), "is not in 1.distcp"),
        (with_chunks(HALF, [[0, -3], [4, 9], "0.distcp", 0, 48]), "not a number from 0 on"),
        (with_chunks(HALF, [[0], [4], "0.distcp", 0, 48]), "other dimensions"),
        (with_chunks(shape=[2**40, 2**40]), "no tensor has the shape"),
        (with_chunks(shape=[4.0, 6]), "not a number from 0 on"),
        ([INDEX], "cannot be read"),
        ({"weights/a": {"shape": [4, 6]}}, "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_index_that_does_not_cover_its_tensors_is_damage(
    index: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "0.distcp").write_bytes(bytes(100))
    (tmp_path / "tensors.json").write_text(json.dumps(INDEX))
    assert {name: entry.shape for name, entry in read_index(tmp_path).items()} == {
        "weights/a": (4, 6),
        "weights/b": (),
    }
    (tmp_path / "tensors.json").write_text(json.dumps(index))
    with pytest.raises(DamagedCheckpoint, match=words):
        read_index(tmp_path)


@pytest.mark.parametrize(
    ("shape", "is_tensor"),
    [([1] * 16, True), ([1] * 17, False), ([2**61, 2], True), ([2**62 + 1], False)],
)
def test_an_index_names_no_larger_tensor_than_torch_can_have(
    shape: list[int], is_tensor: bool, tmp_path: Path
) -> None:
    (tmp_path / "0.distcp").write_bytes(bytes(4))
    entry = with_chunks([[0] * len(shape), shape, "0.distcp", 0, 4], shape=shape)
    (tmp_path / "tensors.json").write_text(json.dumps(entry))
    with nullcontext() if is_tensor else pytest.raises(DamagedCheckpoint, match="no tensor has"):
        assert read_index(tmp_path)["weights/a"].shape == tuple(shape)


@pytest.mark.parametrize(
    ("boxes", "is_covered"),
    [
        ([((0, 0), (2, 2)), ((2, 0), (2, 2)), ((0, 2), (4, 1))], True),
        ([((0, 0), (4, 3)), ((1, 1), (0, 0))], True),
        # A pinwheel, which no line from edge to edge cuts.
        (
            [
                ((0, 0), (1, 2)),
                ((0, 2), (3, 1)),
                ((3, 1), (1, 2)),
                ((1, 0), (3, 1)),
                ((1, 1), (2, 1)),
            ],
            True,
        ),
        # As many elements as there are, and some of them twice.
        ([((2, 0), (2, 3)), ((2, 0), (2, 3))], False),
        ([((0, 0), (2, 2)), ((1, 1), (2, 2)), ((0, 2), (4, 1))], False),
        ([((0, 0), (3, 2)), ((2, 0), (1, 2)), ((0, 2), (4, 1))], False),
        # As many elements as there are, and some of them beyond the end.
        ([((0, 0), (2, 3)), ((3, 0), (2, 3))], False),
        ([], False),
    ],
)
def test_every_element_is_in_one_box(boxes: Any, is_covered: bool) -> None:
    assert (uncovered((4, 3), boxes) == "") is is_covered


def test_the_parts_of_a_tensor_are_checked_in_a_time_that_grows_as_their_number() -> None:
    """The 90,000 parts took 36 s when each was compared with those beside it."""
    boxes = [(at, (1, 1)) for at in product(range(300), repeat=2)]
    started = time.process_time()
    assert uncovered((300, 300), boxes) == ""
    assert uncovered((300, 300), [*boxes[1:], boxes[1]]) == "some elements are there twice"
    assert time.process_time() - started < 8


def file_of(header: Any, size: int) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


def tensor(start: int, end: int, shape: Any = (2, 3)) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        ({"a": tensor(0, 24), "b": tensor(24, 48)}, 40, "cut off: its header names 48 bytes"),
        ({"a": tensor(0, 24)}, 48, "damaged: its header names 24 bytes, but it has 48"),
        ({"a": tensor(0, 24), "b": tensor(12, 36)}, 36, "b does not begin where"),
        ({"a": tensor(0, 24), "b": tensor(28, 52)}, 52, "b does not begin where"),
        ({"a": tensor(24, 0)}, 0, "a does not begin where"),
        ({"a": tensor(0, 20)}, 20, "has 24 bytes, not 20"),
        ({"a": tensor(0, 24, [-2, -3])}, 24, "not a list of sizes"),
        ({"a": tensor(0, 24, [2**70])}, 24, "not a list of sizes"),
        ({"a": tensor(0, 24, [1] * 99)}, 24, "99 dimensions"),
        ({"a": {"dtype": "F32", "shape": [2, 3]}}, 24, "cannot be read"),
        (DEEP, 0, "nested too deeply"),
    ],
)
def test_offsets_of_safetensors_are_checked(
    header: Any, size: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"b": tensor(24, 48), "a": tensor(0, 24)}, 48))
    assert read_headers(tmp_path)["b"].shape == (2, 3)
    path.write_bytes(file_of(header, size))
    with pytest.raises(FilesError, match=words):
        read_headers(tmp_path)


def a_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def nested(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.write_text(DEEP)


@pytest.mark.parametrize(
    ("spoil", "words"), [(a_fifo, "not a regular file"), (nested, "nested too deeply")]
)
def test_fifos_and_json_without_end_are_said_as_such(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    for name, read, error in (
        ("config.json", read_config, ConfigError),
        ("tokenizer.json", num_tokens, TokenizerError),
        ("tensors.json", read_index, DamagedCheckpoint),
    ):
        spoil(tmp_path / name)
        with pytest.raises(error, match=words):
            read(tmp_path)  # type: ignore[operator]


@pytest.mark.parametrize("ids", [{"a": 10**30}, {"a": "b"}])
def test_ids_of_a_tokenizer_are_counted_with_care(ids: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))
    with pytest.raises(TokenizerError, match="cannot be used"):
        num_tokens(tmp_path)


@pytest.mark.parametrize("count", [-1, 2**70, 1.5, True, "3", None])
def test_counts_of_a_checkpoint_are_counts(count: Any, tmp_path: Path) -> None:
    partial, final = tmp_path / "x.partial", tmp_path / "step-00000003"
    partial.mkdir()
    counts = {"step": 3, "samples": count, "skipped": 0, "bad_samples": 0}
    content = {"format": 1, "counts": counts, "updates": {}, "plan": "", "spec": {}, "torch": ""}
    complete(partial, final, content | {"files": {}})
    with pytest.raises(DamagedCheckpoint, match="samples is not a count"):
        read_marker(final)


def test_metrics_of_a_stranger_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{DEEP}\n{{"step": 1, "loss": 2.0}}\n\xff\n')
    history = read_history(tmp_path)
    assert [record["step"] for record in history.steps] == [1]
    a_fifo(path)
    with pytest.raises(NoHistory, match="not a regular file"):
        read_history(tmp_path)
