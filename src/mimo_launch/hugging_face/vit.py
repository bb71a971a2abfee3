"""Vision transformers of SigLIP and CLIP, and the models that hold one beside a text encoder.

Decides: what their configurations mean, which settings our ViT cannot compute, and the names of its
tensors.
Relies on: `config.json` as transformers 4 and 5 write it; defaults are those of its config classes.
Leaves: the projector, which these models do not have, to `llava`.

Sources: arXiv:2303.15343, arXiv:2103.00020; `transformers` 5.23, models/siglip and models/clip.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimo_launch.hugging_face.family import Family, NoSuchPart, Part, Place
from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import Refusal, Refusals, one_of, refusals
from mimo_launch.spec.spec import VitModel

# Our activations by their names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
# Settings that other towers and projectors have.
PLAIN: dict[str, Any] = {
    "qkv_bias": True, "block_bias": True, "qk_norm": False, "layer_scale": None,
    "rope_frequencies": "shared", "patch_norm": False, "registers": 0,
}  # fmt: skip
PLAIN_PROJECTOR: dict[str, Any] = {
    "projector_norm_eps": None, "projector_bias": True, "projector_mlp": None, "pooling": None,
    "tiles": None,
}  # fmt: skip
# A table of positions, and nothing besides.
LEARNED: dict[str, Any] = {
    "temporal_patch": 1, "positions": "learned", "windows": None, "interpolation": "bicubic",
    "deepstack": (),
}  # fmt: skip


def theirs(activation: str) -> str:
    """Return the name of our activation in transformers; one that it has, where ours is another."""
    return next((name for name, ours in ACTIVATIONS.items() if ours == activation), "gelu")


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
IMAGE, HIDDEN, MLP, LAYERS, HEADS, CHANNELS = 224, 768, 3072, 12, 12, 3

_ENDS = {
    "patch.bias": "embeddings.patch_embedding.bias",
    "positions.weight": "embeddings.position_embedding.weight",
    "class_token.weight": "embeddings.class_embedding",
    **{f"pre_norm.{x}": f"pre_layrnorm.{x}" for x in ("weight", "bias")},
    **{f"norm.{x}": f"post_layernorm.{x}" for x in ("weight", "bias")},
}
_LAYERS = {
    "attention_norm": "layer_norm1",
    "mlp_norm": "layer_norm2",
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
    "attention.o": "self_attn.out_proj",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# Old versions of transformers saved the indices of the positions.
_NUMBERS = "embeddings.position_ids"
# The layers with which SigLIP pools the patches of an image.
_POOLING = "head."


def not_computed(kind: VitFamily) -> Refusals:
    """Return what our ViT does not compute of a tower's configuration."""
    return refusals(one_of("hidden_act", ACTIVATIONS, kind.activation))


def keys(kind: VitFamily, config: Config) -> dict[str, Any]:
    """Return a configuration as keys of `model`. Raises: ConfigError."""
    patch = number(config, "patch_size", kind.patch)
    side = int(number(config, "image_size", IMAGE) // max(1, patch))
    return {
        "layers": number(config, "num_hidden_layers", LAYERS),
        "hidden": number(config, "hidden_size", HIDDEN),
        "heads": number(config, "num_attention_heads", HEADS),
        "mlp": number(config, "intermediate_size", MLP),
        "patch": patch,
        "channels": number(config, "num_channels", CHANNELS),
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


def place(name: str, model: VitModel) -> Place:
    """Return the place of our tensor `name`, which is given without the module.

    Raises: KeyError for a name that a tower does not have.
    """
    if name == "patch.weight":
        sizes = (model.hidden, model.channels, model.patch, model.patch)
        return Place("embeddings.patch_embedding.weight", shape=sizes)
    if name in _ENDS:
        return Place(_ENDS[name])
    if not name.startswith("layers."):
        raise KeyError(name)
    _, index, rest = name.split(".", 2)
    layer, _, kind = rest.rpartition(".")
    return Place(f"encoder.layers.{index}.{_LAYERS[layer]}.{kind}")


def is_ignored(name: str, model: VitModel) -> bool:
    """Return whether a tensor is of a layer after the end of our ViT, or of the pooling."""
    layer = _LAYER.match(name)
    beyond = layer is not None and int(layer[1]) >= model.layers
    unused_norm = name.startswith("post_layernorm.") and not model.final_norm
    return beyond or unused_norm or name == _NUMBERS or name.startswith(_POOLING)


def fits(kind: VitFamily, model: VitModel) -> bool:
    """Return whether our ViT is a tower of this kind, on square images."""
    has = (model.class_token, model.pre_norm, not model.patch_bias)
    square = model.image is not None and model.image[0] == model.image[1]
    return has == (kind.class_token,) * 3 and model.positions == "learned" and square


def config_of(model_type: str, model: VitModel) -> Config:
    """Return the configuration of our tower, as transformers 5 writes it."""
    return {
        "model_type": model_type,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_width,
        "patch_size": model.patch,
        "image_size": model.image_side,
        "num_channels": model.channels,
        "layer_norm_eps": model.norm_eps,
        "hidden_act": theirs(model.activation),
        # Otherwise SigLIP would expect the weights of its pooling.
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
    )
    for name, kind in KINDS.items()
)
BY_TYPE = {family.model_type: family for family in FAMILIES}
# Tensors after the tower of CLIPVisionModelWithProjection, and beside the towers of SiglipModel and
# CLIPModel.
_BESIDE = ("visual_projection.", "text_projection.", "text_model.", "logit_scale", "logit_bias")


def tower(config: Config, kind: str) -> Part[VitModel]:
    """Return the tower of a folder that holds nothing else. Raises: NoSuchPart."""
    if kind != "vit":
        raise NoSuchPart(f"model_type: {config['model_type']}")
    return Part(
        family=BY_TYPE[config["model_type"]],
        config=config,
        prefixes=(("", ""), ("vision_model.", "")),
        elsewhere=_BESIDE,
        may_end_early=True,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """A SiglipModel or CLIPModel: a tower beside a text encoder, which we do not have."""

    model_type: str
    tower: Family[VitModel]
    refusals: Refusals
    architecture: str = ""

    @property
    def families(self) -> tuple[Family[Any], ...]:
        """The tower's."""
        return (self.tower,)

    def part(self, config: Config, kind: str) -> Part[VitModel]:
        """Return the vision tower. Raises: NoSuchPart."""
        # Old folders of CLIP describe the tower twice; only the second description is complete.
        said = "vision_config_dict" if config.get("vision_config_dict") else "vision_config"
        inner = {"model_type": self.tower.model_type, **section(config, said)}
        if kind != "vit" or inner["model_type"] not in BY_TYPE:
            raise NoSuchPart(f"model_type: {config['model_type']}")
        return Part(
            family=BY_TYPE[inner["model_type"]],
            config=inner,
            prefixes=(("vision_model.", ""),),
            elsewhere=_BESIDE,
            may_end_early=True,
        )


_TEXT_LEFT_OUT = refusals(Refusal("the text encoder (left out)", lambda _: iter(())))
PAIRS = tuple(
    Pair(whole, BY_TYPE[tower], _TEXT_LEFT_OUT)
    for whole, tower in (("siglip", SIGLIP), ("clip", CLIP))
)
# Folders of a tower that no language model follows.
ALONE = (SIGLIP, CLIP, *(each.model_type for each in PAIRS))
