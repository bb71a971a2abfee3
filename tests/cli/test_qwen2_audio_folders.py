"""What folders of Qwen2-Audio say, in keys of a spec."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.spec import AudioModel, DecoderModel

QWEN: dict[str, Any] = {
    "model_type": "qwen2_audio", "audio_token_index": 151646,
    "audio_config": {"model_type": "qwen2_audio_encoder"}, "text_config": {"model_type": "qwen2"},
}  # fmt: skip
Cli = Callable[[str], tuple[int, str, str]]


def test_a_folder_that_says_little_has_the_defaults_of_its_classes() -> None:
    """Those of Qwen2-Audio 7B, but for the MLP and the vocabulary."""
    classes = import_module("transformers.models.qwen2_audio.configuration_qwen2_audio")
    written = classes.Qwen2AudioConfig(**QWEN).to_dict()
    for kind, made in (("audio", AudioModel), ("decoder", DecoderModel)):
        part = part_of(QWEN, kind)
        assert part.keys() == part_of(written, kind).keys()
        model = made(kind=kind, **part.keys())
        read = part.family.keys(part.family.config(model))
        assert {key: part.keys()[key] for key in read} == read
    audio, text = (part_of(QWEN, kind).keys() for kind in ("audio", "decoder"))
    assert (audio["stack"], audio["frames"], audio["mels"]) == (2, 3000, 128)
    assert (audio["pooling"], audio["unpadded"], audio["projector"]) == ("mean", True, "linear")
    assert (text["layers"], text["hidden"], text["kv_heads"], text["mlp"]) == (32, 4096, 32, 22016)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"activation_function": "relu"}, "activation_function: relu"),
        ({"attention_dropout": 0.1}, "attention_dropout: 0.1"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop: 0.1"),
    ],
)
def test_what_a_qwen2_audio_cannot_have_is_named(settings: dict[str, Any], said: str) -> None:
    assert part_of({**QWEN, "audio_config": settings}, "audio").not_computed() == (said,)


def test_the_output_layer_is_never_the_embedding() -> None:
    """Its class ties nothing, so files hold both, whatever they say."""
    assert part_of({**QWEN, "tie_word_embeddings": True}, "decoder").keys()["tied"] is False


def test_inspect_names_the_token_of_its_rows(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    code, out, err = run_cli(f"inspect '{tmp_path}'")
    assert (code, err) == (0, "")
    assert "placeholder: 151646" in out
    assert "pooling: mean, stack: 2, unpadded: true, projector: linear" in out
