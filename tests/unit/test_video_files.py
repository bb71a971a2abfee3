"""Files of videos that are damaged, cut, or made to harm: what is read of them, and what is not."""

import io
import warnings
import zipfile
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.shards import image_bytes
from tests.support.videos import encoded, frames, zipped

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.decode_video import video_groups, video_size
from mimo_launch.processors.frame_sampling import FrameSampling, VideoSize
from mimo_launch.processors.frame_sizes import FrameSize
from mimo_launch.processors.image_recipe import BICUBIC
from mimo_launch.processors.video_recipe import VideoRecipe
from mimo_launch.spec.spec import Videos

RECIPE = VideoRecipe(
    None,
    FrameSize(8, 64, 64 * 64, 2, over_time=False, cap=None),
    Videos(time="patches"),
    resample=BICUBIC,
)


def read(suffix: str, file: bytes) -> list[np.ndarray]:
    """Return all temporal patches of a video."""
    taken = RECIPE.taken(video_size(suffix, file, 1.0))
    return list(video_groups(suffix, file, taken, RECIPE))


def test_frames_in_equal_steps_are_those_that_are_there() -> None:
    """Of the numbers that transformers makes, some are behind the last frame: 17 of 17, say."""
    import torch

    behind = 0
    for total in (*range(2, 60), 301):
        for number in range(2, total + 1, 2):
            taken = FrameSampling(None, number, 4, 768, 2, to_ends=False)
            found = taken.indices(VideoSize(total, 8, 8, 1.0))
            # As `Qwen2VLVideoProcessor.sample_frames` does.
            theirs = torch.arange(0, total, total / number).int().tolist()
            assert len(found) == number
            assert list(found) == [each for each in theirs if each < total]
            behind += len(theirs) - number
    assert behind > 0


def moved(file: bytes, seconds: int) -> bytes:
    """Return an MP4 of which an edit list leaves out the beginning, as tools that cut write it."""
    import av

    out = io.BytesIO()
    with av.open(io.BytesIO(file)) as source, av.open(out, "w", format="mp4") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.pts -= int(Fraction(seconds) / packet.time_base)
                packet.dts, packet.stream = packet.pts, stream
                container.mux(packet)
    return out.getvalue()


def test_frames_that_an_edit_list_leaves_out_are_not_counted() -> None:
    pytest.importorskip("av")
    file = moved(encoded(frames(12, 32, 40), 4), 1)
    assert video_size("mp4", file, 1.0).frames == 8
    assert len(read("mp4", file)) == 4


def test_frames_are_counted_and_not_believed() -> None:
    """A header that promises too many would fill the memory with their numbers."""
    pytest.importorskip("av")
    file = encoded(frames(12, 32, 40), 4, "avi")
    length = file.find(b"strh") + 8 + 32
    lies = file[:length] + (300_000_000).to_bytes(4, "little") + file[length + 4 :]
    assert video_size("avi", lies, 1.0).frames == 12


def test_a_video_that_is_cut_off_is_bad_in_the_index() -> None:
    pytest.importorskip("av")
    file = encoded(frames(12, 32, 40), 4, "avi")
    with pytest.raises(
        BadSample, match=r"\.avi cannot be read as a video: the file is damaged or cut"
    ):
        video_size("avi", file[: len(file) // 2], 1.0)


def of_two_sizes(first: tuple[int, int], then: tuple[int, int]) -> bytes:
    """Return a WebM whose frames are of one size, then of another."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        stream = container.add_stream("libvpx", rate=4)
        stream.height, stream.width = first
        stream.pix_fmt, at = "yuv420p", 0
        for size in (first, then):
            codec: Any = av.CodecContext.create("libvpx", "w")
            codec.height, codec.width = size
            codec.pix_fmt, codec.time_base = "yuv420p", Fraction(1, 4)
            black = av.VideoFrame.from_ndarray(np.zeros((*size, 3), np.uint8), format="rgb24")
            for packet in [*codec.encode(black), *codec.encode(None)]:
                packet.stream, packet.time_base = stream, Fraction(1, 4)
                packet.pts = packet.dts = at
                at += 1
                container.mux(packet)
    return out.getvalue()


@pytest.mark.parametrize("then", [(40, 40), (400, 400)])
def test_frames_of_another_size_than_the_header_says_are_refused(then: tuple[int, int]) -> None:
    pytest.importorskip("av")
    file = of_two_sizes((32, 40), then)
    assert video_size("webm", file, 1.0) == VideoSize(2, 32, 40, 4.0)
    with pytest.raises(BadSample, match=r"\.webm cannot be read as a video"):
        read("webm", file)


def test_frames_much_larger_than_a_header_says_are_not_decoded() -> None:
    """The decoder itself refuses them, before it has memory for their pixels."""
    av = pytest.importorskip("av")
    file = of_two_sizes((32, 40), (2400, 2400))
    with pytest.raises(BadSample) as raised:
        read("webm", file)
    assert isinstance(raised.value.__cause__, av.FFmpegError)


def test_frames_of_a_zip_are_compared_before_they_are_decoded() -> None:
    out = io.BytesIO(zipped(frames(1, 8, 8)))
    with zipfile.ZipFile(out, "a") as file:
        header = image_bytes(8, 4000)[:64]
        file.writestr("shots/frame-1.png", header)
    with pytest.raises(BadSample, match=r"frame-1\.png has 4000 x 8 pixels, others 8 x 8"):
        read("frames.zip", out.getvalue())


def test_a_rate_that_makes_a_video_last_for_years_is_refused() -> None:
    with pytest.raises(BadSample, match=r"3 frames at 1e-300 a second"):
        video_size("frames.zip", zipped(frames(3, 8, 8)), 1e-300)


def test_grey_frames_of_a_zip_are_resized_without_a_warning() -> None:
    grey, file = replace(RECIPE, mean=(0.5,), std=(0.5,)), zipped(frames(2, 13, 21))
    taken = grey.taken(video_size("frames.zip", file, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = video_groups("frames.zip", file, taken, grey)
    assert found.shape == (1, 2, 16, 24)
