"""Videos with sound, a thinker of Qwen-Omni that sees and hears them, and specs for it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support import omni, qwen_vl
from tests.support.hugging_face import ids_of, save, tokens_of
from tests.support.shards import clip_bytes, image_bytes, tokenizer_folder, write_shard
from tests.support.specs import Box, spec
from tests.support.videos import TEMPLATE, asked, encoded, frames, with_sound
from tokenizers import Tokenizer
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.models.patches import cut_image
from mimo_launch.spec.spec import Spec

VOCAB, SEQ, EACH = 400, 208, 4
AROUND = ("<|audio_bos|>", "<|audio_eos|>")
# How a tower reads videos, and the rate that is asked for.
TIME = {"qwen2_5_omni": "nominal_seconds", "qwen3_omni_moe": "exact_seconds"}
FPS = 2.0
_AUDIO_TEXT = TEMPLATE.replace("<|audio_pad|>", "<|audio_bos|><|audio_pad|><|audio_eos|>")


def noise(seconds: float, seed: int, channels: int = 1, hertz: int = 16_000) -> np.ndarray:
    """Sound of noise, which grows louder, [channels, samples]."""
    random, number = np.random.default_rng(seed), int(seconds * hertz)
    return random.uniform(-0.5, 0.5, (channels, number)) * np.linspace(0.2, 1, number)


def samples() -> list[tuple[str, dict[str, Any]]]:
    """A video with longer sound, two videos side by side, a clip beside one, and text.

    The sound of some ends before the last frame.
    """
    long = with_sound(frames(9, 16, 24), 4, noise(2.7, 1))
    short = with_sound(frames(16, 16, 16, 1), 4, noise(1.3, 2))
    other = with_sound(frames(5, 24, 16, 2), 4, noise(1.1, 3, channels=2))
    return [
        ("long", {"mov": long, "png": image_bytes(12, 17), "json": asked("image", "?", "video")}),
        (
            "two",
            {
                "mov": short, "1.mov": other,
                "json": asked("video", "video", "Which is louder?", said="The first."),
            },
        ),
        (
            "clip",
            {"wav": clip_bytes(17_000), "mov": other, "json": asked("audio", "And", "video", "?")},
        ),
        ("text", {"json": asked("How are you?", said="Well. And you?")}),
    ]  # fmt: skip


def sounding_shard(folder: Path) -> None:
    """Write these samples, and a tokenizer beside them."""
    write_shard(folder / "000.tar", samples())
    tokenizer_at(folder / "tokenizer")


def silent_shard(folder: Path) -> None:
    """Write a sample of a video without sound and one with sound, and a tokenizer beside it."""
    shown = frames(8, 16, 16, 1)
    members = {
        "mp4": encoded(shown, 4), "1.mov": with_sound(shown, 4, noise(1.3, 2)),
        "json": asked("video", "video", "Which is louder?", said="The second."),
    }  # fmt: skip
    write_shard(folder / "000.tar", [("both", members)])
    tokenizer_at(folder / "tokenizer")


def tokenizer_at(folder: Path) -> None:
    """Write a tokenizer that names the tokens around sound."""
    tokenizer_folder(folder, _AUDIO_TEXT, specials=("<|video_pad|>", "<|audio_pad|>", *AROUND))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    named = dict(zip(("audio_bos_token", "audio_eos_token"), AROUND, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | named))


def token(shards: Path, text: str) -> int:
    """Return the id of a token."""
    words = Tokenizer.from_file(str(shards / "tokenizer" / "tokenizer.json"))
    found: int = words.token_to_id(text)
    return found


def saved(kind: str, shards: Path, folder: Path) -> Any:
    """Return a thinker with the tokens of the shards; it is saved."""
    named = {
        "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>", "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>", "audio_start_token_id": AROUND[0],
        "audio_end_token_id": AROUND[1],
    }  # fmt: skip
    tokens = {key: token(shards, text) for key, text in named.items()}
    model = omni.tiny(kind, vocab=VOCAB, position_id_per_seconds=EACH, **tokens)
    save(model, folder)
    return model


def made(kind: str, layout: str, shards: Path, folder: Path) -> Spec:
    """Return a spec whose modules start from the folder of a thinker."""
    boxes, start = omni.LAYOUTS[layout], {"init_from": str(folder)}
    found = spec(
        _modules(kind, shards, boxes, start),
        microbatches=2,
        mbs=2,
        seq=SEQ,
        data=data_of(shards),
        train={"steps": 1, "precision": "fp32", "seed": 9},
    )
    assert [each for each in check(found) if each.is_error] == []
    return found


def data_of(shards: Path, **more: Any) -> dict[str, Any]:
    """Return data that hear the videos of a shard."""
    return {
        "kind": "webdataset", "shards": str(shards / "000.tar"), "template": "chat",
        "tokenizer": str(shards / "tokenizer"), "max_rows": 6,
        "video": {"fps": FPS, "sound": True}, **more,
    }  # fmt: skip


def _modules(
    kind: str, shards: Path, boxes: tuple[Box, Box, Box], start: dict[str, Any]
) -> dict[str, Any]:
    family = omni.KINDS[kind]
    like = qwen_vl.ALL_KINDS[family.seeing]
    seeing = like.keys | {"video": {"time": TIME[kind], "per_second": EACH}}
    hearing = family.keys | {"frames": 300}
    words = qwen_vl.LANGUAGE_KEYS | like.language | {"vocab": VOCAB}
    vision, audio, language = boxes
    place = {"placeholder": token(shards, "<|image_pad|>")}
    heard = {"placeholder": token(shards, "<|audio_pad|>")}
    return {
        "vision": {**vision, "model": seeing, **place, **start},
        "audio": {**audio, "model": hearing, **heard, **start},
        "language": {**language, "model": words, **start},
    }


def proved(kind: str, shards: Path, boxes: tuple[Box, Box, Box], **more: Any) -> Spec:
    """Return a spec of two steps with packed samples, from random weights."""
    asked_for = spec(
        _modules(kind, shards, boxes, {}),
        mbs=2,
        data=data_of(shards, packing=True),
        seq=2 * SEQ,
        train={"steps": 2, "precision": "fp64"},
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
        **more,
    )
    assert [each for each in check(asked_for) if each.is_error] == []
    return asked_for


def wanted(model: Any, asked_for: Spec, shards: Path) -> Tensor:
    """Return the logits of transformers for what our data set gives, sample by sample."""
    data, rows = build_dataset(asked_for), []
    vision = asked_for.modules["vision"].model
    for sample, given in zip(ids_of(asked_for), tokens_of(asked_for), strict=True):
        described, text = data.describe("train", sample), given.clone()
        arrays = data.images("train", sample, "vision")
        cut = [
            cut_image(x, images=vision, dtype=torch.float32, pinned=False).values for x in arrays
        ]
        spans = described.spans.get("vision", ())
        videos = [each.parts for each in described.spans.get("audio", ()) if each.parts]
        # The first image is none of a video; each video begins anew.
        is_image = data.name("train", sample).endswith("long")
        begins = [at for at, each in enumerate(spans) if each.later is None]
        groups = [range(*each) for each in pairwise([*begins, len(spans)])]
        assert len(groups) == len(videos) + is_image
        more: dict[str, Tensor] = {}
        for medium, suffix, here in (
            ("image", "", groups[:is_image]),
            ("video", "_videos", groups[is_image:]),
        ):
            if here:
                firsts = [spans[each[0]] for each in here]
                grids = [
                    [len(each), 2 * s.height, 2 * s.width]
                    for each, s in zip(here, firsts, strict=True)
                ]
                more[f"{medium}_grid_thw"] = torch.tensor(grids)
                more[f"pixel_values{suffix}"] = torch.cat([cut[i] for each in here for i in each])
        for each in (spans[i] for group in groups[is_image:] for i in group):
            text[each.position : each.position + each.rows] = token(shards, "<|video_pad|>")
        if videos:
            more["video_second_per_grid"] = torch.tensor([2 / FPS] * len(videos))
        clips = [np.asarray(each) for each in data.images("train", sample, "audio")]
        if clips:
            longest = max(clip.shape[1] for clip in clips)
            lengths = [clip.shape[1] for clip in clips]
            padded = [np.pad(x, ((0, 0), (0, longest - x.shape[1]))) for x in clips]
            more["input_features"] = torch.from_numpy(np.stack(padded))
            mask = [np.arange(longest) < each for each in lengths]
            more["feature_attention_mask"] = torch.from_numpy(np.stack(mask)).long()
        ones = torch.ones_like(text)[None]
        with torch.no_grad():
            found = model(
                input_ids=text[None], attention_mask=ones, use_audio_in_video=True, **more
            )
        rows.append(found.logits)
    return torch.cat(rows).double()
