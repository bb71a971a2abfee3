"""Videos of shards are what a Qwen-VL of `transformers` computes of them, on every layout."""

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.hugging_face import ids_of, joined, logits_on_rank, save, tokens_of
from tests.support.proof import failures, verdicts
from tests.support.qwen_vl import ALL_KINDS, LANGUAGE_KEYS, LAYOUTS, tiny, widen_all
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from tests.support.videos import video_shard
from tokenizers import Tokenizer
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models import language_input, vision_encoder
from mimo_launch.models.patches import cut_image
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec

VOCAB, RATE = 400, 8.0
# Of each family: `video` of a spec, and its video processor.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({"time": "patches"}, {"video_processor_type": "Qwen2VLVideoProcessor"}),
    "qwen2_5_vl": (
        {"time": "seconds", "per_second": 3.0},
        {
            "video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": True, "fps": 4.0,
            "min_frames": 2,
        },
    ),
    "qwen3_vl": (
        {"time": "text"},
        {"video_processor_type": "Qwen3VLVideoProcessor", "fps": 4.0, "min_frames": 2},
    ),
}  # fmt: skip
GLM = {"glm4v", "glm4v_moe"}
FAMILIES |= dict.fromkeys(
    sorted(GLM), ({"time": "text_after"}, {"video_processor_type": "Glm4vVideoProcessor", "fps": 4})
)
FAMILIES |= dict.fromkeys(("qwen3_vl_moe", "qwen3_5"), FAMILIES["qwen3_vl"])
# Frames that are taken of the videos of the samples `between` and `two`.
TAKEN = {"qwen2_vl": [9, 6, 3], "qwen2_5_vl": [4, 2, 2]}
TAKEN |= {kind: [4, 3, 2] for kind in FAMILIES if kind not in TAKEN}
GLM_OFTEN = {("glm4v", "one rank"), ("glm4v", "cp2, apart"), ("glm4v_moe", "tp2")}
SIZE = {"shortest_edge": 8 * 8, "longest_edge": 16 * 16}
SIZE_OVER_TIME = {"shortest_edge": 2 * 8 * 8, "longest_edge": 4 * 12 * 12}


def token(folder: Path, text: str) -> int:
    found: int = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(text)
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    video_shard(folder)
    return folder


def theirs(kind: str, shards: Path, dtype: torch.dtype, folder: Path) -> Any:
    """Return a model with the tokens of the shards, saved with processors."""
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    names |= {f"vision_{end}_token": f"<|vision_{end}|>" for end in ("start", "end")}
    tokens = {f"{name}_id": token(shards / "tokenizer", text) for name, text in names.items()}
    vision = {"tokens_per_second": 3} if kind == "qwen2_5_vl" else {}
    model = tiny(dtype, kind=kind, vocab=VOCAB, tokens=tokens, **vision)
    save(model, folder)
    sides = {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 2}
    images = {"image_processor_type": "Qwen2VLImageProcessor", **sides, "size": SIZE}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    limits = SIZE if "qwen2" in kind else SIZE_OVER_TIME
    videos = {**FAMILIES[kind][1], **sides, "size": limits}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))
    return model


def made(kind: str, layout: str, shards: Path, folder: Path, precision: str = "fp64") -> Spec:
    vision, language = LAYOUTS[layout]
    model = LANGUAGE_KEYS | ALL_KINDS[kind].language | {"vocab": VOCAB}
    modules = {
        "vision": {
            **vision, "model": {**ALL_KINDS[kind].keys, "video": FAMILIES[kind][0]},
            "init_from": str(folder), "placeholder": token(shards / "tokenizer", "<|image_pad|>"),
        },
        "language": {
            **language, "model": {k: v for k, v in model.items() if (k, v) != ("qkv_bias", None)},
            "init_from": str(folder),
        },
    }  # fmt: skip
    data = {
        "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
        "tokenizer": str(shards / "tokenizer"), "video": {"rate": RATE},
    }  # fmt: skip
    train = {"steps": 1, "precision": precision, "seed": 9}
    found = spec(modules, microbatches=2, mbs=2, seq=192, data=data, train=train)
    assert check(found) == ()
    return found


