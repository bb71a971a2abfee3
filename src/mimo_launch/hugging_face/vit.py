"""Vision transformers of SigLIP and CLIP.

Decides: what their configurations mean, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `config.json` as transformers 4 and 5 write it, with the defaults of its config classes.
Leaves: the projector, which these models do not have, to `llava`; models that also hold a text
encoder to `vit_pairs`.

Sources: arXiv:2303.15343, arXiv:2103.00020; `transformers` 5.23, models/siglip and models/clip.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Alone, Family
from mimo_launch.hugging_face.folder import Config, number
from mimo_launch.hugging_face.names import Names, in_layers, is_behind, patches
from mimo_launch.hugging_face.refusals import Refusals, one_of, refusals
from mimo_launch.hugging_face.settings import ACTIVATIONS, LEARNED, PLAIN, Settings, theirs
from mimo_launch.spec.spec import VitModel


@dataclass(frozen=True, slots=True)
class VitFamily:
    """The optional parts of a tower, and the defaults of its configuration."""

    class_token: bool
    patch: int
    activation: str
    norm_eps: float
    architecture: str


SIGLIP, CLIP = "siglip_vision_model", "clip_vision_model"
KINDS = {
    SIGLIP: VitFamily(False, 16, "gelu_pytorch_tanh", 1e-6, "SiglipVisionModel"),
    CLIP: VitFamily(True, 32, "quick_gelu", 1e-5, "CLIPVisionModel"),
}
IMAGE, LAYERS = 224, 12
_SIZES = Settings({
    "layers": ("num_hidden_layers", LAYERS), "hidden": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12), "mlp": ("intermediate_size", 3072),
    "patch": "patch_size", "channels": ("num_channels", 3),
})  # fmt: skip
place = Names(
    {
        "patch.weight": patches("embeddings.patch_embedding.weight"),
        "patch.bias": "embeddings.patch_embedding.bias",
        "positions.weight": "embeddings.position_embedding.weight",
        "class_token.weight": "embeddings.class_embedding",
        "pre_norm": "pre_layrnorm",
        "norm": "post_layernorm",
    }
) | in_layers(
    "encoder.layers.*.",
    {
        "attention_norm": "layer_norm1",
        "mlp_norm": "layer_norm2",
        **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        "attention.o": "self_attn.out_proj",
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    },
)
# Indices of positions, which old versions of transformers saved, and the pooling of a SigLIP.
_UNUSED = ("embeddings.position_ids", "head.")


def not_computed(kind: VitFamily) -> Refusals:
    """Return the settings of a tower that our ViT does not compute."""
    return refusals(one_of("hidden_act", ACTIVATIONS, kind.activation))


def keys(kind: VitFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    found = _SIZES.keys(config, patch=kind.patch)
    side = int(number(config, "image_size", IMAGE) // max(1, found["patch"]))
    return {
        **found,
        "norm": "layer",
        **LEARNED,
        "image": (side, side),
        **PLAIN,
        "class_token": kind.class_token,
        "patch_bias": not kind.class_token,
        "pre_norm": kind.class_token,
        "norm_eps": number(config, "layer_norm_eps", kind.norm_eps),
        "activation": ACTIVATIONS[config.get("hidden_act", kind.activation)],
    }


def is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor is of a layer after our ViT's last one, or of the pooling."""
    unused_norm = name.startswith("post_layernorm.") and not model.final_norm
    is_beyond = is_behind(name, "encoder.layers.", model.layers)
    return is_beyond or unused_norm or name.startswith(_UNUSED)


def fits(kind: VitFamily, model: VitModel) -> bool:
    """Return whether our ViT is a tower of this kind, on square images."""
    has = (model.class_token, model.pre_norm, not model.patch_bias)
    square = model.image is not None and model.image[0] == model.image[1]
    return has == (kind.class_token,) * 3 and model.positions == "learned" and square


def config_of(model_type: str, model: VitModel) -> Config:
    """Return the configuration of our tower, as transformers 5 writes it."""
    return {
        "model_type": model_type,
        **_SIZES.config(model),
        "image_size": model.image_side,
        "layer_norm_eps": model.norm_eps,
        "hidden_act": theirs(model.activation),
        # Otherwise SigLIP would expect weights for its pooling.
        **({"vision_use_head": False} if model_type == SIGLIP else {}),
    }


FAMILIES = tuple(
    Family(
        model_type=name,
        kind="vit",
        not_computed=not_computed(kind),
        keys=partial(keys, kind),
        place=place,
        is_ignored=is_ignored,
        fits=partial(fits, kind),
        config=partial(config_of, name),
        architecture=kind.architecture,
        norms_patches=name != CLIP,
    )
    for name, kind in KINDS.items()
)
BY_TYPE = {family.model_type: family for family in FAMILIES}
# Tensors after the tower of CLIPVisionModelWithProjection, and beside the towers of SiglipModel and
# CLIPModel.
BESIDE = ("visual_projection.", "text_projection.", "text_model.", "logit_scale", "logit_bias")
FOLDERS = tuple(
    Alone(family, (("", ""), ("vision_model.", "")), BESIDE, may_end_early=True)
    for family in FAMILIES
)
# Types of folders with a tower but no language model.
ALONE = (SIGLIP, CLIP, "siglip", "clip")
