"""An audio encoder without silence and a decoder of ours are a Qwen2-Audio, number by number."""

from pathlib import Path

import pytest
from tests.support.hugging_face import ids_of
from tests.support.llava import LAYOUTS
from tests.support.qwen2_audio import FRAMES, TOKEN, logits_of, made, tiny
from tests.support.whole_models import WholeModel

from mimo_launch.data.build import build_dataset

QWEN2_AUDIO = WholeModel(tiny, made, logits_of, "audio_config", (("audio_token_index",), TOKEN))
OFTEN = {"cp2", "apart"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, several clips in others, some with a token that is no row."""
    assert QWEN2_AUDIO.deviation(layout, tmp_path) < 1e-5
    asked = made(layout, tmp_path / "model")
    data = build_dataset(asked)
    clips = [data.images("train", each, "audio") for each in ids_of(asked)]
    assert {len(each) for each in clips} == {0, 1, 2}
    frames = {clip.shape[1] for each in clips for clip in each}
    assert {each // 2 % 2 for each in frames} == {0, 1}
    assert max(frames) < FRAMES


def test_logits_in_float64(tmp_path: Path) -> None:
    right, wrong = QWEN2_AUDIO.deviations_in_float64(
        tmp_path, lambda model: model.model.multi_modal_projector.linear.weight[3]
    )
    assert right < 1e-9
    assert wrong > 1e-6


@pytest.mark.parametrize(
    ("optimizer", "precision", "bound"),
    [
        ("sgd", "fp64", 1e-9),
        pytest.param("adamw", "fp64", 1e-9, marks=pytest.mark.sweep),
        # A first step of AdamW is the sign of a gradient, which rounding may change.
        pytest.param("sgd", "fp32", 1e-6, marks=pytest.mark.sweep),
    ],
)
def test_a_step_is_that_of_plain_torch(
    optimizer: str, precision: str, bound: float, tmp_path: Path
) -> None:
    """On the same texts and clips, by name; norms and biases do not decay, positions stay."""
    QWEN2_AUDIO.assert_step(
        optimizer,
        tmp_path,
        precision=precision,
        bound=bound,
        stays=lambda name: "embed_positions" in name,
    )


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    QWEN2_AUDIO.assert_untouched(tmp_path)
