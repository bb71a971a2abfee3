"""Media processing with torch: clips to log-mel frames of 10 ms, resized frames of videos.

Decides: windows, filters and scaling of clips as in Whisper (arXiv:2212.04356, section 2.2), or for
a conformer as in NeMo or in Phi-4, at 16 kHz and one channel; how many frames a clip has, known
from its header alone; that frames of videos are resized as 8-bit pixels.
Relies on: `processors.sounds` for rates and windows; torch for the Fourier transform, in fp32 as in
`transformers`, with features equal to within 1e-5 (those of NeMo 1e-4, as short clips have small
deviations), and for antialiased filters on 8 bits, as in the video processors of transformers
(Pillow's results differ by one in some places); soxr for resampling.
Leaves: decoding to its callers.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.processors.image_recipe import BICUBIC, BILINEAR, LANCZOS
from mimo_launch.processors.sounds import EMPHASIS, HOP, RATE, TOP_OF_PHI4, TRANSFORM, WINDOW
from mimo_launch.spec.media import FRAMES_PER_TOKEN
from mimo_launch.spec.spec import Clips

TOP_HERTZ = 8_000.0
# The minimum power, and how far in bels below the loudest band the others are clamped.
FLOOR, RANGE = 1e-10, 8.0
# Of NeMo: what is added to powers and to deviations.
_GUARD, _EPSILON = 2.0**-24, 1e-5
# Names in torch of Pillow's filters; torch has the last one since 2.12.
_MODES = {BILINEAR: "bilinear", BICUBIC: "bicubic", LANCZOS: "lanczos"}
_HAS_LANCZOS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


class ClipTooLong(ValueError):
    """A clip that is longer than an encoder can hear, so its text would not match."""


def num_frames(model: Clips, num_samples: int, rate: int, *, cuts: bool = False) -> int:
    """Return the frames of a clip for an encoder: whole rows, at most `model.frames`.

    An encoder that drops silence gets whole tokens, or all frames if it reads chunks. The clip has
    `num_samples` at `rate` Hz. It may exceed the limit by less than a frame, which is cut off.
    If it `cuts`, the encoder hears the beginning of a longer one.

    Raises: ClipTooLong.
    """
    unit = FRAMES_PER_TOKEN if model.drops_silence else model.frames_per_row
    unit = unit if model.chunk_frames is None else 1
    most = model.frames if model.has_one_length else model.frames // unit * unit
    is_long = num_samples * RATE // (rate * HOP) > most
    if is_long and not cuts:
        raise ClipTooLong(
            f"a clip of {num_samples / rate:.2f} s, but at most {most * HOP / RATE:g} s are "
            "encoded; cut it into parts, each with its own text"
        )
    if model.has_one_length:
        return model.frames
    if is_long:
        return most
    if model.features == "nemo":
        # A part of a frame at the end is none; of one frame no band has a deviation.
        return min(most, max(2, num_samples * RATE // (rate * HOP)))
    if model.features == "phi4":
        # As many whole windows as fit.
        return min(most, max(1, (num_samples * RATE // rate - WINDOW) // HOP + 1))
    units = -(-num_samples * RATE // (rate * HOP * unit))
    return max(1, min(units, most // unit)) * unit


def log_mel(
    samples: npt.NDArray[np.floating], rate: int, mels: int, *, frames: int | None = None
) -> npt.NDArray[np.float32]:
    """Return the log-mel spectrogram of a clip, float32 [mels, frames].

    Args:
        samples: [samples], or [samples, channels], which are averaged; -1 to 1.
        rate: Samples per second.
        mels: Number of mel bands.
        frames: Frames to return: the end is padded with silence or cut off; by default, all.

    Raises:
        ValueError: The clip is empty, or holds numbers that are not finite.
    """
    mono = _mono(samples, rate)
    size = HOP * (-(-len(mono) // HOP) if frames is None else frames)
    wave = F.pad(torch.from_numpy(mono[:size]), (0, max(0, size - len(mono))))
    logs = (_filters(mels, WINDOW) @ _powers(wave)).clamp(min=FLOOR).log10()
    # Scaled to about -1 to 1.
    return ((torch.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0).numpy()


def nemo_log_mel(
    samples: npt.NDArray[np.floating], rate: int, mels: int, *, frames: int
) -> npt.NDArray[np.float32]:
    """Return the log-mel spectrogram of a clip as NeMo makes it, float32 [mels, frames].

    Source: `transformers` 5.24, models/parakeet, `ParakeetFeatureExtractor`. Each band has mean 0
    and deviation 1 over the clip. The last windows reach beyond the last frame, unless the clip is
    longer by a frame: then it is cut there. Arguments and errors as in `log_mel`; there are at
    least two `frames`.
    """
    mono, size = _mono(samples, rate), HOP * frames
    wave = torch.from_numpy(mono if len(mono) < size + HOP else mono[:size])
    wave = torch.cat([wave[:1], wave[1:] - EMPHASIS * wave[:-1]])
    wave = F.pad(wave, (0, max(0, size - len(wave))))
    spectrum = torch.stft(
        wave,
        TRANSFORM,
        HOP,
        WINDOW,
        window=torch.hann_window(WINDOW, periodic=False),
        pad_mode="constant",
        return_complex=True,
    )
    logs = (_filters(mels, TRANSFORM) @ spectrum[:, :frames].abs().square() + _GUARD).log()
    mean, deviation = logs.mean(dim=1, keepdim=True), logs.std(dim=1, keepdim=True)
    return ((logs - mean) / (deviation + _EPSILON)).numpy()


def phi4_log_mel(
    samples: npt.NDArray[np.floating], rate: int, mels: int, *, frames: int
) -> npt.NDArray[np.float32]:
    """Return the log-mel spectrogram of a clip as Phi-4 makes it, float32 [mels, frames].

    Source: `transformers` 5.24, models/phi4_multimodal, `Phi4MultimodalFeatureExtractor`. Each
    frame is a window of whole samples, of the size of 16-bit numbers. Arguments and errors as in
    `log_mel`.
    """
    mono, size = _mono(samples, rate), HOP * (frames - 1) + WINDOW
    wave = F.pad(torch.from_numpy(mono[:size]), (0, max(0, size - len(mono))))
    windows = wave.unfold(0, WINDOW, HOP)
    before = torch.cat([windows[:, :1], windows[:, :-1]], dim=1)
    shape = torch.hamming_window(WINDOW, periodic=False, dtype=torch.float64)
    spectrum = torch.fft.rfft(shape * ((windows - EMPHASIS * before) * 2.0**15), TRANSFORM)
    powers = spectrum.to(torch.complex64).abs().square()
    logs: npt.NDArray[np.float32] = (_filters_of_phi4(mels) @ powers.T).clamp(min=1.0).log().numpy()
    return logs


def _mono(samples: npt.NDArray[np.floating], rate: int) -> npt.NDArray[np.float32]:
    """Return one channel at 16 kHz. Raises: ValueError for no samples, or not finite ones."""
    mono = np.asarray(samples, dtype=np.float32)
    mono = mono.mean(axis=1) if mono.ndim == 2 else mono
    if not len(mono):
        raise ValueError("a clip without samples")
    if not np.isfinite(mono).all():
        raise ValueError("a clip with samples that are not finite")
    if rate != RATE:
        import soxr

        mono = soxr.resample(mono, rate, RATE)
    return mono


def _powers(wave: Tensor) -> Tensor:
    """Return the power of each frequency, [WINDOW / 2 + 1, samples / HOP]."""
    # The transform mirrors half a window at both ends, so a clip must be longer than half a window.
    if len(wave) <= WINDOW // 2:
        padded = F.pad(wave, (0, WINDOW // 2 + 1 - len(wave)))
        return _powers(padded)[:, : len(wave) // HOP]
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(wave, WINDOW, HOP, window=window, return_complex=True)
    # The last frame is dropped, as in Whisper.
    return (spectrum[:, : len(wave) // HOP].abs() ** 2).contiguous()


@cache
def _filters(mels: int, size: int) -> Tensor:
    """Return the triangular filters of mel bands, of equal area, for a transform of `size`.

    Shape: fp32 [mels, size / 2 + 1].

    Source: Slaney, Auditory Toolbox (1998), whose scale is linear up to 1 kHz and logarithmic
    above, with 27 steps for each factor of 6.4.
    """
    top = 15.0 + 27.0 * np.log(TOP_HERTZ / 1000.0) / np.log(6.4)
    steps = np.linspace(0.0, top, mels + 2)
    above = 1000.0 * np.exp((steps - 15.0) * np.log(6.4) / 27.0)
    corners = np.where(steps < 15.0, steps * 200.0 / 3.0, above)
    bins = np.linspace(0.0, RATE / 2, size // 2 + 1)
    low, middle, high = (corners[i : mels + i, None] for i in range(3))
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (high - low)
    return torch.from_numpy(triangles).float()


@cache
def _filters_of_phi4(mels: int) -> Tensor:
    """Return filters of mel bands that are triangles over a logarithmic scale, as in Kaldi.

    Shape: fp32 [mels, TRANSFORM / 2 + 1].
    """
    hertz = np.linspace(0.0, RATE / 2, TRANSFORM // 2 + 1)
    bins = np.log1p(hertz / 700.0)
    corners = np.linspace(0.0, np.log1p(TOP_OF_PHI4 / 700.0), mels + 2)
    low, middle, high = (corners[i : mels + i, None] for i in range(3))
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return torch.from_numpy(np.maximum(0.0, np.minimum(rising, falling))).float()


Frame = npt.NDArray[np.uint8]


def in_bf16(
    pixels: Frame, scale: float, mean: Sequence[float], std: Sequence[float]
) -> npt.NDArray[np.float32]:
    """Return pixels [channels, h, w] times `scale`, less mean, over deviation, each in bf16."""
    middle, spread = (
        torch.tensor(each, dtype=torch.bfloat16)[:, None, None] for each in (mean, std)
    )
    given = torch.from_numpy(np.require(pixels, requirements=("C", "W"))).to(torch.bfloat16)
    found: npt.NDArray[np.float32] = (((given * scale) - middle) / spread).float().numpy()
    return found


def resize(frame: Frame, height: int, width: int, resample: int) -> Frame:
    """Return a frame [channels, h, w] as [channels, height, width], by one of Pillow's filters."""
    if frame.shape[1:] == (height, width):
        return frame
    # torch warns about read-only pixels, such as Pillow's.
    given = torch.from_numpy(np.require(frame, requirements=("C", "W")))[None]
    mode = _MODES[resample]
    if mode == "lanczos" and not _HAS_LANCZOS:
        # As in transformers.
        mode = "bicubic"
    made = F.interpolate(given, (height, width), mode=mode, antialias=True, align_corners=False)
    found: Frame = made[0].numpy()
    return found
