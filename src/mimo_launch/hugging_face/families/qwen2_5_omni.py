"""Qwen2.5-Omni: a thinker, which is a Qwen2.5-VL with audio, followed by a talker.

The vocoder is left out, as none of our modules computes it. The text that a talker reads has equal
positions on all three axes, which rotate like positions on one axis.

Sources: arXiv:2503.20215; `transformers` 5.24, models/qwen2_5_omni.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.families.qwen import WINDOWS
from mimo_launch.hugging_face.families.qwen2_vl import QWEN2_5_VL_VISION, text_family
from mimo_launch.hugging_face.families.whisper import QWEN2_AUDIO_ENCODER
from mimo_launch.hugging_face.family import Family, Video
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.nested import Nested, NestedWhole
from mimo_launch.hugging_face.refusals import left_out, one_of, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import QKV, Dropped, Place, in_layers
from mimo_launch.hugging_face.wholes import Tokens
from mimo_launch.processors.sound_of_videos import CHUNK
from mimo_launch.spec.spec import TalkerModel

_TYPE, _THINKER = "qwen2_5_omni", "thinker_config"
_SECONDS = Video("nominal_seconds", ("position_id_per_seconds", 25))
TEXT = replace(
    text_family(f"{_TYPE}_text", "Qwen2_5OmniThinkerTextModel"),
    defaults={
        "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": 32768,
        "max_window_layers": 28,
    },
)  # fmt: skip
VISION = replace(
    QWEN2_5_VL_VISION,
    model_type=f"{_TYPE}_vision_encoder",
    architecture="Qwen2_5OmniVisionEncoder",
    tensors=QWEN2_5_VL_VISION.tensors
    | in_layers("blocks.*.attn.", {each: each[-1] for each in QKV}),
    # The settings of the thinker decide it.
    video=None,
    rank=1,
)

_WINDOW = ("n_window", 100)
AUDIO = replace(
    QWEN2_AUDIO_ENCODER,
    model_type=f"{_TYPE}_audio_encoder",
    architecture="Qwen2_5OmniAudioEncoder",
    settings=QWEN2_AUDIO_ENCODER.settings.but(
        {
            "frames": None,
            "chunk": Computed(
                lambda config: 2 * number(config, *_WINDOW),
                lambda model: {_WINDOW[0]: model.chunk // 2} if model.chunk else {},
                f"2 x `{_WINDOW[0]}`; {2 * _WINDOW[1]}",
            ),
        }
    ),
    tensors=replace(QWEN2_AUDIO_ENCODER.tensors, dropped=(Dropped("audio_bos_eos_token.weight"),))
    | {"norm": "ln_post", "projector.linear": "proj"},
    refused=QWEN2_AUDIO_ENCODER.refused
    + refusals(where(_WINDOW[0], "that is odd", lambda config: number(config, *_WINDOW) % 2 > 0)),
    random=(),
    row_width="output_dim",
    notes="`frames` is the longest clip; the processor of published folders cuts clips at 300 s, "
    "the most that `frames` may be.",
)
_THINKS = (AUDIO, VISION, TEXT)
# Frames and sound of a video take turns by chunks of this length.
_CHUNKS = refusals(one_of("seconds_per_chunk", (CHUNK,), CHUNK))


def _head(_model: TalkerModel, book: int) -> Place:
    """`codec_head.weight`, of the first codebook. Raises: KeyError for others."""
    if book:
        raise KeyError(book)
    return Place("codec_head.weight")


def _sections(model: TalkerModel) -> Config:
    # Shares of 2 to 3 to 3, as published models have them; text does not depend on them.
    half = model.head_size // 2
    side = 3 * half // 8
    return {"mrope_section": [half - 2 * side, side, side]}


TALKER = Family(
    model_type=f"{_TYPE}_talker",
    kind="talker",
    architecture="Qwen2_5OmniTalkerForConditionalGeneration",
    settings=Settings(
        {
            **decoders.sizes(kv_heads=32),
            "norm_eps": ("rms_norm_eps", decoders.NORM_EPS),
            **rotary.rope(_sections),
            "start": ("tts_codec_start_token_id", 8293),
            "end": ("tts_codec_end_token_id", 8294),
        },
        {"tie_word_embeddings": False},
        {"qkv_bias": True, "qk_norm": False, "codebooks": 1, "reads_text": True},
    ),
    tensors=replace(decoders.TENSORS, dropped=())
    | {
        "codes.weight": "model.embed_tokens.weight",
        "project.weight": "thinker_to_talker_proj.weight",
        "project.bias": "thinker_to_talker_proj.bias",
        "heads.*.weight": _head,
    },
    refused=decoders.not_computed(WINDOWS)
    + refusals(
        where(
            "use_sliding_window",
            "where a layer slides",
            lambda config: WINDOWS.read(config) is not None,
        )
    ),
    defaults={
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "vocab_size": 8448,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    },
    prepared=rotary.plain_rope,
    row_width="embedding_size",
    notes="The talker reads the states after the last norm of the thinker and the embeddings of "
    "its tokens, as `transformers` does.",
)  # fmt: skip


def thinker(
    before: str,
    inside: tuple[str, ...],
    families: tuple[Family, Family, Family],
    videos: Video,
) -> tuple[Nested, ...]:
    """Return the parts of a thinker of these families: audio, vision and text.

    `before` is their prefix, `inside` leads to their settings, `videos` reads those of vision.
    """
    audio, vision, text = families
    return (
        Nested(
            family=audio,
            where=(*inside, "audio_config"),
            prefixes=((f"{before}audio_tower.", ""),),
        ),
        Nested(
            family=vision,
            where=(*inside, "vision_config"),
            prefixes=((f"{before}visual.", ""),),
            videos=videos,
        ),
        Nested(
            family=text,
            where=(*inside, "text_config"),
            prefixes=((f"{before}model.", "model."), (f"{before}lm_head.", "lm_head.")),
            # The text part's own setting ties nothing.
            around=lambda thinker: {
                "tie_word_embeddings": bool(thinker.get("tie_word_embeddings"))
            },
        ),
    )


def thinker_config(
    before: str,
    families: tuple[Family, Family, Family],
    seconds: Video,
    models: Mapping[str, Any],
    tokens: Tokens,
) -> Config:
    """Return the configuration of a thinker of these families, in which `before` is its type.

    Audio, vision and text; tokens have the settings of Qwen3-Omni. The section of the thinker, not
    that of vision, has the positions of `seconds`.
    """
    audio, vision, text = families
    words = models["decoder"]
    made: Config = {
        "model_type": f"{before}_thinker",
        "text_config": text.config(words),
        "tie_word_embeddings": words.tied,
    }
    for tower, what, token in ((vision, "vision", "image"), (audio, "audio", "audio")):
        if (model := models.get(tower.kind)) is not None:
            made[f"{what}_config"] = {**tower.config(model), str(tower.row_width): words.hidden}
            made[f"{token}_token_id"] = tokens[tower.kind]
    return made | (seconds.write(models["vit"]) if "vit" in models else {})


def _thinker_of(models: Mapping[str, Any], tokens: Tokens) -> Config:
    made = thinker_config(_TYPE, _THINKS, _SECONDS, models, tokens)
    return {key.replace("_token_id", "_token_index"): each for key, each in made.items()}


def _config_of(models: Mapping[str, Any], tokens: Tokens) -> Config:
    made: Config = {"model_type": _TYPE, _THINKER: _thinker_of(models, tokens)}
    if (talker := models.get("talker")) is not None:
        width = models["decoder"].hidden
        made["talker_config"] = {**TALKER.config(talker), "embedding_size": width}
    return made


QWEN2_5_OMNI = NestedWhole(
    model_type=_TYPE,
    architecture="Qwen2_5OmniForConditionalGeneration",
    published=("Qwen/Qwen2.5-Omni-7B",),
    parts=(
        *thinker("thinker.", (_THINKER,), _THINKS, _SECONDS),
        Nested(family=TALKER, where=("talker_config",), prefixes=(("talker.", ""),)),
    ),
    refusals=refusals(left_out("vocoder")) + _CHUNKS.inside(_THINKER),
    left_out=("token2wav.",),
    config_of=_config_of,
    needs=frozenset({"decoder", "talker"}),
    notes="`export` copies the vocoder, and parts that are no module of the spec, from the folder "
    "that `language` came from, with the settings around them. "
    "`audio_bos_eos_token` of the audio tower is left out: nothing reads it.",
)
QWEN2_5_OMNI_THINKER = NestedWhole(
    model_type=f"{_TYPE}_thinker",
    architecture="Qwen2_5OmniThinkerForConditionalGeneration",
    parts=thinker("", (), _THINKS, _SECONDS),
    refusals=_CHUNKS,
    config_of=_thinker_of,
    needs=frozenset({"decoder", "vit", "audio"}),
    rank=1,
)
