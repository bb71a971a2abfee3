"""The encoder of Whisper.

Decides: what a configuration of Whisper means for its encoder, and the names and places of its
tensors in a folder.
Relies on: `config.json` as transformers 4 and 5 write it; defaults are those of its config class.
Leaves: comparing with a spec to `checks.init_from`, reading tensors to `checkpoint`.

Source: `transformers` 5.23, models/whisper; arXiv:2212.04356. Names are those inside the encoder.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import only, refusals
from mimo_launch.spec.audio import FRAMES_PER_TOKEN
from mimo_launch.spec.spec import AudioModel

WHISPER = "whisper"
# The decoder, and the layers after the encoder in models that classify sounds.
_BESIDE = (
    *("decoder.", "model.decoder.", "proj_out."),
    *("projector.", "classifier.", "layer_weights"),
)
_ENDS = {
    "conv1": "conv1",
    "conv2": "conv2",
    "positions": "embed_positions",
    "norm": "layer_norm",
}
_LAYERS = {
    "attention_norm": "self_attn_layer_norm",
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
    "attention.o": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}


# `scale_embedding` is of the decoder only.
NOT_COMPUTED = refusals(only("activation_function", "gelu"))
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def keys(config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`.

    Raises: ConfigError if a size is missing or is no number.
    """
    return {
        "layers": number(config, "encoder_layers"),
        "hidden": number(config, "d_model"),
        "heads": number(config, "encoder_attention_heads"),
        "mlp": number(config, "encoder_ffn_dim"),
        "mels": number(config, "num_mel_bins", 80),
        "frames": FRAMES_PER_TOKEN * number(config, "max_source_positions", 1500),
        # Its last norm is of tokens.
        "pooling": None,
    }


def place(name: str, model: AudioModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that Whisper does not have, such as those of the projector.
    """
    del model
    layer, _, kind = name.rpartition(".")
    if layer in _ENDS:
        return Place(f"{_ENDS[layer]}.{kind}")
    first, _, rest = layer.partition(".")
    index, _, part = rest.partition(".")
    if first != "layers":
        raise KeyError(name)
    return Place(f"layers.{index}.{_LAYERS[part]}.{kind}")


def is_ignored(name: str, model: AudioModel) -> bool:
    """Return whether a tensor of a file is left out by rule: none of the encoder is."""
    del name, model
    return False


def fits(model: AudioModel) -> bool:
    """Return whether our encoder is one of Whisper: all are, because they differ only in sizes."""
    del model
    return True


def config_of(model: AudioModel) -> Config:
    """Return the configuration of our encoder, as transformers 5 writes it.

    The settings of the decoder, which we do not have, keep their defaults.
    """
    return {
        "model_type": WHISPER,
        "encoder_layers": model.layers,
        "d_model": model.hidden,
        "encoder_attention_heads": model.heads,
        "encoder_ffn_dim": model.mlp_width,
        "num_mel_bins": model.mels,
        "max_source_positions": model.frames // FRAMES_PER_TOKEN,
        "activation_function": "gelu",
    }


ENCODER = Family(
    model_type=WHISPER,
    kind="audio",
    not_computed=NOT_COMPUTED,
    random=(*DROPOUTS, "encoder_layerdrop"),
    keys=keys,
    place=place,
    is_ignored=is_ignored,
    fits=fits,
    config=config_of,
    architecture="WhisperEncoder",
)


def part(config: Config, kind: str) -> Part[AudioModel]:
    """Return the encoder of a folder; the decoder is left out by rule. Raises: NoSuchPart."""
    if kind != "audio":
        raise NoSuchPart(f"model_type: {WHISPER}")
    return Part(
        family=ENCODER,
        config=config,
        prefixes=(("", ""), ("encoder.", ""), ("model.encoder.", "")),
        elsewhere=_BESIDE,
    )
