"""Videos are made as the processors of transformers make them: frames, pixels, text, times."""

import io
import json
import warnings
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.shards import image_bytes, shard_data, tokenizer_folder, write_shard
from tests.support.specs import box, spec
from tests.support.videos import TEMPLATE, asked, encoded, frames, zipped
from tokenizers import Tokenizer

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_video import video_groups, video_size
from mimo_launch.processors.frame_sampling import EvenSampling, VideoSize, VideoTooShort
from mimo_launch.processors.frame_sizes import FrameSize
from mimo_launch.processors.resize_rules import OverTime
from mimo_launch.processors.video_recipe import VideoRecipe, as_asked
from mimo_launch.processors.videos import read_video_recipe
from mimo_launch.spec.spec import Videos
from mimo_launch.spec.user_data import VideoSettings

SMALL = {"patch_size": 4, "merge_size": 2}
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("qwen2_vl", {"size": {"shortest_edge": 16 * 16, "longest_edge": 40 * 48}}),
    "limits": ("qwen2_vl", {"min_pixels": 32 * 32, "max_pixels": 48 * 40}),
    "fps": (
        "qwen2_vl",
        {
            "size": {"shortest_edge": 16 * 16, "longest_edge": 40 * 48}, "do_sample_frames": True,
            "fps": 3.0, "max_frames": 7,
        },
    ),
    "capped": (
        "qwen2_vl",
        {
            "size": {"shortest_edge": 8 * 8, "longest_edge": 64 * 64}, "do_sample_frames": True,
            "num_frames": 4, "cap_pixels_per_frame": True, "max_video_tokens": 30,
        },
    ),
    "third": ("qwen3_vl", {"size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 4 * 40 * 48}}),
    "third, capped": (
        "qwen3_vl",
        {
            "size": {"shortest_edge": 2 * 8 * 8, "longest_edge": 8 * 40 * 48}, "fps": 5,
            "cap_pixels_per_frame": True, "max_video_tokens": 12,
        },
    ),
}  # fmt: skip
VIDEOS = [(9, 61, 47, 6.0), (4, 20, 90, 24.0), (13, 9, 7, 3.0), (30, 32, 32, 10.0)]


def theirs(name: str) -> Any:
    """Return a video processor of transformers."""
    pytest.importorskip("torchvision")
    family, settings = PROCESSORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    cls = {"qwen2_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}[family]
    return getattr(transformers, cls)(**SMALL, **settings)


@pytest.mark.parametrize("name", PROCESSORS)
def test_patches_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    processor = theirs(name)
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "video_preprocessor_config.json").read_text())
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(saved | SMALL))
    recipe = read_video_recipe(tmp_path, Videos(time="seconds", per_second=2.0))
    for number, height, width, rate in VIDEOS:
        given = frames(number, height, width)
        wanted = processor(
            [given],
            video_metadata=[{"total_num_frames": number, "fps": rate}],
            return_metadata=True,
            return_tensors="pt",
        )
        size = video_size("frames.zip", zipped(given), rate)
        taken = recipe.taken(size)
        indices = wanted["video_metadata"][0].frames_indices
        if indices is not None:
            assert list(taken.indices) == [int(each) for each in indices]
        groups = list(video_groups("frames.zip", zipped(given), taken, recipe))
        grid = [len(groups), taken.height // 4, taken.width // 4]
        assert wanted["video_grid_thw"].tolist() == [grid]
        found = np.concatenate([patches(each) for each in groups])
        assert np.abs(found - wanted["pixel_values_videos"].numpy()).max() < 1e-5


def patches(group: np.ndarray) -> np.ndarray:
    """Return the patches of a temporal patch, those of a row together."""
    import torch

    from mimo_launch.models.patches import cut_image
    from mimo_launch.spec.spec import VitModel

    sizes = {"layers": 1, "hidden": 8, "heads": 1, "patch": 4, "channels": 3, "shuffle": 2}
    model = VitModel(
        kind="vit", **sizes, temporal_patch=group.shape[1], video=Videos(time="patches")
    )
    cut: np.ndarray = cut_image(
        group, images=model, dtype=torch.float32, pinned=False
    ).values.numpy()
    return cut


PAD, PICTURE = "<|video_pad|>", "<|image_pad|>"
TEXT_PROCESSORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "fps", {"time": "seconds", "per_second": 2.0}),
    "qwen3_vl": ("Qwen3VLProcessor", "third", {"time": "text"}),
}


