"""Feature extractors in folders make our frames of clips, or are refused with their setting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.shards import tokenizer_folder
from tests.support.specs import box, spec
from transformers import (
    ParakeetFeatureExtractor,
    Phi4MultimodalFeatureExtractor,
    Qwen3ASRFeatureExtractor,
    SequenceFeatureExtractor,
    WhisperFeatureExtractor,
)

from mimo_launch.checks.all_checks import check
from mimo_launch.data.torch_media import log_mel, nemo_log_mel, phi4_log_mel
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.sounds import RATE, other_frames
from mimo_launch.spec.load import model_from_data

FILE = "preprocessor_config.json"
WHISPER = {
    "kind": "audio", "layers": 1, "hidden": 8, "heads": 1, "mels": 80, "frames": 3000,
}  # fmt: skip
PARAKEET = {"kind": "conformer", "layers": 1, "hidden": 8, "heads": 1, "mels": 80}
QWEN3 = {"kind": "aut", "layers": 1, "hidden": 8, "heads": 1, "mels": 80}
Extractor = type[SequenceFeatureExtractor]
CLASSES: dict[str, tuple[Extractor, dict[str, Any]]] = {
    "whisper": (WhisperFeatureExtractor, WHISPER),
    "parakeet": (ParakeetFeatureExtractor, PARAKEET),
    "phi4": (Phi4MultimodalFeatureExtractor, PARAKEET | {"sound": "phi4"}),
    "qwen3": (Qwen3ASRFeatureExtractor, {**QWEN3, "mels": 128}),
}
# In the order of `clips`: those of half a second are the shortest that no class fills up.
SIZES = (RATE // 2, RATE + 77, 2 * RATE + 159)


def clips() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.normal(0, 0.1, size).astype(np.float32) for size in SIZES]


def by_transformers(made: Any, samples: np.ndarray) -> np.ndarray:
    """Return the frames of a clip that count, [mels, frames]."""
    if isinstance(made, ParakeetFeatureExtractor):
        found = made(samples, sampling_rate=made.sampling_rate, return_tensors="np")
        return np.asarray(found.input_features[0][found.attention_mask[0].astype(bool)].T)
    if isinstance(made, Phi4MultimodalFeatureExtractor):
        found = made(samples, sampling_rate=made.sampling_rate, return_tensors="np")
        return np.asarray(found["audio_input_features"][0].T)
    asked = {"padding": "longest", "pad_to_multiple_of": 160, "return_attention_mask": True}
    found = made(samples, sampling_rate=made.sampling_rate, return_tensors="np", **asked)
    frames = -(-len(samples) // made.hop_length)
    return np.asarray(found.input_features[0][:, :frames])


def by_us(made: Any, samples: np.ndarray, mels: int) -> np.ndarray:
    if isinstance(made, ParakeetFeatureExtractor):
        return nemo_log_mel(samples, RATE, mels, frames=len(samples) // 160)
    if isinstance(made, Phi4MultimodalFeatureExtractor):
        return phi4_log_mel(samples, RATE, mels, frames=(len(samples) - 400) // 160 + 1)
    return log_mel(samples, RATE, mels)


def differs(made: Any, mels: int) -> bool:
    """Return whether the frames of any clip are not ours within 1e-4."""
    for samples in clips():
        theirs, ours = by_transformers(made, samples), by_us(made, samples, mels)
        if theirs.shape != ours.shape or np.abs(theirs - ours).max() > 1e-4:
            return True
    return False


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("whisper", {}),
    ("whisper", {"feature_size": 128}),
    ("whisper", {"feature_size": 64, "chunk_length": 300}),
    # Settings that the class derives, or does not read for a clip alone.
    ("whisper", {"do_normalize": True, "nb_max_frames": 7, "return_attention_mask": True}),
    ("parakeet", {}),
    ("parakeet", {"feature_size": 128}),
    ("parakeet", {"dither": 1e-5, "do_normalize": True, "padding_value": 1.0}),
    ("parakeet", {"padding_side": "left", "chunk_length": 1}),
    ("phi4", {}),
    ("phi4", {"feature_size": 40, "padding_value": 1.0, "dither": 1e-5, "do_normalize": True}),
    ("qwen3", {}),
    ("qwen3", {"n_window": 25, "feature_size": 80, "chunk_length": 1}),
    ("qwen3", {"min_length": 0}),
]


@pytest.mark.parametrize(("kind", "settings"), ACCEPTED)
def test_frames_of_accepted_settings_are_ours(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    extractor, model = CLASSES[kind]
    made = extractor(**settings)
    made.save_pretrained(tmp_path)
    read = model_from_data(model | {"mels": made.feature_size})
    assert other_frames(tmp_path, read) is None
    assert not differs(extractor.from_pretrained(tmp_path), made.feature_size)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("whisper", {"sampling_rate": 24000}, "`sampling_rate: 24000`: samples per second, here 16000"),
    ("whisper", {"hop_length": 200}, "`hop_length: 200`: samples from one frame to the next, "),
    ("whisper", {"n_fft": 512}, "`n_fft: 512`: samples of a window and of its Fourier transform"),
    ("whisper", {"padding_value": 0.5}, "`padding_value: 0.5`: the samples of silence after a "),
    ("whisper", {"padding_side": "left"}, '`padding_side: "left"`: the end of a clip that gets '),
    ("whisper", {"dither": 0.01}, "`dither: 0.01`: noise that is added to every clip at random"),
    ("whisper", {"feature_size": 96}, "`feature_size: 96`: mel bands of a frame, of which this "),
    ("parakeet", {"sampling_rate": 8000}, "`sampling_rate: 8000`: samples per second, here 16000"),
    ("parakeet", {"hop_length": 80}, "`hop_length: 80`: samples from one frame to the next, here"),
    ("parakeet", {"n_fft": 1024}, "`n_fft: 1024`: samples of a Fourier transform, here 512"),
    ("parakeet", {"win_length": 512}, "`win_length: 512`: samples of a window, here 400"),
    ("parakeet", {"preemphasis": 0.9}, "`preemphasis: 0.9`: the share of each sample that is "),
    ("parakeet", {"preemphasis": None}, "`preemphasis: null`: the share of each sample that is "),
    ("parakeet", {"feature_size": 96}, "`feature_size: 96`: mel bands of a frame, of which this "),
    ("phi4", {"hop_length": 80}, "`hop_length: 80`: samples from one frame to the next, here 160"),
    ("phi4", {"n_fft": 1024}, "`n_fft: 1024`: samples of a Fourier transform, here 512"),
    ("phi4", {"win_length": 320}, "`win_length: 320`: samples of a window, here 400"),
    ("phi4", {"preemphasis": 0.9}, "`preemphasis: 0.9`: the share of each sample that is taken "),
    ("phi4", {"mel_min_frequency": 20}, "`mel_min_frequency: 20`: the lowest frequency of a band"),
    ("phi4", {"mel_max_frequency": 8000}, "`mel_max_frequency: 8000`: the highest frequency of a"),
    ("qwen3", {"hop_length": 200}, "`hop_length: 200`: samples from one frame to the next, here "),
    ("qwen3", {"min_length": 20000}, "`min_length: 20000`: samples that a short clip is filled up"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "words"), REFUSED)
def test_settings_that_make_other_frames_are_refused(
    kind: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Each of them does: a refusal of a setting without effect would be idle."""
    extractor, model = CLASSES[kind]
    made = extractor(**settings)
    made.save_pretrained(tmp_path)
    file = tmp_path / FILE
    # A saved file leaves out some of the settings that its class takes.
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    found = other_frames(tmp_path, model_from_data(model))
    assert str(found).startswith(f"{FILE} says {words}"), found
    assert differs(made, model["mels"])


