"""Members of a sample as images and sound: sizes from the header, contents, what encoders get.

Decides: that an image stands upright and on white; which files are refused, whatever their names;
that resizing happens on 8-bit pixels, and arithmetic in float32 behind it, number for number as in
transformers' Pillow processors.
Relies on: Pillow for images, soundfile for sound; each is imported when it is first needed;
`hugging_face.image_processor` for sizes.
Leaves: what an encoder is given of sound to `log_mel`.
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
from PIL import Image

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.tar_files import AUDIO_SUFFIXES, IMAGE_FORMATS
from mimo_launch.hugging_face.image_processor import ImageRecipe

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
Pixels = npt.NDArray[np.float32]


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


def process(image: Image.Image, recipe: ImageRecipe) -> Pixels:
    """Return an image as an encoder takes it, [channels, height, width].

    Args:
        image: Of mode "RGB", or "L" for one channel.
        recipe: What is done to it.

    Raises:
        ImageTooThin: No size can be made of it.
    """
    if recipe.pad_square:
        image = _pad_square(image, recipe.mean)
    height, width = recipe.resized(image.height, image.width)
    if recipe.resize is not None:
        image = image.resize((width, height), resample=Image.Resampling(recipe.resample))
    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if recipe.crop is not None:
        pixels = _center_crop(pixels, *recipe.crop)
    mean, std = (
        np.asarray(each, dtype=np.float32)[:, None, None] for each in (recipe.mean, recipe.std)
    )
    # Scaled in double precision and rounded once, as the reference does.
    scaled = (pixels * np.float64(recipe.scale)).astype(np.float32)
    return np.ascontiguousarray((scaled - mean) / std)


def _pad_square(image: Image.Image, mean: tuple[float, ...]) -> Image.Image:
    """Return the image in the middle of a square of the mean colour."""
    side = max(image.size)
    color = tuple(int(each * 255) for each in mean)
    square = Image.new(image.mode, (side, side), color)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _center_crop(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return the middle of an image [channels, y, x]; black where it has no pixels."""
    found = np.zeros((len(pixels), height, width), dtype=pixels.dtype)
    from_y, to_y = _overlap(pixels.shape[1], height)
    from_x, to_x = _overlap(pixels.shape[2], width)
    found[:, to_y, to_x] = pixels[:, from_y, from_x]
    return found


def _overlap(have: int, want: int) -> tuple[slice, slice]:
    """Return which part of `have` pixels stands where among `want`."""
    if have >= want:
        first = (have - want) // 2
        return slice(first, first + want), slice(0, want)
    # The odd pixel of the border stands before the image, as in the reference.
    first = math.ceil((want - have) / 2)
    return slice(0, have), slice(first, first + have)
