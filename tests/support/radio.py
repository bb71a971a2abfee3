"""A tiny RADIO of `transformers` with random weights, specs that start from it, its features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.support.encoder_outputs import Seen, deviations_of, seen_on_rank
from tests.support.llava import LAYOUTS
from tests.support.random_models import of_norm, shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor, nn

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

PATCH, SIDE, TOKEN = 2, 5, 7
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 1.5,
    "patch_size": PATCH, "max_img_size": PATCH * SIDE, "num_cls_tokens": 2, "num_registers": 3,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3,
    "positions": "learned", "image": [SIDE, SIDE], "interpolation": "cropped", "registers": 5,
    "patch_bias": False, "final_norm": False, "layer_scale": 1.0, "norm_eps": 1e-6,
}  # fmt: skip
# With gates: two thirds of the width, in steps of 8.
# Of its input conditioner and of its summary.
CONSTANT = r"conditioner|summary"
GATED = ({"use_swiglu_ffn": True, "mlp_ratio": 1.7}, {"activation": "swiglu", "mlp": 40})


def config_of(**more: Any) -> Any:
    """Return the configuration of `transformers`."""
    return theirs().RadioConfig(**SIZES | more)


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant."""
    model = theirs().RadioModel(config_of(**more))
    return shaken(model, dtype, lambda name: of_norm(name) or float("lambda" in name))


def made(
    layout: str,
    folder: Path,
    precision: str = "fp32",
    text: dict[str, Any] | None = None,
    keys: dict[str, Any] = KEYS,
    **model: Any,
) -> Spec:
    """Return a spec whose tower starts from a folder; images of several sizes, or none.

    `text` are settings of the language module, `keys` those of the tower.
    """
    vision, language = (dict(each) for each in LAYOUTS[layout])
    modules = {
        "vision": box(
            0, model=keys | model, init_from=str(folder), placeholder=TOKEN if text else None,
            **vision,
        ),
        "language": box(language.pop("first", 0), **(text or {}), **language),
    }  # fmt: skip
    data = {"kind": "synthetic", "max_images": 2, "max_patches": 24, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": 3}
    found = spec(modules, microbatches=2, mbs=2, seq=64, data=data, train=train)
    assert [item for item in check(found) if item.is_error] == []
    return found


def features_of(model: Any, image: np.ndarray) -> Tensor:
    """Return the features [patches, D] of one image.

    `transformers` is given the pixels of which its input conditioner makes those of the image.
    """
    own = model.input_conditioner
    pixels = torch.from_numpy(image).to(own.norm_mean.dtype) * own.norm_std + own.norm_mean
    found: Tensor = model(pixels[None]).features[0]
    return found


def features_on_rank(made: Spec, run: Path) -> list[Seen]:
    """Run a step from the weights of `init_from`; return what goes into this rank's projector."""

    def watch(last: nn.Module, note: Callable[[Tensor], None]) -> None:
        last.get_submodule("projector").register_forward_pre_hook(lambda _, given: note(given[0]))

    return seen_on_rank(made, run, "vision", watch)[0]


def deviations(
    features: Callable[[np.ndarray], Tensor], made: Spec, parts: list[list[Seen]]
) -> list[float]:
    """Return per group how far features are from those of each image alone, over the largest."""
    sizes = set()

    def alone(image: np.ndarray) -> Tensor:
        sizes.add(image.shape)
        return features(image)

    found = deviations_of("vision", made, parts, alone)
    assert len(sizes) > 2
    return found


def widen(model: Any) -> None:
    """Resize tables in their own type: `transformers` does in fp32, whatever that is."""

    def resized(dims: tuple[int, int], dtype: torch.dtype) -> Tensor:
        inner = model.embeddings
        table = inner.position_embedding.reshape(1, inner.max_rows, inner.max_cols, -1)
        side = max(dims)
        wide = F.interpolate(table.permute(0, 3, 1, 2), (side, side), mode="bilinear")
        return wide[..., : dims[0], : dims[1]].flatten(2).mT

    model.embeddings._interpolate_position_embedding = resized
    model.input_conditioner.forward = lambda pixels: (
        (pixels - model.input_conditioner.norm_mean) / model.input_conditioner.norm_std
    )
