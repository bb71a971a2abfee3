"""Members of a sample as videos: their size and number of frames, and the frames that are taken.

Decides: the formats, by the first bytes of a file; that frames keep the order of the file or, in a
`.frames.zip`, of the numbers in their names; that nothing but the member itself is opened; that
frames are counted, and that no frame larger than its header says is decoded.
Relies on: PyAV, imported on first use; `decode_media` for the images in a zip.
Leaves: which frames are taken, and their size, to `processors.videos`.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.data.samples.decode_media import (
    check_rate,
    decode_image,
    decoder_errors,
    image_size,
)
from mimo_launch.data.sources.media_suffixes import FRAMES_SUFFIX, IMAGE_FORMATS
from mimo_launch.processors.frame_sampling import VideoSize
from mimo_launch.processors.resize_rules import MOST_PIXELS
from mimo_launch.processors.video_recipe import TakenVideo, VideoRecipe

Frame = npt.NDArray[np.uint8]
Groups = npt.NDArray[np.float32]
# For each demuxer of FFmpeg, the offset and value of the first bytes of its files. No other demuxer
# runs: some open files and URLs that a video names.
_FORMATS: dict[str, tuple[tuple[int, bytes], ...]] = {
    "mov": tuple((4, each) for each in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),
    "matroska": ((0, b"\x1a\x45\xdf\xa3"),),
    "avi": ((8, b"AVI "),),
    "mpeg": ((0, b"\x00\x00\x01\xba"),),
}
# The largest file of a frame: no decodable 8-bit image is larger.
_MOST_BYTES = 1 << 29
# Limits on the pixels of a decoder per frame: a multiple of the pixels in the header, and a lower
# bound. A decoder works on whole blocks, with a border.
_ROOM, _LEAST_PIXELS = 4, 1 << 22
# Longer than any video; places in an index have 32 bits.
_MOST_SECONDS = 1_000_000
_DIGITS = re.compile(r"(\d+)")


def video_size(suffix: str, data: bytes, rate: float) -> VideoSize:
    """Return the size of a video without decoding it; `rate` is the frame rate of a zip.

    Raises: BadSample if it cannot be read, or its header lacks a required value.
    """
    with decoder_errors(suffix, "a video"), _open_video(suffix, data) as file:
        size = file.size(rate)
        if size.rate * _MOST_SECONDS < size.frames:
            raise ValueError(f"{size.frames} frames at {size.rate:g} a second last for weeks")
        return size


def video_groups(
    suffix: str, data: bytes, taken: TakenVideo, recipe: VideoRecipe
) -> Iterator[Groups]:
    """Yield each temporal patch that is taken from a video, [channels, frames, height, width].

    Raises: BadSample if a frame cannot be decoded, or does not exist.
    """
    # Imported here because it imports torch, which an index does not need.
    from mimo_launch.data.torch_media import resize

    channels = len(recipe.mean)
    mean, std = (
        np.asarray(each, dtype=np.float32)[:, None, None, None]
        for each in (recipe.mean, recipe.std)
    )

    def group(frames: list[Frame]) -> Groups:
        padded = [*frames, *frames[-1:] * (recipe.group - len(frames))]
        pixels = np.stack(padded, axis=1)
        scaled = (pixels * np.float64(recipe.scale)).astype(np.float32)
        return np.ascontiguousarray((scaled - mean) / std)

    now: list[Frame] = []
    with decoder_errors(suffix, "a video"), _open_video(suffix, data) as file:
        for frame in file.frames(taken.indices, channels):
            made = frame
            for size in (*taken.before, (taken.height, taken.width)):
                made = resize(made, *size, recipe.resample)
            now.append(made)
            if len(now) == recipe.group:
                yield group(now)
                now = []
        if now:
            yield group(now)


def sound_length(suffix: str, data: bytes) -> tuple[int, int] | None:
    """Return the samples per channel of a video's sound and its rate in Hz, None without sound.

    All of it is decoded, because headers do not count the samples. Raises: BadSample.
    """
    if suffix.endswith(FRAMES_SUFFIX):
        return None
    with decoder_errors(suffix, "the sound of a video"), closing(_Film(data)) as file:
        if (rate := file.sound_rate()) is None:
            return None
        samples = sum(each.shape[1] for each in file.sound())
        return (samples, rate) if samples else None


def decode_sound(
    suffix: str, data: bytes, *, seconds: float
) -> tuple[npt.NDArray[np.float32], int]:
    """Return the sound of a video, as `decode_clip` does. Raises: BadSample."""
    with decoder_errors(suffix, "the sound of a video"), closing(_Film(data)) as file:
        if (rate := file.sound_rate()) is None:
            raise ValueError("it has no sound")
        wanted, found, number = ceil(seconds * rate), list[npt.NDArray[np.float32]](), 0
        for each in file.sound():
            found.append(each.mean(axis=0, dtype=np.float32))
            number += each.shape[1]
            if number >= wanted:
                break
        return np.concatenate([np.empty(0, np.float32), *found])[:wanted], rate


def _open_video(suffix: str, data: bytes) -> AbstractContextManager["_Zip | _Film"]:
    """Return an open video, to be closed. Raises: ValueError, and whatever PyAV raises."""
    return closing(_Zip(data) if suffix.endswith(FRAMES_SUFFIX) else _Film(data))


class _Zip:
    """A video stored as a zip of images, ordered by the numbers in their names."""

    def __init__(self, data: bytes) -> None:
        self._file = zipfile.ZipFile(io.BytesIO(data))
        names = [
            each
            for each in self._file.namelist()
            if each.rpartition(".")[2].lower() in IMAGE_FORMATS
            and not any(part.startswith((".", "__")) for part in each.split("/"))
        ]
        if not names:
            raise ValueError("it holds no image: name its frames 0001.jpg, 0002.jpg, ... or .png")

        def by_number(name: str) -> list[tuple[int, int, str]]:
            parts = _DIGITS.split(name)
            return [(0, int(each), "") if each.isdecimal() else (1, 0, each) for each in parts]

        self._names = sorted(names, key=by_number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def size(self, rate: float) -> VideoSize:
        """Return the size of the video; `rate` is its frame rate, which a zip does not contain."""
        height, width = image_size(self._names[0], self._member(self._names[0]))
        return VideoSize(len(self._names), height, width, rate)

    def frames(self, indices: tuple[int, ...], channels: int) -> Iterator[Frame]:
        """Yield the frames with these numbers, in order, [channels, height, width]."""
        size = None
        for index in indices:
            name = self._names[index]
            member = self._member(name)
            found = image_size(name, member)
            size = size or found
            if found != size:
                one, other = (f"{width} x {height}" for height, width in (found, size))
                raise ValueError(f"its frame {name} has {one} pixels, others {other}")
            pixels = np.asarray(decode_image(name, member, channels=channels))
            yield pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _member(self, name: str) -> bytes:
        if self._file.getinfo(name).file_size > _MOST_BYTES:
            raise ValueError(f"its frame {name} has more than {_MOST_BYTES:,} bytes")
        return self._file.read(name)


class _Film:
    """A video file of one of the supported formats."""

    def __init__(self, data: bytes) -> None:
        try:
            import av
        except ImportError as error:
            raise ValueError("the package `av` is not installed: pip install 'av>=14'") from error
        for name, begins in _FORMATS.items():
            if any(data[at : at + len(sign)] == sign for at, sign in begins):
                # Opening a file may decode a frame.
                options = {"max_pixels": str(MOST_PIXELS)}
                self._container: Any = av.open(io.BytesIO(data), format=name, options=options)
                return
        raise ValueError("it is no MP4, MOV, Matroska, WebM, AVI or MPEG file")

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    @property
    def _stream(self) -> Any:
        if not self._container.streams.video:
            raise ValueError("it has no pictures")
        return self._container.streams.video[0]

    def size(self, rate: float) -> VideoSize:
        """Return the size and rate of the video; `rate` is for files that do not say theirs.

        Packets are counted as frames: the number in the header may be wrong, or include frames that
        an edit list leaves out.
        """
        del rate
        stream, frames = self._stream, 0
        height, width = int(stream.height), int(stream.width)
        if not stream.average_rate or min(height, width) < 1:
            raise ValueError("its header has no size or no frame rate")
        for packet in self._container.demux(stream):
            if packet.is_corrupt:
                raise ValueError(f"the file is damaged or cut off at frame {frames}")
            frames += packet.size > 0
        if not frames:
            raise ValueError("it has no frame")
        return VideoSize(frames, height, width, float(stream.average_rate))

    def sound_rate(self) -> int | None:
        """Return the rate of its sound in Hz, None without sound. Raises: ValueError."""
        if (stream := self._container.streams.best("audio")) is None:
            return None
        rate = int(stream.rate or 0)
        check_rate(rate)
        return rate

    def sound(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield its sound in pieces, float32 [channels, samples] in -1 to 1."""
        import av

        as_floats = av.AudioResampler(format="fltp")
        stream = self._container.streams.best("audio")
        for frame in chain(self._container.decode(stream), [None]):
            for each in as_floats.resample(frame):
                yield each.to_ndarray()

    def frames(self, indices: tuple[int, ...], channels: int) -> Iterator[Frame]:
        """Yield the frames with these numbers, in order, [channels, height, width]."""
        wanted, place, number = list(indices), 0, -1
        stream = self._stream
        height, width = int(stream.height), int(stream.width)
        most = max(_ROOM * height * width, _LEAST_PIXELS)
        stream.codec_context.options = {"max_pixels": str(most)}
        for number, frame in enumerate(self._container.decode(stream)):
            if place == len(wanted):
                return
            if number < wanted[place]:
                continue
            if (frame.height, frame.width) != (height, width):
                raise ValueError(
                    f"its frame {number} has {frame.width} x {frame.height} pixels, its header "
                    f"says {width} x {height}"
                )
            found = frame.to_ndarray(format="rgb24" if channels == 3 else "gray")
            pixels = found[None] if found.ndim == 2 else found.transpose(2, 0, 1)
            while place < len(wanted) and wanted[place] == number:
                yield pixels
                place += 1
        if place < len(wanted):
            raise ValueError(f"only {number + 1} of its frames can be decoded")