def shard_spec(folder: Path, reads: dict[str, Any], **data: Any) -> Any:
    """A spec of an encoder that reads videos, over the shards and the tokenizer of a folder."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    model = {
        "channels": 3, "patch": 4, "shuffle": 2, "temporal_patch": 2, "video": reads,
    }  # fmt: skip
    return spec(
        {
            "vision": box(model=model, placeholder=tokenizer.token_to_id(PICTURE)),
            "language": box(model={"vocab": 400}),
        },
        data=shard_data(folder, **data),
        seq=512,
        train={"steps": 1, "precision": "fp64"},
    )  # fmt: skip


@pytest.mark.parametrize("family", TEXT_PROCESSORS)
def test_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Rows of a video have the placeholder of their encoder; every other token is the same."""
    cls, name, video = TEXT_PROCESSORS[family]
    processor = theirs(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    folder = tokenizer_folder(tmp_path / "tokenizer", TEMPLATE, specials=(PAD,))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    whole = getattr(transformers, cls)(
        transformers.Qwen2VLImageProcessor(**SMALL), tokenizer, processor, chat_template=TEMPLATE
    )
    first, second = frames(9, 61, 47), frames(6, 20, 40, 1)
    said = asked("Look: ", "video", "and", "video", "!", said="Both move.")
    members = {"frames.zip": zipped(first), "1.frames.zip": zipped(second), "json": said}
    write_shard(tmp_path / "000.tar", [("one", members)])
    settings = processor.to_dict() | SMALL
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    images = {"image_processor_type": "Qwen2VLImageProcessor", **SMALL}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    found = shard_spec(tmp_path, video, processors={"vision": str(tmp_path)}, video={"rate": 6.0})
    dataset = build_dataset(found)
    record = dataset.describe("train", 0)
    tokens = dataset.text("train", 0)[0][: record.num_tokens]
    wanted = whole(
        text=[tokenizer.apply_chat_template(said["messages"], tokenize=False)],
        videos=[first, second],
        video_metadata=[{"total_num_frames": len(each), "fps": 6.0} for each in (first, second)],
    )["input_ids"][0]
    picture, pad = (tokenizer.convert_tokens_to_ids(each) for each in (PICTURE, PAD))
    assert tokens.tolist() == [picture if token == pad else token for token in wanted]


def described(folder: Path, members: dict[str, Any], **video: Any) -> tuple[Any, list[str]]:
    """Return the data set of one sample beside one of text, and why the sample is bad, if it is."""
    tokenizer_folder(folder / "tokenizer", TEMPLATE, specials=(PAD,))
    write_shard(folder / "000.tar", [("a", members), ("b", {"json": asked("Hi")})])
    found = shard_spec(folder, video or {"time": "patches"}, video={"rate": 2.0, "fps": 2.0})
    dataset: Any = build_dataset(found)
    return dataset, [each["why"] for each in dataset.splits["train"].index.bad()]


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "mpeg4"), ("avi", "mpeg4"), ("webm", "vp8")])
def test_files_of_videos_are_read(kind: str, codec: str, tmp_path: Path) -> None:
    """The frames that are taken are those of PyAV, in order; headers say sizes."""
    av = pytest.importorskip("av")
    given = np.arange(0, 240, 20, dtype=np.uint8)[:, None, None, None].repeat(32, 1)
    given = given.repeat(40, 2).repeat(3, 3)
    file = encoded(given, 4, kind, codec)
    size = video_size(kind, file, 1.0)
    assert (size.frames, size.height, size.width, size.rate) == (12, 32, 40, 4.0)
    dataset, bad = described(tmp_path, {kind: file, "json": asked("video", "Is it dark?")})
    assert bad == []
    spans = dataset.describe("train", 0).spans["vision"]
    assert [(span.height, span.width, span.later) for span in spans] == [
        (4, 5, None), (4, 5, 1), (4, 5, 2),
    ]  # fmt: skip
    assert [span.joined for span in spans] == [False, True, True]
    assert dataset.facts("train", np.arange(1)).images["vision"].joined.tolist() == [0, 1, 1]
    arrays = dataset.images("train", 0, "vision")
    assert [array.shape for array in arrays] == [(3, 2, 32, 40)] * 3
    with av.open(io.BytesIO(file)) as container:
        decoded = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
    # 2 of 4 frames a second, from the first one to the last one.
    taken = np.linspace(0, 11, 6).round().astype(int)
    wanted = [decoded[number].mean() / 127.5 - 1 for number in taken]
    found = [array[:, frame].mean() for array in arrays for frame in range(2)]
    assert np.abs(np.array(found) - wanted).max() < 1e-4


