"""Members of a sample as images, sound, codes: sizes from the header, contents, encoder inputs.

Decides: that an image is turned upright and put on white; which files are refused, whatever their
names; that resizing works on 8-bit pixels unless a recipe says otherwise, and the arithmetic after
it on float32, with the same results as transformers' Pillow processors.
Relies on: Pillow for images and soundfile for sound, each imported on first use;
`processors.image_recipe` for sizes.
Leaves: spectrograms of sound to `torch_media`.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.sources.media_suffixes import (
    AUDIO_SUFFIXES,
    FRAMES_SUFFIX,
    IMAGE_FORMATS,
    TARGET,
    VIDEO_SUFFIXES,
)
from mimo_launch.processors.canvas_rules import Canvas
from mimo_launch.processors.cut_rules import Cut, fitted
from mimo_launch.processors.image_recipe import ImageRecipe

if TYPE_CHECKING:
    from PIL.Image import Image

Medium = Literal["image", "audio", "video"]
# The kind of a marker in a text: a medium that is shown, or a target to make.
Marker = Literal["image", "audio", "video", "target"]

# EXIF orientations from 5 on swap height and width (JEITA CP-3451, tag 0x0112).
_ORIENTATION, _FIRST_SWAPPED = 0x0112, 5
# Modes of Pillow with more than 8 bits per channel; conversion to other modes clips at 255.
_DEEP_MODES = ("I", "F")
# No recording has a lower rate (a telephone has 8 kHz), and no microphone a higher one.
_LEAST_HERTZ, _MOST_HERTZ = 4_000, 768_000
# The way decoders print a file in memory.
_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>")
Pixels = npt.NDArray[np.float32]


def medium_of(suffix: str) -> Medium | None:
    """Return the medium of a member `KEY.suffix`: `jpg`, `2.jpg` and `left.jpg` are images."""
    last = suffix.rpartition(".")[2]
    if last in IMAGE_FORMATS:
        return "image"
    if last in VIDEO_SUFFIXES or suffix.endswith(FRAMES_SUFFIX):
        return "video"
    return "audio" if last in AUDIO_SUFFIXES else None


def marker_of(suffix: str) -> Marker | None:
    """Return the kind of marker for a member; a target is made and never shown."""
    return "target" if suffix.startswith(TARGET) else medium_of(suffix)


def image_size(suffix: str, data: bytes) -> tuple[int, int]:
    """Return (height, width) of the upright image, from its first bytes or all of them.

    Raises: BadSample if the header cannot be read.
    """
    from PIL import Image

    with decoder_errors(suffix, "an image"), _open_image(data) as image:
        # `getexif` of PNG images would decode all pixels to look for EXIF data after them.
        turned = Image.Image.getexif(image).get(_ORIENTATION, 1) >= _FIRST_SWAPPED
        # For a TIFF, Pillow returns the size of the upright image.
        swapped = turned and image.format != "TIFF"
        return (image.width, image.height) if swapped else (image.height, image.width)


def decode_image(suffix: str, data: bytes, *, channels: int) -> "Image":
    """Return an upright image on white: RGB, or grey for one channel.

    As in transformers, where `load_image` turns it and processors put transparent pixels on white.
    Raises: BadSample if it cannot be decoded.
    """
    from PIL import Image, ImageOps

    mode = "RGB" if channels == 3 else "L"
    with decoder_errors(suffix, "an image"), _open_image(data) as file:
        # Decodes it. Photographs are large, so each copy costs as much as half of decoding.
        ImageOps.exif_transpose(file, in_place=True)
        image: Image.Image = file
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image if image.mode == mode else image.convert(mode)


def clip_length(suffix: str, data: bytes) -> tuple[int, int]:
    """Return the samples per channel of a clip and its rate in Hz, from its header.

    Raises: BadSample if the header cannot be read.
    """
    import soundfile

    with decoder_errors(suffix, "a clip"):
        found = soundfile.info(io.BytesIO(data))
        frames, rate = int(found.frames), int(found.samplerate)
        check_rate(rate)
        return frames, rate


def check_rate(rate: int) -> None:
    """Raise ValueError for a rate in Hz that no recording has."""
    if not _LEAST_HERTZ <= rate <= _MOST_HERTZ:
        raise ValueError(
            f"its header says {rate:,} Hz; the limits are {_LEAST_HERTZ:,} and {_MOST_HERTZ:,}"
        )


def decode_clip(suffix: str, data: bytes, *, seconds: float) -> tuple[npt.NDArray[np.float32], int]:
    """Return a clip as the mean of its channels, float32 [samples] in -1 to 1, and its rate in Hz.

    Only the first `seconds` are decoded: hours of silence make a small file but need much memory.
    Raises: BadSample if it cannot be decoded.
    """
    import soundfile

    with decoder_errors(suffix, "a clip"), soundfile.SoundFile(io.BytesIO(data)) as file:
        rate = int(file.samplerate)
        samples = file.read(math.ceil(seconds * rate), dtype="float32", always_2d=True)
        return samples.mean(axis=1, dtype=np.float32), rate


def codes_shape(suffix: str, data: bytes) -> tuple[int, int]:
    """Return the numbers of codebooks and frames, from the first bytes of a file or all of them.

    Raises: BadSample if the header cannot be read, or does not describe codes.
    """
    with decoder_errors(suffix, "codes"):
        file = io.BytesIO(data)
        read = np.lib.format
        version = read.read_magic(file)
        header = read.read_array_header_1_0 if version == (1, 0) else read.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.kind not in "iu" or len(shape) not in (1, 2) or 0 in shape:
            raise ValueError(f"an array {list(shape)} of {dtype}, not [codebooks, frames] of codes")
        return (1, int(shape[0])) if len(shape) == 1 else (int(shape[0]), int(shape[1]))


def decode_codes(suffix: str, data: bytes) -> npt.NDArray[np.int64]:
    """Return codec tokens, int64 [codebooks, frames]. Raises: BadSample if they cannot be read."""
    shape = codes_shape(suffix, data)
    with decoder_errors(suffix, "codes"):
        found: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return found.astype(np.int64).reshape(shape)


@contextmanager
def _open_image(data: bytes) -> "Iterator[Image]":
    """Open an image of a supported format. Raises: ValueError, and whatever Pillow raises."""
    from PIL import Image

    # Pillow warns, without a file name, about broken metadata of good images, and about many
    # pixels, for which the caller has a limit. `catch_warnings` is not safe with threads.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.init()
    # For some other formats Pillow starts a program, such as Ghostscript.
    formats = [each for each in dict.fromkeys(IMAGE_FORMATS.values()) if each in Image.OPEN]
    with Image.open(io.BytesIO(data), formats=formats) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise ValueError(
                f"its pixels have more than 8 bits (mode {image.mode}), which Pillow and "
                "transformers turn white; save it with 8"
            )
        yield image


@contextmanager
def decoder_errors(suffix: str, what: str) -> Iterator[None]:
    """Turn any error of a decoder into BadSample: no decoder documents all of its errors."""
    try:
        yield
    except Exception as error:
        words = _ADDRESS.sub("", str(error)) or type(error).__name__
        raise BadSample(f"its .{suffix} cannot be read as {what}: {words}") from error


def process(image: Image.Image, recipe: ImageRecipe) -> Pixels:
    """Return an image as the input of an encoder, [channels, height, width].

    Args:
        image: An image of mode "RGB", or "L" for one channel.
        recipe: The processing steps.

    Raises:
        ImageTooThin: The recipe has no size for it.
    """
    if recipe.pad_square:
        image = _centred(image, (max(image.size),) * 2, recipe)
    height, width = recipe.resized(image.height, image.width)
    if recipe.as_floats:
        # As floats, without rounding: values may leave the range of a pixel.
        resample = Image.Resampling(recipe.resample)
        bands = [each.convert("F").resize((width, height), resample) for each in image.split()]
        pixels = np.stack([np.asarray(band) for band in bands])
    else:
        if recipe.resize is not None:
            image = image.resize((width, height), resample=Image.Resampling(recipe.resample))
        if recipe.canvas is not None:
            image = _centred(image, recipe.canvas, recipe)
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if recipe.crop is not None:
        # Keep the middle of the image; fill with black where it has no pixels.
        cropped = np.zeros((len(pixels), *recipe.crop), dtype=pixels.dtype)
        from_y, to_y = _overlap(pixels.shape[1], recipe.crop[0])
        from_x, to_x = _overlap(pixels.shape[2], recipe.crop[1])
        cropped[:, to_y, to_x] = pixels[:, from_y, from_x]
        pixels = cropped
    mean, std = (
        np.asarray(each, dtype=np.float32)[:, None, None] for each in (recipe.mean, recipe.std)
    )
    # Scaled in double precision and rounded once, as in the reference; without further arrays.
    found = np.empty(pixels.shape, dtype=np.float32)
    np.multiply(pixels, np.float64(recipe.scale), out=found, dtype=np.float64, casting="same_kind")
    found -= mean
    found /= std
    return found


def process_tiles(
    image: Image.Image, recipe: ImageRecipe, side: int, *, fills: bool = False
) -> Pixels:
    """Return an image as one tile, then the tiles of its grid, [tiles, channels, h, w].

    The image is centred in the grid, with black around it, or is stretched so that it `fills` the
    grid. Raises: ImageTooThin.
    """
    grid = recipe.grid(image.height, image.width)
    down, right = grid if fills else fitted(image.height, image.width, grid)
    resample = Image.Resampling(recipe.resample)
    whole = Image.new(image.mode, (grid[1], grid[0]))
    place = (grid[1] - right) // 2, (grid[0] - down) // 2
    whole.paste(image.resize((right, down), resample=resample), place)
    tiles = [image.resize((side, side), resample=resample)]
    tiles += [
        whole.crop((x, y, x + side, y + side))
        for y in range(0, grid[0], side)
        for x in range(0, grid[1], side)
    ]
    plain = replace(recipe, resize=None, pad_square=False, crop=None)
    return np.stack([process(each, plain) for each in tiles])


def process_cut(image: Image.Image, recipe: ImageRecipe, cut: Cut) -> Iterator[Pixels]:
    """Yield the images that one image becomes, each [channels, height, width].

    These are its tiles, line by line and from left to right; then or before, if there are several
    tiles, the whole image.
    """
    if isinstance(cut, Canvas):
        yield from _process_canvas(image, recipe, cut)
        return
    resample = Image.Resampling(recipe.resample)
    grid = image
    for height, width in cut.steps(image.height, image.width):
        grid = grid.resize((width, height), resample=resample)
    tall, wide = cut.tile_of(image.height, image.width)
    plain, whole = replace(recipe, resize=None), list[Pixels]()
    if grid.size != (wide, tall):
        down, right = cut.whole_of(image.height, image.width)
        shown = grid if cut.shrinks_grid else image
        whole.append(process(shown.resize((right, down), resample=resample), plain))
    if cut.whole_first:
        yield from whole
    for y in range(0, grid.height, tall):
        for x in range(0, grid.width, wide):
            yield process(grid.crop((x, y, x + wide, y + tall)), plain)
    if not cut.whole_first:
        yield from whole


def _process_canvas(image: Image.Image, recipe: ImageRecipe, cut: Canvas) -> Iterator[Pixels]:
    """Yield the tiles of a canvas, and the whole image if there are several, resized by torch."""
    from mimo_launch.data.torch_media import in_bf16, resize

    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    [(height, width)] = cut.steps(image.height, image.width)
    shown = resize(pixels, *cut.fitted(image.height, image.width), recipe.resample)
    canvas = np.zeros((len(pixels), height, width), dtype=np.uint8)
    canvas[:, : shown.shape[1], : shown.shape[2]] = shown
    tall, wide = cut.tile
    tiles = [
        canvas[:, y : y + tall, x : x + wide]
        for y in range(0, height, tall)
        for x in range(0, width, wide)
    ]
    if len(tiles) > 1:
        tiles.append(resize(pixels, tall, wide, recipe.resample))
    yield from (in_bf16(each, recipe.scale, recipe.mean, recipe.std) for each in tiles)


def _centred(image: Image.Image, size: tuple[int, int], recipe: ImageRecipe) -> Image.Image:
    """Return an image in the middle of a canvas of height and width."""
    height, width = size
    found = Image.new(image.mode, (width, height), recipe.fill)
    found.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return found


def _overlap(have: int, want: int) -> tuple[slice, slice]:
    """Return the pixels of `have` that a centred crop to `want` keeps, and their places in it."""
    if have >= want:
        first = (have - want) // 2
        return slice(first, first + want), slice(0, want)
    # As in the reference, the larger half of an odd border comes before the image.
    first = math.ceil((want - have) / 2)
    return slice(0, have), slice(first, first + have)
