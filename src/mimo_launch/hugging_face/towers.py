"""What vision towers share: keys, activations, projectors, and the towers of the Qwen-VL kind.

Decides: which keys of a tower a folder decides, our names of activations; what every tower with a
merger has.
Relies on: `config.json` as transformers 4 and 5 write it.
Leaves: the rest to one file per family.

Source: `transformers` 5.23.
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any

from mimo_launch.hugging_face.folder import Config, number, section
from mimo_launch.hugging_face.refusals import Refusal, Refusals, one_of, only, refusals, where
from mimo_launch.hugging_face.rotary import THETA
from mimo_launch.hugging_face.settings import Computed, Named, defaults_of
from mimo_launch.hugging_face.tensors import Dropped, Tensors, fused_qkv, in_layers, patches
from mimo_launch.spec.spec import VitModel

# Our activations by their names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
GATED = {"silu": "swiglu"}
# Other names of settings of the towers of the Qwen-VL kind.
ALIASES = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}
# Keys that a tower does not decide: the model around it, the shards, or the spec does.
_FREE = frozenset({
    "kind", "image", "final_norm", "video", "mlp", "shuffle", "projector", "projector_mlp",
    "projector_bias", "projector_activation", "projector_norm_eps", "projector_norm",
    "projector_norm_offset", "projector_norm_of", "pooling", "tiles",
})  # fmt: skip
REST = defaults_of(VitModel, but=_FREE)
# What a plain projector does not have.
PLAIN_PROJECTOR: dict[str, Any] = {
    "projector_norm_eps": None, "projector_bias": True, "projector_mlp": None, "pooling": None,
    "tiles": None,
}  # fmt: skip
# The norm after a merger's tower, and its projector.
MERGER: dict[str, Any] = {"final_norm": True, "projector": "merger", "projector_activation": "gelu"}
MERGER_REST = REST | PLAIN_PROJECTOR
NORM_EPS = 1e-6
ROPES = {"rope_type": "axial", "rope_theta": THETA}
_OF_PROJECTOR = "projector_hidden_act"
_PROJECTOR_ACTIVATION = Named(_OF_PROJECTOR, ACTIVATIONS, "gelu")
ACTIVATION_REFUSED = one_of(_OF_PROJECTOR, ACTIVATIONS, "gelu")
activation_of_projector = _PROJECTOR_ACTIVATION.read


def theirs_of_projector(model: Any) -> Any:
    """Return the name of the activation of our projector in transformers."""
    return _PROJECTOR_ACTIVATION.write("projector_activation", model)[_OF_PROJECTOR]


def square_table(key: str, usual: int) -> tuple[Computed, Refusal]:
    """Return the entry of a square table of positions with so many places, and its rule."""

    def side(config: Config) -> int:
        return isqrt(int(number(config, key, usual)))

    image = Computed(
        lambda config: (side(config), side(config)),
        lambda model: {key: min(model.image or (1, 1)) ** 2},
        f"the root of `{key}`, twice; {usual}",
    )
    return image, where(
        key,
        "that is no square",
        lambda config: side(config) ** 2 != int(number(config, key, usual)),
    )


def axial_refusals(activations: Mapping[str, str], default: str) -> Refusals:
    """Return the settings of a tower with rotary positions that our ViT does not compute."""
    # In `transformers` 5.24 `default` means this type for a tower as well.
    ropes = refusals(one_of("rope_type", ("axial", "default"), "axial"), only("rope_theta", THETA))
    return refusals(one_of("hidden_act", activations, default)) + ropes.after(_ropes)


def _ropes(config: Config) -> Config:
    return section(config, "rope_parameters")


def merger_tensors(
    ends: Mapping[str, Any], block: Mapping[str, str], deep: Mapping[str, str] | None = None
) -> Tensors:
    """Return the tensors of a tower with a merger, from its names of layers.

    `ends` are the layers around the blocks, `block` the layers inside each, `deep` the layers of
    each projector for a block before the last.
    """
    before = "deepstack_merger_list.*."
    return Tensors(
        {
            **ends,
            "patch.weight": patches("patch_embed.proj.weight", in_time=True),
            **in_layers("blocks.*.", {**block, **fused_qkv("attn.qkv")}),
            **{f"projector.deepstack.*.{x}": before + y for x, y in (deep or {}).items()},
        },
        (Dropped("*rotary_pos_emb.inv_freq"),),
    )
