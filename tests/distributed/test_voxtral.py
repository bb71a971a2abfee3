"""An audio encoder and a decoder of ours are a Voxtral, number by number."""

from pathlib import Path

import pytest
from tests.support.hugging_face import ids_of
from tests.support.llava import LAYOUTS
from tests.support.voxtral import TOKEN, logits_of, made, tiny
from tests.support.whole_models import WholeModel

from mimo_launch.data.build import build_dataset

VOXTRAL = WholeModel(tiny, made, logits_of, "audio_config", (("audio_token_id",), TOKEN))
OFTEN = {"cp2", "apart"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, several clips in others."""
    assert VOXTRAL.deviation(layout, tmp_path) < 1e-5
    asked = made(layout, tmp_path / "model")
    data = build_dataset(asked)
    assert {len(data.images("train", each, "audio")) for each in ids_of(asked)} == {0, 1, 2}


def test_logits_in_float64(tmp_path: Path) -> None:
    right, wrong = VOXTRAL.deviations_in_float64(
        tmp_path, lambda model: model.model.multi_modal_projector.linear_2.weight[3]
    )
    assert right < 1e-9
    assert wrong > 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.sweep)])
def test_a_step_is_that_of_plain_torch(optimizer: str, tmp_path: Path) -> None:
    """On the same texts and clips, by name; norms and biases do not decay, positions stay."""
    VOXTRAL.assert_step(optimizer, tmp_path, stays=lambda name: "embed_positions" in name)


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    VOXTRAL.assert_untouched(tmp_path)
