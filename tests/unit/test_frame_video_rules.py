"""Videos of InternVL and SmolVLM are made as in `transformers`: frames, sizes, pixels and text."""

import importlib
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import Image
from tests.support.cut_images import FAMILIES, PATCH, SHUFFLE, SIDE, processor_of
from tests.support.frame_videos import (
    IMAGES,
    RATE,
    VIDEO,
    VIDEOS,
    conversation,
    placeholder,
    video_folder,
    video_spec,
    write_video_shard,
)
from tests.support.shards import image_bytes
from tests.support.specs import box
from tests.support.videos import frames, zipped

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.samples.decode_video import video_groups
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.frame_sampling import VideoSize, VideoTooShort
from mimo_launch.processors.video_recipe import VideoRecipe, as_asked
from mimo_launch.processors.video_words import in_words, words_of
from mimo_launch.processors.videos import read_video_recipe
from mimo_launch.spec.spec import Videos
from mimo_launch.spec.user_data import VideoSettings

SIZES = ((9, 6.0), (1, 24.0), (100, 24.0), (300, 24.0), (13, 1.0), (400, 29.97), (4000, 25.0))
_FUNCTIONAL = ("", ".transforms", ".transforms.v2", ".transforms.v2.functional")


def recipe_of(folder: Path, family: str, **settings: Any) -> VideoRecipe:
    folder = video_folder(folder / "model", family, SIDE, **settings)
    return read_video_recipe(folder, Videos(**VIDEO[family]))