def test_a_video_is_cut_between_temporal_patches(tmp_path: Path) -> None:
    members = {"frames.zip": zipped(frames(8, 16, 16)), "json": asked("video", "What?")}
    dataset, _ = described(tmp_path, members)
    whole = dataset.describe("train", 0)
    first, *_, last = whole.spans["vision"]
    found = shard_spec(
        tmp_path, {"time": "patches"}, video={"rate": 2.0, "fps": 2.0}, too_long="truncate"
    )
    short = found.model_copy(
        update={"batch": found.batch.model_copy(update={"seq": last.position + 1})}
    )
    cut: Any = build_dataset(short)
    described_cut = cut.describe("train", 0)
    assert described_cut.spans["vision"] == whole.spans["vision"][:-1]
    assert described_cut.num_tokens == last.position
    arrays = cut.images("train", 0, "vision")
    assert len(arrays) == len(whole.spans["vision"]) - 1
    assert np.array_equal(arrays[0], dataset.images("train", 0, "vision")[0])
    assert first.later is None


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no video": ({"mp4": b"no video at all"}, "its .mp4 cannot be read as a video: it is no MP4"),
    "empty": ({"mp4": b""}, "its .mp4 cannot be read as a video: it is no MP4"),
    "cut off": (
        {"mp4": b"\x00\x00\x00\x18ftypisom" + bytes(64)}, "its .mp4 cannot be read as a video",
    ),
    "no frames": ({"frames.zip": zipped(frames(0, 8, 8))}, "it holds no image"),
    "no zip": ({"frames.zip": b"PK"}, "its .frames.zip cannot be read as a video"),
    "another suffix": (
        {"flv": b"FLV"},
        "0 videos and 1 marker for them; its .flv is not read: write videos as .mp4 or .frames.zip",
    ),
    "too wide": ({"frames.zip": zipped(frames(1, 8, 400 * 8))}, "sides of more than 200 to 1"),
    "two": (
        {"frames.zip": zipped(frames(4, 8, 8)), "1.frames.zip": zipped(frames(4, 8, 8))},
        "it has 2 videos and 1 marker for them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_videos_are_bad_samples(name: str, tmp_path: Path) -> None:
    members, why = BROKEN[name]
    _, (found,) = described(tmp_path, {**members, "json": asked("video", "What?")})
    assert why in found


def test_frames_of_two_sizes_are_bad_when_they_are_read(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for number, size in enumerate(((8, 8), (8, 16))):
            file.writestr(f"{number}.png", image_bytes(*size))
    members = {"frames.zip": out.getvalue(), "json": asked("video", "What?")}
    dataset, bad = described(tmp_path, members)
    assert bad == []
    with pytest.raises(BadSample, match=r"000.tar a: .*frame 1.png has 16 x 8 pixels"):
        dataset.images("train", 0, "vision")


def test_text_says_the_time_of_each_temporal_patch(tmp_path: Path) -> None:
    """Without torchvision, too: as `Qwen3VLProcessor` writes it."""
    members = {"frames.zip": zipped(frames(5, 16, 16)), "json": asked("Look: ", "video", "!")}
    dataset, _ = described(tmp_path, members, time="text")
    record = dataset.describe("train", 0)
    tokens, labels = dataset.text("train", 0)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    text = tokenizer.decode(tokens[: record.num_tokens].tolist(), skip_special_tokens=False)
    rows = PICTURE * 4
    assert "".join(
        f"<{time} seconds><|vision_start|>{rows}<|vision_end|>" for time in ("0.2", "1.2", "2.0")
    ) in text.replace("Look: <|vision_start|>", "")
    assert [span.later for span in record.spans["vision"]] == [None] * 3
    learnt = tokenizer.decode(labels[labels >= 0].tolist(), skip_special_tokens=False)
    assert learnt == "It is red.<|im_end|>"


def test_videos_are_left_alone_where_nobody_reads_them(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "tokenizer", TEMPLATE, specials=(PAD,))
    shown = {"png": image_bytes(8, 8), "mp4": b"", "json": asked("image", "A <video> tag?")}
    wants = {"mp4": b"", "json": asked("video", "What?")}
    write_shard(tmp_path / "000.tar", [("a", shown), ("b", wants)])
    found = shard_spec(tmp_path, {"time": "patches"})
    vision = found.modules["vision"]
    plain = vision.model_copy(update={"model": vision.model.model_copy(update={"video": None})})
    dataset: Any = build_dataset(
        found.model_copy(update={"modules": {**found.modules, "vision": plain}})
    )
    assert dataset.num_samples("train") == 1
    (bad,) = dataset.splits["train"].index.bad()
    assert "0 videos and 1 marker for them; no encoder reads videos" in bad["why"]


@pytest.mark.parametrize("fps", [2.0, 0.7, 5])
def test_frames_of_a_glm_are_those_of_transformers(fps: float, tmp_path: Path) -> None:
    """Without torchvision: its rules alone. Files say how long they last."""
    theirs_of: Any = import_module("transformers.models.glm4v.video_processing_glm4v")
    settings = {"video_processor_type": "Glm4vVideoProcessor", "fps": fps, "max_duration": 10}
    settings |= SMALL | {"size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 4 * 40 * 48}}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    recipe = read_video_recipe(tmp_path, Videos(time="text_after"))
    for number, rate in ((9, 6.0), (1, 24.0), (100, 24.0), (300, 24.0), (13, 1.0), (400, 29.97)):
        video = theirs_of.VideoMetadata(
            total_num_frames=number, fps=rate, duration=number / rate, height=61, width=47
        )
        asked = SimpleNamespace(fps=fps, max_duration=10)
        wanted = theirs_of.Glm4vVideoProcessor.sample_frames(asked, video)
        taken = recipe.taken(VideoSize(number, 61, 47, rate))
        assert list(taken.indices) == wanted.tolist()
        size = theirs_of.smart_resize(
            len(wanted), 61, 47, factor=8, min_pixels=512, max_pixels=7680
        )
        assert (taken.height, taken.width) == size
        video.frames_indices = wanted
        assert [each % 2**32 / 10 for each in taken.told] == [
            int(each) for each in video.timestamps[::2]
        ]
        assert len(taken.indices) <= 2 * (recipe.most_groups or 0)


def test_odd_numbers_of_frames_have_the_sizes_of_transformers() -> None:
    theirs_of: Any = import_module("transformers.models.glm4v.video_processing_glm4v")
    for number in (3, 5, 7, 9, 13, 21):
        for height, width in ((61, 47), (20, 90), (9, 7), (32, 32), (16, 40), (300, 200)):
            wanted = theirs_of.smart_resize(
                number, height, width, factor=8, min_pixels=512, max_pixels=7680
            )
            found = OverTime(8, 512, 7680, 2).size_of_frames(number, height, width)
            assert found == wanted, (number, height, width)


@pytest.mark.parametrize(
    ("over_time", "cap", "most"),
    [
        # 4 frames are 2 groups: half of 90 % of 60, 200 and 40 tokens of 64 pixels.
        (False, 60, 1728),
        (False, 200, 4096),
        (False, 40, 1344),
        # 4 frames of so many tokens.
        (True, 30, 4 * 1920),
        (True, 200, 15360),
        (True, 20, 4 * 1344),
    ],
)
def test_a_cap_gives_a_frame_no_more_than_its_share_and_5_percent_above_the_least(
    *, over_time: bool, cap: int, most: int
) -> None:
    """As in `transformers` 5.24, qwen2_vl and qwen3_vl, which need torchvision."""
    capped = FrameSize(8, 1280, 15360 if over_time else 4096, 2, over_time, cap)
    limited = replace(capped, max_pixels=most, cap=None)
    other = replace(limited, max_pixels=most * 4 // 5)
    sizes = [(61, 47), (470, 610), (300, 100), (64, 64), (45, 500), (90, 61), (77, 33)]
    found, want, less = (
        [rule.size(4, *each) for each in sizes] for rule in (capped, limited, other)
    )
    assert found == want != less


@pytest.mark.parametrize("asked", [{}, {"fps": 2.0}, {"fps": 0.3}, {"num_frames": 4}])
def test_frames_of_a_llava_onevision_are_those_of_transformers(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    """Without torchvision: its rules alone."""
    from transformers.video_utils import VideoMetadata, default_sample_indices_fn

    settings = {"video_processor_type": "LlavaOnevisionVideoProcessor"}
    settings |= {"size": {"height": 29, "width": 29}, "do_sample_frames": bool(asked), **asked}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    recipe = read_video_recipe(tmp_path, Videos(time="none"))
    for number, rate in ((9, 6.0), (4, 24.0), (100, 24.0), (13, 2.0), (400, 29.97)):
        wanted = default_sample_indices_fn(
            VideoMetadata(total_num_frames=number, fps=rate), **asked
        )
        taken = recipe.taken(VideoSize(number, 61, 47, rate))
        assert list(taken.indices) == wanted.tolist()
        assert (taken.height, taken.width) == (29, 29)
        assert taken.later == (None,) * len(wanted)
    most = as_asked(recipe, VideoSettings(max_frames=3)).taken(VideoSize(100, 61, 47, 24.0))
    assert len(most.indices) == min(3, len(recipe.taken(VideoSize(100, 61, 47, 24.0)).indices))
    assert as_asked(recipe, VideoSettings(fps=1)).taken(VideoSize(100, 61, 47, 10.0)).indices == (
        *range(0, 100, 10),
    )
    with pytest.raises(VideoTooShort):
        VideoRecipe(EvenSampling(None, 5, None), recipe.frame_size, recipe.videos).taken(
            VideoSize(4, 61, 47, 24.0)
        )


def test_text_says_the_second_behind_each_temporal_patch(tmp_path: Path) -> None:
    """As `Glm4vProcessor` writes it, in the tokens of its chat template."""
    from transformers.models.glm4v.processing_glm4v import Glm4vProcessor

    names = ("<|begin_of_video|>", "<|video|>", "<|end_of_video|>")
    specials = (*names, "<|begin_of_image|>", "<|end_of_image|>")
    template = TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "".join(names))
    folder = tokenizer_folder(tmp_path / "tokenizer", template, specials=specials)
    said = asked("Look: ", "video", "!")
    write_shard(
        tmp_path / "000.tar", [("a", {"frames.zip": zipped(frames(9, 16, 16)), "json": said})]
    )
    settings = {"video_processor_type": "Glm4vVideoProcessor", **SMALL}
    settings |= {"size": {"shortest_edge": 2 * 8 * 8, "longest_edge": 2 * 16 * 16 * 100}}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    images = {"image_processor_type": "Glm4vImageProcessor", **SMALL}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    found = shard_spec(
        tmp_path, {"time": "text_after"}, video={"rate": 2.0},
        processors={"vision": str(tmp_path)},
    )  # fmt: skip
    dataset: Any = build_dataset(found)
    record = dataset.describe("train", 0)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = dataset.text("train", 0)[0][: record.num_tokens].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    # 2 of 2 frames a second: all nine, the last one twice.
    metadata = SimpleNamespace(fps=2.0, timestamps=[each / 2 for each in (*range(9), 8)])
    span = record.spans["vision"][0]
    grid = np.array([[5, span.height * 2, span.width * 2]])
    of = SimpleNamespace(video_processor=SimpleNamespace(merge_size=2), image_token=PICTURE)
    of.replace_frame_token_id = MethodType(Glm4vProcessor.replace_frame_token_id, of)
    wanted = Glm4vProcessor.replace_video_token(
        of, {"video_grid_thw": grid, "video_metadata": [metadata]}, 0
    )
    assert f"Look: <|begin_of_video|>{wanted}<|end_of_video|>!" in text
    assert wanted.count("<|end_of_image|>") == 5
