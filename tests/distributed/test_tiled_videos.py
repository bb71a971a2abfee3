"""Videos of an encoder of tiles are what a LLaVA-OneVision of `transformers` computes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.hugging_face import save, widen
from tests.support.llava import LAYOUTS
from tests.support.llava_onevision import GRIDS, KEYS, SIDE, logits_of, made, tiny
from tests.support.proof import failures
from tests.support.specs import box, spec
from tests.support.videos import video_shard
from tests.support.whole_models import deviation, found_logits
from tokenizers import Tokenizer

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.tiles import Frame
from mimo_launch.models import tiled_rows
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec

VIDEO = {"video": {"time": "none"}}
SIZE = {"height": SIDE, "width": SIDE}
OFTEN = {"cp2", "apart"}
# As many tokens as the tokenizer of the shards, or more.
VOCAB = 400


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    video_shard(folder)
    return folder


def token(shards: Path) -> int:
    words = Tokenizer.from_file(str(shards / "tokenizer" / "tokenizer.json"))
    found: int = words.token_to_id("<|image_pad|>")
    return found


def data_of(shards: Path, **more: Any) -> dict[str, Any]:
    return {
        "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
        "tokenizer": str(shards / "tokenizer"), "video": {"rate": 8.0, **more},
    }  # fmt: skip


def saved(model: Any, folder: Path) -> None:
    """Write a model with its processors: every second frame is taken."""
    save(model, folder)
    grids = [[down * SIDE, right * SIDE] for down, right in GRIDS]
    images = {
        "image_processor_type": "LlavaOnevisionImageProcessor", "size": SIZE,
        "image_grid_pinpoints": grids,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    videos = {
        "video_processor_type": "LlavaOnevisionVideoProcessor", "size": SIZE,
        "do_sample_frames": True, "fps": 4,
    }  # fmt: skip
    (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))


def spec_of(layout: str, shards: Path, folder: Path, precision: str = "fp64") -> Spec:
    more = {"data": data_of(shards), "token": token(shards), "keys": KEYS | VIDEO}
    return made(layout, folder, precision, vocab=VOCAB, **more)


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, shards: Path, tmp_path: Path) -> None:
    """A video between images, two videos, an image in tiles, and text."""
    model = tiny(torch.float64, VOCAB)
    saved(model, tmp_path / "model")
    asked = spec_of(layout, shards, tmp_path / "model")
    widen(model)
    with torch.no_grad():
        wanted = logits_of(model, asked)
    assert deviation(found_logits(asked, tmp_path), wanted) < 1e-9
    shown = build_dataset(asked)
    samples = [shown.describe("train", each).spans.get("vision", ()) for each in range(4)]
    frames = [[x for x in spans if isinstance(x.shown, Frame)] for spans in samples]
    assert sorted(map(len, frames)) == [0, 0, 4, 4]
    # Of 6 and 3 frames at 8 a second, 3 and 1 at 4.
    assert [x.shown.is_last for x in max(frames, key=lambda x: sum(y.rows for y in x))] == [
        False, False, True, True,
    ]  # fmt: skip


def proved(shards: Path, vision: dict[str, Any], language: dict[str, Any]) -> Spec:
    """Four samples of the shards, packed, two steps."""
    model = {
        "layers": 2, "hidden": 16, "heads": 4, "patch": 2, "channels": 3, "positions": "learned",
        "image": [3, 5], "tiles": {"grids": [[1, 2], [2, 1]], "most": 1, "side": 10}, **VIDEO,
    }  # fmt: skip
    folder = shards / "tokenizer"
    asked = spec(
        {
            "vision": {**vision, "model": model, "placeholder": token(shards)},
            "language": {**language, "model": {"vocab": VOCAB}},
        },
        mbs=4,
        data={**data_of(shards, max_frames=4), "tokenizer": str(folder), "packing": True},
        seq=192,
        train={"steps": 2, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
    )
    assert check(asked) == ()
    return asked


@pytest.mark.parametrize(
    ("vision", "language"),
    [
        (box(0, tp=2, cp=2, sequence_parallel=True), box(4, tp=2)),
        pytest.param(box(0, dp=2, pp=2), box(0, dp=4), marks=pytest.mark.sweep),
    ],
)
def test_a_proof_over_videos(
    vision: dict[str, Any], language: dict[str, Any], shards: Path
) -> None:
    assert failures(verify_spec(proved(shards, vision, language))) == []


def row_in_front() -> None:
    """The learned row stands in front of a video."""
    correct = tiled_rows.row_patches

    def in_front(rule: Any, shown: Any) -> Any:
        places, shares = correct(rule, shown)
        turned = isinstance(shown, Frame) and shown.is_last
        return (places[::-1], shares[::-1]) if turned else (places, shares)

    tiled_rows.row_patches = in_front


def first_of_each_square() -> None:
    """A row is the first of its patches, not their mean."""
    correct = tiled_rows._neighbours

    def first(size: int, number: int) -> Any:
        return [
            (before, share * 0 + (1 - i)) for i, (before, share) in enumerate(correct(size, number))
        ]

    tiled_rows._neighbours = first


@pytest.mark.parametrize("bug", [row_in_front, first_of_each_square])
def test_the_proof_rejects_wrong_rows(bug: Callable[[], None], shards: Path) -> None:
    asked = proved(shards, box(0), box(0))
    assert failures(verify_spec(asked, prepare=bug)) != []
