"""Folders, shards and specs of models to which each frame of a video is an image by itself."""

import json
from pathlib import Path
from typing import Any

from tests.support.cut_images import FAMILIES, cut_spec, cutting_folder
from tests.support.shards import image_bytes, write_shard
from tests.support.videos import frames, zipped

from mimo_launch.processors.tokenizer import token_id
from mimo_launch.spec.spec import Spec

RATE = 4.0
VIDEO = {"InternVL": {"time": "text_number"}, "SmolVLM": {"time": "text_clock"}}
# Videos of the samples: frames, height and width.
VIDEOS: list[list[tuple[int, int, int]]] = [[(9, 13, 18)], [(6, 20, 9), (3, 8, 8)], [], [(5, 9, 9)]]
# Where else the text of a sample has images.
IMAGES: list[list[tuple[int, int]]] = [[(16, 13), (9, 41)], [], [], [(24, 24)]]


def video_folder(folder: Path, family: str, side: int, **videos: Any) -> Path:
    """Make a folder with the tokenizer and the processors of a family, for frames of a side."""
    square, longest = {"height": side, "width": side}, {"longest_edge": 2 * side}
    settings: dict[str, Any] = {"size": longest, "max_image_size": {"longest_edge": side}}
    if family == "InternVL":
        settings = {"size": square, "max_patches": 4}
    cutting_folder(folder, family, **settings)
    settings.pop("max_patches", None)
    config = {"video_processor_type": f"{family}VideoProcessor", **settings, **videos}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(config))
    return folder


def conversation(sample: int) -> list[dict[str, Any]]:
    """Return what is said about the images and videos of a sample: images around the videos."""
    images = [{"type": "image"} for _ in IMAGES[sample]]
    parts = [*images[:1], {"type": "text", "text": "What is this, "}]
    parts += [{"type": "video"} for _ in VIDEOS[sample]]
    parts += [{"type": "text", "text": " and this?"}, *images[1:]]
    answer = [{"type": "text", "text": f"A dog, {sample}."}]
    return [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]


def videos_of(sample: int) -> list[Any]:
    """Return the frames of the videos of a sample."""
    return [frames(*size, seed=place) for place, size in enumerate(VIDEOS[sample])]


def write_video_shard(path: Path) -> None:
    """Write these samples."""
    made = []
    for number, sizes in enumerate(IMAGES):
        members: dict[str, Any] = {"json": {"messages": conversation(number)}}
        for place, size in enumerate(sizes):
            members[f"{place}.png"] = image_bytes(*size, seed=10 * number + place)
        for place, given in enumerate(videos_of(number)):
            members[f"{place}.frames.zip"] = zipped(given)
        made.append((f"{number:03d}", members))
    write_shard(path, made)


def video_spec(
    shards: Path, folder: Path, family: str, modules: dict[str, Any] | None = None, **more: Any
) -> Spec:
    """Return a spec over the shards of a folder, whose tower reads their videos."""
    data = {"video": {"rate": RATE, **more.pop("video", {})}, **more.pop("data", {})}
    return cut_spec(shards, folder, family, modules, data=data, **more)


def placeholder(folder: Path, family: str) -> int:
    """Return the token of rows."""
    found = token_id(folder, FAMILIES[family][3])
    if found is None:
        raise ValueError(f"{folder} has no {FAMILIES[family][3]}")
    return found