def videos_class(family: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a class of `transformers` for its rule of frames, which needs no torchvision."""
    if family == "InternVL" and importlib.util.find_spec("torchvision") is None:
        # It imports what its rule does not use; all that others guard is imported before.
        importlib.import_module("transformers.video_processing_utils")
        for name in _FUNCTIONAL:
            module = ModuleType(f"torchvision{name}")
            monkeypatch.setitem(sys.modules, module.__name__, module)
            outer, _, last = module.__name__.rpartition(".")
            if outer:
                setattr(sys.modules[outer], last, module)
    snake = family.lower()
    module = importlib.import_module(f"transformers.models.{snake}.video_processing_{snake}")
    return getattr(module, f"{family}VideoProcessor")


def metadata(number: int, rate: float) -> Any:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(total_num_frames=number, fps=rate, duration=number / rate)


@pytest.mark.parametrize(
    "said",
    [{"fps": 2.0}, {"num_frames": 4}, {"fps": 0.7, "initial_shift": 2}, {"num_frames": 7,
     "initial_shift": False}, {"num_frames": 3, "initial_shift": 0.5}],
)  # fmt: skip
def test_frames_of_an_internvl_are_those_of_transformers(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = videos_class("InternVL", monkeypatch)
    recipe = recipe_of(tmp_path, "InternVL", do_sample_frames=True, **said)
    shown = 0
    for number, rate in SIZES:
        of = SimpleNamespace(num_frames=said.get("num_frames"), initial_shift=True)
        try:
            wanted = theirs.sample_frames(of, metadata(number, rate), **said)
        except (ValueError, ZeroDivisionError):
            if said.get("fps", 0) > rate:
                # It refuses what is slower; here all frames are taken.
                assert recipe.taken(VideoSize(number, 61, 47, rate)).indices == (*range(number),)
                continue
            with pytest.raises(VideoTooShort):
                recipe.taken(VideoSize(number, 61, 47, rate))
            continue
        shown += 1
        # Rounding gives it one more at times, behind the last frame.
        inside = [each for each in wanted.tolist() if each < number]
        assert list(recipe.taken(VideoSize(number, 61, 47, rate)).indices) == inside
    assert shown > 3


@pytest.mark.parametrize(("fps", "most"), [(1, 64), (2, 5), (0.3, 8), (24, 64)])
def test_frames_of_a_smolvlm_are_those_of_transformers(
    fps: float, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those at the ends of a long video are left out; older files say it in a section."""
    theirs = videos_class("SmolVLM", monkeypatch)
    sampling = {"fps": fps, "max_frames": most, "video_size": {"longest_edge": 9}}
    recipe = recipe_of(tmp_path, "SmolVLM", video_sampling=sampling)
    of = SimpleNamespace(num_frames=most, fps=fps)
    for number, rate in SIZES:
        wanted = theirs.sample_frames(of, metadata(number, rate))
        taken = recipe.taken(VideoSize(number, 61, 47, rate))
        assert list(taken.indices) == wanted.tolist()
        assert (taken.height, taken.width, taken.later) == (SIDE, SIDE, (None,) * len(wanted))
    assert recipe.most_groups == most


@pytest.mark.parametrize("family", VIDEO)
def test_pixels_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    import transformers

    recipe = recipe_of(tmp_path, family)
    whole = getattr(transformers, f"{family}VideoProcessor").from_pretrained(tmp_path / "model")
    for number, height, width in ((5, 61, 47), (2, 9, 70), (3, SIDE, SIDE), (1, 7, 5)):
        given = frames(number, height, width)
        wanted = whole([given], return_tensors="np")
        wanted = wanted["pixel_values" if family == "SmolVLM" else "pixel_values_videos"][0]
        taken = recipe.taken(VideoSize(number, height, width, RATE))
        found = np.stack(list(video_groups("frames.zip", zipped(given), taken, recipe)))
        assert found.shape == (number, 3, 1, SIDE, SIDE)
        assert np.abs(found[:, :, 0] - wanted).max() < 1e-5


def in_order(text: str, markers: dict[str, list[str]]) -> str:
    """Return a text in which each marker became what a processor writes for it."""
    for marker, written in markers.items():
        pieces = text.split(marker)
        assert len(pieces) == len(written) + 1
        text = pieces[0] + "".join(a + b for a, b in zip(written, pieces[1:], strict=True))
    return text


@pytest.mark.parametrize("family", VIDEO)
def test_tokens_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of images and videos between text; every token, and the places of rows."""
    folder = video_folder(tmp_path / "model", family, SIDE)
    write_video_shard(tmp_path / "0.tar")
    vit = {"kind": "vit", "patch": PATCH, "shuffle": SHUFFLE, "channels": 3}
    token = placeholder(folder, family)
    modules = {
        "vision": box(0, model={**vit, "video": VIDEO[family]}, placeholder=token),
        "language": box(0, model={"vocab": 400}),
    }
    asked = video_spec(tmp_path, folder, family, modules, seq=1024)
    assert check(asked) == ()
    data = build_dataset(asked)
    whole: Any = processor_of(folder, family, monkeypatch)
    theirs = importlib.import_module(type(whole).__module__)
    monkeypatch.setattr(theirs, "num2words", in_words, raising=False)
    # As `apply_chat_template` of a SmolVLM chooses it.
    template = getattr(theirs, "DEFAULT_CHAT_TEMPLATE", None)
    for sample, sizes in enumerate(VIDEOS):
        chat = conversation(sample)
        text = whole.tokenizer.apply_chat_template(
            chat, tokenize=False, chat_template=template if sizes and template else None
        )
        shown = [np.zeros((number, 3, SIDE, SIDE)) for number, _, _ in sizes]
        videos = []
        for each in shown:
            found = metadata(len(each), RATE)
            found.frames_indices = list(range(len(each)))
            given = {"pixel_values_videos": [each], "pixel_values": each[None]}
            videos.append(whole.replace_video_token(given | {"video_metadata": [found]}, 0))
        files = [
            image_bytes(*size, seed=10 * sample + at) for at, size in enumerate(IMAGES[sample])
        ]
        pictures = [Image.open(io.BytesIO(each)).convert("RGB") for each in files]
        images: list[str] = []
        if pictures:
            more = (
                {"return_row_col_info": True} if family == "SmolVLM" else {"crop_to_patches": True}
            )
            nested = [pictures] if family == "SmolVLM" else pictures
            made = whole.image_processor(nested, return_tensors="np", **more)
            images = [whole.replace_image_token(made, at) for at in range(len(pictures))]
        # That of a video holds tokens of images.
        marks = {FAMILIES[family][3]: images, "<video>": videos}
        want = whole.tokenizer(in_order(text, marks), add_special_tokens=False)["input_ids"]
        plan = data.describe("train", sample)
        tokens, labels = data.text("train", sample)
        assert tokens[: plan.num_tokens].tolist() == want
        spans = plan.spans.get("vision", ())
        places = [place for each in spans for place in range(each.position, each.end)]
        assert places == np.flatnonzero(tokens == token).tolist()
        assert len(data.images("train", sample, "vision")) == len(spans)
        learnt = data.words(tokens[1:][labels[:-1] != IGNORE_LABEL].tolist())
        assert learnt.strip().startswith(f"A dog, {sample}.")


def test_the_text_of_a_smolvlm_says_how_long_a_video_lasts(tmp_path: Path) -> None:
    """To the second, also where a rate is a fraction that no number is."""
    recipe = recipe_of(tmp_path, "SmolVLM", fps=1, num_frames=64)
    rate = 24000 / 1001
    taken = recipe.taken(VideoSize(24000 * 4, 61, 47, rate))
    text = words_of(recipe.videos, {}).written("<video>", taken.told)
    assert text.startswith(
        "You are provided the following series of sixty-four frames from a 1:06:44 [H:MM:SS] "
        "video.\n\nFrame from 00:00:<video>\nFrame from 01:04:<video>"
    ), text[:200]
    assert text.endswith("\n\n")


def test_numbers_are_written_as_num2words_does() -> None:
    said = {
        0: "zero", 13: "thirteen", 64: "sixty-four", 100: "one hundred",
        342: "three hundred and forty-two", 1000: "one thousand", 1001: "one thousand and one",
        65536: "sixty-five thousand, five hundred and thirty-six",
    }  # fmt: skip
    assert {number: in_words(number) for number in said} == said
    num2words: Any = pytest.importorskip("num2words").num2words
    assert all(in_words(number) == num2words(number) for number in range(0, 70000, 7))


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("InternVL", {"do_sample_frames": True}, "without num_frames or fps"),
        ("SmolVLM", {"size": 20}, "size: 20, without names"),
        ("InternVL", {"initial_shift": -1}, "initial_shift: -1"),
        ("InternVL", {"size": {"shortest_edge": 9}}, "size"),
        ("InternVL", {"do_sample_frames": True, "fps": 0}, "fps: 0"),
        ("SmolVLM", {"fps": 2}, "fps and num_frames are needed, or neither"),
        ("SmolVLM", {"size": {"height": 9, "width": 9}}, "size"),
        ("SmolVLM", {"do_resize": False}, "do_resize: false"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    family: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ProcessorError, match=said):
        recipe_of(tmp_path, family, **settings)


def test_a_spec_may_ask_for_other_frames(tmp_path: Path) -> None:
    size = VideoSize(40, 9, 9, 4.0)
    every = recipe_of(tmp_path / "a", "InternVL")
    assert every.taken(size).indices == tuple(range(40))
    half = as_asked(every, VideoSettings(fps=2, max_frames=None))
    assert half.taken(size).indices == tuple(range(1, 40, 2))
    few = as_asked(every, VideoSettings(fps=None, max_frames=4))
    assert few.taken(size).indices == (5, 15, 25, 35)
    small = recipe_of(tmp_path / "b", "SmolVLM")
    assert small.taken(size).indices == tuple(range(40))
    with pytest.raises(ProcessorError, match=r"write `fps: 2, max_frames: 64` in `data.video`"):
        as_asked(small, VideoSettings(fps=2, max_frames=None))
    some = as_asked(small, VideoSettings(fps=1, max_frames=64))
    assert len(some.taken(size).indices) == 10


@pytest.mark.parametrize("kind", ["internvl", "smolvlm", "idefics3"])
def test_a_folder_says_how_it_reads_videos(kind: str) -> None:
    wanted = {"internvl": "text_number", "smolvlm": "text_clock", "idefics3": None}[kind]
    found = part_of({"model_type": kind, "vision_config": {}, "text_config": {}}, "vit").video()
    assert (found or {}).get("time") == wanted


@pytest.mark.parametrize("family", VIDEO)
def test_a_nominal_sample_has_frames_of_one_size(family: str, tmp_path: Path) -> None:
    """In place of tiles of an image; as many as half of the room, or all of it, holds."""
    folder = video_folder(tmp_path / "model", family, SIDE)
    write_video_shard(tmp_path / "0.tar")
    vit = {"kind": "vit", "patch": PATCH, "shuffle": SHUFFLE, "channels": 3}
    modules = {
        "vision": box(
            0, model={**vit, "video": VIDEO[family]}, placeholder=placeholder(folder, family)
        ),
        "language": box(0, model={"vocab": 400}),
    }
    asked = video_spec(tmp_path, folder, family, modules, seq=258)
    for worst, number in ((False, 32), (True, 64)):
        spans = nominal_step_data(asked, worst=worst).samples[0].spans["vision"]
        assert [span.rows for span in spans] == [4] * number


def test_a_tokenizer_of_another_model_writes_nothing_around_frames(tmp_path: Path) -> None:
    words = words_of(Videos(time="text_number"), {}, ("<i>", "{<i>}"))
    assert words.written("<v>", (0, 0)) == "Frame1: {<v>}\nFrame2: {<v>}"
    assert words_of(Videos(time="text_number"), {}).written("<v>", (0,)) == "Frame1: <v>"
