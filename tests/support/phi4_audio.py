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
from mimo_launch.spec.spec import Spec

TOKEN, MELS, FRAMES = phi4.TOKEN + 1, 16, 90
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


def made(layout: str, folder: Path, precision: str = "fp32", seed: int = 5) -> Spec:
    """Return a spec whose modules start from a folder; some samples have a clip."""
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    start: dict[str, Any] = {"init_from": str(folder)}
    modules = {
        "audio": box(0, placeholder=TOKEN, model=KEYS, **start, **encoder),
        "language": box(language.pop("first", 0), model=phi4.TEXT_KEYS, **start, **language),
    }
    # `transformers` pads the clips of a sample, and does not hide the padding.
    data = {"kind": "synthetic", "max_images": 1, "text_only": 0.5, "max_frames": FRAMES}
    train = {"steps": 1, "precision": precision, "seed": seed}
    found = spec(modules, microbatches=2, mbs=2, seq=phi4.SEQ, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    found, data, counts = [], build_dataset(made), set()
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        spans = data.describe("train", sample).spans.get("audio", ())
        counts.add(len(spans))
        given: dict[str, Any] = {}
        if spans:
            [clip] = (torch.from_numpy(x) for x in data.images("train", sample, "audio"))
            given = {
                "audio_input_features": clip.T[None].to(model.dtype),
                "audio_embed_sizes": torch.tensor([span.rows for span in spans]),
            }
        found.append(model(input_ids=tokens[None], **given).logits)
    assert counts == {0, 1}
    return torch.cat(found)
