"""Which files the patterns of `shards:` name, and which suffixes are images and clips.

Decides: braces before globs, order by pattern and then by name.
Relies on: the file system; `braceexpand`, which the webdataset library uses for the same.
Leaves: what is in the files to `train.data.webdataset`.
"""

from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path

# The suffixes of images with Pillow's names of their formats. Files of other formats are refused.
IMAGE_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "avif": "AVIF",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "jp2": "JPEG2000",
    "ppm": "PPM",
    "pgm": "PPM",
}
AUDIO_SUFFIXES = frozenset({"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "caf"})


def shard_files(patterns: str | Iterable[str]) -> tuple[Path, ...]:
    """Return the shards that patterns name, whether they are there or not, each once.

    A name without `*`, `?` or `[` stands for itself.
    """
    from braceexpand import braceexpand

    found: dict[str, None] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        for name in braceexpand(pattern):
            names = sorted(glob(name, recursive=True)) if has_magic(name) else [name]
            found.update(dict.fromkeys(names))
    return tuple(Path(name) for name in found)
