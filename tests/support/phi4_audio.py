"""A tiny Phi-4 multimodal of `transformers` that hears, and specs for it."""

from pathlib import Path
from typing import Any

import torch
from tests.support import phi4
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.spec.spec import Spec

TOKEN, MELS, FRAMES = phi4.TOKEN + 1, 16, 90
AUDIO_INPUT, IMAGE_INPUT = "audio_input_features", "image_pixel_values"
AUDIO = {
    "hidden_size": 16, "intermediate_size": 24, "num_blocks": 2, "num_attention_heads": 4,
    "input_size": MELS, "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16,
    # Some tokens of a clip are further apart.
    "nemo_conv_channels": 6, "bias_max_distance": 4, "audio_token_id": TOKEN,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "kind": "conformer", "layers": 2, "hidden": 16, "heads": 4, "mlp": 24, "kernel": 3,
    "channels": 6, "mels": MELS, "frames": FRAMES, "gated": True, "causal": True,
    "distance_bias": 4, "sound": "phi4", "scale_input": False,
}  # fmt: skip
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {}),
    "tp2": ({"tp": 2}, {"tp": 2}),
    "colocated": ({"dp": 2}, {"tp": 2}),
    "apart": ({"tp": 2, "dp": 2}, {"first": 4, "tp": 2, "pp": 2, "sequence_parallel": True}),
}


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in which no weight is a constant, nor what norms bands."""
    model = phi4.tiny(dtype, AUDIO)
    random = torch.Generator().manual_seed(8)
    for name, each in model.named_buffers():
        if "global_" in name:
            each.copy_(torch.rand(each.shape, generator=random, dtype=torch.float64) + 0.5)
    return model


def made(
    layout: str, folder: Path, precision: str = "fp32", seed: int = 5, *, sees: bool = False
) -> Spec:
    """Return a spec whose modules start from a folder; some samples have a clip.

    With `sees`, language also reads a vision tower on the ranks of the other.
    """
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    start: dict[str, Any] = {"init_from": str(folder)}
    vision = box(0, placeholder=phi4.TOKEN, model=phi4.KEYS, **start, **encoder)
    modules = {
        **({"vision": vision} if sees else {}),
        "audio": box(0, placeholder=TOKEN, model=KEYS, **start, **encoder),
        "language": box(language.pop("first", 0), model=phi4.TEXT_KEYS, **start, **language),
    }
    # `transformers` pads the clips of a sample, and does not hide the padding.
    data = {"kind": "synthetic", "max_images": 1, "text_only": 0.5, "max_frames": FRAMES}
    train = {"steps": 1, "precision": precision, "seed": seed}
    size = 6 if sees else 2
    found = spec(modules, microbatches=2, mbs=size, seq=phi4.SEQ, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words].

    Some samples have nothing to hear or to see, some have both.
    """
    found, data, kinds = [], build_dataset(made), set()
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        given = heard(data, sample, model.dtype)
        if "vision" in made.modules:
            given |= phi4.seen(data, sample, model.dtype)
        kinds.add((AUDIO_INPUT in given, IMAGE_INPUT in given))
        found.append(model(input_ids=tokens[None], **given).logits)
    assert len(kinds) == 2 ** (len(made.modules) - 1), kinds
    return torch.cat(found)


def heard(data: Dataset, sample: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments for the clip of a sample, if it has one."""
    spans = data.describe("train", sample).spans.get("audio", ())
    if not spans:
        return {}
    [clip] = (torch.from_numpy(x) for x in data.images("train", sample, "audio"))
    return {
        AUDIO_INPUT: clip.T[None].to(dtype),
        "audio_embed_sizes": torch.tensor([span.rows for span in spans]),
    }


def alike(dtype: torch.dtype = torch.float32) -> Any:
    """Return a model that maps sound beside images as it maps sound alone, as ours does."""
    model = tiny(dtype)
    sound = model.model.embed_tokens_extend.audio_embed
    for each in ("up", "down"):
        own = getattr(sound, f"{each}_proj_for_speech")
        getattr(sound, f"{each}_proj_for_vision_speech").load_state_dict(own.state_dict())
    return model
