"""Pictures and sound out of files: what is read, what is refused, and that nothing else happens."""

import io
import os
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.index.indexer import header_size
from mimo_launch.data.samples.decode_media import (
    clip_length,
    decode_clip,
    decode_image,
    image_size,
    process,
)
from mimo_launch.data.sources.media_suffixes import AUDIO_SUFFIXES, IMAGE_FORMATS
from mimo_launch.processors.image_recipe import ImageRecipe

# A directory of five EXIF entries that ends inside the first one.
BROKEN_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01"
KINDS = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF")
POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 32 32
%%EndComments
showpage
"""


def picture(height: int = 13, width: int = 29, mode: str = "RGB") -> Image.Image:
    """Smooth colours, so that lossy formats keep them; transparent at the left if it can be."""
    y, x = np.mgrid[:height, :width]
    planes = [x * 255 // width, y * 255 // height, (x + y) * 255 // (height + width)]
    image = Image.fromarray(np.stack(planes, -1).astype(np.uint8)).convert(mode)
    if "A" in mode:
        image.putalpha(Image.fromarray((x * 255 // (width - 1)).astype(np.uint8)))
    return image


def saved(image: Image.Image, kind: str, **settings: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **settings)
    return out.getvalue()


def size_in_index(data: bytes, suffix: str = "png") -> tuple[int, int]:
    """The size that the index gets, of as few bytes as it reads."""
    return header_size(suffix, lambda limit: data[:limit])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_stands_upright_and_the_index_knows(
    tmp_path: Path, kind: str, orientation: int
) -> None:
    from transformers.image_utils import load_image

    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind.lower()}"
    path.write_bytes(saved(picture(), kind, exif=exif))
    found = decode_image(kind.lower(), path.read_bytes(), channels=3)
    assert np.array_equal(np.asarray(found), np.asarray(load_image(str(path))))
    assert found.size == ((29, 13) if orientation < 5 else (13, 29))
    assert size_in_index(path.read_bytes(), kind.lower()) == (found.height, found.width)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGBA", "PNG"), ("RGBA", "WEBP"), ("RGBA", "AVIF"), ("LA", "PNG"), ("RGBA", "TIFF")],
)
def test_what_is_transparent_is_white(mode: str, kind: str) -> None:
    data = saved(picture(mode=mode), kind)
    found = np.asarray(decode_image("png", data, channels=3)).astype(int)
    assert (found[:, 0] >= 250).all()
    with Image.open(io.BytesIO(data)) as file:
        whole = np.asarray(file.convert("RGBA")).astype(float)
    share = whole[..., 3:] / 255
    wanted = share * whole[..., :3] + (1 - share) * 255
    assert np.abs(found - wanted).max() <= 1
    grey = np.asarray(decode_image("png", data, channels=1))
    assert grey.ndim == 2
    assert (grey[:, 0] >= 250).all()


@pytest.mark.parametrize("suffix", sorted(IMAGE_FORMATS))
def test_every_suffix_of_images_is_read(suffix: str) -> None:
    data = saved(picture(), IMAGE_FORMATS[suffix])
    assert size_in_index(data, suffix) == (13, 29)
    found = np.asarray(decode_image(suffix, data, channels=3)).astype(int)
    assert np.abs(found - np.asarray(picture()).astype(int)).mean() < 12


@pytest.mark.parametrize("suffix", sorted(AUDIO_SUFFIXES))
def test_every_suffix_of_clips_is_read(suffix: str) -> None:
    kinds = {"ogg": "OGG", "oga": "OGG", "opus": "OGG", "aif": "AIFF", "aifc": "AIFF"}
    wave = 0.5 * np.sin(np.arange(16_000) / 10).astype(np.float32)
    out = io.BytesIO()
    kind = kinds.get(suffix, suffix.upper())
    soundfile.write(out, wave, 16_000, "OPUS" if suffix == "opus" else None, format=kind)
    assert clip_length(suffix, out.getvalue()) == (16_000, 16_000)
    found, rate = decode_clip(suffix, out.getvalue(), seconds=2)
    assert (len(found), rate) == (16_000, 16_000)
    assert np.abs(found[500:15_500] - wave[500:15_500]).mean() < 0.05


@pytest.mark.parametrize("kind", ["DDS", "BLP", "SPIDER", "ICO", "TGA", "PCX", "EPS"])
def test_other_formats_are_refused_under_any_name(kind: str) -> None:
    image = picture(32, 32, mode={"SPIDER": "F", "BLP": "P"}.get(kind, "RGB"))
    data = saved(image, kind)
    for look in (image_size, lambda *asked: decode_image(*asked, channels=3)):
        with pytest.raises(
            BadSample, match=r"its \.png cannot be read as an image: cannot identify"
        ) as said:
            look("png", data)
        assert "BytesIO" not in str(said.value)


def test_a_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript draw what is PostScript, whatever it is called."""
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BadSample):
        decode_image("png", POSTSCRIPT, channels=3)
    assert not (tmp_path / "started").exists()


