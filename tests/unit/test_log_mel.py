"""Log-mel features are those of `transformers`, of real files that are written and read here."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from tests.support.shards import clip_bytes
from transformers import (
    ParakeetFeatureExtractor,
    Phi4MultimodalFeatureExtractor,
    WhisperFeatureExtractor,
)

from mimo_launch.data.samples.decode_media import decode_clip
from mimo_launch.data.torch_media import (
    ClipTooLong,
    log_mel,
    nemo_log_mel,
    num_frames,
    phi4_log_mel,
)
from mimo_launch.processors.sounds import RATE
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.spec import AudioModel

SECONDS = 2.345


def chirp(rate: int) -> np.ndarray:
    time = np.arange(int(SECONDS * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * (100 * time + 1200 * time**2))


def noise(rate: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, int(SECONDS * rate))


def speech(rate: int) -> np.ndarray:
    """Pulses of a voice through three resonances, in syllables with silence between them."""
    time = np.arange(int(SECONDS * rate)) / rate
    voice = sum(np.sin(2 * np.pi * 120 * n * time) / n for n in range(1, 30))
    formants = sum(np.sin(2 * np.pi * hertz * time) for hertz in (700, 1220, 2600))
    return 0.05 * voice * (1 + formants) * (np.sin(2 * np.pi * 3 * time) > 0)


CLIPS = {"chirp": chirp, "noise": noise, "speech": speech}


def written(folder: Path, name: str, rate: int, *, channels: int = 1, kind: str = "wav") -> Path:
    samples = CLIPS[name](rate)
    file = folder / f"{name}.{kind}"
    soundfile.write(file, np.stack([samples * (1 + i) / 2 for i in range(channels)], axis=1), rate)
    return file


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("name", CLIPS)
def test_features_are_those_of_transformers(
    name: str, kind: str, mels: int, tmp_path: Path
) -> None:
    samples, rate = soundfile.read(written(tmp_path, name, RATE, kind=kind), dtype="float32")
    extract = WhisperFeatureExtractor(feature_size=mels)
    wanted = extract(samples, sampling_rate=rate, return_tensors="np").input_features[0]
    found = log_mel(samples, rate, mels, frames=3000)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape == (mels, 3000)
    assert np.abs(found - wanted).max() <= 1e-5
    # A short clip: padded to whole frames, not to half a minute.
    short = extract(
        samples, sampling_rate=rate, return_tensors="np", padding="longest", pad_to_multiple_of=160
    ).input_features[0]
    found = log_mel(samples, rate, mels)
    assert found.shape == short.shape == (mels, 235)
    assert np.abs(found - short).max() <= 1e-5


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_and_channels_become_one_channel_of_16_khz(rate: int, tmp_path: Path) -> None:
    samples, found_rate = soundfile.read(written(tmp_path, "chirp", rate, channels=2))
    assert (samples.shape[1], found_rate) == (2, rate)
    found = log_mel(samples, rate, 80)
    mono = soxr.resample(samples.mean(axis=1, dtype=np.float32), rate, RATE)
    wanted = WhisperFeatureExtractor()(
        mono, sampling_rate=RATE, return_tensors="np", padding="longest", pad_to_multiple_of=160
    ).input_features[0]
    assert np.abs(found - wanted).max() <= 1e-5
    # And it is the sound that was there before: the loudest band of each frame, off the ends.
    loudest = log_mel(chirp(RATE), RATE, 80).argmax(axis=0)
    heard = slice(5, 150)
    assert np.abs(found.argmax(axis=0)[heard] - loudest[heard]).max() <= 1


def model(**more: object) -> AudioModel:
    sizes = {"kind": "audio", "layers": 1, "hidden": 8, "heads": 1}
    return AudioModel.model_validate({**sizes, **more})


def test_frames_are_whole_rows_and_known_from_the_header() -> None:
    # 2.345 s are 234.5 frames; a row is 2 frames, or with a stack of 4, 8.
    for rate in (8_000, 16_000, 48_000):
        size = int(SECONDS * rate)
        assert num_frames(model(), size, rate) == 236
        assert num_frames(model(stack=4), size, rate) == 240
        assert num_frames(model(frames=234), size, rate) == 234, "less than a frame is cut off"
        for fixed in (False, True):
            with pytest.raises(
                ClipTooLong, match=r"a clip of 2\.35 s, but at most 2\.32 s are enc"
            ):
                num_frames(model(frames=232, fixed_length=fixed), size, rate)
        assert num_frames(model(fixed_length=True), size, rate) == 3000
    assert num_frames(model(stack=4), 1, RATE) == 8
    assert log_mel(noise(RATE), RATE, 80, frames=240).shape == (80, 240)


@pytest.mark.parametrize("size", [1, 159, 160, 161, 200, 201, 320, 4000])
def test_clips_of_any_length_have_features(size: int) -> None:
    """Even of less than half a window, which has nothing to mirror at its ends."""
    found = log_mel(noise(RATE)[:size], RATE, 80)
    assert found.shape == (80, -(-size // 160))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("samples", [np.zeros(0), np.array([0.0, np.nan]), np.array([np.inf])])
def test_damaged_clips_are_refused(samples: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a clip with"):
        log_mel(samples, RATE, 80)


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_the_part_of_a_clip_that_is_seen_needs_no_more_of_it(rate: int) -> None:
    data = clip_bytes(6 * rate, rate, kind="FLAC")
    whole, part = (decode_clip("flac", data, seconds=each) for each in (99, 3))
    assert (len(whole[0]), len(part[0])) == (6 * rate, 3 * rate)
    found = log_mel(*part, 80, frames=200)
    np.testing.assert_array_equal(found, log_mel(*whole, 80, frames=200))


def of_parakeet(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the frames of a clip that count, [mels, frames], by `transformers`."""
    made = ParakeetFeatureExtractor(feature_size=mels)(
        samples, sampling_rate=RATE, return_tensors="np"
    )
    frames = made.input_features[0][made.attention_mask[0].astype(bool)]
    return np.asarray(frames.T)


