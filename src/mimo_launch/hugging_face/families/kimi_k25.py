"""Kimi K2.5: a MoonViT whose neighbours in heads rotate, a merger, and a DeepSeek-V3.

Source: `transformers` 5.24, models/kimi_k25 and the names of its conversion_mapping.py;
arXiv:2504.07491.
"""

from mimo_launch.hugging_face import towers
from mimo_launch.hugging_face.families import deepseek_v3, internvl
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import number
from mimo_launch.hugging_face.refusals import NOTHING, refusals
from mimo_launch.hugging_face.settings import Computed, Named, Settings
from mimo_launch.hugging_face.tensors import (
    Reshaped,
    Tensors,
    fused_qkv,
    in_layers,
    layers_at,
    patches,
)
from mimo_launch.hugging_face.wholes import TowerAndDecoder, tied_by_default

_TANH, _PROJECTOR, _KERNEL = "gelu_pytorch_tanh", "mm_projector.", "merge_kernel_size"
_TALL, _WIDE, _EPS = "pos_emb_height", "pos_emb_width", "projection_layer_norm_eps"
MOON_VIT = Family(
    model_type="kimi_k25_vision",
    kind="vit",
    architecture="Kimi_K25VisionModel",
    settings=Settings(
        {
            "layers": ("num_hidden_layers", 27),
            "hidden": ("hidden_size", 1152),
            "heads": ("num_attention_heads", 16),
            "mlp": ("intermediate_size", 4304),
            "patch": ("patch_size", 14),
            "image": Computed(
                lambda config: (int(number(config, _TALL, 64)), int(number(config, _WIDE, 64))),
                lambda model: dict(zip((_TALL, _WIDE), model.image or (1, 1), strict=True)),
                f"`{_TALL}`, `{_WIDE}`; 64",
            ),
            "shuffle": Computed(
                lambda config: internvl.side_of(config, _KERNEL, 2),
                lambda model: {_KERNEL: [model.shuffle] * 2},
                f"`{_KERNEL}`, once or twice; 2",
            ),
            "activation": Named("hidden_act", towers.ACTIVATIONS, _TANH),
        },
        {"rope_parameters": towers.ROPES},
        {
            **towers.REST, "channels": 3, "positions": "learned+rope2d", "interpolation": "bicubic",
            "rope_frequencies": "alternating", "norm_eps": 1e-5,
        },
    ),
    tensors=Tensors(
        {
            "patch.weight": patches("patch_embed.proj.weight"),
            "patch.bias": "patch_embed.proj.bias",
            "positions.weight": Reshaped(
                "patch_embed.pos_emb.weight", lambda x: (*(x.image or (1, 1)), x.hidden), grid=True
            ),
            "norm": "final_layernorm",
            **in_layers(
                "blocks.*.",
                {
                    "attention_norm": "norm0",
                    "mlp_norm": "norm1",
                    **fused_qkv("wqkv"),
                    "attention.o": "wo",
                    "mlp.up": "mlp.fc0",
                    "mlp.down": "mlp.fc1",
                },
            ),
        }
    ),
    refused=towers.axial_refusals(towers.ACTIVATIONS, _TANH)
    + refusals(internvl.no_square(_KERNEL)),
    random=(),
)  # fmt: skip


KIMI_K25 = TowerAndDecoder(
    model_type="kimi_k25",
    architecture="Kimi_K25ForConditionalGeneration",
    published=("moonshotai/Kimi-K2.6",),
    towers=(MOON_VIT,),
    text=(deepseek_v3.DEEPSEEK_V3, deepseek_v3.KIMI_K2),
    tower_names=(
        ("vision_tower.patch_embed.", "patch_embed."),
        ("vision_tower.encoder.", ""),
        (_PROJECTOR, _PROJECTOR),
        (f"model.{_PROJECTOR}", _PROJECTOR),
    ),
    text_names=(
        ("language_model.model.layers.", "model.layers."),
        # As `transformers` writes layers.
        ("language_model.model.blocks.", "model.layers."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    projector=layers_at({
        f"projector.{ours}": f"{_PROJECTOR}{its}"
        for ours, its in (("norm", "pre_norm"), ("up", "proj.0"), ("down", "proj.2"))
    }),
    fixed={
        **towers.MERGER, **towers.PLAIN_PROJECTOR, "projector_norm": "layer",
        "projector_norm_of": "patch",
        "projector_norm_eps": lambda config: number(config, _EPS, 1e-5),
    },
    refusals=NOTHING,
    tied=tied_by_default(True),
    token="image_token_id",
    settings={
        "projection_hidden_size": lambda vision: vision.hidden,
        _EPS: lambda vision: vision.projector_norm_eps,
    },
    notes="Images keep their sides. Videos are not read: `transformers` takes the mean of the "
    "patches of four frames. Tensors have the names of the published folders.",
)  # fmt: skip
