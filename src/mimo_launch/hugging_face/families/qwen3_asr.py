"""Qwen3-ASR: the audio encoder of Qwen3-Omni, its two maps outside of the tower, and a Qwen3.

Source: `transformers` 5.24, models/qwen3_asr.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llava, qwen, qwen3_omni
from mimo_launch.hugging_face.families.whisper import QWEN2_AUDIO
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.tensors import Tensors, layers_at
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default, width_refused

_TABLE, _TOKENS = "max_position_embeddings", 13
_PROJECTOR = "multi_modal_projector."
_THEIRS = qwen3_omni.AUDIO
QWEN3_ASR_ENCODER = replace(
    _THEIRS,
    model_type="qwen3_asr_encoder",
    architecture="Qwen3ASREncoder",
    tensors=Tensors(
        {ours: x for ours, x in _THEIRS.tensors.table.items() if not ours.startswith("projector.")}
    ),
    refused=_THEIRS.refused
    + refusals(
        where(
            _TABLE,
            f"of less than the {_TOKENS} tokens of a chunk",
            lambda config: number(config, _TABLE, _TOKENS) < _TOKENS,
        )
    ),
    defaults={
        "encoder_layers": 24, "d_model": 1024, "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "num_mel_bins": 128, "output_dim": 3584,
    },
)  # fmt: skip
# The defaults of its configuration class.
_TEXT = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
QWEN3_ASR = TowerAndDecoder(
    model_type="qwen3_asr",
    architecture="Qwen3ASRForConditionalGeneration",
    published=("Qwen/Qwen3-ASR-1.7B-hf",),
    section=QWEN2_AUDIO.section,
    towers=(QWEN3_ASR_ENCODER,),
    text=(qwen.QWEN3,),
    tower_names=(("model.audio_tower.", ""), (f"model.{_PROJECTOR}", _PROJECTOR)),
    text_names=llava.TEXT_NAMES[2:],
    projector=layers_at(llava.PROJECTOR_LAYERS),
    fixed={},
    refusals=refusals(width_refused(QWEN3_ASR_ENCODER, QWEN2_AUDIO.section, _TEXT)),
    tied=tied_by_default(True),
    token="audio_token_id",
    text_defaults=_TEXT,
    notes="A clip is computed as `transformers` computes it alone. Its processor pads clips of "
    "less than half a second with silence to that; here they keep their length. The head that "
    "aligns words with times (`Qwen3ASRForTokenClassification`) is not read.",
)
