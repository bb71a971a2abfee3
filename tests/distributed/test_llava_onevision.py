"""A tower over tiles and a decoder of ours are a LLaVA-OneVision, number by number."""

import json
from pathlib import Path

import pytest
from tests.support.hugging_face import ids_of
from tests.support.llava import LAYOUTS
from tests.support.llava_onevision import TOKEN, logits_of, made, tiny
from tests.support.whole_models import WholeModel

from mimo_launch.data.build import build_dataset

ONEVISION = WholeModel(tiny, made, logits_of, "vision_config", (("image_token_index",), TOKEN))
OFTEN = {"cp2", "apart"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_logits_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    """Text alone in some samples, one image or several in others: padded, averaged, of one tile."""
    assert ONEVISION.deviation(layout, tmp_path) < 1e-5
    asked = made(layout, tmp_path / "model")
    data = build_dataset(asked)
    spans = [data.describe("train", each).spans.get("vision", ()) for each in ids_of(asked)]
    assert {len(each) for each in spans} == {0, 1, 2}


def test_logits_in_float64(tmp_path: Path) -> None:
    right, wrong = ONEVISION.deviations_in_float64(
        tmp_path, lambda model: model.model.image_newline[3:4]
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
    """On the same texts and images, by name; norms, biases and the learned row do not decay."""
    ONEVISION.assert_step(
        optimizer,
        tmp_path,
        precision=precision,
        bound=bound,
        stays=lambda name: "post_layernorm" in name,
        # Queries see all keys moved by the same.
        undecided=lambda name: name.endswith("k_proj.bias") and "vision" in name,
    )


def test_an_untouched_model_comes_out_bit_for_bit(tmp_path: Path) -> None:
    config = ONEVISION.assert_untouched(tmp_path)
    source = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["image_grid_pinpoints"] == source["image_grid_pinpoints"]
