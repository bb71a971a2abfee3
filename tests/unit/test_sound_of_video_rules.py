"""The sound of a video among its frames: order, positions and text as `transformers` has them."""

from dataclasses import replace
from importlib import import_module
from itertools import product
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.text_positions import axis_positions
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.frame_sampling import VideoSize
from mimo_launch.processors.frame_sizes import FrameSize
from mimo_launch.processors.sound_of_videos import interleaved
from mimo_launch.processors.video_recipe import VideoRecipe, as_asked
from mimo_launch.spec.spec import Videos
from mimo_launch.spec.user_data import VideoSettings

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
VISION_BEGIN, VISION_END, AUDIO_BEGIN, AUDIO_END = 4, 5, 6, 7
FAMILIES = {
    "qwen2_5_omni": ("Qwen2_5Omni", Videos(time="nominal_seconds", per_second=25.0)),
    "qwen3_omni_moe": ("Qwen3OmniMoe", Videos(time="exact_seconds", per_second=13.0)),
}
# Frames per second, frames of the video at 8 a second, and log-mel frames of its sound.
LENGTHS = [
    (None, 60, 760), (None, 60, 100), (None, 60, 2000), (2.0, 9, 31), (2.0, 3, 801), (1.0, 80, 999),
]  # fmt: skip
CASES = [
    *product(FAMILIES, LENGTHS),
    *(("qwen2_5_omni", each) for each in ((6.5, 33, 400), (3.0, 80, 700), (7.3, 80, 700))),
    ("qwen3_omni_moe", (0.5, 90, 1100)),
]


def recipe_of(kind: str, fps: float | None) -> VideoRecipe:
    """Return the recipe of small frames of a family."""
    usual = 1.0 if kind == "qwen3_omni_moe" else 2.0
    size = FrameSize(2, 16, 64, 2, over_time=False, cap=None)
    made = VideoRecipe(size.sampling(fps or usual, None), size, FAMILIES[kind][1])
    made = replace(made, nominal_fps=usual)
    return as_asked(made, VideoSettings(fps=fps, sound=True))


def rows_of(kind: str, frames: int) -> int:
    """Return the rows of a clip of log-mel frames as the processor counts them."""
    of: Any = import_module(f"transformers.models.{kind}.processing_{kind}")
    return int(of._get_feat_extract_output_lengths(torch.tensor(frames)))


def ours(
    recipe: VideoRecipe, frames: int, sound: int, at: int
) -> tuple[list[int], list[ImageSpan], list[int]]:
    """Return tokens, spans and grid of a video with its sound from a place of the text on."""
    taken = recipe.taken(VideoSize(frames, 13, 18, 8.0))
    times = [later or 0 for later in taken.later]
    height, width = taken.height // 2, taken.width // 2
    tokens, spans, parts = [], [], []
    chunk = recipe.places_of_chunk
    for patches, heard in interleaved(times, sound, chunk):
        for patch in patches:
            later = taken.later[patch]
            span = ImageSpan(at + len(tokens), height, width, later=later, holds_text=True)
            spans.append(span)
            tokens += [VIDEO] * span.rows
        if heard:
            parts.append((at + len(tokens), len(heard)))
            tokens += [AUDIO] * len(heard)
    clip = ImageSpan(
        *(parts[0][0], 1, sound), later=0, parts=tuple(parts), shares_bounds=chunk is not None
    )
    return tokens, [*spans, clip], [len(times), 2 * height, 2 * width]


def their_text(kind: str, grid: list[int], sound: int, fps: float) -> list[int]:
    of: Any = import_module(f"transformers.models.{kind}.processing_{kind}")
    name = f"{FAMILIES[kind][0]}Processor"
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2), audio_bos_token=f"{AUDIO_BEGIN} ",
        audio_eos_token=f"{AUDIO_END} ", video_token=f"{VIDEO} ", audio_token=f"{AUDIO} ",
    )  # fmt: skip
    whole = getattr(of, name)
    processor.get_chunked_index = MethodType(whole.get_chunked_index, processor)
    text = whole.replace_video_with_audio_token(
        processor,
        {"video_grid_thw": [grid], "video_second_per_grid": [2 / fps]},
        0,
        {"num_audio_tokens": [sound]},
        0,
        position_id_per_seconds=FAMILIES[kind][1].per_second,
        seconds_per_chunk=2.0,
    )
    return [int(each) for each in text.split()]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_rows_are_in_the_order_of_the_processor(
    kind: str, case: tuple[float | None, int, int]
) -> None:
    fps, frames, heard = case
    recipe, sound = recipe_of(kind, fps), rows_of(kind, heard)
    tokens, _, grid = ours(recipe, frames, sound, 0)
    wanted = their_text(kind, grid, sound, recipe.nominal_fps)
    assert [AUDIO_BEGIN, *tokens, AUDIO_END] == wanted


