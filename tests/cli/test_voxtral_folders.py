"""What folders of Voxtral say, in keys of a spec."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS

from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.spec import AudioModel, DecoderModel

VOXTRAL: dict[str, Any] = {
    "model_type": "voxtral", "audio_token_id": 24, "projector_hidden_act": "gelu",
    "audio_config": {"model_type": "voxtral_encoder"}, "text_config": {"model_type": "llama"},
}  # fmt: skip
Cli = Callable[[str], tuple[int, str, str]]


def test_a_folder_that_says_little_has_the_defaults_of_its_classes() -> None:
    """Those of Voxtral Mini."""
    classes = import_module("transformers.models.voxtral.configuration_voxtral")
    written = classes.VoxtralConfig(**VOXTRAL).to_dict()
    for kind, made in (("audio", AudioModel), ("decoder", DecoderModel)):
        part = part_of(VOXTRAL, kind)
        assert part.keys() == part_of(written, kind).keys()
        model = made(kind=kind, **part.keys())
        read = part.family.keys(part.family.config(model))
        assert {key: part.keys()[key] for key in read} == read
    audio, text = (part_of(VOXTRAL, kind).keys() for kind in ("audio", "decoder"))
    assert (audio["stack"], audio["frames"], audio["mels"]) == (4, 3000, 128)
    assert (text["layers"], text["hidden"], text["head_dim"], text["rope_theta"]) == (
        30, 3072, 128, 1e8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"projector_hidden_act": "relu"}, "projector_hidden_act: relu"),
        ({"audio_config": {"activation_function": "relu"}}, "activation_function: relu"),
        ({"audio_config": {"attention_dropout": 0.1}}, "attention_dropout: 0.1"),
        ({"audio_config": {"intermediate_size": 5000}}, "intermediate_size: 5000"),
        ({"audio_config": {"intermediate_size": 640}}, "intermediate_size: 640"),
        ({"audio_config": {"max_source_positions": 1501}}, "intermediate_size: 5120"),
    ],
)
def test_what_a_voxtral_cannot_have_is_named(settings: dict[str, Any], said: str) -> None:
    assert part_of({**VOXTRAL, **settings}, "audio").not_computed() == (said,)


def test_inspect_names_the_token_of_its_rows(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VOXTRAL))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    code, out, err = run_cli(f"inspect '{tmp_path}'")
    assert (code, err) == (0, "")
    assert "placeholder: 24" in out
    assert "stack: 4" in out