def test_a_class_cuts_clips_that_an_encoder_would_hear(tmp_path: Path) -> None:
    made = WhisperFeatureExtractor(chunk_length=10)
    made.save_pretrained(tmp_path)
    assert made(np.zeros(20 * RATE), sampling_rate=RATE).input_features[0].shape[1] == 1000
    found = other_frames(tmp_path, model_from_data(WHISPER))
    assert str(found) == (
        f"{FILE} says `chunk_length: 10`: seconds of the longest clip, of which this encoder hears "
        "30 (`frames`)"
    )
    assert found is not None
    assert found.line == "frames: 1000"
    assert other_frames(tmp_path, model_from_data(WHISPER | {"frames": 1000})) is None


@pytest.mark.parametrize(
    ("model", "name", "ours"),
    [
        (WHISPER, "SpeechT5FeatureExtractor", "WhisperFeatureExtractor"),
        (WHISPER, "ParakeetFeatureExtractor", "WhisperFeatureExtractor"),
        (PARAKEET, "WhisperFeatureExtractor", "ParakeetFeatureExtractor"),
    ],
)
def test_a_class_that_makes_other_frames_is_refused(
    model: dict[str, Any], name: str, ours: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(json.dumps({"feature_extractor_type": name}))
    assert str(other_frames(tmp_path, model_from_data(model))) == (
        f"{FILE} says `feature_extractor_type: {name}`: the class that makes frames; those for "
        f"this encoder are made here as by {ours}"
    )


def test_the_file_of_transformers_is_read(tmp_path: Path) -> None:
    """A whole processor's section comes first; a file of images alone says nothing."""
    model = model_from_data(WHISPER)
    assert other_frames(tmp_path, model) is None
    images = {"image_processor_type": "CLIPImageProcessor", "padding_value": 1}
    (tmp_path / FILE).write_text(json.dumps(images))
    assert other_frames(tmp_path, model) is None
    for both in ({}, images | {"feature_extractor_type": "WhisperFeatureExtractor"}):
        (tmp_path / FILE).write_text(json.dumps(both | {"hop_length": 200}))
        assert str(other_frames(tmp_path, model)).startswith(f"{FILE} says `hop_length: 200`")
    whole = tmp_path / "processor_config.json"
    whole.write_text('{"processor_class": "WhisperProcessor"}')
    assert str(other_frames(tmp_path, model)).startswith(f"{FILE} says `hop_length: 200`")
    for name in ("feature_extractor", "audio_processor"):
        whole.write_text(json.dumps({name: {"n_fft": 512}}))
        assert str(other_frames(tmp_path, model)).startswith("processor_config.json says `n_fft: 5")
    whole.write_text("[]")
    with pytest.raises(ProcessorError, match="is not a JSON object"):
        other_frames(tmp_path, model)


Findings = Callable[..., list[Diagnostic]]


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    """Return what is found of `sound`, in whose folder a file says this."""
    (tmp_path / "x.jsonl").write_text("")
    tokenizer_folder(tmp_path / "words")
    heard = tmp_path / "heard"
    heard.mkdir()

    def found(said: dict[str, Any], model: dict[str, Any], *, starts: bool = False) -> Any:
        if said:
            (heard / FILE).write_text(json.dumps(said))
        data = {"kind": "files", "sources": [str(tmp_path / "x.jsonl")], "max_rows": 999}
        data |= {"tokenizer": str(tmp_path / "words"), "template": "chat"}
        data |= {} if starts else {"processors": {"sound": str(heard)}}
        sound = box(model=model) | ({"init_from": str(heard)} if starts else {})
        made = spec({"sound": sound}, data=data, seq=4096)
        return [each for each in check(made) if each.code == "processor-not-supported"]

    return found


OTHERWISE = "to train on our frames all the same, write `processors: {sound: FOLDER}` in `data`"
CHUNKED = {**WHISPER, "chunk": 200}


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    ("model", "said", "from_scratch", "from_weights"),
    [
        (WHISPER, {"hop_length": 200}, OTHERWISE, OTHERWISE),
        (WHISPER, {"feature_size": 128}, "write `mels: 128` in `model`", OTHERWISE),
        (WHISPER, {"chunk_length": 10}, "write `frames: 1000` in `model`", OTHERWISE),
        (CHUNKED, {"chunk_length": 10}, *["write `frames: 1000` in `model`"] * 2),
        (WHISPER, {"chunk_length": "x"}, OTHERWISE, OTHERWISE),
        (PARAKEET, {"preemphasis": 0.9}, OTHERWISE, OTHERWISE),
    ],
)
def test_a_refusal_says_what_to_write(
    model: dict[str, Any],
    said: dict[str, Any],
    from_scratch: str,
    from_weights: str,
    starts: bool,
    findings: Findings,
) -> None:
    """Not where weights have another size; only whoever trains knows another folder."""
    [item] = findings(said, model, starts=starts)
    [(key, value)] = said.items()
    assert item.is_error
    assert item.why.startswith(f"{FILE} says `{key}: {json.dumps(value)}`: ")
    assert item.help.startswith(from_weights if starts else from_scratch)
    asked = (item.help.partition("`")[2]).partition("`")[0]
    if asked.startswith(("mels", "frames")):
        key, _, number = asked.partition(": ")
        assert findings(said, model | {key: int(number)}, starts=starts) == []


def test_a_folder_without_an_extractor_is_refused_only_where_it_is_named(
    findings: Findings,
) -> None:
    assert findings({}, WHISPER, starts=True) == []
    [item] = findings({}, WHISPER)
    assert item.path == ("data", "processors", "sound")
    assert "it has no feature extractor in preprocessor_config.json" in item.why
    assert findings({"sampling_rate": RATE}, WHISPER) == []
