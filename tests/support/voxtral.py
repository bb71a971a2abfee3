"""A tiny Voxtral of `transformers` with random weights, and specs for it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.hugging_face import ids_of, tokens_of
from tests.support.llava import LAYOUTS, TEXT, VOCAB
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.spec.spec import Spec

TOKEN, FRAMES, MELS = 7, 40, 5
KEYS: dict[str, Any] = {
    "kind": "audio", "layers": 2, "hidden": 32, "heads": 4, "mlp": 64, "mels": MELS,
    "frames": FRAMES, "stack": 2, "fixed_length": True, "projector_bias": False,
}  # fmt: skip
AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "num_mel_bins": MELS, "max_source_positions": FRAMES // 2,
}  # fmt: skip
TEXT_KEYS: dict[str, Any] = {
    "layers": 2, "hidden": 24, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 40, "vocab": VOCAB,
    "vocab_multiple": 16, "norm_eps": 1e-6, "rope_theta": 50.0,
}  # fmt: skip


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in which no weight is a constant."""
    transformers = theirs()
    rope = {"rope_type": "default", "rope_theta": 50.0}
    text = {"model_type": "llama", "head_dim": 8, "rms_norm_eps": 1e-6, "rope_parameters": rope}
    config = transformers.VoxtralConfig(
        audio_config=AUDIO, text_config=TEXT | text, audio_token_id=TOKEN
    )
    return shaken(transformers.VoxtralForConditionalGeneration(config), dtype)


def made(layout: str, folder: Path, precision: str = "fp32", **audio: Any) -> Spec:
    """Return a spec whose modules start from a folder; some samples have several clips or none."""
    encoder, language = (dict(each) for each in LAYOUTS[layout])
    start = {"init_from": str(folder)}
    modules = {
        "audio": box(0, placeholder=TOKEN, model=KEYS | audio, **start, **encoder),
        "language": box(language.pop("first", 0), model=TEXT_KEYS, **start, **language),
    }
    data = {"kind": "synthetic", "max_images": 2, "text_only": 0.4}
    train = {"steps": 1, "precision": precision, "seed": 5}
    found = spec(modules, microbatches=2, mbs=2, seq=64, data=data, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found


def logits_of(model: Any, made: Spec) -> Tensor:
    """Return the logits of each sample of the first step by itself, [samples, S, words]."""
    rows, data = [], build_dataset(made)
    for sample, tokens in zip(ids_of(made), tokens_of(made), strict=True):
        clips = data.images("train", sample, "audio")
        heard = torch.from_numpy(np.stack(clips)).to(model.dtype) if clips else None
        rows.append(model(input_ids=tokens[None], input_features=heard).logits)
    assert {len(data.images("train", each, "audio")) for each in ids_of(made)} == {0, 1, 2}
    return torch.cat(rows)
