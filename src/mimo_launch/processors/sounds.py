"""Whether the feature extractor of a Hugging Face folder makes our frames of a clip.

Decides: the numbers of our frames; which classes make them, and with which settings.
Relies on: preprocessor_config.json or processor_config.json, in the order of transformers 5.24,
whose classes ignore all other settings for a clip alone.
Leaves: making frames to `data.torch_media`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.files import PREPROCESSOR, PROCESSOR, ProcessorError, files_of
from mimo_launch.spec.encoders import SubsampledAudio
from mimo_launch.spec.media import Clips

RATE = 16_000
WINDOW, HOP = 400, 160
# Of NeMo and Phi-4: the size of the transform; the share of a sample that is taken from the next.
TRANSFORM, EMPHASIS = 512, 0.97
# Of Phi-4: the highest frequency of a band.
TOP_OF_PHI4 = 7690.0
# Where a processor of several modalities holds that of sound.
_SECTIONS = ("feature_extractor", "audio_processor")
# Values of a setting that make our frames, and what it means.
_Rules = Mapping[str, tuple[tuple[Any, ...], str]]
_EVERY: _Rules = {
    "sampling_rate": ((RATE,), "samples per second"),
    "hop_length": ((HOP,), "samples from one frame to the next"),
}
_WHISPER: _Rules = {
    **_EVERY,
    "n_fft": ((WINDOW,), "samples of a window and of its Fourier transform"),
    "padding_value": ((0,), "the samples of silence after a clip"),
    "padding_side": (("right",), "the end of a clip that gets silence"),
    "dither": ((0,), "noise that is added to every clip at random"),
}
_NEMO: _Rules = {
    **_EVERY,
    "n_fft": ((TRANSFORM,), "samples of a Fourier transform"),
    "win_length": ((WINDOW,), "samples of a window"),
    "preemphasis": ((EMPHASIS,), "the share of each sample that is taken from the next"),
}
_PHI4: _Rules = {
    **_NEMO,
    "mel_min_frequency": ((0,), "the lowest frequency of a band"),
    "mel_max_frequency": ((TOP_OF_PHI4,), "the highest frequency of a band"),
    "audio_compression_rate": ((8,), "frames of a token"),
    "audio_downsample_rate": ((1,), "tokens of a row"),
    "audio_feat_stride": ((1,), "the factor of the number of frames that count"),
}
# By class; those of Qwen3-ASR pad short clips, which stay short here.
_EXTRACTORS: Mapping[str, tuple[str, _Rules]] = {
    "WhisperFeatureExtractor": ("whisper", _WHISPER),
    "Qwen3ASRFeatureExtractor": (
        "whisper",
        {**_WHISPER, "min_length": ((8000, 0), "samples that a short clip is filled up to")},
    ),
    "ParakeetFeatureExtractor": ("nemo", _NEMO),
    "Phi4MultimodalFeatureExtractor": ("phi4", _PHI4),
}
# The first class of each.
_MADE_BY = {features: name for name, (features, _) in reversed([*_EXTRACTORS.items()])}


@frozen
class OtherFrames:
    """A setting of a folder that makes other frames than ours: the file, what it says, and why not.

    `line` is the key of `model` that makes both alike, "" if there is none.
    """

    file: str
    said: str
    why: str
    line: str = ""

    def __str__(self) -> str:
        """Return the setting and its meaning in one line."""
        return f"{self.file} says {self.said}: {self.why}"


def other_frames(folder: Path, clips: Clips) -> OtherFrames | None:
    """Return the first setting of a folder that makes other frames of clips than ours, if any.

    Raises: ProcessorError.
    """
    return next(_other_frames(*read_extractor(folder), clips), None)


def _other_frames(file: str, config: Mapping[str, Any], clips: Clips) -> Iterator[OtherFrames]:
    """Yield the settings that make other frames; what follows an unknown class is not read."""
    own = _MADE_BY[clips.features]
    name = config.get("feature_extractor_type", own)
    features, rules = _EXTRACTORS.get(name, ("", {}))
    if features != clips.features:
        why = f"the class that makes frames; those for this encoder are made here as by {own}"
        yield OtherFrames(file, f"`feature_extractor_type: {name}`", why)
        return
    for key, (values, meaning) in rules.items():
        if key in config and config[key] not in values:
            why = f"{meaning}, here {json.dumps(values[0])}"
            yield OtherFrames(file, f"`{key}: {json.dumps(config[key])}`", why)
    mels, seconds = config.get("feature_size", clips.mels), config.get("chunk_length")
    if mels != clips.mels:
        why = f"mel bands of a frame, of which this encoder reads {clips.mels}"
        yield OtherFrames(file, f"`feature_size: {json.dumps(mels)}`", why, f"mels: {mels}")
    # Processors of encoders with a token for eight frames cut no clip.
    if seconds is None or isinstance(clips, SubsampledAudio):
        return
    frames = seconds * RATE // HOP if isinstance(seconds, int) else 0
    if frames < clips.frames:
        heard = clips.frames * HOP / RATE
        why = f"seconds of the longest clip, of which this encoder hears {heard:g} (`frames`)"
        line = f"frames: {frames}" if frames > 0 else ""
        yield OtherFrames(file, f"`chunk_length: {json.dumps(seconds)}`", why, line)


def read_extractor(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the settings of the feature extractor in a folder, after the name of their file.

    No settings if the folder has none, or only those of images. Raises: ProcessorError.
    """
    for name, config in files_of(folder, (PROCESSOR, PREPROCESSOR)):
        if not isinstance(config, dict):
            raise ProcessorError(f"{name} is not a JSON object")
        found: Any = config
        if name == PROCESSOR:
            found = next((config[key] for key in _SECTIONS if key in config), None)
        elif "image_processor_type" in config and "feature_extractor_type" not in config:
            found = None
        if isinstance(found, dict):
            return name, found
    return PREPROCESSOR, {}
