"""The encoder of Whisper.

Decides: what a configuration of Whisper means for its encoder, and the names and places of its
tensors in a folder.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config class.
Leaves: comparing with a spec to `checks.init_from_folder`, reading tensors to `checkpoint`.

Source: `transformers` 5.23, models/whisper; arXiv:2212.04356. Names are those inside the encoder.
"""

from mimo_launch.hugging_face.family import Alone, Family
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.names import Names, in_layers
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.spec.media import FRAMES_PER_TOKEN

WHISPER = "whisper"
# The decoder, and the layers after the encoder in models that classify sounds.
_BESIDE = (
    *("decoder.", "model.decoder.", "proj_out."),
    *("projector.", "classifier.", "layer_weights"),
)
# Settings of the decoder, which we do not have, keep their defaults.
SETTINGS = Settings(
    {
        "layers": "encoder_layers",
        "hidden": "d_model",
        "heads": "encoder_attention_heads",
        "mlp": "encoder_ffn_dim",
        "mels": ("num_mel_bins", 80),
    },
    besides={
        "frames": lambda config: FRAMES_PER_TOKEN * number(config, "max_source_positions", 1500),
        # Its last norm applies to tokens.
        "pooling": None,
    },
    written={
        "model_type": WHISPER,
        "max_source_positions": lambda model: model.frames // FRAMES_PER_TOKEN,
        "activation_function": "gelu",
    },
)
_NAMES = Names(
    {"conv1": "conv1", "conv2": "conv2", "positions": "embed_positions", "norm": "layer_norm"}
) | in_layers(
    "layers.*.",
    {
        "attention_norm": "self_attn_layer_norm",
        **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        "attention.o": "self_attn.out_proj",
        "mlp_norm": "final_layer_norm",
        "mlp.up": "fc1",
        "mlp.down": "fc2",
    },
)
# `scale_embedding` applies to the decoder only.
NOT_COMPUTED = refusals(only("activation_function", "gelu"))
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


ENCODER = Family(
    model_type=WHISPER,
    kind="audio",
    not_computed=NOT_COMPUTED,
    random=(*DROPOUTS, "encoder_layerdrop"),
    keys=SETTINGS.keys,
    place=_NAMES,
    is_ignored=lambda *_: False,
    config=SETTINGS.config,
    architecture="WhisperEncoder",
)
FOLDER = Alone(ENCODER, (("", ""), ("encoder.", ""), ("model.encoder.", "")), _BESIDE)
