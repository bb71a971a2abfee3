"""A tiny Whisper of `transformers` with random weights, specs that start from it, their tokens."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.support.encoder_outputs import Seen, deviations_of, seen_on_rank
from tests.support.random_models import shaken
from tests.support.specs import Box, box, spec
from torch import Tensor, nn

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import WeightsLoaded

FRAMES, MELS = 40, 5
SIZES = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "vocab_size": 48,
    "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16,
    "max_target_positions": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
KEYS = {
    "kind": "audio", "layers": 2, "hidden": 32, "heads": 4, "mlp": 48, "mels": MELS,
    "frames": FRAMES,
}  # fmt: skip
# Boxes of audio and of language.
LAYOUTS: dict[str, tuple[Box, Box]] = {
    "one rank": (box(0), box(0)),
    "tp2, apart": (box(0, tp=2), box(2)),
    "tp2": (box(0, tp=2, sequence_parallel=True), box(0, tp=2)),
    "pp2, apart": (box(0, pp=2), box(2)),
    "cp2": (box(0, cp=2), box(0, cp=2)),
    "dp2 cp2, apart": (box(0, dp=2, cp=2), box(4)),
}


def tiny(dtype: torch.dtype = torch.float32, kind: str = "WhisperForConditionalGeneration") -> Any:
    """Return a model in which no weight is a constant, positions included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
        from transformers.models.whisper import modeling_whisper

        made = getattr(modeling_whisper, kind)(transformers.WhisperConfig(**SIZES))
    return shaken(made, dtype, lambda name: float("norm" in name))


def encoder_of(model: Any) -> Any:
    """Return the encoder of any of the models."""
    return model.get_encoder() if hasattr(model, "get_encoder") else model


def made(layout: str, folder: Path, precision: str = "fp32", **model: Any) -> Spec:
    """Return a spec whose encoder starts from a folder; some samples have several clips or none."""
    audio, language = LAYOUTS[layout]
    modules = {
        "audio": {**audio, "model": {**KEYS, **model}, "init_from": str(folder)},
        "language": language,
    }
    data = {"kind": "synthetic", "max_images": 2, "max_frames": FRAMES, "text_only": 0.3}
    if model.get("fixed_length"):
        del data["max_frames"]
    train = {"steps": 1, "precision": precision, "seed": 3}
    found = spec(modules, microbatches=2, mbs=2, seq=64, data=data, train=train)
    assert check(found) == ()
    return found


def tokens_on_rank(made: Spec, run: Path) -> tuple[list[Seen], list[WeightsLoaded]]:
    """Run a step from the weights of `init_from`; return what is behind this rank's last norm."""

    def watch(last: nn.Module, note: Callable[[Tensor], None]) -> None:
        last.get_submodule("norm").register_forward_hook(lambda _, __, out: note(out))

    seen, events = seen_on_rank(made, run, "audio", watch)
    return seen, [event for event in events if isinstance(event, WeightsLoaded)]


def heard(model: Any, clip: Tensor) -> Tensor:
    """Return the tokens of one clip [mels, frames] by a model for clips of that length alone."""
    encoder, size = encoder_of(model), clip.shape[1] // 2
    table = encoder.embed_positions
    encoder.config.max_source_positions = encoder.max_source_positions = size
    encoder.embed_positions = nn.Embedding.from_pretrained(table.weight[:size])
    with torch.no_grad():
        tokens: Tensor = encoder(clip[None].to(table.weight.dtype)).last_hidden_state[0]
    encoder.config.max_source_positions = encoder.max_source_positions = len(table.weight)
    encoder.embed_positions = table
    return tokens


def deviations(model: Any, made: Spec, parts: list[list[Seen]]) -> list[float]:
    """Return, per group and replica with a clip, the largest difference by the largest output."""
    return deviations_of("audio", made, parts, lambda clip: heard(model, torch.from_numpy(clip)))
