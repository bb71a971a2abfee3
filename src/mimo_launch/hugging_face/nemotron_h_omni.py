"""Nemotron-H Omni: a RADIO, a projector after a norm, and a Nemotron-H; it also takes audio.

Decides: what the settings of the whole and of its projector mean, also under their old names.
Relies on: `whole_models`; `radio` for the tower, `nemotron_h` for the text part.
Leaves: the audio tower, a Parakeet, which none of our modules computes; videos are not supported.

Source: `transformers` 5.24, models/nemotron_h_omni. Names of tensors are as in NVIDIA's folders;
transformers writes them, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimo_launch.hugging_face import nemotron_h, radio
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, number, section, short
from mimo_launch.hugging_face.internvl import RATIO_REFUSED, shuffle_of
from mimo_launch.hugging_face.refusals import left_out, refusals
from mimo_launch.hugging_face.settings import PLAIN_PROJECTOR
from mimo_launch.hugging_face.whole_models import TowerAndDecoder
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.spec import VitModel

MODEL_TYPE = "nemotron_h_omni"
# The first is for the norm before the projector, in any configuration.
PROJECTOR_EPS, PROJECTOR, FRAMES = 1e-5, 4096, 2
_OLD_NAMES = {
    "llm_config": "text_config",
    "sound_config": "audio_config",
    "img_context_token_id": "image_token_id",
}
_TOWER, _PROJECTOR, _NORM = "vision_model.", "mlp1.", "vision_final_layernorm."
_BACKBONE = ("language_model.backbone.", "language_model.model.")
_FURTHER = "num_nextn_predict_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NemotronOmni(TowerAndDecoder):
    """A whole model, without its audio tower."""

    def part(self, config: Config, kind: str) -> Part[Any]:
        """Return the tower with the projector, or the hybrid. Raises: NoSuchPart, ConfigError."""
        said: Mapping[str, Any] = {
            new: config[old]
            for old, new in _OLD_NAMES.items()
            if config.get(old) is not None and config.get(new) is None
        }
        config = {**config, **said}
        if kind == "audio" and (hearing := section(config, "audio_config")):
            model_type = hearing.get("model_type", "parakeet_encoder")
            raise NoSuchPart(f"audio_config.model_type: {short(model_type)}")
        return TowerAndDecoder.part(self, config, kind)

    def config_of(
        self,
        tower: Family[Any],
        encoder: EncoderModel,
        words: Family[Any],
        text: Any,
        token: int,
    ) -> Config:
        """Return the configuration of a whole model made of two of our modules and families."""
        config = TowerAndDecoder.config_of(self, tower, encoder, words, text, token)
        # Frames of a video in a patch, written twice.
        config["video_temporal_patch_size"] = FRAMES
        config["vision_config"]["video_temporal_patch_size"] = FRAMES
        if isinstance(encoder, VitModel) and encoder.final_norm:
            config["text_config"][_FURTHER] = 1
        return config


WHOLE = NemotronOmni(
    model_type=MODEL_TYPE,
    architecture="NemotronH_Omni_Reasoning_V3",
    towers={radio.RADIO: radio.VISION},
    text={nemotron_h.NEMOTRON_H: nemotron_h.HYBRID},
    text_kind=nemotron_h.HYBRID.kind,
    decides=("final_norm",),
    tower_names=(
        (_TOWER + radio.PREFIX, ""),
        (_PROJECTOR, _PROJECTOR),
        (f"vision_projector.{_NORM}", _NORM),
        (_NORM, _NORM),  # The name in transformers 5.23.
    ),
    text_names=(
        *((each, "model.") for each in _BACKBONE),
        *((f"{each}embeddings.", "model.embed_tokens.") for each in _BACKBONE),
        ("language_model.lm_head.", "lm_head."),
        ("language_model.mtp.", "mtp."),
    ),
    beside=("sound_encoder.", "sound_projection."),
    projector={
        "projector.norm.weight": Place(f"{_PROJECTOR}0.weight"),
        "projector.up.weight": Place(f"{_PROJECTOR}1.weight"),
        "projector.down.weight": Place(f"{_PROJECTOR}3.weight"),
        # Files omit it.
        **{f"norm.{each}": Place(f"{_NORM}{each}", optional=True) for each in ("weight", "bias")},
    },
    fixed={
        "shuffle": shuffle_of,
        "projector": "mlp",
        "projector_activation": "squared_relu",
        **PLAIN_PROJECTOR,
        "projector_mlp": lambda config: number(config, "projector_hidden_size", PROJECTOR),
        "projector_bias": False,
        "projector_norm_eps": PROJECTOR_EPS,
        "projector_norm": "rms",
        "projector_norm_offset": False,
        # Only models with layers that predict further tokens have it.
        "final_norm": lambda config: number(section(config, "text_config"), _FURTHER, 0) > 0,
    },
    refusals=refusals(
        RATIO_REFUSED,
        left_out("audio tower, and embedding of videos"),
    ),
    tied=lambda _, text: bool(text.get("tie_word_embeddings", False)),
    token="image_token_id",
    settings={
        "downsample_ratio": lambda vision: 1 / vision.shuffle,
        "projector_hidden_size": lambda vision: vision.projector_mlp_width or PROJECTOR,
        "vision_hidden_size": lambda vision: vision.hidden,
    },
)
