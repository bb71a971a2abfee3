"""The encoder of Whisper, and two whole models with it: Voxtral and Qwen2-Audio.

Sources: arXiv:2212.04356, arXiv:2407.10759, arXiv:2507.13264; `transformers` 5.23, models/whisper,
models/voxtral and models/qwen2_audio.
"""

from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face.families import llama, llava, qwen
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import Tensors, in_layers, layers_at
from mimo_launch.hugging_face.wholes import TowerAndDecoder
from mimo_launch.spec.media import FRAMES_PER_TOKEN

_POSITIONS = ("max_source_positions", 1500)
_FRAMES = Computed(
    lambda config: FRAMES_PER_TOKEN * number(config, *_POSITIONS),
    lambda model: {_POSITIONS[0]: model.frames // FRAMES_PER_TOKEN},
    f"{FRAMES_PER_TOKEN} x `{_POSITIONS[0]}`; 3000",
)
_GELU = {"activation_function": "gelu"}
# Settings of the decoder, which we do not have, keep their defaults.
_SETTINGS = Settings(
    {
        "layers": "encoder_layers",
        "hidden": "d_model",
        "heads": "encoder_attention_heads",
        "mlp": "encoder_ffn_dim",
        "mels": ("num_mel_bins", 80),
        "frames": _FRAMES,
    },
    _GELU,
    # Its last norm applies to tokens.
    rest={"pooling": None},
)
_ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
WHISPER = Family(
    model_type="whisper",
    kind="audio",
    architecture="WhisperEncoder",
    published=("openai/whisper-large-v3",),
    settings=_SETTINGS,
    tensors=Tensors(
        {
            "conv1": "conv1",
            "conv2": "conv2",
            "positions": "embed_positions",
            "norm": "layer_norm",
            **in_layers(
                "layers.*.",
                {
                    "attention_norm": "self_attn_layer_norm",
                    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
                    "attention.o": "self_attn.out_proj",
                    "mlp_norm": "final_layer_norm",
                    "mlp.up": "fc1",
                    "mlp.down": "fc2",
                },
            ),
        }
    ),
    # `scale_embedding` applies to the decoder only.
    refused=refusals(only("activation_function", "gelu")),
    random=(*_DROPOUTS, "encoder_layerdrop"),
    aliases={**_ALIASES, "num_key_value_heads": "encoder_attention_heads"},
    prefixes=(("", ""), ("encoder.", ""), ("model.encoder.", "")),
    # The decoder, and the layers after the encoder in models that classify sounds.
    elsewhere=(
        *("decoder.", "model.decoder.", "proj_out."),
        *("projector.", "classifier.", "layer_weights"),
    ),
    notes="The decoder of Whisper is ignored. The table of positions is a weight that never "
    "trains. Published weights were trained with `fixed_length: true`: every clip is padded with "
    "silence to `frames`. Keys have no bias.",
)
_PROJECTOR, _SECTION = "multi_modal_projector.", "audio_config"
_NAMES = (
    ("audio_tower.", ""),
    ("model.audio_tower.", ""),
    (_PROJECTOR, _PROJECTOR),
    (f"model.{_PROJECTOR}", _PROJECTOR),
)
_WIDTH, _MLP = ("hidden_size", 1280), ("intermediate_size", 5120)


def _audio(model_type: str, **other: Any) -> Family:
    """Return the encoder of a whole model, which no folder holds by itself."""
    changed = {"prefixes": (("", ""),), "elsewhere": (), "published": (), "notes": "", **other}
    return replace(WHISPER, model_type=model_type, **changed)


VOXTRAL_ENCODER = _audio(
    "voxtral_encoder",
    architecture="VoxtralEncoder",
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 32),
            "hidden": _WIDTH,
            "heads": ("num_attention_heads", 20),
            "mlp": _MLP,
            "mels": ("num_mel_bins", 128),
            "frames": _FRAMES,
        },
        _GELU,
        rest={"pooling": None},
    ),
    # It has `layerdrop`, too, but does not use it.
    random=_DROPOUTS,
    aliases={
        **{theirs: name for name, theirs in _ALIASES.items()},
        "encoder_ffn_dim": "intermediate_size",
        "encoder_layerdrop": "layerdrop",
    },
    rank=1,
)


