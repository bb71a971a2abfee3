"""A tiny Phi-4 multimodal of `transformers`, and specs for it."""

from pathlib import Path
from typing import Any

import torch
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.llava import GRID, LAYOUTS, PATCH, TEXT, VISION, VOCAB
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.kinds.tiles import Tiling
from mimo_launch.spec.spec import Spec

TOKEN, SIDE, SEQ = 7, GRID * PATCH, 128
GRIDS = [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3]]
_ROPE = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.5, 2.5]}
KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "patch": PATCH, "channels": 3,
    "positions": "learned", "interpolation": "nearest", "image": [GRID, GRID], "norm_eps": 1e-6,
    "activation": "gelu_tanh", "final_norm": False, "shuffle": 2, "pooling": "mean",
    "tiles": {"grids": GRIDS, "each": True, "whole": "last"},
}  # fmt: skip
TEXT_KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 40,
    "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-5, "rotary_factor": 0.7,
    "rope_scaling": {**_ROPE, "original_max_position_embeddings": SEQ},
}  # fmt: skip
# So small that it is quickly made; the last layer of the tower is not used.
_AUDIO = {
    "hidden_size": 8, "intermediate_size": 8, "num_blocks": 1, "num_attention_heads": 2,
    "input_size": 8, "ext_pw_out_channel": 8, "depthwise_separable_out_channel": 8,
    "nemo_conv_channels": 8, "bias_max_distance": 4,
}  # fmt: skip


def tiny(dtype: torch.dtype = torch.float32, audio: dict[str, Any] | None = None) -> Any:
    """Return a model in which no weight is a constant; `audio` are sizes of its second tower."""
    transformers = theirs()
    config = transformers.Phi4MultimodalConfig(
        **TEXT | {
            "max_position_embeddings": 4 * SEQ, "original_max_position_embeddings": SEQ,
            "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
        },
        rope_parameters={
            **_ROPE, "long_factor": [3.0, 4.0], "rope_theta": 10000.0,
            "partial_rotary_factor": 0.7,
        },
        vision_config={**VISION, "crop_size": SIDE, "image_token_id": TOKEN},
        audio_config=audio or _AUDIO,
        # With the other kernel patches attend to earlier ones only.
        attn_implementation="eager",
    )  # fmt: skip
    return shaken(transformers.Phi4MultimodalForCausalLM(config), dtype)


def made(layout: str, folder: Path, precision: str = "fp32", seed: int = 5) -> Spec:
    """Return a spec whose modules start from a folder; some samples have several images or none."""
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    start: dict[str, Any] = {"init_from": str(folder)}
    modules = {
        "vision": box(0, placeholder=TOKEN, model=KEYS, **start, **encoder),
        "language": box(language.pop("first", 0), model=TEXT_KEYS, **start, **language),
    }
    data = {"kind": "synthetic", "max_images": 2, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": seed}
    found = spec(modules, microbatches=2, mbs=2, seq=SEQ, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    found, data = [], build_dataset(made)
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        given = seen(data, sample, model.dtype)
        found.append(model(input_ids=tokens[None], **given).logits)
    return torch.cat(found)


def seen(data: Dataset, sample: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments for the images of a sample; those of fewer tiles are padded."""
    spans = data.describe("train", sample).spans.get("vision", ())
    images = [torch.from_numpy(x) for x in data.images("train", sample, "vision")]
    if not images:
        return {}
    most = max(map(len, images))
    pixels = torch.full((len(images), most, 3, SIDE, SIDE), 3.0)
    for place, image in zip(pixels, images, strict=True):
        place[: len(image)] = image
    shown = [span.shown for span in spans]
    sizes = [[x.tall * SIDE, x.wide * SIDE] for x in shown if isinstance(x, Tiling)]
    return {
        "image_pixel_values": pixels.to(dtype),
        "image_sizes": torch.tensor(sizes),
        # The model leaves out images that only pad.
        "image_attention_mask": torch.ones(len(images), most, GRID, GRID),
    }
