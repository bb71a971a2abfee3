"""Members of a sample as images and sound: their sizes from the header, and their contents.

Decides: that an image stands upright and on white; which files are refused, whatever their names.
Relies on: Pillow for images, soundfile for sound; each is imported when it is first needed.
Leaves: what an encoder is given of them to `image_processing` and `log_mel`.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.shard_patterns import AUDIO_SUFFIXES, IMAGE_FORMATS

if TYPE_CHECKING:
    from PIL.Image import Image

Medium = Literal["image", "audio"]

# EXIF orientations from 5 on swap height and width (JEITA CP-3451, tag 0x0112).
_ORIENTATION, _FIRST_SWAPPED = 0x0112, 5
# Modes of Pillow with more than 8 bits a channel: converted to others, they end at 255.
_DEEP_MODES = ("I", "F")
# Below are no recordings (a telephone has 8 kHz), above no microphones.
_LEAST_HERTZ, _MOST_HERTZ = 4_000, 768_000
# How decoders print a file in memory.
_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>")


def medium_of(suffix: str) -> Medium | None:
    """Return what a member `KEY.suffix` holds: `jpg`, `2.jpg` and `left.jpg` are images."""
    last = suffix.rpartition(".")[2]
    if last in IMAGE_FORMATS:
        return "image"
    return "audio" if last in AUDIO_SUFFIXES else None


def image_size(suffix: str, data: bytes) -> tuple[int, int]:
    """Return (height, width) of an upright image from its first bytes, which need not be all.

    Raises: BadSample if the header cannot be read.
    """
    from PIL import Image

    with _readable(suffix, "image"), warnings.catch_warnings():
        # The caller has a limit of its own for the number of pixels, and names the sample.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with _opened(data) as image:
            # Of a PNG, its own `getexif` would decode everything, to look behind the pixels.
            turned = Image.Image.getexif(image).get(_ORIENTATION, 1) >= _FIRST_SWAPPED
            # Of a TIFF, Pillow gives the size that it has when it is upright.
            swapped = turned and image.format != "TIFF"
            return (image.width, image.height) if swapped else (image.height, image.width)


def decode_image(suffix: str, data: bytes, *, channels: int) -> "Image":
    """Return an upright image on white, RGB or for one channel grey.

    As transformers shows it: `load_image` turns it, processors put what is transparent on white.
    Raises: BadSample for what cannot be decoded.
    """
    from PIL import Image, ImageOps

    with _readable(suffix, "image"), _opened(data) as file:
        image = ImageOps.exif_transpose(file)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB" if channels == 3 else "L")


def clip_length(suffix: str, data: bytes) -> tuple[int, int]:
    """Return the samples per channel of a clip and its rate in Hz, from its header.

    Raises: BadSample if the header cannot be read.
    """
    import soundfile

    with _readable(suffix, "clip"):
        found = soundfile.info(io.BytesIO(data))
        frames, rate = int(found.frames), int(found.samplerate)
        if not _LEAST_HERTZ <= rate <= _MOST_HERTZ:
            raise ValueError(
                f"its header says {rate:,} Hz, recordings have {_LEAST_HERTZ:,} to {_MOST_HERTZ:,}"
            )
        return frames, rate


def decode_clip(suffix: str, data: bytes, *, seconds: float) -> tuple[npt.NDArray[np.float32], int]:
    """Return a clip as the mean of its channels, float32 [samples] in -1 to 1, and its rate in Hz.

    Only its first `seconds` are decoded: hours of silence are small in a file and large in memory.
    Raises: BadSample if it cannot be decoded.
    """
    import soundfile

    with _readable(suffix, "clip"), soundfile.SoundFile(io.BytesIO(data)) as file:
        rate = int(file.samplerate)
        samples = file.read(math.ceil(seconds * rate), dtype="float32", always_2d=True)
        return samples.mean(axis=1, dtype=np.float32), rate


@contextmanager
def _opened(data: bytes) -> "Iterator[Image]":
    """Open an image of a format that is read. Raises: whatever Pillow does; ValueError."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=_formats()) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise ValueError(
                f"its pixels have more than 8 bits (mode {image.mode}), of which Pillow and "
                "transformers make white; save it with 8"
            )
        yield image


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that are read and that Pillow has.

    No others: some are decoded by programs that Pillow starts, such as Ghostscript.
    """
    from PIL import Image

    Image.init()
    return tuple(each for each in dict.fromkeys(IMAGE_FORMATS.values()) if each in Image.OPEN)


@contextmanager
def _readable(suffix: str, what: str) -> Iterator[None]:
    """Make a bad sample of whatever a decoder raises: their errors are many, and listed nowhere."""
    try:
        yield
    except Exception as error:
        words = _ADDRESS.sub("", str(error)) or type(error).__name__
        raise BadSample(f"its .{suffix} is no {what} that can be read: {words}") from error