def _stack(inner: Config) -> tuple[int, int]:
    """Return how many tokens become one row, and how many are left over. Raises: ConfigError."""
    inner = VOXTRAL_ENCODER.whole(inner)
    width, mlp = max(1, number(inner, *_WIDTH)), number(inner, *_MLP)
    return int(mlp // width), int(mlp % width)


def _is_uneven(inner: Config) -> bool:
    stack, left = _stack(inner)
    return bool(left or not stack or number(inner, *_POSITIONS) % stack)


VOXTRAL = TowerAndDecoder(
    model_type="voxtral",
    architecture="VoxtralForConditionalGeneration",
    published=("mistralai/Voxtral-Mini-3B-2507",),
    section=_SECTION,
    towers=(VOXTRAL_ENCODER,),
    text=(llama.LLAMA,),
    tower_names=_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at(llava.PROJECTOR_LAYERS),
    fixed={
        # The tokens of a row are together as wide as the MLPs.
        "stack": lambda config: max(1, _stack(config[_SECTION])[0]),
        "fixed_length": True,
        "projector": "mlp",
        "projector_mlp": None,
        "projector_bias": False,
        "unpadded": False,
    },
    refusals=refusals(only("projector_hidden_act", "gelu"))
    + refusals(
        where(_MLP[0], "that is not the width of a row: whole tokens", _is_uneven, _MLP[1])
    ).after(lambda config: config[_SECTION]),
    # Its class ties nothing, whatever the configuration says.
    tied=lambda *_: False,
    token="audio_token_id",
    settings={"projector_hidden_act": "gelu"},
    # The defaults of its configuration class.
    text_defaults={
        "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 30, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1e8, "head_dim": 128,
    },
    notes="`stack` is `intermediate_size` / `hidden_size`, a whole number. Clips are at most 30 s, "
    "padded with silence to that; longer ones are bad samples here, and `transformers` cuts them "
    "into parts of 30 s. The tokenizer of published folders (`tekken.json`) is not read: give "
    "`data.tokenizer` a folder with a `tokenizer.json`. The output layer is never tied.",
)  # fmt: skip
QWEN2_AUDIO_ENCODER = _audio(
    "qwen2_audio_encoder",
    architecture="Qwen2AudioEncoder",
    settings=replace(_SETTINGS, rest={"pooling": "mean", "stack": 2}),
    aliases={**_ALIASES, "intermediate_size": "encoder_ffn_dim"},
    defaults={
        "encoder_layers": 32, "d_model": 1280, "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120, "num_mel_bins": 128,
    },
)  # fmt: skip
QWEN2_AUDIO = TowerAndDecoder(
    model_type="qwen2_audio",
    architecture="Qwen2AudioForConditionalGeneration",
    published=("Qwen/Qwen2-Audio-7B",),
    section=_SECTION,
    towers=(QWEN2_AUDIO_ENCODER,),
    text=(qwen.QWEN2,),
    tower_names=_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at({"projector.linear": f"{_PROJECTOR}linear"}),
    fixed={"unpadded": True, "projector": "linear", "projector_bias": True},
    refusals=refusals(),
    # Its class ties nothing, whatever the configuration says.
    tied=lambda *_: False,
    token="audio_token_index",
    notes="`unpadded`: clips are padded with silence to `frames`, but tokens of that silence are "
    "left out; results equal those of `transformers`, which masks them. `pooling: mean`: a row is "
    "the mean of `stack` tokens, before the last norm. Of F frames come N = F / 2 tokens, rounded "
    "up, and N / 2 rows, rounded down: an odd last token is attended to and gives no row. A clip "
    "of one token, or of more than 30 s, is a bad sample. The output layer is never tied.",
)
