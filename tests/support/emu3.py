"""A tiny Emu3 of `transformers`, which reads pixels, and specs that read words of images."""

import json
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.support.hugging_face import LAYOUTS, WIDE, tokens_of
from tests.support.random_models import shaken, theirs
from tests.support.shards import tokenizer_folder
from tests.support.specs import box, spec
from tokenizers import Tokenizer
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

VOCAB, CODES = 400, 16
_IMAGE, _LINE = "<image>", "<|extra_200|>"
_VISUAL = tuple(f"<|visual token {each:06d}|>" for each in range(CODES))
_BEGIN, _END = "<|image start|>", "<|image end|>"
_SPECIALS = (_IMAGE, _LINE, _BEGIN, _END, *_VISUAL)
# In pixels; a word is a square of two.
_SIZES = ((8, 8), (8, 4), (4, 8), (6, 2))
# The images of each text.
_TEXTS = ((0,), (), (1, 2), (3,), (2, 0), (), (1, 3), (0, 1))
_CODER = {
    "codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32,
    "channel_multiplier": [1, 1], "num_res_blocks": 1, "hidden_size": 32, "attn_resolutions": [],
    "temporal_downsample_factor": 1,
}  # fmt: skip
_TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}  # fmt: skip
_KEYS = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": None, "mlp": 48,
    "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-3, "rope_theta": 500.0,
}  # fmt: skip


@cache
def _numbers() -> dict[str, int]:
    """Return the numbers of special words in the tokenizer of the texts."""
    with TemporaryDirectory() as folder:
        found = Tokenizer.from_file(str(_tokenizer(Path(folder)) / "tokenizer.json"))
    return {each: int(found.token_to_id(each)) for each in _SPECIALS}


def _tokenizer(folder: Path) -> Path:
    return tokenizer_folder(folder, specials=_SPECIALS)


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in which no weight is a constant."""
    words = _numbers()
    known = {each: words[each] for each in (_IMAGE, _LINE, *_VISUAL)}
    config = theirs().Emu3Config(text_config=_TEXT, vq_config=_CODER, vocabulary_map=known)
    return shaken(theirs().Emu3ForConditionalGeneration(config), dtype)


def _shown(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return all images, in the corner of the largest size, as the model takes them."""
    random = torch.Generator().manual_seed(3)
    pixels = torch.randn(len(_SIZES), 3, 8, 8, generator=random, dtype=torch.float64)
    return {"pixel_values": pixels.to(dtype), "image_sizes": torch.tensor(_SIZES)}


def _words_of_images(model: Any) -> list[tuple[int, ...]]:
    """Return the words of each image, line by line."""
    with torch.no_grad():
        found = model.model.get_image_tokens(**_shown(model.dtype)).tolist()
    counts = [high // 2 * (wide // 2 + 1) for high, wide in _SIZES]
    return [tuple(found[sum(counts[:i]) : sum(counts[: i + 1])]) for i in range(len(counts))]


def made(layout: str, folder: Path, precision: str = "fp32") -> Spec:
    """Return a spec whose data hold texts with the words of several images, of one, or of none."""
    data = folder.parent / "data"
    if not data.exists():
        _tokenizer(data / "tokenizer")
        names = {number: name for name, number in _numbers().items()}
        model = theirs().Emu3ForConditionalGeneration.from_pretrained(folder)
        written = ["".join(names[each] for each in image) for image in _words_of_images(model)]
        texts = [
            f"a{number} " + "".join(f"{_BEGIN}{written[each]}{_END} b" for each in images)
            for number, images in enumerate(_TEXTS)
        ]
        lines = "\n".join(json.dumps({"text": each}) for each in texts)
        (data / "texts.jsonl").write_text(lines)
    place = {**LAYOUTS, **WIDE}[layout]
    found = spec(
        {"language": box(0, **place, model=_KEYS, init_from=str(folder))},
        microbatches=2,
        mbs=2,
        seq=80,
        data={
            "kind": "files", "sources": [str(data / "texts.jsonl")],
            "tokenizer": str(data / "tokenizer"), "template": {"kind": "caption", "text": "text"},
        },
        train={"steps": 1, "precision": precision},
    )  # fmt: skip
    assert not [item for item in check(found) if item.is_error]
    return found


def logits_of(model: Any, asked: Spec) -> Tensor:
    """Return the logits of the texts of the first step, with pixels in place of words."""
    words, shown, counts = _numbers(), _shown(model.dtype), set()
    visual = {words[each] for each in (_LINE, *_VISUAL)}
    number = {each: i for i, each in enumerate(_words_of_images(model))}
    rows = []
    for tokens in tokens_of(asked):
        runs = groupby(tokens.tolist(), key=lambda each: each in visual)
        images = [number[tuple(run)] for is_image, run in runs if is_image]
        given = {key: each[images] for key, each in shown.items()} if images else {}
        is_word = torch.tensor([each in visual for each in tokens.tolist()])
        ids = torch.where(is_word, words[_IMAGE], tokens)
        rows.append(model(input_ids=ids[None], **given).logits)
        counts.add(len(images))
    assert {0, 2} <= counts
    return torch.cat(rows)
