"""Videos of an InternVL and a SmolVLM are what `transformers` computes of their frames."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.frame_videos import (
    VIDEO,
    placeholder,
    video_folder,
    video_spec,
    write_video_shard,
)
from tests.support.hugging_face import ids_of, save
from tests.support.llava import GRID, LAYOUTS, PATCH
from tests.support.proof import failures
from tests.support.seeing import boxes, logits_of, tiny
from tests.support.specs import box
from tests.support.whole_models import deviation, found_logits

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec

SIDE, VOCAB = GRID * PATCH, 400
FAMILIES = {"internvl": "InternVL", "smolvlm": "SmolVLM"}
OFTEN = {
    ("internvl", "one rank"), ("internvl", "tp2"), ("internvl", "cp2"), ("smolvlm", "one rank"),
    ("smolvlm", "tp2"), ("smolvlm", "apart"),
}  # fmt: skip


def asked_of(kind: str, layout: str, run: Path) -> tuple[Any, Spec]:
    family = FAMILIES[kind]
    folder = video_folder(run / "model", family, SIDE, fps=2, num_frames=6, do_sample_frames=True)
    token = placeholder(folder, family)
    model = tiny(kind, token=token, vocab=VOCAB)
    save(model, folder)
    write_video_shard(run / "0.tar")
    modules = boxes(kind, layout, folder, token, VOCAB, vision={"video": VIDEO[family]})
    asked = video_spec(
        run, folder, family, modules, seq=384, video={"fps": 2}, microbatches=2, mbs=2,
        train={"steps": 1, "precision": "fp32"},
    )  # fmt: skip
    assert not [item for item in check(asked) if item.is_error]
    return model, asked


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in OFTEN else pytest.mark.sweep)
        for kind in FAMILIES
        for each in LAYOUTS
    ],
)
def test_logits_are_those_of_transformers(kind: str, layout: str, tmp_path: Path) -> None:
    """A video between images, two videos, an image in front of a video, and text."""
    model, asked = asked_of(kind, layout, tmp_path)
    data = build_dataset(asked)
    seen = [data.describe("train", each).spans.get("vision", ()) for each in ids_of(asked)]
    assert sorted(map(len, seen))[0] == 0
    assert len({len(each) for each in seen}) == 4
    found = found_logits(asked, tmp_path)
    with torch.no_grad():
        assert deviation(found, logits_of(model, asked)) < 1e-5


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_proof_over_videos(kind: str, tmp_path: Path) -> None:
    """Packed, against the oracle, on layouts of two and of four ranks."""
    family = FAMILIES[kind]
    folder = video_folder(tmp_path / "model", family, SIDE, num_frames=6, fps=2)
    write_video_shard(tmp_path / "0.tar")
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "patch": PATCH, "channels": 3, "shuffle": 2}
    tower = {**sizes, "positions": "learned", "image": [GRID, GRID], "video": VIDEO[family]}
    modules = {
        "vision": box(0, cp=2, model=tower, placeholder=placeholder(folder, family)),
        "language": box(2, tp=2, model={"vocab": VOCAB, "layers": 1}),
    }
    asked = video_spec(
        tmp_path, folder, family, modules, seq=384, mbs=2, microbatches=2, data={"packing": True},
        train={"steps": 1, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
    )  # fmt: skip
    assert check(asked) == ()
    assert failures(verify_spec(asked)) == []
