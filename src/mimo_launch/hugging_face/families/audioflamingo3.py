"""Audio Flamingo 3: the pooled encoder of Qwen2-Audio, a projector of two maps, and a Qwen2.

Sources: arXiv:2507.08128; `transformers` 5.24, models/audioflamingo3.
"""

from dataclasses import replace

from mimo_launch.hugging_face.families import llava
from mimo_launch.hugging_face.families.whisper import (
    QWEN2_AUDIO,
    QWEN2_AUDIO_ENCODER,
    VOXTRAL_ENCODER,
)
from mimo_launch.hugging_face.refusals import one_of, only, refusals
from mimo_launch.hugging_face.tensors import layers_at

_ACTIVATION, _BIAS = "projector_hidden_act", "projector_bias"
AUDIO_FLAMINGO3_ENCODER = replace(
    VOXTRAL_ENCODER,
    model_type="audioflamingo3_encoder",
    architecture="AudioFlamingo3Encoder",
    settings=replace(VOXTRAL_ENCODER.settings, rest=QWEN2_AUDIO_ENCODER.settings.rest),
    # This class drops layers; `scale_embedding` means nothing to it.
    random=(*VOXTRAL_ENCODER.random, "layerdrop"),
)
AUDIO_FLAMINGO3 = replace(
    QWEN2_AUDIO,
    model_type="audioflamingo3",
    architecture="AudioFlamingo3ForConditionalGeneration",
    published=("nvidia/audio-flamingo-3-hf",),
    towers=(AUDIO_FLAMINGO3_ENCODER,),
    projector=layers_at(llava.PROJECTOR_LAYERS),
    fixed={
        "unpadded": True,
        "projector": "mlp",
        "projector_mlp": None,
        "projector_bias": lambda config: bool(config.get(_BIAS, True)),
    },
    refusals=refusals(only(_ACTIVATION, "gelu"), one_of(_BIAS, (True, False), True)),
    token="audio_token_id",
    settings={_ACTIVATION: "gelu", _BIAS: lambda audio: audio.projector_bias},
    notes="As a Qwen2-Audio, with a projector of two maps. Its processor cuts a clip of more than "
    "30 s into windows; here such a clip is a bad sample. The output layer is never tied.",
)
