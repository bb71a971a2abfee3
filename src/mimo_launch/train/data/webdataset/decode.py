"""Members of a sample as images and sound: their sizes from the header, and their contents.

Decides: that an image stands upright.
Relies on: the decoders of the webdataset library and Pillow for images, soundfile for sound; each
is imported when it is first needed.
Leaves: what an encoder is given of them to `pixels` and `log_mel`.
"""

import io
import math
import struct
import warnings
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mimo_launch.layout.shard_files import AUDIO_SUFFIXES, IMAGE_SUFFIXES

if TYPE_CHECKING:
    from PIL.Image import Image

Medium = Literal["image", "audio"]

# EXIF orientations from 5 on swap height and width (JEITA CP-3451, tag 0x0112).
_ORIENTATION, _FIRST_SWAPPED = 0x0112, 5
# What decoders of Pillow raise for damaged files beside OSError and ValueError.
_DAMAGE = (SyntaxError, IndexError, AssertionError, struct.error, zlib.error)


def medium_of(suffix: str) -> Medium | None:
    """Return what a member `KEY.suffix` holds: `jpg`, `2.jpg` and `left.jpg` are images."""
    last = suffix.rpartition(".")[2]
    if last in IMAGE_SUFFIXES:
        return "image"
    return "audio" if last in AUDIO_SUFFIXES else None


def image_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) of an upright image from its first bytes, which need not be all.

    Raises: OSError or ValueError if the header cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        # The caller has a limit of its own for the number of pixels, and names the sample.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data))
        except UnidentifiedImageError as error:  # Whose words name an address in memory.
            raise ValueError("no format that is known") from error
        except Image.DecompressionBombError as error:  # Of twice what a spec may allow.
            raise ValueError(str(error)) from error
        with image:
            # Of a PNG, Pillow would decode everything to look for an orientation behind the pixels.
            has_exif = image.format != "PNG" or "exif" in image.info
            swapped = has_exif and image.getexif().get(_ORIENTATION, 1) >= _FIRST_SWAPPED
            return (image.width, image.height) if swapped else (image.height, image.width)


def decode_image(suffix: str, data: bytes, *, channels: int) -> "Image":
    """Return an upright image, RGB or for one channel grey; transparency is dropped.

    Raises: OSError or ValueError for what cannot be decoded.
    """
    from PIL import ImageOps
    from PIL.Image import DecompressionBombError

    try:
        image: Image | None = _handler("pilrgb" if channels == 3 else "pill")(suffix, data)
    except (*_DAMAGE, DecompressionBombError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if image is None:
        raise ValueError(f"the webdataset library decodes no `.{suffix}`")
    return ImageOps.exif_transpose(image)


@cache
def _handler(kind: str) -> Any:
    from webdataset.autodecode import imagehandler

    return imagehandler(kind)


def clip_length(data: bytes) -> tuple[int, int]:
    """Return the samples per channel of a clip and its rate in Hz, from its header.

    Raises: ValueError if the header cannot be read.
    """
    import soundfile

    try:
        found = soundfile.info(io.BytesIO(data))
    except soundfile.LibsndfileError as error:
        raise ValueError(str(error)) from error
    return int(found.frames), int(found.samplerate)


def decode_clip(data: bytes, *, seconds: float) -> tuple[npt.NDArray[np.float32], int]:
    """Return a clip as the mean of its channels, float32 [samples] in -1 to 1, and its rate in Hz.

    Only its first `seconds` are decoded: hours of silence are small in a file and large in memory.
    Raises: ValueError if it cannot be decoded.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            samples = file.read(math.ceil(seconds * rate), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(str(error)) from error
    return samples.mean(axis=1, dtype=np.float32), rate
