"""Voxtral: the encoder of Whisper with four tokens per row, a projector, and a Llama.

Decides: what the settings of the whole and of its encoder mean, and the names of the parts.
Relies on: `whole_models`; `whisper` for the encoder, `decoder` for the text part; `llava` for
the names of projector and text part, which are the same.
Leaves: nothing; its tokenizer (`tekken.json`) is not supported.

Sources: arXiv:2507.13264; `transformers` 5.23, models/voxtral.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoder, llava, whisper
from mimo_launch.hugging_face.family import Family, layers_at
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals, where
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.whole_models import TowerAndDecoder, tied_by_default
from mimo_launch.spec.media import FRAMES_PER_TOKEN
from mimo_launch.spec.spec import AudioModel

_ENCODER, _SECTION = "voxtral_encoder", "audio_config"
PROJECTOR = "multi_modal_projector."
_HIDDEN, _MLP, _POSITIONS = 1280, 5120, 1500
_SETTINGS = Settings(
    {
        "layers": ("num_hidden_layers", 32),
        "hidden": ("hidden_size", _HIDDEN),
        "heads": ("num_attention_heads", 20),
        "mlp": ("intermediate_size", _MLP),
        "mels": ("num_mel_bins", 128),
    },
    besides={
        "frames": lambda config: (
            FRAMES_PER_TOKEN * number(config, "max_source_positions", _POSITIONS)
        ),
        "pooling": None,
    },
    written={
        "model_type": _ENCODER,
        "max_source_positions": lambda model: model.frames // FRAMES_PER_TOKEN,
        "activation_function": "gelu",
    },
)
AUDIO_NAMES = (
    ("audio_tower.", ""),
    ("model.audio_tower.", ""),
    (PROJECTOR, PROJECTOR),
    (f"model.{PROJECTOR}", PROJECTOR),
)


AUDIO: Family[AudioModel] = replace(
    whisper.ENCODER,
    model_type=_ENCODER,
    # It has `layerdrop`, too, but does not use it.
    random=whisper.DROPOUTS,
    keys=_SETTINGS.keys,
    config=_SETTINGS.config,
    architecture="VoxtralEncoder",
)


def _stack(inner: Config) -> tuple[int, int]:
    """Return how many tokens become one row, and how many are left over. Raises: ConfigError."""
    width, mlp = number(inner, "hidden_size", _HIDDEN), number(inner, "intermediate_size", _MLP)
    return int(mlp // max(1, width)), int(mlp % max(1, width))


def _is_uneven(inner: Config) -> bool:
    stack, left = _stack(inner)
    return bool(left or not stack or number(inner, "max_source_positions", _POSITIONS) % stack)


LLAMA = next(each for each in decoder.FAMILIES if each.model_type == "llama")
WHOLE = TowerAndDecoder(
    model_type="voxtral",
    architecture="VoxtralForConditionalGeneration",
    kind="audio",
    section=_SECTION,
    towers={_ENCODER: AUDIO},
    text={LLAMA.model_type: LLAMA},
    tower_names=AUDIO_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at(llava.LAYERS),
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
        where(
            "intermediate_size", "that is not the width of a row: whole tokens", _is_uneven, _MLP
        )
    ).after(lambda config: config[_SECTION]),
    tied=tied_by_default(False),
    token="audio_token_id",
    settings={"projector_hidden_act": "gelu"},
    # The defaults of its configuration class.
    text_defaults={
        "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 30, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1e8, "head_dim": 128,
    },
)  # fmt: skip
