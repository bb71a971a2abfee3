"""A tiny Nemotron-H Omni of `transformers` with random weights, and specs that start from it."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import nemotron_h, radio
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.llava import LAYOUTS
from tests.support.random_models import shaken
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.spec.spec import Spec

TOKEN, INNER = 7, 20
TEXT = nemotron_h.CONFIG | nemotron_h.MOE_CONFIG | {
    "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
}  # fmt: skip
TEXT_KEYS = nemotron_h.MODEL | nemotron_h.MOE_MODEL | {
    "pattern": "M*-E", "moe": nemotron_h.MOE_MODEL["moe"] | {"bias_update_rate": 0.0},
}  # fmt: skip
VISION_KEYS = radio.KEYS | {
    "shuffle": 2, "projector_mlp": INNER, "projector_activation": "squared_relu",
    "projector_bias": False, "projector_norm_eps": 1e-5, "projector_norm": "rms",
}  # fmt: skip
HEARING = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "num_mel_bins": 8, "subsampling_conv_channels": 4, "subsampling_factor": 8,
    "projection_hidden_size": 16, "projection_bias": False,
}  # fmt: skip


def tiny(
    dtype: torch.dtype = torch.float32, *, hears: bool = False, predicts: bool = False, **more: Any
) -> Any:
    """Return a model in which no weight is a constant.

    `hears`: with an audio tower; `predicts`: as if it had layers for further tokens, with a norm
    behind its vision tower.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.nemotron_h_omni import configuration_nemotron_h_omni as theirs
        from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as modeling
    config = theirs.NemotronH_Omni_Reasoning_V3_Config(
        vision_config={"model_type": "radio", **radio.SIZES, "video_temporal_patch_size": 2},
        text_config={"model_type": "nemotron_h", **TEXT, "num_nextn_predict_layers": int(predicts)},
        audio_config={"model_type": "parakeet_encoder", **HEARING} if hears else None,
        projector_hidden_size=INNER,
        vision_hidden_size=32,
        image_token_id=TOKEN,
        **more,
    )
    made = shaken(
        modeling.NemotronH_Omni_Reasoning_V3(config), dtype, nemotron_h.start,
        lambda name: 0.1 if "correction" in name else 0.5 if "mixer" in name else 0.2,
    )  # fmt: skip
    made.vision_model.config.dtype = dtype
    return made


def made(layout: str, folder: Path, precision: str = "fp32", **vision: Any) -> Spec:
    """Return a spec whose two modules start from a folder; images of several sizes, or none."""
    tower, language = (dict(each) for each in LAYOUTS[layout])
    start = {"init_from": str(folder)}
    modules = {
        "vision": box(0, model=VISION_KEYS | vision, placeholder=TOKEN, **start, **tower),
        "language": box(language.pop("first", 0), model=TEXT_KEYS, **start, **language),
    }
    data = {"kind": "synthetic", "max_images": 2, "max_patches": 24, "text_only": 0.2}
    train = {"steps": 1, "precision": precision}
    found = spec(modules, microbatches=2, mbs=2, seq=32, data=data, train=train)
    assert [item for item in check(found) if item.is_error] == []
    return found


def patches_of(image: Tensor) -> Tensor:
    """Return the patches of an image [channels, height, width], each by channel, row after row."""
    grid = image.unfold(1, radio.PATCH, radio.PATCH).unfold(2, radio.PATCH, radio.PATCH)
    return grid.permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1)


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    dataset, rows, sizes = build_dataset(made), [], set()
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        found = [torch.from_numpy(x) for x in dataset.images("train", sample, "vision")]
        sizes |= {image.shape for image in found}
        more = {}
        if found:
            patches = [patches_of(x).to(model.dtype) for x in found]
            sides = [[side // radio.PATCH for side in image.shape[1:]] for image in found]
            more = {"pixel_values": torch.cat(patches), "image_grid_hw": torch.tensor(sides)}
        rows.append(model(input_ids=tokens[None], **more).logits)
    assert len(sizes) > 1
    return torch.cat(rows)


def in_float64(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float64 what `transformers` computes in float32, whatever the type."""
    nemotron_h.widened(model)
    model.language_model.set_experts_implementation("eager")
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "type", lambda x, dtype: x.double())
