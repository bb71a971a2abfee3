"""The vision transformers of DINOv3, for images of any size.

Sources: arXiv:2508.10104; `transformers` 5.24, models/dinov3_vit.
"""

from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.refusals import Refusal, only, refusals, where
from mimo_launch.hugging_face.settings import Computed, Fixed, Settings
from mimo_launch.hugging_face.tensors import (
    MLP,
    Beyond,
    Dropped,
    Reshaped,
    Tensors,
    in_layers,
    patches,
)
from mimo_launch.hugging_face.towers import ACTIVATIONS, GATED, REST

_GATED, _WORD = "use_gated_mlp", ("hidden_act", "gelu")


def _activation(config: Config) -> str | None:
    """Return our activation, None if we have none."""
    words = GATED if config.get(_GATED, False) else ACTIVATIONS
    return words.get(str(config.get(*_WORD)))


def _activation_as_written(model: Any) -> Config:
    words = {ours: word for word, ours in (ACTIVATIONS | GATED).items()}
    return {_GATED: model.activation in GATED.values(), _WORD[0]: words[model.activation]}


def _biases(ours: str, *theirs: str) -> Computed:
    """Return one of our keys for several settings, which must be equal."""
    return Computed(
        lambda config: bool(config.get(theirs[0], True)),
        lambda model: dict.fromkeys(theirs, getattr(model, ours)),
        f"{' and '.join(f'`{each}`' for each in theirs)}; true",
    )


def _unlike(other: str, first: str) -> Refusal:
    return where(
        other,
        f"other than `{first}`",
        lambda config: bool(config.get(other, True) != config.get(first, True)),
        default=True,
    )


DINOV3 = Family(
    model_type="dinov3_vit",
    kind="dinov3",
    architecture="DINOv3ViTModel",
    published=("facebook/dinov3-vitb16-pretrain-lvd1689m",),
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 384),
            "heads": ("num_attention_heads", 6),
            "mlp": ("intermediate_size", 1536),
            "patch": ("patch_size", 16),
            "channels": ("num_channels", 3),
            "class_token": Fixed(True),
            "registers": ("num_register_tokens", 0),
            "rope_theta": ("rope_theta", 100.0),
            "qkv_bias": _biases("qkv_bias", "query_bias", "value_bias"),
            "block_bias": _biases("block_bias", "proj_bias", "mlp_bias"),
            "layer_scale": ("layerscale_value", 1.0),
            "norm_eps": ("layer_norm_eps", 1e-5),
            "activation": Computed(
                _activation, _activation_as_written, f"`hidden_act`; `swiglu` with `{_GATED}`"
            ),
        },
        rest={**REST, "positions": "rope2d"},
    ),
    tensors=Tensors(
        {
            "patch.weight": patches("embeddings.patch_embeddings.weight"),
            "patch.bias": "embeddings.patch_embeddings.bias",
            "class_token.weight": Reshaped("embeddings.cls_token", lambda x: (1, 1, x.hidden)),
            "registers.weight": Reshaped(
                "embeddings.register_tokens", lambda x: (1, x.registers, x.hidden)
            ),
            "norm": "norm",
            **in_layers(
                "layer.*.",
                {
                    "attention_norm": "norm1",
                    "mlp_norm": "norm2",
                    **{f"attention.{x}": f"attention.{x}_proj" for x in "qkvo"},
                    **{f"mlp.{x}": f"mlp.{x}_proj" for x in MLP},
                    "attention_scale.weight": "layer_scale1.lambda1",
                    "mlp_scale.weight": "layer_scale2.lambda1",
                },
            ),
        },
        (
            Beyond("layer."),
            Dropped("norm.*", lambda model: not model.final_norm),
            # Pretraining uses the mask token. A model with 0 registers still has a tensor of them.
            Dropped("embeddings.mask_token"),
            Dropped("embeddings.register_tokens", lambda model: not model.registers),
        ),
    ),
    refused=refusals(
        where(
            _WORD[0],
            "other than `gelu`, `gelu_pytorch_tanh` and `quick_gelu`, or `silu` with a gate",
            lambda config: _activation(config) is None,
            _WORD[1],
        ),
        only("key_bias", False),
        _unlike("value_bias", "query_bias"),
        _unlike("mlp_bias", "proj_bias"),
    ),
    random=("attention_dropout", "drop_path_rate", "pos_embed_shift", "pos_embed_jitter"),
    may_end_early=True,
    notes="A folder has no projector, so ours keeps its initial values. A module may take only the "
    "first layers, and `final_norm` is free. Images have any size. In training, `transformers` "
    "stretches the places of all patches at random (`pos_embed_rescale`); we do not. Class token "
    "and registers become no rows.",
)  # fmt: skip
