"""Qwen3-VL: a vision transformer that sends rows of several layers, and a Qwen3 with M-RoPE.

Source: `transformers` 5.23, models/qwen3_vl and models/qwen3_vl_moe.
"""

from dataclasses import replace

from mimo_launch.hugging_face import decoders, rotary
from mimo_launch.hugging_face.decoders import LAYERS
from mimo_launch.hugging_face.families.qwen import ROUTER
from mimo_launch.hugging_face.family import Family, Video
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.refusals import refusals, where
from mimo_launch.hugging_face.settings import Computed, Named, Settings
from mimo_launch.hugging_face.tensors import MLP, ExpertStack, in_layers
from mimo_launch.hugging_face.towers import (
    ACTIVATIONS,
    ALIASES,
    MERGER,
    MERGER_REST,
    NORM_EPS,
    ROPES,
    axial_refusals,
    merger_tensors,
    square_table,
)
from mimo_launch.hugging_face.wholes import VisionAndText

_ACTIVATION, _DEEP = "gelu_pytorch_tanh", "deepstack_visual_indexes"
_IMAGE, _NO_SQUARE = square_table("num_position_embeddings", 2304)
VISION_TENSORS = merger_tensors(
    {
        "patch": "patch_embed.proj",
        "positions": "pos_embed",
        "norm": "merger.norm",
        "projector.up": "merger.linear_fc1",
        "projector.down": "merger.linear_fc2",
    },
    {
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "attention.o": "attn.proj",
        "mlp.up": "mlp.linear_fc1",
        "mlp.down": "mlp.linear_fc2",
    },
    {"norm": "norm", "mlp.up": "linear_fc1", "mlp.down": "linear_fc2"},
)


def vision_family(model_type: str, architecture: str, deepstack: tuple[int, ...] = ()) -> Family:
    """Return the family of a tower; `deepstack` is the default of its class.

    If it is empty, its configuration has no such setting.
    """

    def is_out_of_order(config: Config) -> bool:
        layers = list(config.get(_DEEP, deepstack))
        return layers != [i for i in range(int(number(config, "depth", 27))) if i in layers]

    return Family(
        model_type=model_type,
        kind="vit",
        architecture=architecture,
        settings=Settings(
            {
                "layers": ("depth", 27),
                "hidden": ("hidden_size", 1152),
                "heads": ("num_heads", 16),
                "patch": ("patch_size", 16),
                "channels": ("in_channels", 3),
                "mlp": ("intermediate_size", 4304),
                "shuffle": ("spatial_merge_size", 2),
                "temporal_patch": ("temporal_patch_size", 2),
                "image": _IMAGE,
                "deepstack": Computed(
                    lambda config: tuple(config.get(_DEEP, deepstack)),
                    lambda model: {_DEEP: list(model.deepstack)} if deepstack else {},
                    f"`{_DEEP}`; {list(deepstack)}",
                ),
                "activation": Named("hidden_act", ACTIVATIONS, _ACTIVATION),
            },
            {"rope_parameters": ROPES},
            {
                **MERGER_REST, **MERGER, "positions": "learned+rope2d", "norm_eps": NORM_EPS,
                "interpolation": "bilinear",
            },
        ),
        tensors=VISION_TENSORS,
        refused=axial_refusals(ACTIVATIONS, _ACTIVATION)
        + refusals(
            _NO_SQUARE,
            where(_DEEP, "that are no layers in order", is_out_of_order, deepstack),
        ),
        random=(),
        aliases=ALIASES,
        row_width="out_hidden_size",
        video=Video("text"),
    )  # fmt: skip


_THETA = {"rope_theta": 5e5}
_MROPE = rotary.mrope((24, 20, 20), interleaved=True)
_VISION = vision_family("qwen3_vl_vision", "Qwen3VLVisionModel", (8, 16, 24))
QWEN3_VL = VisionAndText(
    model_type="qwen3_vl",
    architecture="Qwen3VLForConditionalGeneration",
    published=("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"),
    vision=_VISION,
    text=Family(
        model_type="qwen3_vl_text",
        kind="decoder",
        architecture="Qwen3VLTextModel",
        settings=decoders.decoder(
            decoders.sizes(kv_heads=32, head_size=128), qk_norm=True, **_MROPE
        ),
        tensors=decoders.TENSORS,
        refused=decoders.not_computed(),
        defaults=_THETA,
        prepared=rotary.plain_rope,
    ),
    nested=True,
    notes="`deepstack`: the rows of its first layer are added to the tokens of images after layer "
    "0 of language, those of the second one after layer 1, and so on; each has its own projector, "
    "which `frozen: except_projector` trains. Language needs more layers than the list has "
    "([deepstack-not-added](errors/deepstack-not-added.md)).",
)
_MOE = {
    "experts": decoders.count(60),
    "top_k": ("num_experts_per_tok", 4),
    "width": ("moe_intermediate_size", 1408),
    "every": ("decoder_sparse_step", 1),
    **decoders.DENSE_LAYERS,
}
QWEN3_VL_MOE = VisionAndText(
    model_type="qwen3_vl_moe",
    architecture="Qwen3VLMoeForConditionalGeneration",
    published=("Qwen/Qwen3-VL-30B-A3B-Instruct",),
    vision=replace(
        _VISION, model_type="qwen3_vl_moe_vision", architecture="Qwen3VLMoeVisionModel", rank=1
    ),
    text=Family(
        model_type="qwen3_vl_moe_text",
        kind="decoder",
        architecture="Qwen3VLMoeTextModel",
        settings=decoders.decoder(
            decoders.sizes(kv_heads=16), qk_norm=True, **_MROPE, moe=decoders.experts(_MOE)
        ).but({}, {"norm_topk_prob": True}),
        tensors=decoders.TENSORS
        | in_layers(
            LAYERS,
            ROUTER | {f"mlp.experts.*.{x}.weight": ExpertStack("mlp.experts", x) for x in MLP},
        ),
        refused=decoders.not_computed() + refusals(decoders.FIRST_DENSE),
        training=Settings(decoders.BALANCE),
        aliases=decoders.EXPERTS_ALIAS,
        defaults=_THETA,
        prepared=rotary.plain_rope,
    ),
    nested=True,
    notes="Weights of experts are always normalised. Versions before 5 wrote the stacked matrices "
    "of experts transposed; both are read, by their shape, and `export` writes today's form.",
)
