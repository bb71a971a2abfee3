"""The FastConformer encoder of Parakeet, alone or before what makes text of its tokens.

Sources: arXiv:2305.05084; `transformers` 5.24, models/parakeet.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.nested import Nested, NestedWhole
from mimo_launch.hugging_face.refusals import left_out, only, refusals
from mimo_launch.hugging_face.settings import Settings
from mimo_launch.hugging_face.tensors import Dropped, Entry, Reshaped, Rows, Tensors, in_layers


def _square(model: Any) -> tuple[int, int, int]:
    return model.hidden, model.hidden, 1


def _half(number: int, kind: str) -> Rows:
    """Return half of the rows of the first convolution of a block: channels, then gates."""
    return Rows(
        f"conv.pointwise_conv1.{kind}",
        number,
        lambda model: [model.hidden] * 2,
        (lambda model: (2 * model.hidden, model.hidden, 1)) if kind == "weight" else None,
    )


_NORMS = {
    "first_norm": "norm_feed_forward1",
    "attention_norm": "norm_self_att",
    "conv_norm": "norm_conv",
    "mlp_norm": "norm_feed_forward2",
    "norm": "norm_out",
}
_MLPS = {
    f"{ours}.{each}": f"{theirs}.linear{number}"
    for ours, theirs in (("first_mlp", "feed_forward1"), ("mlp", "feed_forward2"))
    for number, each in enumerate(("up", "down"), 1)
}
_CONVOLUTION: dict[str, Entry] = {
    **{
        f"conv.{ours}.{kind}": _half(number, kind)
        for number, ours in enumerate(("value", "gate"))
        for kind in ("weight", "bias")
    },
    "conv.depthwise.weight": Reshaped(
        "conv.depthwise_conv.weight", lambda model: (model.hidden, 1, model.kernel)
    ),
    "conv.depthwise.bias": "conv.depthwise_conv.bias",
    "conv.norm.weight": "conv.norm.weight",
    "conv.norm.bias": "conv.norm.bias",
    "conv.norm.mean": "conv.norm.running_mean",
    "conv.norm.variance": "conv.norm.running_var",
    "conv.out.weight": Reshaped("conv.pointwise_conv2.weight", _square),
    "conv.out.bias": "conv.pointwise_conv2.bias",
}
_SUBSAMPLING = {
    "conv1": "subsampling.layers.0",
    "conv2": "subsampling.layers.2",
    "map2": "subsampling.layers.3",
    "conv3": "subsampling.layers.5",
    "map3": "subsampling.layers.6",
    "joined": "subsampling.linear",
}
PARAKEET = Family(
    model_type="parakeet_encoder",
    kind="conformer",
    architecture="ParakeetEncoder",
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 24),
            "hidden": ("hidden_size", 1024),
            "heads": ("num_attention_heads", 8),
            "mlp": ("intermediate_size", 4096),
            "bias": ("attention_bias", True),
            "conv_bias": ("convolution_bias", True),
            "kernel": ("conv_kernel_size", 9),
            "channels": ("subsampling_conv_channels", 256),
            "mels": ("num_mel_bins", 80),
            "scale_input": ("scale_input", True),
        },
        {
            "hidden_act": "silu",
            "subsampling_factor": 8,
            "subsampling_conv_kernel_size": 3,
            "subsampling_conv_stride": 2,
        },
    ),
    tensors=Tensors(
        {
            **_SUBSAMPLING,
            **in_layers(
                "layers.*.",
                {
                    **_NORMS,
                    **_MLPS,
                    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
                    "attention.distances": "self_attn.relative_k_proj",
                    **{f"attention.bias_{x}": f"self_attn.bias_{x}" for x in "uv"},
                    **_CONVOLUTION,
                },
            ),
        },
        (Dropped("layers.*.conv.norm.num_batches_tracked"),),
    ),
    refused=refusals(
        only("hidden_act", "silu"),
        only("subsampling_factor", 8),
        only("subsampling_conv_kernel_size", 3),
        only("subsampling_conv_stride", 2),
    ),
    defaults={
        "dropout": 0.1, "layerdrop": 0.1, "activation_dropout": 0.1, "attention_dropout": 0.1,
    },
    random=(
        *("dropout", "dropout_positions", "layerdrop"),
        *("activation_dropout", "attention_dropout"),
    ),
    notes="Norms of convolutions use their stored statistics, as `transformers` does in "
    "evaluation: those of a batch would depend on the layout.",
)  # fmt: skip


def _whole(model_type: str, what: str, *prefixes: str) -> NestedWhole:
    """Return a model of which the encoder alone is read; `what` is behind `prefixes`."""
    return NestedWhole(
        model_type=model_type,
        architecture="",
        parts=(Nested(family=PARAKEET, where=("encoder_config",), prefixes=(("encoder.", ""),)),),
        refusals=refusals(left_out(what)),
        left_out=prefixes,
        notes="Its encoder is read as a tower for language, and written alone, as a "
        "`parakeet_encoder`.",
    )


_TRANSDUCER = ("encoder_projector.", "decoder.", "joint.")
PARAKEET_CTC = _whole("parakeet_ctc", "the map to letters (CTC)", "ctc_head.")
PARAKEET_RNNT = _whole("parakeet_rnnt", "the transducer that makes text", *_TRANSDUCER)
PARAKEET_TDT = _whole("parakeet_tdt", "the transducer that makes text", *_TRANSDUCER)
