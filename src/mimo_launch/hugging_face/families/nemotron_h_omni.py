"""Nemotron-H Omni: a RADIO, a projector after a norm, and a Nemotron-H; it also takes audio.

The audio tower, a Parakeet, is left out, and so are videos. Names of tensors are as in NVIDIA's
folders; transformers writes them, too.

Source: `transformers` 5.24, models/nemotron_h_omni.
"""

from collections.abc import Mapping
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.families.internvl import RATIO_REFUSED, shuffle_of
from mimo_launch.hugging_face.families.nemotron_h import NEMOTRON_H
from mimo_launch.hugging_face.families.radio import PREFIX, RADIO
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number, section, short
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.refusals import left_out, refusals
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.hugging_face.towers import PLAIN_PROJECTOR
from mimo_launch.hugging_face.wholes import TowerAndDecoder
from mimo_launch.spec.encoders import EncoderModel
from mimo_launch.spec.spec import VitModel

_WIDTH, _FRAMES = ("projector_hidden_size", 4096), 2
_OLD_NAMES = {
    "llm_config": "text_config",
    "sound_config": "audio_config",
    "img_context_token_id": "image_token_id",
}
_PROJECTOR, _NORM = "mlp1.", "vision_final_layernorm."
_BACKBONE = ("language_model.backbone.", "language_model.model.")
_FURTHER = "num_nextn_predict_layers"


@frozen(kw_only=True)
class NemotronOmni(TowerAndDecoder):
    """A whole model, without its audio tower."""

    def part(self, config: Config, kind: str) -> Part:
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
        self, tower: Family, encoder: EncoderModel, words: Family, text: Any, token: int
    ) -> Config:
        """Return the configuration of a whole model made of two of our modules and families."""
        config = TowerAndDecoder.config_of(self, tower, encoder, words, text, token)
        # Frames of a video in a patch, written twice.
        config["video_temporal_patch_size"] = _FRAMES
        config["vision_config"]["video_temporal_patch_size"] = _FRAMES
        if isinstance(encoder, VitModel) and encoder.final_norm:
            config["text_config"][_FURTHER] = 1
        return config


NEMOTRON_H_OMNI = NemotronOmni(
    model_type="nemotron_h_omni",
    architecture="NemotronH_Omni_Reasoning_V3",
    published=("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",),
    towers=(RADIO,),
    text=(NEMOTRON_H,),
    decides=("final_norm",),
    tower_names=(
        (f"vision_model.{PREFIX}", ""),
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
        "projector_mlp": lambda config: number(config, *_WIDTH),
        "projector_bias": False,
        # For the norm before the projector, in any configuration.
        "projector_norm_eps": 1e-5,
        "projector_norm": "rms",
        "projector_norm_offset": False,
        # Only models with layers that predict further tokens have it.
        "final_norm": lambda config: number(section(config, "text_config"), _FURTHER, 0) > 0,
    },
    refusals=refusals(RATIO_REFUSED, left_out("audio tower, and embedding of videos")),
    tied=lambda _, text: bool(text.get("tie_word_embeddings", False)),
    token="image_token_id",
    settings={
        "downsample_ratio": lambda vision: 1 / vision.shuffle,
        "projector_hidden_size": lambda vision: vision.projector_mlp_width or _WIDTH[1],
        "vision_hidden_size": lambda vision: vision.hidden,
    },
    notes="`shuffle` is 1 / `downsample_ratio` (2), `projector_mlp` is `projector_hidden_size` "
    "(4096). Old names of released folders (`llm_config`, `sound_config`, `img_context_token_id`) "
    "are read. The norm of the tower begins as an identity: files leave it out. Images are as many "
    "patches as `min_num_patches`, `max_num_patches` and `max_model_len` of the processor allow, "
    "near their own aspect; the budget assumes a single image, where `transformers` grants several "
    "more if `min_num_patches` asks for it. Pixels are neither rounded nor normalised again. The "
    "text around rows is `<img>`, the rows, `</img>`. `export` copies what is left out from the "
    "folder that the weights came from; without it, `transformers` begins the embedding of videos "
    "at random. Videos of shards are refused ([videos-not-read](errors/videos-not-read.md)).",
)
