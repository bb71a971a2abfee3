"""The encoder of Parakeet is that of `transformers`, number by number, on any layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import parakeet
from tests.support.encoders_alone import assert_step, assert_untouched
from tests.support.hugging_face import save
from tests.support.parakeet import (
    LAYOUTS,
    deviations,
    features_of,
    heard_together,
    made,
    tiny,
    tokens_on_rank,
    widen,
)
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.hugging_face.contents import read_contents
from mimo_launch.layers import conformer
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

BOUNDS = {"fp32": 1e-5, "fp64": 1e-9}


def found_on(layout: str, precision: str, run: Path, whole: str = "") -> list[float]:
    """Return the deviations of a tiny model on a layout, or of the encoder of a whole one."""
    model = tiny(torch.float64 if precision == "fp64" else torch.float32)
    save(parakeet.whole(whole) if whole else model, run / "model")
    asked = made(layout, run / "model", precision)
    parts = run_on_running_ranks(tokens_on_rank, asked, run, world_size=world_size(asked))
    widen(model)
    return deviations(model, asked, parts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", BOUNDS)
def test_tokens_are_those_of_transformers(layout: str, precision: str, tmp_path: Path) -> None:
    """Of clips of several lengths, in lists."""
    found = found_on(layout, precision, tmp_path)
    assert found
    assert max(found) < BOUNDS[precision]


@pytest.mark.parametrize("name", parakeet.WHOLES)
def test_the_encoder_of_a_model_that_makes_text_is_read(name: str, tmp_path: Path) -> None:
    found = found_on("tp2", "fp32", tmp_path, name)
    assert found
    assert max(found) < BOUNDS["fp32"]
    contents = read_contents(tmp_path / "model")
    assert [each.name for each in contents.modules] == ["audio"]
    assert not contents.unknown
    heads = ("ctc_head.", "encoder_projector.", "decoder.", "joint.", "encoder.layers.")
    assert all(each.startswith(heads) for each in contents.left_out)


def test_a_clip_in_a_batch_of_transformers_is_as_if_it_were_alone() -> None:
    """So that the tests, which compare with clips alone, also cover its batches."""
    model = tiny(torch.float64)
    widen(model)
    clips = [torch.randn(16, frames, dtype=torch.float64) for frames in (89, 8, 41, 17)]
    for clip, tokens in zip(clips, heard_together(model, clips), strict=True):
        assert (features_of(model, clip.numpy()) - tokens).abs().max() < 1e-9


def across_clips(clips: Any) -> None:
    """Take no place as one after the end of its clip."""
    del clips


def reversed_distances(tokens: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Return the distances from the least to the greatest."""
    return CORRECT(tokens, width, like).flip(0)


CORRECT = conformer.distances
PLANTED: dict[str, Callable[..., Any]] = {
    "outside": across_clips, "distances": reversed_distances,
}  # fmt: skip


def planted_on_rank(name: str, made: Spec, run: Path) -> Any:
    """Run a step with a mistake."""
    correct = getattr(conformer, name)
    setattr(conformer, name, PLANTED[name])
    try:
        return tokens_on_rank(made, run)
    finally:
        setattr(conformer, name, correct)


@pytest.mark.parametrize("name", PLANTED)
def test_the_bound_sees_a_mistake(name: str, tmp_path: Path) -> None:
    model = tiny()
    save(model, tmp_path / "model")
    asked = made("one rank", tmp_path / "model")
    [seen] = run_on_running_ranks(planted_on_rank, name, asked, tmp_path, world_size=1)
    assert max(deviations(model, asked, [seen])) > 1e-3


def test_an_untouched_encoder_comes_out_bit_for_bit(tmp_path: Path) -> None:
    """With statistics, and the number of batches that they are of."""
    save(tiny(torch.bfloat16), tmp_path / "model")
    assert_untouched(made("tp2", tmp_path / "model"), "audio", tmp_path)


def test_the_encoder_of_a_whole_model_comes_out_alone(tmp_path: Path) -> None:
    save(parakeet.whole("CTC"), tmp_path / "model")
    assert_untouched(made("tp2", tmp_path / "model"), "audio", tmp_path, "encoder.")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_is_that_of_plain_torch(optimizer: str, tmp_path: Path) -> None:
    """Of the encoder, a projector that starts from random values, and a Llama, by name."""
    assert_step(parakeet, "audio", optimizer, tmp_path)
