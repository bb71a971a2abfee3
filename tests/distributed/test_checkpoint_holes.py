"""A checkpoint whose index lacks something: all ranks end with one error, and none waits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec, run, run_on_rank, write_index

from mimo_launch.checkpoint.folder import all_checkpoints
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.runtime.progress import EndOfRun
from mimo_launch.spec.spec import Spec

LAYOUT = "colocated dp2, tp2"
HEAD = "weights/language.head.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run(make_spec(LAYOUT, 1), folder)
    return folder


def end_on_rank(spec: Spec, folder: Path) -> str:
    """Return in which words the run ends itself on this rank."""
    with pytest.raises(EndOfRun) as end:
        run_on_rank(spec, folder)
    return str(end.value)


def without_a_part(index: dict[str, Any]) -> None:
    """One of the two parts of a tensor that two ranks have written is left out."""
    assert len(index[HEAD]["chunks"]) == 2
    del index[HEAD]["chunks"][1]


def without_a_tensor(index: dict[str, Any]) -> None:
    del index[HEAD]


@pytest.mark.parametrize(
    ("spoil", "starts", "words"),
    [
        (without_a_part, False, "every checkpoint of {} is damaged; `--no-resume` starts anew"),
        pytest.param(
            without_a_part, True, "every checkpoint of {} is damaged", marks=pytest.mark.faults
        ),
        pytest.param(
            without_a_tensor, False, "1 missing there: language.head", marks=pytest.mark.faults
        ),
    ],
)
def test_all_ranks_end_in_the_same_words_if_the_index_has_a_hole(
    spoil: Any, starts: bool, words: str, saved: Path, tmp_path: Path
) -> None:
    """Parallelism: vision dp 2, language tp 2 on the same two ranks; resumed, or in `init_from`."""
    folder = tmp_path / "old"
    shutil.copytree(saved, folder)
    [checkpoint] = all_checkpoints(folder)
    index = json.loads((checkpoint / "tensors.json").read_text())
    spoil(index)
    write_index(checkpoint, index)
    changes = {("language", "init_from"): str(folder)} if starts else {}
    spec, into = make_spec(LAYOUT, 2, modules=changes), tmp_path / "new" if starts else folder
    ends = run_ranks(end_on_rank, spec, into, world_size=2, timeout_s=30)
    assert len(set(ends)) == 1, ends
    assert words.format(folder) in ends[0]
