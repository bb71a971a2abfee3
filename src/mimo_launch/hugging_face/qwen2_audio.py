"""Qwen2-Audio: the encoder of Whisper with a row for the mean of two tokens, and a Qwen2.

Decides: that tokens of silence are left out, what the settings of the whole mean, and the names of
the parts.
Relies on: `whole_models`; `whisper` for the encoder, `decoder` for the text part; `voxtral`
and `llava` for the names of the parts, which are the same.
Leaves: counting the rows of a clip to `data`.

Sources: arXiv:2407.10759; `transformers` 5.23, models/qwen2_audio.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoder, llava, voxtral, whisper
from mimo_launch.hugging_face.family import Family, layers_at
from mimo_launch.hugging_face.refusals import refusals
from mimo_launch.hugging_face.whole_models import TowerAndDecoder
from mimo_launch.spec.spec import AudioModel

_ENCODER = "qwen2_audio_encoder"
# The defaults of its configuration class.
_SIZES = {
    "encoder_layers": 32, "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
}  # fmt: skip


_SETTINGS = replace(
    whisper.SETTINGS,
    besides={**whisper.SETTINGS.besides, "stack": 2, "pooling": "mean"},
    written={**whisper.SETTINGS.written, "model_type": _ENCODER},
)


AUDIO: Family[AudioModel] = replace(
    whisper.ENCODER,
    model_type=_ENCODER,
    keys=lambda config: _SETTINGS.keys(_SIZES | config),
    config=_SETTINGS.config,
    architecture="Qwen2AudioEncoder",
)


QWEN2 = next(each for each in decoder.FAMILIES if each.model_type == "qwen2")
WHOLE = TowerAndDecoder(
    model_type="qwen2_audio",
    architecture="Qwen2AudioForConditionalGeneration",
    kind="audio",
    section="audio_config",
    towers={_ENCODER: AUDIO},
    text={QWEN2.model_type: QWEN2},
    tower_names=voxtral.AUDIO_NAMES,
    text_names=llava.TEXT_NAMES,
    projector=layers_at({"projector.linear": f"{voxtral.PROJECTOR}linear"}),
    fixed={"unpadded": True, "projector": "linear", "projector_bias": True},
    refusals=refusals(),
    # Its class ties nothing, whatever the configuration says.
    tied=lambda *_: False,
    token="audio_token_index",
)
