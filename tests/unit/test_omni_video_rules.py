"""Videos of a Qwen2.5-Omni: positions and sizes as `transformers` has them, and its folder."""

import json
from importlib import import_module
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.support.videos import frames, zipped

from mimo_launch.data.samples.decode_video import video_groups
from mimo_launch.hugging_face.families.qwen2_5_omni import QWEN2_5_OMNI
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.text_positions import axis_positions
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.frame_sampling import VideoSize
from mimo_launch.processors.video_recipe import as_asked
from mimo_launch.processors.videos import read_video_recipe
from mimo_launch.spec.spec import DecoderModel, TalkerModel, Videos, VitModel
from mimo_launch.spec.user_data import VideoSettings

VIDEO, START, END, IMAGE, AUDIO = 3, 4, 5, 6, 7
NOMINAL = Videos(time="nominal_seconds", per_second=25.0)
EXACT = Videos(time="exact_seconds", per_second=13.0)


def folder_of(folder: Path, **settings: Any) -> Path:
    """Write the processor of an Omni as published: for images alone."""
    config = {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5OmniProcessor",
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, **settings,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def their_positions(
    text: list[int], grids: list[list[int]], seconds: float, name: str, each: int
) -> np.ndarray:
    kind = {"Qwen2_5Omni": "qwen2_5_omni", "Qwen3OmniMoe": "qwen3_omni_moe"}[name]
    theirs: Any = import_module(f"transformers.models.{kind}.modeling_{kind}")
    of = getattr(theirs, f"{name}PreTrainedModelForConditionalGeneration")
    config = SimpleNamespace(
        image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO,
        vision_start_token_id=START, audio_start_token_id=8, position_id_per_seconds=each,
        seconds_per_chunk=2,
    )  # fmt: skip
    model = SimpleNamespace(spatial_merge_size=2, config=config)
    model.get_llm_pos_ids_for_vision = MethodType(of.get_llm_pos_ids_for_vision, model)
    found, _ = of.get_rope_index(
        model,
        torch.tensor([text]),
        attention_mask=torch.ones(1, len(text), dtype=torch.int64),
        video_grid_thw=torch.tensor(grids),
        second_per_grids=torch.tensor([seconds] * len(grids)),
    )
    positions: np.ndarray = found[:, 0].numpy()
    return positions


RATES = [
    *(("Qwen2_5Omni", NOMINAL, 2.0, fps) for fps in (None, 2, 0.3, 3.0, 7.3, 24, 29.97)),
    *(("Qwen3OmniMoe", EXACT, 1.0, fps) for fps in (None, 0.5, 2, 6.5)),
]


@pytest.mark.parametrize(("name", "videos", "usual", "fps"), RATES)
def test_positions_are_those_of_transformers(
    name: str, videos: Videos, usual: float, fps: float | None, tmp_path: Path
) -> None:
    """By the rate that is asked for, not that of what is taken; text goes on behind all of it."""
    folder = folder_of(tmp_path, processor_class=f"{name}Processor")
    recipe = as_asked(read_video_recipe(folder, videos), VideoSettings(fps=fps, max_frames=None))
    text, spans, grids = [0, 1], [], []
    for number, height, width in ((60, 2, 3), (9, 1, 4), (4, 5, 1)):
        taken = recipe.taken(VideoSize(number, 200, 300, 8.0))
        text.append(START)
        grids.append([len(taken.later), 2 * height, 2 * width])
        for later in taken.later:
            spans.append(ImageSpan(len(text), height, width, later=later, holds_text=True))
            text += [VIDEO] * (height * width)
        text += [END, 1, 0]
    assert videos.per_second is not None
    wanted = their_positions(text, grids, 2 / (fps or usual), name, int(videos.per_second))
    # Times of a Qwen3-Omni are fractions, rounded in fp32.
    assert np.abs(axis_positions(spans, len(text)) - wanted).max() < (1e-4 if usual == 1 else 1e-9)


@pytest.mark.parametrize(("fps", "fits"), [(3.0, "2"), (7.3, "2"), (24, "13")])
def test_times_between_whole_positions_are_refused(fps: float, fits: str, tmp_path: Path) -> None:
    """`transformers` rotates by them in a Qwen3-Omni; our positions are whole."""
    recipe = read_video_recipe(folder_of(tmp_path, processor_class="Qwen3OmniMoeProcessor"), EXACT)
    with pytest.raises(ProcessorError, match=f"write `fps: {fits}` in `data.video`"):
        as_asked(recipe, VideoSettings(fps=fps, max_frames=None))


def test_frames_have_the_sizes_that_the_whole_processor_asks_for(tmp_path: Path) -> None:
    """Whatever the limits of its file; a processor of another model keeps those of its file."""
    small = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
    recipe = read_video_recipe(folder_of(tmp_path, **small), NOMINAL)
    taken = recipe.taken(VideoSize(3, 60, 80, 8.0))
    assert (taken.indices, taken.height, taken.width) == ((0, 1, 2), 280, 392)
    other = read_video_recipe(folder_of(tmp_path, processor_class="Other", **small), NOMINAL)
    taken = other.taken(VideoSize(3, 60, 80, 8.0))
    assert taken.height * taken.width <= 56 * 56


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    import transformers

    folder = folder_of(tmp_path)
    recipe = read_video_recipe(folder, NOMINAL)
    given = frames(5, 61, 47)
    processor = transformers.Qwen2VLVideoProcessor.from_pretrained(folder)
    size = transformers.Qwen2_5OmniProcessor.videos_kwargs["size"]
    wanted = processor([given], size=size, return_tensors="pt")
    taken = recipe.taken(VideoSize(5, 61, 47, 8.0))
    groups = list(video_groups("frames.zip", zipped(given), taken, recipe))
    grid = [len(groups), taken.height // 14, taken.width // 14]
    assert wanted["video_grid_thw"].tolist() == [grid]
    patches = wanted["pixel_values_videos"].view(3, grid[1] // 2, grid[2] // 2, 2, 2, 3, 2, 14, 14)
    there = patches.permute(0, 5, 6, 1, 3, 7, 2, 4, 8).reshape(3, 3, 2, *groups[0].shape[-2:])
    assert np.abs(np.stack(groups) - there.numpy()).max() < 1e-5


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("model_type", "time"),
    [("qwen2_5_omni", "nominal_seconds"), ("qwen3_omni_moe", "exact_seconds")],
)
def test_a_folder_says_how_many_places_a_second_takes(
    model_type: str, time: str, is_whole: bool
) -> None:
    for said, second in (({}, 25.0), ({"position_id_per_seconds": 13}, 13.0)):
        thinker = {"vision_config": {}, "text_config": {}, **said}
        whole = {"model_type": model_type, "thinker_config": thinker}
        part = {"model_type": f"{model_type}_thinker", **thinker}
        found = part_of(whole if is_whole else part, "vit")
        assert found.video() == {"time": time, "per_second": second}


def test_an_export_says_it_again() -> None:
    sizes = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 40, "mrope": [1, 2, 1]}
    text = DecoderModel.model_validate({"kind": "decoder", **sizes})
    codes = {"codebooks": 1, "vocab": 23, "start": 20, "end": 21, "reads_text": True}
    talker = TalkerModel.model_validate(
        {"kind": "talker", "layers": 1, "hidden": 24, "heads": 4, **codes}
    )
    tower = {"layers": 1, "hidden": 16, "heads": 2, "patch": 2, "channels": 3}
    for second, written in ((25.0, "25"), (12.5, "12.5")):
        video = {"time": "nominal_seconds", "per_second": second}
        vision = VitModel.model_validate({"kind": "vit", **tower, "video": video})
        assert QWEN2_5_OMNI.config_of is not None
        models = {"decoder": text, "talker": talker, "vit": vision}
        thinker = QWEN2_5_OMNI.config_of(models, {"vit": 9})["thinker_config"]
        assert str(thinker["position_id_per_seconds"]) == written
        assert "tokens_per_second" not in thinker["vision_config"]
