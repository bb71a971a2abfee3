"""Settings of video processors that older folders have, and those of which nothing can be made."""

import json
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.video_recipe import VideoRecipe, as_asked
from mimo_launch.processors.videos import read_video_recipe
from mimo_launch.spec.spec import Videos
from mimo_launch.spec.user_data import VideoSettings

LIMITS = {"min_pixels": 3136, "max_pixels": 12_845_056}


def recipe(folder: Path, **config: Any) -> VideoRecipe:
    """Return the recipe of a processor with these settings."""
    names = {"video_processor_type": "Qwen2VLVideoProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(names | config))
    return read_video_recipe(folder, Videos(time="patches"))


@pytest.mark.parametrize("beside", [LIMITS, {}])
def test_sizes_may_be_named_as_older_files_do(beside: dict[str, int], tmp_path: Path) -> None:
    found = recipe(tmp_path, size=LIMITS, **beside).frame_size
    assert (found.min_pixels, found.max_pixels) == (3136, 12_845_056)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"patch_size": 0}, "patch_size: 0"),
        ({"merge_size": -1}, "merge_size: -1"),
        ({"temporal_patch_size": 0}, "temporal_patch_size: 0"),
        ({"do_sample_frames": True, "fps": 0}, "fps: 0"),
        ({"size": {"longest_edge": 8}}, "size without shortest_edge"),
    ],
)
def test_settings_that_make_nothing_are_refused(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ProcessorError, match=said):
        recipe(tmp_path, **config)


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({}, {"fps": 2, "max_frames": 1}),
        ({"do_sample_frames": True, "fps": 2, "max_frames": 1}, {}),
        ({"do_sample_frames": True, "num_frames": 1}, {}),
        ({"video_processor_type": "Qwen3VLVideoProcessor"}, {"max_frames": 1}),
    ],
)
def test_fewer_frames_than_a_temporal_patch_are_refused_at_once(
    config: dict[str, Any], asked: dict[str, Any], tmp_path: Path
) -> None:
    """Every video would be too short, whatever it shows."""
    found = recipe(tmp_path, **config)
    with pytest.raises(ProcessorError, match=r"write `max_frames: 2`.* in `data\.video`"):
        as_asked(found, VideoSettings(**asked))
    more = as_asked(found, VideoSettings(fps=2, max_frames=2))
    assert more.most_groups == 1
