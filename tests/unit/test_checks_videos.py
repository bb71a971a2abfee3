"""Encoders that read videos: where they may, and what a plan takes a sample to be."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.lines import marked_folder
from tests.support.shards import shard_data, tokenizer_folder, write_shard
from tests.support.specs import box, spec
from tests.support.videos import TEMPLATE, asked, frames, zipped

from mimo_launch.checks.all_checks import check
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.diag.installed import AV
from mimo_launch.kinds.tiles import Frame
from mimo_launch.spec.spec import Spec

VIT = {"channels": 3, "patch": 4, "shuffle": 2, "temporal_patch": 2}
PATCHES = {"time": "patches"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    tokenizer_folder(folder / "tokenizer", TEMPLATE, specials=("<|video_pad|>",))
    members = {"frames.zip": zipped(frames(4, 8, 8)), "json": asked("video", "What?")}
    write_shard(folder / "000.tar", [("a", members)])
    return folder


def seeing(
    folder: Path, *, modules: dict[str, Any] | None = None, seq: int = 128, **data: Any
) -> Spec:
    boxes = modules or {"vision": box(model={**VIT, "video": PATCHES}, placeholder=380)}
    return spec(
        {**boxes, "language": box(model={"vocab": 400})},
        data=shard_data(folder, **data),
        seq=seq,
    )


def codes(made: Spec) -> list[str]:
    return [each.code for each in check(made)]


def vision(**video: Any) -> dict[str, Any]:
    return {"vision": box(model={**VIT, "video": video}, placeholder=380)}


@pytest.mark.parametrize(
    ("video", "data", "found"),
    [
        (PATCHES, {}, []),
        ({"time": "text"}, {}, []),
        ({"time": "text"}, {"template": "caption"}, ["videos-not-read"]),
        (PATCHES, {"template": "caption"}, []),
        ({"time": "seconds"}, {}, ["videos-not-read"]),
        ({"time": "seconds", "per_second": 2}, {}, []),
        ({"time": "patches", "per_second": 2}, {}, ["setting-without-effect"]),
        (PATCHES, {"video": {"fps": 4, "max_frames": 8}}, []),
    ],
)
def test_time_is_told_somewhere(
    video: dict[str, Any], data: dict[str, Any], found: list[str], shards: Path
) -> None:
    assert codes(seeing(shards, modules=vision(**video), **data)) == found


def test_a_caption_has_no_place_for_the_words_of_a_video(shards: Path) -> None:
    """What is proposed instead is a time that language can count."""
    asked = seeing(shards, modules=vision(time="text_number"), template="caption")
    language = asked.modules["language"]
    for mrope, time in ((None, "none"), ((1, 2, 1), "patches")):
        model = language.model.model_copy(update={"mrope": mrope})
        modules = {**asked.modules, "language": language.model_copy(update={"model": model})}
        said = check(asked.model_copy(update={"modules": modules}))
        (found,) = (each for each in said if each.code == "videos-not-read")
        assert found.help == f"write `template: chat` in `data`, or `video: {{time: {time}}}`"


def test_one_encoder_reads_videos(shards: Path) -> None:
    reads = {**VIT, "video": PATCHES}
    two = {"eye": box(model=reads, placeholder=380), "vision": box(model=reads, placeholder=382)}
    found = check(seeing(shards, modules=two))
    assert [(each.code, each.path[1]) for each in found] == [("videos-not-read", "vision")]


def test_videos_have_no_tokens_between_lines(shards: Path, tmp_path: Path) -> None:
    """As training refuses it: the processor beside the tokenizer writes them for images."""
    folder = str(marked_folder(tmp_path))
    [found] = check(seeing(shards, tokenizer=folder))
    assert (found.code, found.headline) == (
        "videos-not-read", f"`vision` reads videos, but {folder} writes <line> between lines",
    )  # fmt: skip
    assert not check(seeing(shards, tokenizer=folder, template="caption"))


def test_settings_of_videos_need_a_reader(shards: Path) -> None:
    plain = {"vision": box(model=VIT, placeholder=380)}
    found = check(seeing(shards, modules=plain, video={"fps": 2}))
    assert [each.code for each in found] == ["encoder-without-members", "setting-without-effect"]


def synthetic(model: dict[str, Any]) -> Spec:
    data = {"kind": "synthetic", "max_patches": 16, "max_temporal_patches": 4}
    modules = {"vision": box(model=model), "language": box()}
    return spec(modules, data=data, seq=40)


def test_made_up_videos_need_a_reader() -> None:
    assert codes(synthetic({**VIT, "video": {"time": "none"}})) == []
    [found] = check(synthetic(VIT))
    assert found.code == "setting-without-effect"
    assert found.path == ("data", "max_temporal_patches")


def test_a_nominal_sample_has_a_made_up_video() -> None:
    made = synthetic({**VIT, "video": {"time": "none"}})
    for worst, number in ((False, 2), (True, 4)):
        found = nominal_step_data(made, worst=worst)
        assert len(found.samples[0].spans["vision"]) == number
    assert found.samples[0].rows("vision") == 4 * 4
    assert found.samples[0].num_tokens == made.batch.seq


def test_a_processor_must_take_as_many_frames_to_a_patch(shards: Path, tmp_path: Path) -> None:
    settings = '{"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 4, "size": %s}'
    size = '{"shortest_edge": 128, "longest_edge": 4096}'
    (tmp_path / "video_preprocessor_config.json").write_text(settings % size)
    images = '{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4}'
    (tmp_path / "preprocessor_config.json").write_text(images)
    given = {"processors": {"vision": str(tmp_path)}}
    assert codes(seeing(shards, **given)) == []
    three = {"vision": box(model={**VIT, "temporal_patch": 3, "video": PATCHES}, placeholder=380)}
    (found,) = check(seeing(shards, modules=three, **given))
    assert "temporal patches of 2 frames, those of `vision` have 3" in found.why


def test_files_of_videos_need_their_package(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_folder(tmp_path / "tokenizer", TEMPLATE, specials=("<|video_pad|>",))
    write_shard(tmp_path / "000.tar", [("a", {"mp4": b"", "json": asked("video", "What?")})])
    monkeypatch.setattr(
        "mimo_launch.checks.tiles_and_videos.is_installed", lambda name: name != "av"
    )
    assert codes(seeing(shards)) == []
    (found,) = check(seeing(tmp_path))
    assert (found.code, found.help) == ("missing-package", f"pip install '{AV}'")


def test_a_nominal_sample_has_a_video_that_fills_half_of_the_room(shards: Path) -> None:
    made = seeing(shards, seq=258, max_rows=64)
    (mean,) = {each.rows("vision") for each in nominal_step_data(made).samples}
    spans = nominal_step_data(made).samples[0].spans["vision"]
    # Eight temporal patches of 16 rows, later and later.
    assert [span.rows for span in spans] == [16] * 8
    assert [span.later for span in spans] == [None, *range(1, 8)]
    assert mean == 128
    worst = nominal_step_data(made, worst=True).samples[0].spans["vision"]
    assert [span.rows for span in worst] == [64] * 4


def test_frames_limit_a_nominal_video(shards: Path) -> None:
    made = seeing(shards, seq=258, max_rows=4, video={"max_frames": 6})
    spans = nominal_step_data(made, worst=True).samples[0].spans["vision"]
    assert [span.rows for span in spans] == [4] * 3


TILED = {
    "channels": 3, "patch": 4, "positions": "learned", "image": [2, 3], "video": {"time": "none"},
    "tiles": {"grids": [[1, 2]], "side": 12},
}  # fmt: skip


def test_frames_of_tiles_are_in_a_plan(shards: Path) -> None:
    """One row for each four patches of a frame, or fewer; they fill half of the room."""
    made = seeing(shards, modules={"vision": box(model=TILED, placeholder=380)}, seq=130)
    assert codes(made) == []
    spans = nominal_step_data(made).samples[0].spans["vision"]
    assert {(each.rows, each.shown) for each in spans} == {(2, Frame(is_last=False))}
    assert len(spans) == 64 // 2
    worst = nominal_step_data(made, worst=True).samples[0].spans["vision"]
    assert len(worst) == 128 // 2


@pytest.mark.parametrize(("side", "said"), [(12, ""), (16, "no frames of 12 x 12 pixels")])
def test_frames_are_as_large_as_tiles(side: int, said: str, shards: Path, tmp_path: Path) -> None:
    sides = {"height": 12, "width": 12}
    images = {"image_processor_type": "LlavaOnevisionImageProcessor", "size": sides}
    images["image_grid_pinpoints"] = [[12, 24]]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    videos: dict[str, Any] = {"video_processor_type": "LlavaOnevisionVideoProcessor"}
    videos["size"] = {"height": side, "width": side}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(videos))
    modules = {"vision": box(model=TILED, placeholder=380)}
    found = check(seeing(shards, modules=modules, processors={"vision": str(tmp_path)}))
    assert [each.code for each in found] == (["processor-not-supported"] if said else [])
    assert said in "".join(each.why for each in found)
