"""Qwen3-Omni: a thinker, which is a Qwen3-VL with experts and audio, followed by a talker.

The vocoder is left out, as none of our modules computes it.

Sources: arXiv:2509.17765; `transformers` 5.24, models/qwen3_omni_moe.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.families.qwen import EXPERTS
from mimo_launch.hugging_face.families.qwen2_5_omni import thinker, thinker_config
from mimo_launch.hugging_face.families.qwen3_omni_talker import TALKER
from mimo_launch.hugging_face.families.qwen3_vl import VISION_TENSORS, vision_family
from mimo_launch.hugging_face.families.whisper import QWEN2_AUDIO_ENCODER
from mimo_launch.hugging_face.family import Family, Video
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.nested import Nested, NestedWhole
from mimo_launch.hugging_face.refusals import left_out, one_of, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import in_layers
from mimo_launch.hugging_face.wholes import Tokens

_TYPE, _THINKER = "qwen3_omni_moe", "thinker_config"
_SECONDS = Video("exact_seconds", ("position_id_per_seconds", 25))
_CHUNK, _WINDOW = ("n_window", 50), ("n_window_infer", 800)
# transformers counts 13 tokens for a chunk of any length, which is right for these alone.
_OF_13_TOKENS = (49, 50, 51, 52)


def _chunks(config: Config) -> int:
    return int(number(config, *_WINDOW) // max(1, 2 * number(config, *_CHUNK)))


AUDIO = replace(
    QWEN2_AUDIO_ENCODER,
    model_type=f"{_TYPE}_audio_encoder",
    kind="aut",
    architecture="Qwen3OmniMoeAudioEncoder",
    settings=Settings(
        {
            **{key: QWEN2_AUDIO_ENCODER.settings.table[key] for key in ("layers", "hidden")},
            **{key: QWEN2_AUDIO_ENCODER.settings.table[key] for key in ("heads", "mlp", "mels")},
            "channels": ("downsample_hidden_size", 480),
            "chunk": Computed(
                lambda config: 2 * number(config, *_CHUNK),
                lambda model: {_CHUNK[0]: model.chunk // 2},
                f"2 x `{_CHUNK[0]}`; {2 * _CHUNK[1]}",
            ),
            "window": Computed(
                _chunks,
                lambda model: {_WINDOW[0]: model.window * model.chunk},
                f"`{_WINDOW[0]}` / `chunk`; 8",
            ),
        },
        {"activation_function": "gelu"},
        {"projector": "merger", "projector_bias": True},
    ),
    tensors=QWEN2_AUDIO_ENCODER.tensors
    | {
        "norm": "ln_post",
        "projector.up": "proj1",
        "projector.down": "proj2",
        "joined": "conv_out",
        **{f"conv{each}": f"conv2d{each}" for each in (1, 2, 3)},
    },
    refused=QWEN2_AUDIO_ENCODER.refused
    + refusals(
        one_of(_CHUNK[0], _OF_13_TOKENS, _CHUNK[1]),
        where(_WINDOW[0], "of less than a chunk", lambda config: not _chunks(config)),
    ),
    random=(),
    row_width="output_dim",
    notes="`frames` is the longest clip, 3000 unless the spec says more.",
)
VISION = replace(
    vision_family(f"{_TYPE}_vision_encoder", "Qwen3OmniMoeVisionEncoder", (8, 16, 24)),
    tensors=VISION_TENSORS
    | {
        "norm": "merger.ln_q",
        "projector.up": "merger.mlp.0",
        "projector.down": "merger.mlp.2",
        "projector.deepstack.*.norm": "merger_list.*.ln_q",
        "projector.deepstack.*.mlp.up": "merger_list.*.mlp.0",
        "projector.deepstack.*.mlp.down": "merger_list.*.mlp.2",
    },
    # The settings of the thinker decide it.
    video=None,
    rank=1,
)
TEXT = Family(
    model_type=f"{_TYPE}_text",
    kind="decoder",
    architecture="Qwen3OmniMoeThinkerTextModel",
    settings=decoders.decoder(
        decoders.sizes(kv_heads=4),
        qk_norm=True,
        **rotary.mrope((24, 20, 20), interleaved=True),
        moe=decoders.experts({
            "experts": "num_experts", "top_k": ("num_experts_per_tok", 8),
            "width": ("moe_intermediate_size", 768), "normalize": ("norm_topk_prob", True),
            "every": ("decoder_sparse_step", 1), **decoders.DENSE_LAYERS,
        }),
    ),
    tensors=decoders.TENSORS | in_layers(LAYERS, EXPERTS),
    refused=decoders.not_computed() + refusals(decoders.FIRST_DENSE),
    training=Settings(decoders.BALANCE),
    defaults={
        "vocab_size": 3584, "hidden_size": 2048, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_experts": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    },
    prepared=rotary.plain_rope,
)  # fmt: skip
_THINKS = (AUDIO, VISION, TEXT)


def _thinker_of(models: Mapping[str, Any], tokens: Tokens) -> Config:
    return thinker_config(_TYPE, _THINKS, _SECONDS, models, tokens)


def _config_of(models: Mapping[str, Any], tokens: Tokens) -> Config:
    made: Config = {"model_type": _TYPE, _THINKER: _thinker_of(models, tokens)}
    if (talker := models.get("talker")) is not None:
        width = {str(TALKER.row_width): models["decoder"].hidden}
        made["talker_config"] = {**TALKER.config(talker), **width}
    return made


QWEN3_OMNI = NestedWhole(
    model_type=_TYPE,
    architecture="Qwen3OmniMoeForConditionalGeneration",
    published=("Qwen/Qwen3-Omni-30B-A3B-Instruct",),
    parts=(
        *thinker("thinker.", (_THINKER,), _THINKS, _SECONDS),
        Nested(
            family=TALKER,
            where=("talker_config",),
            prefixes=(("talker.", ""),),
            # transformers writes an empty one.
            around=lambda _: {"model_type": TALKER.model_type},
        ),
    ),
    refusals=refusals(left_out("vocoder")),
    left_out=("code2wav.",),
    config_of=_config_of,
    needs=frozenset({"decoder", "talker"}),
    notes="`export` copies the vocoder, and parts that are no module of the spec, from the folder "
    "that `language` came from, with the settings around them; a thinker from elsewhere is written "
    "alone. Videos are read at rates that give their times whole positions, such as one and two "
    "frames per second.",
)  # fmt: skip
QWEN3_OMNI_THINKER = NestedWhole(
    model_type=f"{_TYPE}_thinker",
    architecture="Qwen3OmniMoeThinkerForConditionalGeneration",
    parts=thinker("", (), _THINKS, _SECONDS),
    refusals=refusals(),
    config_of=_thinker_of,
    needs=frozenset({"decoder", "vit", "aut"}),
    rank=1,
)
