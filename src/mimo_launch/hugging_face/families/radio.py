"""RADIO, a vision transformer with registers; images take a part of its table of positions.

Names of tensors are as in NVIDIA's folders; transformers writes the same. Its input conditioner,
which normalises pixels, is a step of the image processor.

Sources: arXiv:2312.06709, arXiv:2412.07679; `transformers` 5.23, models/radio.
"""

from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import one_of, refusals, where
from mimo_launch.hugging_face.settings import Computed, Settings
from mimo_launch.hugging_face.tensors import (
    MLP,
    Dropped,
    Place,
    Tensors,
    fused_qkv,
    in_layers,
    positions,
)
from mimo_launch.hugging_face.towers import ACTIVATIONS, REST

PREFIX = "radio_model."
_GENERATOR = "model.patch_generator."
_HIDDEN, _RATIO, _PATCH = ("hidden_size", 1280), ("mlp_ratio", 4.0), ("patch_size", 16)
_LARGEST, _SCALE, _GATED = ("max_img_size", 2048), ("layerscale_value", 1.0), "use_swiglu_ffn"
_CLASS_TOKENS, _REGISTERS = ("num_cls_tokens", 3), ("num_registers", 7)
_UNGATED = {"up": "fc1", "down": "fc2"}


def _scale(number: int, _model: Any, _layer: int) -> Place:
    """`layer_scale1.lambda1` of attention, `layer_scale2.lambda1` of the MLP; 1 if missing."""
    return Place(f"layer_scale{number}.lambda1", optional=True)


def _mlp_layer(part: str, model: Any, _layer: int) -> Place:
    """`mlp.fc1`, `mlp.fc2`; gated ones `mlp.gate_proj`, `up_proj`, `down_proj`."""
    return Place(f"mlp.{part}_proj" if model.activation == "swiglu" else f"mlp.{_UNGATED[part]}")


def mlp_width(config: Config, hidden: int = _HIDDEN[1]) -> int:
    """Return the width of the MLPs that `mlp_ratio` says. Raises: ConfigError."""
    inner = int(number(config, _HIDDEN[0], hidden) * number(config, *_RATIO))
    # Gated MLPs have two thirds of the width, rounded up to a multiple of 8.
    return (int(inner * 2 / 3) + 7) // 8 * 8 if config.get(_GATED, False) else inner


def mlp_ratio(model: Any) -> Config:
    """Return `mlp_ratio` for MLPs of the width of ours."""
    is_gated, hidden = model.activation == "swiglu", model.hidden
    inner = (3 * model.mlp_width + 1) // 2 if is_gated else model.mlp_width
    ratio = inner / hidden
    # Its product with the width, rounded down, must be `inner` again.
    return {"mlp_ratio": ratio if int(ratio * hidden) == inner else (inner + 0.5) / hidden}


def _image(config: Config) -> tuple[int, int]:
    side = int(number(config, *_LARGEST) // max(1, number(config, *_PATCH)))
    return (side, side)


def activation(config: Config) -> str:
    """Return our activation."""
    said = str(config.get("hidden_act", "gelu"))
    return "swiglu" if config.get(_GATED, False) else ACTIVATIONS.get(said, "gelu")


def activation_as_written(model: Any) -> Config:
    """Return both settings of the activation."""
    words = (word for word, ours in ACTIVATIONS.items() if ours == model.activation)
    return {_GATED: model.activation == "swiglu", "hidden_act": next(words, "gelu")}


def _tokens(model: Any) -> Config:
    tokens = min(_CLASS_TOKENS[1], model.registers)
    return {
        _CLASS_TOKENS[0]: tokens,
        _REGISTERS[0]: model.registers - tokens,
        "summary_idxs": list(range(min(2, tokens))),
    }


RADIO = Family(
    model_type="radio",
    kind="vit",
    architecture="RadioModel",
    published=("nvidia/C-RADIOv4-H",),
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 32),
            "hidden": _HIDDEN,
            "heads": ("num_attention_heads", 16),
            "mlp": Computed(
                mlp_width, mlp_ratio,
                "`hidden_size` x `mlp_ratio` (4); gated two thirds of that, in steps of 8",
            ),
            "patch": _PATCH,
            "channels": ("num_channels", 3),
            "image": Computed(
                _image, lambda model: {_LARGEST[0]: model.image_side},
                "`max_img_size` / `patch_size`, rounded down, twice; 2048 pixels",
            ),
            "registers": Computed(
                lambda config: number(config, *_CLASS_TOKENS) + number(config, *_REGISTERS),
                _tokens, "`num_cls_tokens` + `num_registers`; 3 + 7",
            ),
            "qkv_bias": ("qkv_bias", True),
            "layer_scale": Computed(
                lambda config: float(number(config, *_SCALE)),
                lambda model: {_SCALE[0]: model.layer_scale or _SCALE[1]},
                "`layerscale_value`; 1",
            ),
            "norm_eps": ("layer_norm_eps", 1e-6),
            "activation": Computed(
                activation, activation_as_written, f"`hidden_act`; `swiglu` with `{_GATED}`"
            ),
        },
        rest={
            **REST, "positions": "learned", "interpolation": "cropped", "patch_bias": False,
            "final_norm": False,
        },
    ),
    tensors=Tensors(
        {
            "patch.weight": f"{_GENERATOR}embedder.weight",
            "registers.weight": f"{_GENERATOR}cls_token.token",
            "positions.weight": positions(f"{_GENERATOR}pos_embed"),
            **in_layers(
                "model.blocks.*.",
                {
                    "attention_norm": "norm1",
                    "mlp_norm": "norm2",
                    **fused_qkv("attn.qkv"),
                    "attention.o": "attn.proj",
                    **{f"mlp.{part}": partial(_mlp_layer, part) for part in MLP},
                    "attention_scale.weight": partial(_scale, 1),
                    "mlp_scale.weight": partial(_scale, 2),
                },
            ),
        },
        # Numbers of its input conditioner and of the summary; the embedding of videos.
        tuple(
            Dropped(f"{each}*")
            for each in ("input_conditioner.", "summary_idxs", f"{_GENERATOR}video_embedder.")
        ),
    ),
    refused=refusals(
        one_of("hidden_act", ACTIVATIONS, "gelu"),
        where(
            _LARGEST[0],
            "of no patch",
            lambda config: (
                (patch := number(config, *_PATCH)) < 1 or number(config, *_LARGEST) < patch
            ),
            _LARGEST[1],
        ),
    ),
    random=("attention_probs_dropout_prob", "drop_path_rate"),
    prefixes=((PREFIX, ""),),
    notes="The input conditioner (`norm_mean`, `norm_std`), which normalises pixels inside the "
    "model, is a step of the image processor here, after the folder's steps. Without "
    "`preprocessor_config.json` images keep their sizes, up to whole rows and `max_rows`. The "
    "summary of an image is not computed, and `video_temporal_patch_size` is not used; `export` "
    "copies what belongs to them. The RADIO of Megatron-LM's MIMO example is the same tower with "
    "`registers: 8`, `activation: gelu_tanh`, `final_norm: true` and no `layer_scale`; in training "
    "it reads the table at random places and scales unless `force_cpe_eval_mode` is set, which "
    "neither `transformers` nor we do.",
)  # fmt: skip