def fast_conformer(**more: object) -> ConformerModel:
    sizes = {"kind": "conformer", "layers": 1, "hidden": 8, "heads": 1}
    return ConformerModel.model_validate({**sizes, **more})


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("name", CLIPS)
def test_frames_of_a_conformer_are_those_of_parakeet(name: str, mels: int) -> None:
    for size in (320, 479, 481, RATE, len(CLIPS[name](RATE))):
        samples = CLIPS[name](RATE)[:size].astype(np.float32)
        wanted, frames = of_parakeet(samples, mels), num_frames(fast_conformer(), size, RATE)
        found = nemo_log_mel(samples, RATE, mels, frames=frames)
        assert found.dtype == np.float32
        assert found.shape == wanted.shape == (mels, size // 160)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def of_phi4(samples: np.ndarray, mels: int) -> np.ndarray:
    """Return the frames of a clip, [mels, frames], by `transformers`."""
    made = Phi4MultimodalFeatureExtractor(feature_size=mels)(
        samples, sampling_rate=RATE, return_tensors="np"
    )
    return np.asarray(made["audio_input_features"][0].T)


@pytest.mark.parametrize("mels", [40, 80])
@pytest.mark.parametrize("name", CLIPS)
def test_frames_of_a_conformer_may_be_those_of_phi4(name: str, mels: int) -> None:
    for size in (400, 559, 560, RATE, len(CLIPS[name](RATE))):
        samples = CLIPS[name](RATE)[:size].astype(np.float32)
        frames = num_frames(fast_conformer(sound="phi4"), size, RATE)
        wanted, found = of_phi4(samples, mels), phi4_log_mel(samples, RATE, mels, frames=frames)
        assert found.dtype == np.float32
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_clip_of_less_than_a_window_of_phi4_is_filled_up_with_silence() -> None:
    samples = noise(RATE)[:399].astype(np.float32)
    assert num_frames(fast_conformer(sound="phi4"), 399, RATE) == 1
    found = phi4_log_mel(samples, RATE, 80, frames=1)
    filled = np.concatenate([samples, np.zeros(1, dtype=np.float32)])
    np.testing.assert_allclose(found, of_phi4(filled, 80), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_frames_of_other_rates_are_known_from_the_header(rate: int) -> None:
    samples = np.stack([chirp(rate), 2 * chirp(rate)], axis=1).astype(np.float32)
    mono = soxr.resample(samples.mean(axis=1, dtype=np.float32), rate, RATE)
    frames = num_frames(fast_conformer(), len(samples), rate)
    found = nemo_log_mel(samples, rate, 80, frames=frames)
    assert frames == 234, "a part of a frame at the end is none"
    np.testing.assert_allclose(found, of_parakeet(mono, 80), rtol=1e-4, atol=1e-4)


def test_a_long_clip_is_cut_before_its_bands_are_scaled() -> None:
    model, samples = fast_conformer(frames=100), noise(RATE).astype(np.float32)
    with pytest.raises(ClipTooLong):
        num_frames(model, len(samples), RATE)
    frames = num_frames(model, len(samples), RATE, cuts=True)
    assert frames == 100
    found = nemo_log_mel(samples, RATE, 80, frames=frames)
    np.testing.assert_allclose(found, of_parakeet(samples[: 100 * 160], 80), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 160, 319])
def test_a_clip_of_less_than_two_frames_is_filled_up_with_silence(size: int) -> None:
    """Of one frame no band has a deviation."""
    frames = num_frames(fast_conformer(), size, RATE)
    found = nemo_log_mel(noise(RATE)[:size], RATE, 80, frames=frames)
    assert found.shape == (80, frames) == (80, 2)
    assert np.isfinite(found).all()
