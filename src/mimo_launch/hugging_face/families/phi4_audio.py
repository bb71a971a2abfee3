"""The audio tower of a Phi-4 multimodal: a conformer whose layers share one table of distances.

Sources: arXiv:2503.01743, section 2; `transformers` 5.24, models/phi4_multimodal.
"""

from collections.abc import Callable

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import one_of, only, refusals, where
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import Entry, Reshaped, Rows, Tensors, in_layers

_WIDTH = ("hidden_size", 1024)
# Two widths inside of convolutions, which differ in no published folder.
_CHANNELS = ("ext_pw_out_channel", "depthwise_separable_out_channel")
_ACTIVATIONS = ("activation", "conv_activation", "conv_glu_type")


def _halves(ours: str, name: str, first: str, second: str, *, conv: bool) -> dict[str, Entry]:
    """Return the places of two maps that a file stacks by rows, with their biases."""
    found: dict[str, Entry] = {}
    for index, each in enumerate((first, second)):
        for kind in ("weight", "bias"):
            is_wide = conv and kind == "weight"
            found[f"{ours}.{each}.{kind}"] = Rows(
                f"{name}.{kind}",
                index,
                lambda model: [model.hidden if conv else model.mlp_width] * 2,
                (lambda model: (2 * model.hidden, model.hidden, 1)) if is_wide else None,
            )
    return found


def _wide(name: str) -> Reshaped:
    """Return the place of a map that a file holds as a convolution of one token."""
    return Reshaped(name, lambda model: (model.hidden, model.hidden, 1))


_MLPS: dict[str, Entry] = {}
for _ours, _theirs in (("first_mlp", "feed_forward_in"), ("mlp", "feed_forward_out")):
    _MLPS |= _halves(_ours, f"{_theirs}.gate_up_proj", "up", "gate", conv=False)
    _MLPS[f"{_ours}.down"] = f"{_theirs}.down_proj"
_CONVOLUTION: dict[str, Entry] = {
    **_halves("conv", "conv.glu.ext_pw_conv_1d", "value", "gate", conv=True),
    "conv.shift.value": Reshaped("conv.glu.b1", lambda model: (1, model.hidden, 1)),
    "conv.shift.gate": Reshaped("conv.glu.b2", lambda model: (1, model.hidden, 1)),
    "conv.depthwise.weight": Reshaped(
        "conv.dw_sep_conv_1d.dw_conv.weight", lambda model: (model.hidden, 1, model.kernel)
    ),
    "conv.depthwise.bias": "conv.dw_sep_conv_1d.dw_conv.bias",
    "conv.mixed.weight": _wide("conv.dw_sep_conv_1d.pw_conv.weight"),
    "conv.mixed.bias": "conv.dw_sep_conv_1d.pw_conv.bias",
    "conv.out.weight": _wide("conv.ext_pw_conv_1d.weight"),
    "conv.out.bias": "conv.ext_pw_conv_1d.bias",
}


def _unlike(key: str) -> Callable[[Config], bool]:
    return lambda config: config.get(key, _WIDTH[1]) != config.get(*_WIDTH)


PHI4_AUDIO = Family(
    model_type="phi4_multimodal_audio",
    kind="conformer",
    architecture="Phi4MultimodalAudioModel",
    settings=Settings(
        {
            "layers": ("num_blocks", 24),
            "hidden": _WIDTH,
            "heads": ("num_attention_heads", 16),
            "mlp": ("intermediate_size", 1536),
            "kernel": ("kernel_size", 3),
            "channels": ("nemo_conv_channels", 1024),
            "mels": ("input_size", 80),
            "distance_bias": ("bias_max_distance", 1000),
        },
        {
            **{key: (lambda model: model.hidden) for key in _CHANNELS},
            **dict.fromkeys(_ACTIVATIONS, "swish"),
            "nemo_activation": "relu", "time_reduction": 8, "chunk_size": -1,
            "depthwise_multiplier": 1, "bias_symmetric": False, "downsample_rate": 1,
        },
        rest={
            "gated": True, "causal": True, "sound": "phi4", "scale_input": False, "bias": True,
            "conv_bias": True,
        },
    ),
    tensors=Tensors(
        {
            "bands.mean": "encoder_embedding.global_mean",
            "bands.over_deviation": "encoder_embedding.global_invstd",
            **{
                ours: f"embed.conv.{number}"
                for ours, number in (
                    ("conv1", 0), ("conv2", 2), ("map2", 3), ("conv3", 5), ("map3", 6),
                )
            },
            "joined": "embed.out",
            "distances": "relative_attention_bias_layer.bias_values",
            **in_layers(
                "encoders.*.",
                {
                    "first_norm": "feed_forward_in.layer_norm",
                    "attention_norm": "layer_norm_att",
                    "conv_norm": "conv.layer_norm",
                    "mlp_norm": "feed_forward_out.layer_norm",
                    "norm": "layer_norm",
                    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
                    **_MLPS,
                    **_CONVOLUTION,
                },
            ),
        }
    ),
    refused=refusals(
        *(one_of(key, ("swish", "silu"), "swish") for key in _ACTIVATIONS),
        only("nemo_activation", "relu"),
        only("time_reduction", 8),
        only("chunk_size", -1),
        only("depthwise_multiplier", 1),
        only("bias_symmetric", False),
        only("downsample_rate", 1),
        *(where(key, "other than `hidden_size`", _unlike(key)) for key in _CHANNELS),
    ),
    random=("dropout_rate",),
    defaults={"audio_token_id": 200011},
    notes="A clip is computed as `transformers` computes it alone: in a batch, its attention "
    "does not hide the padding after a shorter clip. Clips of more than 4000 frames, which it "
    "cuts into parts, are refused.",
)  # fmt: skip
