"""Tiny vision towers and LLaVA models of `transformers` with random weights, and specs for them."""

from pathlib import Path
from typing import Any

import torch
from tests.support.hugging_face import ids_of, started, tokens_of
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs

VOCAB, GRID, PATCH = 41, 4, 2
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": GRID * PATCH, "patch_size": PATCH, "num_channels": 3,
}  # fmt: skip
TEXT = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 128,
}  # fmt: skip
# What each tower is in a spec, besides the sizes.
TOWERS: dict[str, dict[str, Any]] = {
    "siglip": {"activation": "gelu_tanh", "norm_eps": 1e-6},
    "clip": {
        "activation": "quick_gelu", "norm_eps": 1e-5, "class_token": True, "pre_norm": True,
        "patch_bias": False,
    },
}  # fmt: skip
# Where the two modules are: axes, with the first rank.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {}),
    "tp2": ({"tp": 2}, {"tp": 2}),
    "pp2": ({"pp": 2}, {"pp": 2}),
    "cp2": ({"cp": 2}, {"cp": 2}),
    "colocated": ({"dp": 2}, {"tp": 2}),
    "apart": (
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        {"first": 4, "tp": 2, "pp": 2, "sequence_parallel": True},
    ),
}


def tower_keys(tower: str, layers: int, *, final_norm: bool) -> dict[str, Any]:
    """Return `model` of a spec for the first layers of a tower."""
    return {
        "layers": layers, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3,
        "positions": "learned", "image": [GRID, GRID], "final_norm": final_norm, **TOWERS[tower],
    }  # fmt: skip


def text_keys(text: str) -> dict[str, Any]:
    """Return `model` of a spec for the decoder of a LLaVA."""
    return {
        "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 40,
        "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-6, "tied": text == "qwen2",
        "qkv_bias": text == "qwen2",
    }  # fmt: skip


def tiny_llava(
    tower: str, text: str, token: int, dtype: torch.dtype = torch.float32, *, chosen: Any = -2
) -> Any:
    """Return a LLaVA in which no weight is a constant; `chosen` are the layers that it projects."""
    transformers = theirs()
    vision = {"siglip": transformers.SiglipVisionConfig, "clip": transformers.CLIPVisionConfig}
    decoder = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
    config = transformers.LlavaConfig(
        vision_config=vision[tower](**VISION),
        text_config=decoder[text](**TEXT, tie_word_embeddings=text == "qwen2"),
        image_token_index=token,
        vision_feature_layer=chosen,
        vision_feature_select_strategy={"siglip": "full", "clip": "default"}[tower],
    )
    return shaken(transformers.LlavaForConditionalGeneration(config), dtype)


def tiny_tower(tower: str, dtype: torch.dtype = torch.float32, *, whole: bool = False) -> Any:
    """Return a vision model alone, or with `whole` beside its text model."""
    transformers = theirs()
    prefix = {"siglip": "Siglip", "clip": "CLIP"}[tower]
    if whole:
        text = {**TEXT, "eos_token_id": 2, "bos_token_id": 1}
        del text["num_key_value_heads"]
        config = getattr(transformers, f"{prefix}Config")(text_config=text, vision_config=VISION)
        return shaken(getattr(transformers, f"{prefix}Model")(config), dtype)
    config = getattr(transformers, f"{prefix}VisionConfig")(**VISION)
    return shaken(getattr(transformers, f"{prefix}VisionModel")(config), dtype)


def made_llava(
    tower: str,
    text: str,
    layout: str,
    folder: Path,
    precision: str = "fp32",
    *,
    placeholder: int | None,
    features: tuple[int, ...] = (),
) -> Spec:
    """Return a spec whose two modules start from the folder of a LLaVA."""
    vision, language = (dict(each) for each in LAYOUTS[layout])
    modules = {
        "vision": box(
            0,
            init_from=str(folder),
            placeholder=placeholder,
            model={**tower_keys(tower, 2, final_norm=False), "features": [*features]},
            **vision,
        ),
        "language": box(
            language.pop("first", 0), init_from=str(folder), model=text_keys(text), **language
        ),
    }
    return _checked(modules, [GRID, GRID], precision, max_images=2, text_only=0.2)


def made_tower(tower: str, folder: Path, image: list[int], precision: str, layers: int) -> Spec:
    """Return a spec whose encoder starts from the folder of a tower; every sample has an image."""
    model = tower_keys(tower, layers, final_norm=tower == "siglip" and layers == 3)
    modules = {"vision": box(0, init_from=str(folder), model=model)}
    return _checked(modules, image, precision)


def _checked(modules: dict[str, Any], image: list[int], precision: str, **data: Any) -> Spec:
    train = {"steps": 1, "precision": precision}
    data = {"kind": "synthetic", "image": image, "text_only": 0.0, **data}
    found = spec(modules, microbatches=2, mbs=2, train=train, data=data)
    assert not [item for item in check(found) if item.is_error]
    return found


def features_on_rank(spec: Spec, run: Path) -> Tensor:
    """Return what goes into the projector in a step from `init_from`, [patches, D]."""
    session, _ = started(spec, run)
    seen: list[Tensor] = []
    [stage] = session.modules["vision"].stages.values()
    projector: Any = stage.projector
    projector.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    session.gradients(step_inputs(build_dataset(spec), "train", ids_of(spec), 0))
    session.__exit__(None, None, None)
    return torch.cat(seen)


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    rows = []
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        pixels = images_of(made, sample).to(model.dtype)
        out = model(input_ids=tokens[None], pixel_values=pixels if len(pixels) else None)
        rows.append(out.logits)
    return torch.cat(rows)


def images_of(spec: Spec, sample: int) -> Tensor:
    """Return the images of a sample, [images, channels, height, width]."""
    found = build_dataset(spec).images("train", sample, "vision")
    return torch.stack([torch.from_numpy(image) for image in found]) if found else torch.empty(0)