def wanted(kind: str, model: Any, asked: Spec, shards: Path) -> Tensor:
    """Return the logits of transformers for what our data set gives, by its own positions."""
    dataset: Any = build_dataset(asked)
    images, videos, times, tokens = [], [], [], []
    pad, picture = model.config.video_token_id, model.config.image_token_id
    vision, dtype = asked.modules["vision"].model, model.lm_head.weight.dtype
    for sample, given in zip(ids_of(asked), tokens_of(asked), strict=True):
        spans = dataset.describe("train", sample).spans.get("vision", ())
        arrays, text = dataset.images("train", sample, "vision"), given.clone()
        name = dataset.name("train", sample).split()[1]
        members = {"between": [1, 0, 1], "two": [0, 0], "image": [1], "text": []}[name]
        taken = iter(TAKEN[kind][:1] if name == "between" else TAKEN[kind][1:])
        total = iter([9] if name == "between" else [6, 3])
        place = 0
        for is_image in members:
            number = 1 if is_image else -(-next(taken) // 2)
            here, each = spans[place : place + number], arrays[place : place + number]
            cut = [cut_image(x, images=vision, dtype=dtype, pinned=False).values for x in each]
            grid = [number, here[0].height * 2, here[0].width * 2]
            (images if is_image else videos).append((grid, torch.cat(cut)))
            if not is_image:
                assert all(span.height == here[0].height for span in here)
                times.append(2 / (2 * number / next(total) * RATE))
                for span in here:
                    assert (text[span.position : span.position + span.rows] == picture).all()
                    text[span.position : span.position + span.rows] = pad
            place += number
        assert place == len(spans)
        tokens.append(text)
    ids = torch.stack(tokens)
    kinds = (ids == picture).int() + 2 * (ids == pad).int()
    more = {"second_per_grid_ts": torch.tensor(times)} if kind == "qwen2_5_vl" else {}
    with torch.no_grad():
        logits: Tensor = model(
            input_ids=ids,
            mm_token_type_ids=kinds,
            pixel_values=torch.cat([x for _, x in images]),
            image_grid_thw=torch.tensor([grid for grid, _ in images]),
            pixel_values_videos=torch.cat([x for _, x in videos]),
            video_grid_thw=torch.tensor([grid for grid, _ in videos]),
            **more,
        ).logits
    return logits


OFTEN = {("qwen2_vl", "one rank"), ("qwen2_5_vl", "one rank"), ("qwen2_5_vl", "cp2, apart"),
         ("qwen3_vl", "one rank"), ("qwen3_vl", "tp2")}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in OFTEN else pytest.mark.sweep)
        for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
        for each in LAYOUTS
    ],
)
def test_logits_are_those_of_transformers(
    kind: str, layout: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video between images, two videos, an image, and text."""
    module: Any = import_module(f"transformers.models.{kind}.modeling_{kind}")
    for name in ("apply_rotary_pos_emb_vision", "get_vision_interpolation_indices_and_weights"):
        monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    model = theirs(kind, shards, torch.float64, tmp_path / "model")
    asked = made(kind, layout, shards, tmp_path / "model")
    parts = run_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    found = joined(asked, parts, VOCAB)
    widen_all(model)
    there = wanted(kind, model, asked, shards)
    assert there.std() > 0.1
    assert float((found - there).abs().max() / there.abs().max()) < 1e-9


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["qwen3_vl_moe", "qwen3_5"])
def test_other_families_read_them_as_well(kind: str, shards: Path, tmp_path: Path) -> None:
    """In fp32, which parts of these compute in any case."""
    model = theirs(kind, shards, torch.float32, tmp_path / "model")
    asked = made(kind, "one rank", shards, tmp_path / "model", "fp32")
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    found, there = joined(asked, parts, VOCAB), wanted(kind, model, asked, shards).double()
    assert there.std() > 0.1
    assert float((found - there).abs().max() / there.abs().max()) < 1e-5


def wanted_of_glm(model: Any, asked: Spec) -> Tensor:
    """Return the same of a GLM, in which videos have the token of images, sample by sample.

    It takes no images beside videos: where a sample has both, each temporal patch is an image.
    """
    dataset: Any = build_dataset(asked)
    picture, rows = model.config.image_token_id, []
    vision, dtype = asked.modules["vision"].model, model.lm_head.weight.dtype
    for sample, ids in zip(ids_of(asked), tokens_of(asked), strict=True):
        spans = dataset.describe("train", sample).spans.get("vision", ())
        arrays = dataset.images("train", sample, "vision")
        cut = [cut_image(x, images=vision, dtype=dtype, pinned=False).values for x in arrays]
        sizes = [[1, span.height * 2, span.width * 2] for span in spans]
        more: dict[str, Tensor] = {}
        kind = 1
        if dataset.name("train", sample).endswith("two"):
            # Of 6 and of 3 frames, of which 3 and 1 are taken, an even number.
            assert len(sizes) == 3
            grids, kind = [[2, *sizes[0][1:]], sizes[2]], 2
            more = {"pixel_values_videos": torch.cat(cut), "video_grid_thw": torch.tensor(grids)}
        elif spans:
            more = {"pixel_values": torch.cat(cut), "image_grid_thw": torch.tensor(sizes)}
        with torch.no_grad():
            kinds = (ids == picture).int() * kind
            rows.append(model(input_ids=ids[None], mm_token_type_ids=kinds[None], **more).logits)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, each, marks=() if (kind, each) in GLM_OFTEN else pytest.mark.sweep)
        for kind in sorted(GLM)
        for each in LAYOUTS
    ],
)
def test_logits_of_a_glm_are_those_of_transformers(
    kind: str, layout: str, shards: Path, tmp_path: Path
) -> None:
    """The same samples; their text says the second of each temporal patch behind it."""
    model = theirs(kind, shards, torch.float32, tmp_path / "model")
    asked = made(kind, layout, shards, tmp_path / "model", "fp32")
    parts = run_on_running_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    found, there = joined(asked, parts, VOCAB), wanted_of_glm(model, asked).double()
    assert there.std() > 0.1
    assert float((found - there).abs().max() / there.abs().max()) < 1e-5


def proved(shards: Path, vision_box: dict[str, Any], language_box: dict[str, Any]) -> Spec:
    """A Qwen2.5-VL of four samples of the shards, two steps."""
    folder = shards / "tokenizer"
    vision = {**ALL_KINDS["qwen2_5_vl"].keys, "video": {"time": "seconds", "per_second": 3.0}}
    language = {"vocab": VOCAB, "mrope": [1, 2, 1], "head_dim": 8}
    pad = token(folder, "<|image_pad|>")
    asked = spec(
        {
            "vision": {**vision_box, "model": vision, "placeholder": pad},
            "language": {**language_box, "model": language},
        },
        mbs=4,
        data={
            "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
            "tokenizer": str(folder), "max_rows": 9, "video": {"rate": RATE, "fps": 4.0},
            "packing": True,
        },
        seq=160,
        train={"steps": 2, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
    )  # fmt: skip
    assert check(asked) == ()
    return asked


def test_a_proof_over_videos(shards: Path) -> None:
    """Parallelism: vision dp 2 cp 2 beside language tp 2 cp 2, packed."""
    asked = proved(shards, box(0, dp=2, cp=2), box(4, tp=2, cp=2))
    assert failures(verify_spec(asked)) == []


def without_time() -> None:
    """All temporal patches of a video are at the time of the first."""
    correct = language_input.axis_positions

    def together(images: Iterable[ImageSpan], seq: int) -> np.ndarray:
        moved = (each if each.later is None else replace(each, later=0) for each in images)
        return correct(moved, seq)

    language_input.axis_positions = together


def one_after_another() -> None:
    """A temporal patch is an image behind the one before it."""
    correct = language_input.axis_positions

    def apart(images: Iterable[ImageSpan], seq: int) -> np.ndarray:
        return correct((replace(each, later=None) for each in images), seq)

    language_input.axis_positions = apart


def equal_frames() -> None:
    """The first frame of a temporal patch stands for all of them."""
    correct = vision_encoder.VisionStage.embed

    def first(self: Any, packed: Any) -> Tensor:
        values = packed.patches.values.view(len(packed.patches.values), 3, 2, -1)
        same = values[:, :, :1].expand_as(values).flatten(1)
        return correct(self, replace(packed, patches=replace(packed.patches, values=same)))

    vision_encoder.VisionStage.embed = first  # type: ignore[method-assign]


BUGS = {"without time": without_time, "apart": one_after_another, "equal frames": equal_frames}


@pytest.mark.parametrize(
    "bug", [pytest.param(x, marks=() if x == "without time" else pytest.mark.sweep) for x in BUGS]
)
def test_the_proof_rejects_wrong_videos(bug: str, shards: Path) -> None:
    asked = proved(shards, box(0), box(0))
    assert failures(verify_spec(asked, prepare=BUGS[bug])) != []


def test_a_small_proof_shows_videos(shards: Path) -> None:
    """`verify` makes up samples in place of those of shards, videos among them."""
    asked = proved(shards, box(0, dp=2), box(2, tp=2, cp=2))
    assert failures(verdicts(asked)) == []


@pytest.mark.parametrize(
    "bug", [pytest.param(x, marks=() if x == "without time" else pytest.mark.sweep) for x in BUGS]
)
def test_a_small_proof_rejects_wrong_videos(bug: str, shards: Path) -> None:
    asked = proved(shards, box(0), box(0))
    assert failures(verdicts(asked, prepare=BUGS[bug])) != []