def their_positions(
    kind: str, text: list[int], grids: list[list[int]], heard: list[int], seconds: float
) -> np.ndarray:
    theirs: Any = import_module(f"transformers.models.{kind}.modeling_{kind}")
    of = getattr(theirs, f"{FAMILIES[kind][0]}PreTrainedModelForConditionalGeneration")
    config = SimpleNamespace(
        image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO,
        vision_start_token_id=VISION_BEGIN, audio_start_token_id=AUDIO_BEGIN,
        position_id_per_seconds=int(FAMILIES[kind][1].per_second or 0), seconds_per_chunk=2,
        audio_config=SimpleNamespace(n_window=50),
    )  # fmt: skip
    model = SimpleNamespace(spatial_merge_size=2, config=config)
    for name in ("get_llm_pos_ids_for_vision", "get_chunked_index"):
        if hasattr(of, name):
            setattr(model, name, MethodType(getattr(of, name), model))
    found, _ = of.get_rope_index(
        model,
        torch.tensor([text]),
        image_grid_thw=torch.tensor([[1, 4, 6]]),
        video_grid_thw=torch.tensor(grids),
        attention_mask=torch.ones(1, len(text), dtype=torch.int64),
        use_audio_in_video=True,
        audio_seqlens=torch.tensor(heard),
        second_per_grids=torch.tensor([seconds] * len(grids)),
    )
    positions: np.ndarray = found[:, 0].numpy()
    return positions


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_positions_are_those_of_transformers(
    kind: str, case: tuple[float | None, int, int]
) -> None:
    """Two videos side by side, an image, a clip, another video: of equal and unequal lengths."""
    fps, frames, heard = case
    recipe = recipe_of(kind, fps)
    videos = [(frames, heard), (9, 97), (frames // 2 + 2, heard // 3 + 8)]
    text, spans, grids, all_heard = [TEXT] * 3, list[ImageSpan](), list[list[int]](), list[int]()
    for number, (shown, lasts) in enumerate(videos):
        text += [VISION_BEGIN, AUDIO_BEGIN]
        tokens, found, grid = ours(recipe, shown, rows_of(kind, lasts), len(text))
        text += [*tokens, AUDIO_END, VISION_END]
        spans += found
        grids.append(grid)
        all_heard.append(lasts)
        if number == 1:
            text += [TEXT, VISION_BEGIN]
            spans.append(ImageSpan(len(text), 2, 3))
            text += [IMAGE] * 6 + [VISION_END, TEXT, AUDIO_BEGIN]
            text += [AUDIO] * rows_of(kind, 40) + [AUDIO_END]
            all_heard.append(40)
    text += [TEXT, TEXT]
    wanted = their_positions(kind, text, grids, all_heard, 2 / recipe.nominal_fps)
    assert np.abs(axis_positions(spans, len(text)) - wanted).max() < 1e-3


@pytest.mark.parametrize(
    ("kind", "fps", "fits"),
    [
        ("qwen2_5_omni", 0.5, "longer than a chunk of 2 s.*write `fps: 1` in"),
        ("qwen3_omni_moe", 6.5, "write `fps: 2` in"),
        ("qwen3_omni_moe", 13.0, "write `fps: 2` in"),
    ],
)
def test_rates_at_which_frames_and_sound_have_no_order_are_refused(
    kind: str, fps: float, fits: str
) -> None:
    """`transformers` puts sound between the rows of one frame, or rounds times of 6.5 a second."""
    with pytest.raises(ProcessorError, match=fits):
        recipe_of(kind, fps)
