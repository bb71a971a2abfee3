"""Tiny models of `transformers` that read tiles, LLaVA-OneVision first, and specs for them."""

from pathlib import Path
from typing import Any

import torch
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.llava import LAYOUTS, TEXT, VOCAB
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.kinds.tiles import Frame, Tiling
from mimo_launch.spec.spec import Spec

TOKEN, SIDE, PATCH = 7, 9, 2
GRIDS = [[1, 2], [2, 1], [2, 2], [1, 3]]
# Of a tile of 9 pixels, one is behind the last whole patch.
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
    "num_channels": 3, "vision_use_head": False,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3,
    "positions": "learned", "image": [4, 4], "activation": "gelu_tanh", "norm_eps": 1e-6,
    "final_norm": False, "tiles": {"grids": GRIDS, "most": 2, "side": SIDE},
}  # fmt: skip
# The others cut each image, and have a CLIP.
EACH: dict[str, Any] = KEYS | {
    "activation": "quick_gelu", "norm_eps": 1e-5, "class_token": True, "pre_norm": True,
    "patch_bias": False, "tiles": {"grids": GRIDS, "each": True, "side": SIDE},
}  # fmt: skip
TEXT_KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 40,
    "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-6, "qkv_bias": True,
}  # fmt: skip


def tiny(dtype: torch.dtype = torch.float32, vocab: int = VOCAB) -> Any:
    """Return a model in which no weight is a constant."""
    transformers = theirs()
    config = transformers.LlavaOnevisionConfig(
        vision_config=VISION,
        text_config=TEXT | {"model_type": "qwen2", "rms_norm_eps": 1e-6, "vocab_size": vocab},
        image_token_index=TOKEN,
        image_grid_pinpoints=[[down * SIDE, right * SIDE] for down, right in GRIDS],
        vision_aspect_ratio="anyres_max_2",
    )
    return shaken(transformers.LlavaOnevisionForConditionalGeneration(config), dtype)


def tiny_next(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model that cuts each image, whose tower has a layer that is not used."""
    transformers = theirs()
    config = getattr(transformers, f"{name}Config")(
        vision_config={**VISION, "model_type": "clip_vision_model", "num_hidden_layers": 3},
        text_config=TEXT | {"model_type": "qwen2", "rms_norm_eps": 1e-6, "vocab_size": VOCAB},
        image_token_index=TOKEN,
        image_grid_pinpoints=[[down * SIDE, right * SIDE] for down, right in GRIDS],
    )
    return shaken(getattr(transformers, f"{name}ForConditionalGeneration")(config), dtype)


def made(
    layout: str,
    folder: Path,
    precision: str = "fp32",
    seed: int = 5,
    *,
    data: dict[str, Any] | None = None,
    token: int = TOKEN,
    keys: dict[str, Any] = KEYS,
    vocab: int = VOCAB,
) -> Spec:
    """Return a spec whose modules start from a folder; some samples have several images or none."""
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    start, text = {"init_from": str(folder)}, TEXT_KEYS | {"vocab": vocab}
    modules = {
        "vision": box(0, placeholder=token, model=keys, **start, **encoder),
        "language": box(language.pop("first", 0), model=text, **start, **language),
    }
    data = data or {"kind": "synthetic", "max_images": 2, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": seed}
    found = spec(modules, microbatches=2, mbs=2, seq=184, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def size_of(tiling: Tiling) -> tuple[int, int]:
    """Return height and width in pixels of a picture that gets a grid of tiles, as unpadded."""
    whole = tiling.tall * 4, tiling.wide * 4
    pixels = tiling.tall * SIDE, tiling.wide * SIDE
    if tiling.height < whole[0]:
        return pixels[0] * tiling.height // whole[0] + 1, pixels[1]
    if tiling.width < whole[1]:
        return pixels[0], pixels[1] * tiling.width // whole[1] + 1
    return pixels


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words].

    Its images become rows one by one: some are of a sample of one image, some of several. Frames
    that follow each other are a video.
    """
    token = made.modules["vision"].placeholder
    rows, data = [], build_dataset(made)
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        features: list[Tensor] = []
        frames: list[Tensor] = []
        spans = data.describe("train", sample).spans.get("vision", ())
        for image, span in zip(data.images("train", sample, "vision"), spans, strict=True):
            # Nothing sees the pixels behind the last whole patch.
            pixels = torch.nn.functional.pad(torch.from_numpy(image), (0, 1, 0, 1), value=3.0)
            if isinstance(span.shown, Frame):
                frames.append(pixels.to(model.dtype))
                if span.shown.is_last:
                    video = torch.cat(frames)[None]
                    features.append(model.model.get_video_features(video).pooler_output[0])
                    frames = []
                continue
            alone = span.shown is not None
            size = size_of(span.shown) if span.shown else (SIDE, SIDE)
            more = {
                "vision_aspect_ratio": "anyres_max_2",
                "batch_num_images": torch.tensor([1 if alone else 2]),
            }
            found = model.model.get_image_features(
                pixels.to(model.dtype)[None],
                torch.tensor([size]),
                **(more if type(model).__name__.startswith("LlavaOnevision") else {}),
            ).pooler_output[0]
            assert len(found) == span.rows, (span, len(found))
            features.append(found)
        embedded = model.get_input_embeddings()(tokens[None])
        if features:
            is_row = (tokens == token)[None, :, None].expand_as(embedded)
            embedded = embedded.masked_scatter(is_row, torch.cat(features))
        rows.append(model(inputs_embeds=embedded).logits)
    return torch.cat(rows)
