"""What stands around the layers of a vision transformer fits together."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.member_readers import ImageReader
from mimo_launch.data.samples.readers import CutReader
from mimo_launch.processors.image_recipe import ImageRecipe
from mimo_launch.spec.gemma4_vision import Gemma4VisionModel

LEARNED = {"positions": "learned", "image": [2, 2]}
GEMMA4 = {"kind": "gemma4_vision", "hidden": 8, "heads": 1, "shuffle": 1}


def codes(model: dict[str, Any], **module: Any) -> list[str]:
    made = spec({"vision": box(0, model=model, **module), "language": box(0, model={"layers": 3})})
    return [item.code for item in check(made) if item.path[:2] == ("modules", "vision")]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (LEARNED, []),
        ({**LEARNED, "hidden": 6, "heads": 1}, []),
        ({"hidden": 6, "heads": 1}, ["hidden-not-multiple-of-4"]),
        ({"positions": "learned"}, ["positions-without-grid"]),
        ({"image": [2, 2]}, ["setting-without-effect"]),
        ({"interpolation": "bilinear"}, ["setting-without-effect"]),
        ({"positions": "learned+rope2d", "hidden": 8, "heads": 1, "image": [2, 2]}, []),
        ({"positions": "learned+rope2d", "hidden": 8, "heads": 1}, ["positions-without-grid"]),
        ({"class_token": True}, []),
        ({"registers": 2}, []),
        ({"positions": "rope2d", "registers": 2, "hidden": 8, "heads": 1}, []),
        ({"kind": "dinov3", "hidden": 6, "heads": 1}, ["head-not-multiple-of-4"]),
        ({"kind": "dinov3", "windows": {"side": 4}}, ["class-token-without-window"]),
        ({**GEMMA4, "hidden": 6}, ["head-not-multiple-of-4"]),
        (GEMMA4, []),
        ({**GEMMA4, "image": [4, 4]}, ["setting-without-effect"]),
        ({**GEMMA4, "places": 4}, []),
        ({**GEMMA4, "places": 3}, ["image-beyond-places"]),
        ({"windows": {"side": 4}, "registers": 2}, ["class-token-without-window"]),
        ({"projector_activation": "quick_gelu"}, []),
        ({"layers": 2, "windows": {"side": 4, "full": [1]}}, []),
        ({"layers": 2, "windows": {"side": 4, "full": [0, 2]}}, ["full-layer-not-in-model"]),
        ({"layers": 2, "windows": {"side": 4, "full": [0, 1]}}, ["setting-without-effect"]),
        ({"windows": {"side": 4}, "class_token": True}, ["class-token-without-window"]),
        ({"layers": 3, "deepstack": [0, 2]}, []),
        ({"layers": 3, "deepstack": [0, 3]}, ["deepstack-not-in-order"]),
        ({"layers": 3, "deepstack": [1, 1]}, ["deepstack-not-in-order"]),
        ({"layers": 3, "deepstack": [0, 1, 2]}, ["deepstack-not-added"]),
        (
            {"projector": "linear", "projector_activation": "quick_gelu"},
            ["setting-without-effect"],
        ),
        ({"layers": 3, "features": [1, 2, 0]}, []),
        ({"layers": 3, "features": [1, 0]}, ["features-not-layers"]),
        ({"layers": 3, "features": [2, 3]}, ["features-not-layers"]),
        ({"layers": 3, "features": [2, 0, 2]}, ["features-not-layers"]),
        ({"layers": 3, "features": [2, 0], "deepstack": [0]}, ["features-with-deepstack"]),
        ({"head_qk_norm": True}, ["setting-without-effect"]),
        ({"hidden": 16, "heads": 4, "kv_heads": 2}, []),
        ({"hidden": 16, "heads": 4, "kv_heads": 3}, ["heads-over-kv-heads"]),
        ({"pooling": "mean", "shuffle": 2}, []),
        ({"pooling": "mean", "shuffle": 1}, ["setting-without-effect"]),
        ({"pooling": "linear", "shuffle": 1}, []),
        ({"projector_mlp": 24, "projector": "gated"}, []),
        ({"projector_mlp": 24}, []),
        ({"projector_mlp": 24, "projector": "linear"}, ["setting-without-effect"]),
        ({"rope_frequencies": "in_turn"}, ["setting-without-effect"]),
        ({"positions": "rope2d", "rope_frequencies": "in_turn", "hidden": 8, "heads": 1}, []),
        ({"projector_norm": "rms"}, ["setting-without-effect"]),
        ({"projector_norm_eps": 1e-5, "projector_norm_offset": True}, ["setting-without-effect"]),
        ({"projector_norm_of": "patch", "shuffle": 2}, ["setting-without-effect"]),
        ({"projector_norm_of": "patch", "projector_norm_eps": 1e-5}, ["setting-without-effect"]),
        ({"projector_norm_of": "patch", "projector_norm_eps": 1e-5, "shuffle": 2}, []),
    ],
)
def test_settings_fit_together(model: dict[str, Any], found: list[str]) -> None:
    assert codes(model) == found


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, []),
        ({"class_token": True}, ["backend-cannot"]),
        ({"registers": 2}, ["backend-cannot"]),
        ({"windows": {"side": 2}, "activation": "swiglu"}, ["backend-cannot"] * 2),
        ({"layer_scale": 0.1, "qk_norm": True}, ["backend-cannot"] * 2),
        ({"kv_heads": 1}, ["backend-cannot"]),
        ({"kind": "gemma4_vision", "shuffle": 1}, ["backend-cannot"] * 2),
        (
            {"kind": "gemma4_vision", "shuffle": 1, "clipped_linears": True},
            ["backend-cannot"] * 3,
        ),
        ({"positions": "rope2d", "rope_frequencies": "alternating"}, ["backend-cannot"]),
        ({"kind": "llama4_vision", "image": [4, 4], "class_token": False}, ["backend-cannot"]),
        ({"qkv_bias": False, "projector_bias": False, "projector_norm_eps": 1e-5}, []),
        ({"activation": "swiglu"}, ["backend-cannot"]),
        ({"activation": "swiglu", "block_bias": False}, []),
    ],
)
def test_transformer_engine_lacks_parts_of_towers(more: dict[str, Any], found: list[str]) -> None:
    model = {"hidden": 16, "heads": 2, **more}
    made = spec(
        {"vision": box(0, model=model, backend="transformer_engine"), "language": box(0)},
        train={"steps": 1, "precision": "bf16"},
    )
    assert [item.code for item in check(made) if item.is_error] == found


def test_images_of_files_that_are_too_long_are_bad_samples() -> None:
    """A patch beyond the learned rows or columns would have no vector."""
    model = Gemma4VisionModel.model_validate({**GEMMA4, "layers": 1, "patch": 4, "places": 6})
    reader = ImageReader("vision", "images", model, ImageRecipe(resize=None))
    assert reader.rows((16, 24)) == (4, 6)
    with pytest.raises(BadSample, match="28 x 16 pixels becomes 7 patches long, but `places` is 6"):
        reader.rows((16, 28))
    pooling = model.model_copy(update={"shuffle": 3})
    whole = ImageReader("vision", "images", pooling, ImageRecipe(resize=None))
    assert whole.rows((28, 28)) == (2, 2), "the seventh patch makes no row"
    cut: Any = None
    parts = CutReader("vision", "images", model, ImageRecipe(resize=None), cut=cut)
    assert parts.rows((24, 24)) == (6, 6)
    with pytest.raises(BadSample, match="a part of 28 x 16 pixels becomes 7 patches long"):
        parts.rows((16, 28))
