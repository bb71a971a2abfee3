"""Settings of folders that change numbers at random in training are refused, and no others."""

import re
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import AutoModel
from transformers.models.emu3.modeling_emu3 import Emu3TextModel
from transformers.models.ovis2.modeling_ovis2 import Ovis2VisionModel
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import (
    Phi4MultimodalAudioModel,
    Phi4MultimodalVisionModel,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from mimo_launch.hugging_face.registry import FAMILIES, part_of

RANDOM = re.compile("drop|jitter")
# A place is stretched by a factor of up to this; all others are probabilities.
VALUES = {"pos_embed_jitter": 1.5}
DECODER = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
AUDIO = {
    "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "num_mel_bins": 4, "max_source_positions": 4,
}  # fmt: skip
VOXTRAL = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_mel_bins": 4, "max_source_positions": 4,
}  # fmt: skip
PICTURE = {"pixel_values": torch.linspace(-1, 1, 192).view(1, 3, 8, 8)}
PLACED_PICTURE = {
    "pixel_values": torch.linspace(0, 1, 192).view(1, 4, 48),
    "pixel_position_ids": torch.tensor([[[0, 0], [1, 0], [0, 1], [1, 1]]]),
}
CLIP = {"input_features": torch.linspace(-1, 1, 32).view(1, 4, 8)}
TEXT = {"input_ids": torch.arange(1, 9)[None]}
SIZES = {
    **dict.fromkeys(
        (
            "llama", "qwen2", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
            "helium", "cwm", "phi3",
        ),
        ({**DECODER, "pad_token_id": None}, TEXT),
    ),
    # These have dropout by default.
    "emu3_text_model": ({**DECODER, "attention_dropout": 0.0}, TEXT),
    "seed_oss": ({**DECODER, "attention_dropout": 0.0, "residual_dropout": 0.0}, TEXT),
    "mixtral": ({**DECODER, "num_local_experts": 2}, TEXT),
    **dict.fromkeys(("siglip_vision_model", "clip_vision_model"), (VISION, PICTURE)),
    **dict.fromkeys(
        ("dinov2", "dinov2_with_registers", "aimv2_vision_model"),
        ({**VISION, "mlp_ratio": 2}, PICTURE),
    ),
    # Of which the places of patches are stretched at random by default.
    "dinov3_vit": ({**VISION, "pos_embed_rescale": None}, PICTURE),
    "gemma4_vision": (
        {**VISION, "head_dim": 8, "num_key_value_heads": 2, "pooling_kernel_size": 2},
        PLACED_PICTURE,
    ),
    "internvl_vision": ({**VISION, "image_size": [8, 8], "patch_size": [4, 4]}, PICTURE),
    "qianfan_ocr_vision": (
        {**VISION, "image_size": [8, 8], "patch_size": [4, 4], "drop_path_rate": 0.0}, PICTURE,
    ),
    "phi4_multimodal_vision": ({**VISION, "image_size": 8, "crop_size": 8}, PICTURE),
    "radio": (
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
         "max_img_size": 8},
        PICTURE,
    ),
    "qwen3_asr_encoder": (
        {**AUDIO, "num_mel_bins": 8, "n_window": 50, "downsample_hidden_size": 2},
        {
            "input_features": torch.linspace(-1, 1, 800).view(1, 8, 100),
            "input_features_mask": torch.ones(1, 100, dtype=torch.long),
        },
    ),
    "ovis2_vision": ({**VISION, "vocab_size": 16}, PICTURE),
    "parakeet_encoder": (
        {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_mel_bins": 8,
            "num_attention_heads": 2, "subsampling_conv_channels": 2, "dropout": 0.0,
            "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
        },
        {"input_features": torch.linspace(-1, 1, 320).view(1, 40, 8)},
    ),
    "phi4_multimodal_audio": (
        {
            "hidden_size": 16, "intermediate_size": 16, "num_blocks": 2, "input_size": 8,
            "num_attention_heads": 2, "ext_pw_out_channel": 16, "nemo_conv_channels": 16,
            "depthwise_separable_out_channel": 16,
        },
        {"hidden_states": torch.linspace(-1, 1, 320).view(1, 40, 8)},
    ),
    "whisper": (AUDIO, CLIP),
    "qwen2_audio_encoder": (AUDIO, CLIP),
    "voxtral_encoder": (VOXTRAL, CLIP),
    "audioflamingo3_encoder": (VOXTRAL, CLIP | {"input_features_mask": torch.ones(1, 8)}),
}  # fmt: skip


class Hearing(Phi4MultimodalAudioModel):  # type: ignore[misc]
    """The tower of a Phi-4, with its states under the name that others give them."""

    def forward(self, hidden_states: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=super().forward(hidden_states, None))


# No `AutoModel` makes these.
BUILT: dict[str, Any] = {
    "whisper": WhisperEncoder, "emu3_text_model": Emu3TextModel, "ovis2_vision": Ovis2VisionModel,
    "phi4_multimodal_vision": Phi4MultimodalVisionModel, "phi4_multimodal_audio": Hearing,
}  # fmt: skip


def changes(model_type: str, setting: str) -> bool:
    """Return whether a model of transformers trains on other numbers in each of some forwards."""
    sizes, given = SIZES[model_type]
    config = CONFIG_MAPPING[model_type](
        **{**sizes, setting: VALUES.get(setting, 0.5)}, attn_implementation="eager"
    )
    torch.manual_seed(1)
    build = BUILT.get(model_type, AutoModel.from_config)
    model = build(config).train()
    with torch.no_grad():
        found = [model(**given).last_hidden_state for _ in range(12)]
    return any(not torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("model_type", SIZES)
def test_what_changes_training_at_random_is_refused(model_type: str) -> None:
    """By name and value, and 0 is not; a setting of another part, or of none, changes nothing."""
    sizes, _ = SIZES[model_type]
    plain = CONFIG_MAPPING[model_type](**sizes).to_dict()
    kind = FAMILIES[model_type].kind
    settings = [key for key in plain if RANDOM.search(key)]
    assert settings
    for key in settings:
        value = VALUES.get(key, 0.5)
        found = part_of({**plain, key: value}, kind).not_computed()
        assert (f"{key}: {value}" in found) == changes(model_type, key), key
        assert not [each for each in part_of(plain, kind).not_computed() if key in each]


def test_one_setting_may_be_two_dropouts() -> None:
    """A module that asks for one of them would train without the other."""
    for said, rate in (({"attention_dropout": 0.2}, 0.2), ({}, 0.1)):
        found = part_of({"model_type": "emu3", "text_config": said}, "decoder").not_computed()
        assert found == (f"residual_dropout: {rate}", f"attention_dropout: {rate}")
