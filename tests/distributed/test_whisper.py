"""Audio encoders are that of Whisper, number by number, from weights that `init_from` reads."""

from pathlib import Path

import pytest
import torch
from tests.support.hugging_face import save
from tests.support.running_ranks import run_on_running_ranks
from tests.support.whisper import FRAMES, LAYOUTS, deviations, made, tiny, tokens_on_rank

from mimo_launch.layout.layout import world_size


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made(layout, tmp_path / "model", fixed_length=True)
    parts = run_on_running_ranks(tokens_on_rank, asked, tmp_path, world_size=world_size(asked))
    found = deviations(model, asked, [seen for seen, _ in parts])
    assert found
    assert max(found) < 1e-5
    [event] = parts[0][1]
    assert [name.removeprefix("audio.") for name in event.missing] == [
        f"projector.{name}.{kind}" for name in ("down", "up") for kind in ("bias", "weight")
    ]
    assert all(name.startswith("model.decoder.") for name in event.unused)


@pytest.mark.parametrize("kind", ["WhisperModel", "WhisperEncoder"])
@pytest.mark.parametrize("fixed", [True, False])
def test_tokens_are_those_of_transformers_in_float64(
    kind: str, tmp_path: Path, *, fixed: bool
) -> None:
    """Clips of one length, as Whisper has them, and of many, each as if it were alone."""
    model = tiny(torch.float64, kind)
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", "fp64", fixed_length=fixed)
    [(seen, _)] = run_on_running_ranks(tokens_on_rank, asked, tmp_path, world_size=1)
    assert max(deviations(model, asked, [seen])) < 1e-9
    lengths = {len(each.tokens) for each in seen}
    assert all(length % (FRAMES // 2) == 0 for length in lengths) == fixed


def test_the_bound_sees_wrong_weights(tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model", fixed_length=True)
    [(seen, _)] = run_on_running_ranks(tokens_on_rank, asked, tmp_path, world_size=1)
    for weight in (model.model.encoder.conv2.bias, model.model.encoder.layers[1].fc2.bias):
        with torch.no_grad():
            weight[3] += 1e-3
        assert max(deviations(model, asked, [seen])) > 1e-5
        with torch.no_grad():
            weight[3] -= 1e-3
