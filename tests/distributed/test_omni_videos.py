"""Videos of shards are what the thinkers of Qwen-Omni of `transformers` compute of them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import omni
from tests.support.hugging_face import ids_of, save, tokens_of
from tests.support.proof import failures
from tests.support.qwen_omni import LANGUAGE, tiny
from tests.support.qwen_vl import ALL_KINDS, LANGUAGE_KEYS, LAYOUTS
from tests.support.specs import Box, box, spec
from tests.support.videos import video_shard
from tests.support.whole_models import deviation, found_logits
from tokenizers import Tokenizer
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models import language_input
from mimo_launch.models.patches import cut_image
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec

VOCAB, RATE = 400, 8.0
VIDEO = {"time": "nominal_seconds", "per_second": 25}
SIZE = {"shortest_edge": 8 * 8, "longest_edge": 16 * 16}
SIDES = {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 2}
# Temporal patches of the videos of the samples `between` and `two`: of all frames, or by `fps`.
GROUPS = {None: [5, 3, 2], 4.0: [2, 2, 1]}
OFTEN = {
    *(("qwen2_5_omni", *each) for each in (("one rank", 4.0), ("tp2", None), ("cp2, apart", 4.0))),
    ("qwen3_omni_moe", "cp2, apart", 4.0),
}
# Frames per second that a processor counts by, if none are asked for.
RATES = {"qwen2_5_omni": 2.0, "qwen3_omni_moe": 1.0}
_TOWER = {
    **ALL_KINDS["qwen2_5_vl"].keys, "layers": 2, "hidden": 32, "heads": 4, "mlp": 24,
    "windows": {"side": 2, "full": [0]}, "video": VIDEO,
}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    video_shard(folder)
    return folder


def token(shards: Path, text: str) -> int:
    words = Tokenizer.from_file(str(shards / "tokenizer" / "tokenizer.json"))
    found: int = words.token_to_id(text)
    return found


_EXACT = {"time": "exact_seconds", "per_second": 14}
_QWEN3 = ALL_KINDS["qwen3_vl_moe"]
# Of each family: the tower, and keys of language.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_omni": (_TOWER, LANGUAGE),
    "qwen3_omni_moe": (_QWEN3.keys | {"video": _EXACT}, LANGUAGE_KEYS | _QWEN3.language),
}


def saved(kind: str, shards: Path, folder: Path) -> Any:
    """Return a thinker with the tokens of the shards; its model is saved with processors."""
    tokens = {
        "image_token_id": token(shards, "<|image_pad|>"),
        "video_token_id": token(shards, "<|video_pad|>"),
        "vision_start_token_id": token(shards, "<|vision_start|>"),
        "vision_end_token_id": token(shards, "<|vision_end|>"),
        "audio_token_id": VOCAB - 1, "audio_start_token_id": VOCAB - 2,
    }  # fmt: skip
    if kind == "qwen2_5_omni":
        model = tiny(torch.float32, VOCAB, tokens)
    else:
        model = omni.tiny(kind, vocab=VOCAB, position_id_per_seconds=14, **tokens)
    save(model, folder)
    settings = {"image_processor_type": "Qwen2VLImageProcessor", **SIDES, "size": SIZE}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return getattr(model, "thinker", model)


def made(kind: str, layout: str, fps: float | None, shards: Path, folder: Path) -> Spec:
    vision, language = LAYOUTS[layout]
    tower, words = MODELS[kind]
    modules = {
        "vision": {
            **vision, "model": tower, "init_from": str(folder),
            "placeholder": token(shards, "<|image_pad|>"),
        },
        "language": {
            **language, "model": words | {"vocab": VOCAB}, "init_from": str(folder),
        },
    }  # fmt: skip
    asked = {} if fps is None else {"fps": fps, "max_frames": 4}
    data = {
        "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
        "tokenizer": str(shards / "tokenizer"), "video": {"rate": RATE, **asked},
    }  # fmt: skip
    train = {"steps": 1, "precision": "fp32", "seed": 9}
    found = spec(modules, microbatches=2, mbs=2, seq=192, data=data, train=train)
    assert check(found) == ()
    return found


def wanted(thinker: Any, asked: Spec, fps: float | None, usual: float) -> Tensor:
    """Return the logits of transformers for what our data set gives, sample by sample."""
    dataset: Any = build_dataset(asked)
    config = thinker.config
    pad, picture = config.video_token_id, config.image_token_id
    vision, rows = asked.modules["vision"].model, []
    for sample, given in zip(ids_of(asked), tokens_of(asked), strict=True):
        spans = dataset.describe("train", sample).spans.get("vision", ())
        arrays, text = dataset.images("train", sample, "vision"), given.clone()
        name = dataset.name("train", sample).split()[1]
        first, *others = GROUPS[fps]
        numbers = {"between": [0, first, 0], "two": others, "image": [0], "text": []}[name]
        shown: dict[str, list[Any]] = {"image": [], "video": []}
        cut = [
            cut_image(x, images=vision, dtype=torch.float32, pinned=False).values for x in arrays
        ]
        place = 0
        for groups in numbers:
            here = spans[place : place + (groups or 1)]
            grid = [len(here), here[0].height * 2, here[0].width * 2]
            patches = torch.cat(cut[place : place + len(here)])
            shown["video" if groups else "image"].append((grid, patches))
            for span in here if groups else ():
                text[span.position : span.position + span.rows] = pad
            place += len(here)
        assert place == len(spans)
        more: dict[str, Tensor] = {}
        for medium, suffix in (("image", ""), ("video", "_videos")):
            if shown[medium]:
                grids, values = zip(*shown[medium], strict=True)
                more[f"{medium}_grid_thw"] = torch.tensor(grids)
                more[f"pixel_values{suffix}"] = torch.cat(values)
        if shown["video"]:
            # As its processor says it: two frames at the rate of its call, or at its own.
            seconds = [2 / (fps or usual)] * len(shown["video"])
            more["video_second_per_grid"] = torch.tensor(seconds)
        assert (given == picture).sum() == sum(span.rows for span in spans)
        with torch.no_grad():
            ones = torch.ones_like(text)[None]
            rows.append(thinker(input_ids=text[None], attention_mask=ones, **more).logits)
    return torch.cat(rows).double()


@pytest.mark.parametrize(
    ("kind", "layout", "fps"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.sweep)
        for each in product(MODELS, LAYOUTS, GROUPS)
    ],
)
def test_logits_are_those_of_transformers(
    kind: str, layout: str, fps: float | None, shards: Path, tmp_path: Path
) -> None:
    """A video between images, two videos, an image, and text."""
    thinker = saved(kind, shards, tmp_path / "model")
    asked = made(kind, layout, fps, shards, tmp_path / "model")
    there = wanted(thinker, asked, fps, RATES[kind])
    assert deviation(found_logits(asked, tmp_path), there) < 1e-5


def proved(shards: Path, vision: Box, language: Box) -> Spec:
    """Four samples of the shards, packed, two steps."""
    asked = spec(
        {
            "vision": {
                **vision, "model": _TOWER, "placeholder": token(shards, "<|image_pad|>"),
            },
            "language": {
                **language, "model": {"vocab": VOCAB, "mrope": [1, 2, 1], "head_dim": 8},
            },
        },
        mbs=4,
        data={
            "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
            "tokenizer": str(shards / "tokenizer"), "max_rows": 9,
            "video": {"rate": RATE, "fps": 4.0}, "packing": True,
        },
        seq=160,
        train={"steps": 2, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
    )  # fmt: skip
    assert check(asked) == ()
    return asked


def test_a_proof_over_videos(shards: Path) -> None:
    assert failures(verify_spec(proved(shards, box(0, cp=2), box(2, tp=2)))) == []


def behind_the_longer_side() -> None:
    """Text goes on behind the longer side of a frame, as in a Qwen2.5-VL."""
    correct = language_input.axis_positions

    def nearer(images: Iterable[ImageSpan], seq: int) -> np.ndarray:
        return correct((replace(each, holds_text=False) for each in images), seq)

    language_input.axis_positions = nearer


def test_the_proof_rejects_text_in_the_midst_of_a_video(shards: Path) -> None:
    asked = proved(shards, box(0), box(0))
    assert failures(verify_spec(asked, prepare=behind_the_longer_side)) != []