def test_a_tag_that_cannot_be_turned_makes_a_bad_sample() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x011A] = 6, 72.0
    data = saved(picture(), "JPEG", exif=exif)
    as_fraction, as_text = (struct.pack(">HH", 0x011A, kind) for kind in (5, 2))
    damaged = data.replace(as_fraction, as_text)
    assert size_in_index(damaged, "jpg") == (29, 13)
    with pytest.raises(BadSample, match=r"its \.jpg cannot be read as an image"):
        decode_image("jpg", damaged, channels=3)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_decoder_raises_makes_a_bad_sample(kind: str) -> None:
    """Bytes changed at random: each file is read, or refused in words, in both stages."""
    random, data = np.random.default_rng(0), saved(picture(), kind)
    said = []
    for _ in range(60):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), 4):
            damaged[place] = random.integers(256)
        for look in (size_in_index, lambda made: decode_image("png", made, channels=3)):
            try:
                look(bytes(damaged))
            except BadSample as error:
                said.append(str(error))
    assert said
    assert all(each.startswith("its .png cannot be read as an image: ") for each in said)
    with pytest.raises(BadSample, match=r"its \.png cannot be read as an image"):
        decode_image("png", data[: len(data) // 2], channels=3)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(np.uint16, "PNG"), (np.uint16, "TIFF"), (np.float32, "TIFF")]
)
def test_pixels_of_more_than_8_bits_are_refused(dtype: type, kind: str) -> None:
    """Pillow and transformers would make all of them white."""
    data = saved(Image.fromarray(np.linspace(0, 60_000, 64).reshape(8, 8).astype(dtype)), kind)
    for look in (size_in_index, lambda made: decode_image("png", made, channels=3)):
        with pytest.raises(BadSample, match=r"its \.png .* more than 8 bits .*save it with 8"):
            look(data)


@pytest.mark.parametrize("rate", [1, 3_999, 800_000])
def test_a_rate_that_no_recording_has_is_refused(rate: int) -> None:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(50), rate, format="WAV")
    with pytest.raises(BadSample, match=rf"its \.wav .* {rate:,} Hz"):
        clip_length("wav", out.getvalue())


def test_what_is_no_clip_is_said_without_addresses() -> None:
    for look in (clip_length, lambda *asked: decode_clip(*asked, seconds=1)):
        with pytest.raises(BadSample) as said:
            look("wav", b"hello" * 100)
        words = "its .wav cannot be read as a clip: Error opening: Format not recognised."
        assert str(said.value) == words


def test_pillow_does_not_warn_of_images_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 4)).save(file, "JPEG", exif=BROKEN_EXIF)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert image_size("jpg", file.getvalue()) == (4, 8)
        assert decode_image("jpg", file.getvalue(), channels=3).size == (8, 4)
    assert [str(each.message) for each in said] == []


def test_a_photograph_is_decoded_and_normalised_without_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A picture that stands upright, without alpha, is the decoded one; numbers stay the same."""
    recipe = ImageRecipe(None, scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.2))
    data, copies = saved(picture(), "PNG"), list[Image.Image]()
    monkeypatch.setattr(Image.Image, "copy", copies.append)
    image = decode_image("png", data, channels=3)
    assert not copies
    whole = np.asarray(image).transpose(2, 0, 1) * np.float64(recipe.scale)
    mean, std = (np.float32(each)[:, None, None] for each in (recipe.mean, recipe.std))
    assert (process(image, recipe) == (whole.astype(np.float32) - mean) / std).all()
