"""A tiny Parakeet encoder of `transformers` with random weights, specs with it, their tokens."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.encoder_outputs import Seen, deviations_of, seen_on_rank
from tests.support.radio import TOKEN
from tests.support.random_models import of_norm, shaken, theirs
from tests.support.specs import Box, box, spec
from torch import Tensor, nn

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

FRAMES, MELS = 90, 16
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_kernel_size": 5, "subsampling_conv_channels": 6, "num_mel_bins": MELS,
    "dropout": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "kind": "conformer", "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "kernel": 5,
    "channels": 6, "mels": MELS, "frames": FRAMES,
}  # fmt: skip
# Statistics of norms, and the number of batches that they are of.
CONSTANT = r"running_|num_batches"
LAYOUTS: dict[str, tuple[Box, Box]] = {
    "one rank": (box(0), box(0)),
    "tp2": (box(0, tp=2), box(0, tp=2)),
    "dp2": (box(0, dp=2), box(0, dp=2)),
    "pp2, apart": (box(0, pp=2), box(2)),
}


def tiny(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a model in which no weight is a constant, nor any statistic."""
    model = theirs().ParakeetEncoder(theirs().ParakeetEncoderConfig(**SIZES | more))
    model = shaken(model, dtype, of_norm)
    random = torch.Generator().manual_seed(8)
    for name, buffer in model.named_buffers():
        if "running" in name:
            noise = torch.rand(buffer.shape, generator=random, dtype=torch.float64)
            buffer.copy_(noise + 0.5)
    return model


WHOLES = ("CTC", "RNNT", "TDT")


def whole(name: str) -> Any:
    """Return a model that makes text, around a tiny encoder."""
    more = {} if name == "CTC" else {"decoder_hidden_size": 16, "blank_token_id": 19}
    sizes = {"encoder_config": SIZES, "vocab_size": 20, "pad_token_id": 3, **more}
    config = getattr(theirs(), f"Parakeet{name}Config")(**sizes)
    model = getattr(theirs(), f"ParakeetFor{name}")(config)
    model.encoder.load_state_dict(tiny().state_dict())
    return model


def made(
    layout: str, folder: Path, precision: str = "fp32", text: dict[str, Any] | None = None
) -> Spec:
    """Return a spec whose encoder starts from a folder; some samples have several clips or none.

    `text` are settings of the language module.
    """
    audio, language = LAYOUTS[layout]
    start = {"init_from": str(folder), "placeholder": TOKEN if text else None}
    modules = {
        "audio": {**audio, "model": KEYS, **start},
        "language": {**language, **(text or {})},
    }
    data = {"kind": "synthetic", "max_images": 2, "max_frames": FRAMES, "text_only": 0.3}
    train = {"steps": 1, "precision": precision, "seed": 3}
    found = spec(modules, microbatches=2, mbs=2, seq=64, data=data, train=train)
    assert check(found) == ()
    return found


def tokens_on_rank(made: Spec, run: Path) -> list[Seen]:
    """Run a step from the weights of `init_from`; return what this rank's projector reads."""

    def watch(last: nn.Module, note: Callable[[Tensor], None]) -> None:
        # `pre`: the input of the projector.
        last.get_submodule("projector").register_forward_pre_hook(lambda _, given: note(given[0]))

    return seen_on_rank(made, run, "audio", watch)[0]


def widen(model: Any) -> None:
    """Have distances in the type of a model: `transformers` has them in fp32, whatever that is."""
    width = model.config.hidden_size

    def positions(hidden: Tensor) -> Tensor:
        number, dtype = hidden.shape[1], hidden.dtype
        places = torch.arange(number - 1, -number, -1, dtype=dtype)
        angles = places[:, None] * 10000.0 ** -(torch.arange(0, width, 2, dtype=dtype) / width)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).expand(len(hidden), -1, -1)

    model.encode_positions.forward = positions


def features_of(model: Any, clip: np.ndarray) -> Tensor:
    """Return the tokens [n, D] of one clip [mels, frames] alone."""
    frames = torch.from_numpy(clip).T[None].to(model.dtype)
    found: Tensor = model(frames).last_hidden_state[0]
    return found


def heard_together(model: Any, clips: list[Tensor]) -> list[Tensor]:
    """Return the tokens of clips in one batch of `transformers`, with a mask."""
    lengths = torch.tensor([clip.shape[1] for clip in clips])
    frames = nn.utils.rnn.pad_sequence([clip.T for clip in clips], batch_first=True)
    mask = torch.arange(frames.shape[1]) < lengths[:, None]
    with torch.no_grad():
        found = model(frames.to(model.dtype), attention_mask=mask)
    held = zip(found.last_hidden_state, found.attention_mask.bool(), strict=True)
    return [tokens[seen] for tokens, seen in held]


def deviations(model: Any, made: Spec, parts: list[list[Seen]]) -> list[float]:
    """Return, per group and replica with a clip, the largest difference by the largest output."""
    return deviations_of("audio", made, parts, partial(features_of, model))
