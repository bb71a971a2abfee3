"""The towers of SigLIP and CLIP, and whole models with a text encoder, which is left out.

Sources: arXiv:2303.15343, arXiv:2502.14786, arXiv:2103.00020; `transformers` 5.23,
models/siglip and models/clip; 5.24, models/siglip2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.family import Family, Prefixes
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.refusals import Refusals, left_out, one_of, refusals
from mimo_launch.hugging_face.settings import Computed, Fixed, Named, Settings
from mimo_launch.hugging_face.tensors import Beyond, Dropped, Place, Tensors, in_layers, patches
from mimo_launch.hugging_face.towers import ACTIVATIONS, REST, square_table
from mimo_launch.hugging_face.wholes import Models, Tokens

IMAGE = 224
# Tensors after the tower of CLIPVisionModelWithProjection, and beside the towers of SiglipModel and
# CLIPModel.
_BESIDE = ("visual_projection.", "text_projection.", "text_model.", "logit_scale", "logit_bias")
TENSORS = Tensors(
    {
        "patch.weight": patches("embeddings.patch_embedding.weight"),
        "patch.bias": "embeddings.patch_embedding.bias",
        "positions.weight": "embeddings.position_embedding.weight",
        "class_token.weight": "embeddings.class_embedding",
        "pre_norm": "pre_layrnorm",
        "norm": "post_layernorm",
        **in_layers(
            "encoder.layers.*.",
            {
                "attention_norm": "layer_norm1",
                "mlp_norm": "layer_norm2",
                **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
                "attention.o": "self_attn.out_proj",
                "mlp.up": "mlp.fc1",
                "mlp.down": "mlp.fc2",
            },
        ),
    },
    (
        Beyond("encoder.layers."),
        Dropped("post_layernorm.*", lambda model: not model.final_norm),
        # Indices of positions, which old versions of transformers saved; the pooling of a SigLIP.
        Dropped("embeddings.position_ids*"),
        Dropped("head.*"),
    ),
)


def table_of(patch: int) -> Callable[[Config], tuple[int, int]]:
    """Return what reads the sides of the table of positions; `patch` is the usual patch."""

    def image(config: Config) -> tuple[int, int]:
        side = int(
            number(config, "image_size", IMAGE) // max(1, number(config, "patch_size", patch))
        )
        return (side, side)

    return image


def settings(*, is_clip: bool, patch: int, activation: str, norm_eps: float) -> Settings:
    """Return the settings of a tower, with the defaults of its class."""
    return Settings(
        {
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 12),
            "mlp": ("intermediate_size", 3072),
            "patch": ("patch_size", patch),
            "channels": ("num_channels", 3),
            "positions": Fixed("learned"),
            "image": Computed(
                table_of(patch),
                lambda model: {"image_size": model.image_side},
                f"`image_size` / `patch_size`, rounded down, twice; {IMAGE} pixels",
            ),
            "class_token": Fixed(is_clip),
            "patch_bias": Fixed(not is_clip),
            "pre_norm": Fixed(is_clip),
            "norm_eps": ("layer_norm_eps", norm_eps),
            "activation": Named("hidden_act", ACTIVATIONS, activation),
        },
        rest=REST,
    )


_OF_SIGLIP = settings(is_clip=False, patch=16, activation="gelu_pytorch_tanh", norm_eps=1e-6)
SIGLIP = Family(
    model_type="siglip_vision_model",
    kind="vit",
    architecture="SiglipVisionModel",
    # Otherwise SigLIP would expect weights for its pooling.
    settings=_OF_SIGLIP.but({}, {"vision_use_head": False}),
    tensors=TENSORS,
    refused=refusals(one_of("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh")),
    prefixes=(("", ""), ("vision_model.", "")),
    elsewhere=_BESIDE,
    may_end_early=True,
)
CLIP = Family(
    model_type="clip_vision_model",
    kind="vit",
    architecture="CLIPVisionModel",
    settings=settings(is_clip=True, patch=32, activation="quick_gelu", norm_eps=1e-5),
    tensors=TENSORS,
    refused=refusals(one_of("hidden_act", ACTIVATIONS, "quick_gelu")),
    norms_patches=False,
    prefixes=(("", ""), ("vision_model.", "")),
    elsewhere=_BESIDE,
    may_end_early=True,
    notes="A folder of a tower alone has no projector, so ours keeps its initial values. A module "
    "may take only its first layers, and `final_norm` is free. A class token attends like a patch, "
    "but becomes no row. Images of another size than `image` interpolate the table of positions, "
    "as `interpolate_pos_encoding` does; a remainder of pixels at the lower and right edge is cut "
    "off.",
)


def alternating(model: Any) -> Place:
    """`embeddings.patch_embedding.weight`, in which channels alternate."""
    return Place("embeddings.patch_embedding.weight", channels=model.channels)


TABLE, NO_SQUARE = square_table("num_patches", 256)
SIGLIP2 = replace(
    SIGLIP,
    model_type="siglip2_vision_model",
    architecture="Siglip2VisionModel",
    settings=replace(
        _OF_SIGLIP.but({"image": TABLE}, {"vision_use_head": False}),
        rest={**_OF_SIGLIP.rest, "interpolation": "averaged", "final_norm": True},
    ),
    tensors=TENSORS | {"patch.weight": alternating},
    refused=refusals(one_of("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"), NO_SQUARE),
    may_end_early=False,
    notes="The SigLIP 2 that keeps the sides of images (NaFlex).",
)
TOWERS = {family.model_type: family for family in (SIGLIP, CLIP)}


_NO_TEXT = refusals(left_out("the text encoder"))


@frozen(kw_only=True)
class TowerAndText:
    """A SiglipModel or CLIPModel: a tower beside a text encoder, which we do not have."""

    model_type: str
    tower: Family
    published: tuple[str, ...]
    refusals: Refusals = _NO_TEXT
    architecture: str = ""
    rank: int = 0
    notes: str = ""

    @property
    def families(self) -> tuple[Family, ...]:
        """The family of the tower."""
        return (self.tower,)

    @property
    def names(self) -> tuple[Prefixes, ...]:
        """The prefixes of the tower."""
        return ((("vision_model.", ""),),)

    def made_of(self, _models: Models, _tokens: Tokens) -> None:
        """Return None: no such model is written."""

    def part(self, config: Config, kind: str) -> Part:
        """Return the vision tower. Raises: NoSuchPart."""
        # Old folders of CLIP describe the tower twice; only the second description is complete.
        said = "vision_config_dict" if config.get("vision_config_dict") else "vision_config"
        inner = {"model_type": self.tower.model_type, **section(config, said)}
        if kind != "vit" or inner["model_type"] not in TOWERS:
            raise NoSuchPart(f"model_type: {config['model_type']}")
        return Part(
            family=TOWERS[inner["model_type"]],
            config=inner,
            prefixes=self.names[0],
            elsewhere=_BESIDE,
            may_end_early=True,
        )


SIGLIP_PAIR = TowerAndText(
    model_type="siglip", tower=SIGLIP, published=("google/siglip-base-patch16-224",)
)
CLIP_PAIR = TowerAndText(model_type="clip", tower=CLIP, published=("openai/clip-vit-base-patch32",))
# Types of folders with a tower but no language model.
ALONE = (*TOWERS, SIGLIP_PAIR.model_type, CLIP_PAIR.model_type)
