"""Records with lists of captions, and which caption an epoch learns, written a second time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.shards import image_bytes, write_shard

_WORDS = ("red", "house", "green hill", "two cats", "one dog", "by a train", "on", "beside")
_ALL = (1 << 64) - 1


def captions_of(number: int, most: int = 5) -> list[str]:
    """One caption to `most`, each of another length, all different."""
    random = np.random.default_rng(number)
    return [
        " ".join([str(number), str(k), *random.choice(_WORDS, size=int(random.integers(1, 14)))])
        for k in range(1 + number % most)
    ]


def pictures_of(number: int) -> list[bytes]:
    """No picture, one or two."""
    return [image_bytes(12 + 4 * (number % 5), 16, seed=9 * number + k) for k in range(number % 3)]


def records(folder: Path, numbers: range) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield records without a text, with their pictures in a folder."""
    (folder / "images").mkdir(exist_ok=True)
    for number in numbers:
        names = []
        for place, data in enumerate(pictures_of(number)):
            names.append(f"images/{number:04d}-{place}.png")
            (folder / names[-1]).write_bytes(data)
        yield number, {"images": names}


def write_lists(
    folder: Path, numbers: range, name: str = "lists.jsonl", key: str = "caption"
) -> str:
    """Write a record for each number, with a list of captions, or one text where it has one."""
    lines = []
    for number, record in records(folder, numbers):
        texts = captions_of(number)
        lines.append(json.dumps({**record, key: texts if len(texts) > 1 else texts[0]}))
    (folder / name).write_text("\n".join(lines))
    return str(folder / name)


def write_apart(folder: Path, numbers: range, name: str = "apart.jsonl") -> str:
    """Write a record for each caption of the same records."""
    lines = [
        json.dumps({**record, "caption": text})
        for number, record in records(folder, numbers)
        for text in captions_of(number)
    ]
    (folder / name).write_text("\n".join(lines))
    return str(folder / name)


def write_tars(folder: Path, numbers: range, shards: int) -> None:
    """Write the same records as tar shards."""
    for shard in range(shards):
        made = []
        for number in numbers[shard::shards]:
            members = {f"{n}.png": data for n, data in enumerate(pictures_of(number))}
            made.append((f"{number:04d}", {"json": {"captions": captions_of(number)}, **members}))
        write_shard(folder / f"{shard:03d}.tar", made)


def caption_drawn(seed: int, epoch: int, record: int, count: int) -> int:
    """Return the caption that an epoch learns, by whole numbers of Python."""
    key = np.array([seed & _ALL, 2 * 8], dtype=np.uint64)
    word = int(np.random.Philox(key=key, counter=np.zeros(4, np.uint64)).random_raw())
    mixed = (word + record * 0x9E3779B97F4A7C15) & _ALL
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _ALL
    mixed ^= mixed >> 31
    return (mixed % count + epoch) % count
