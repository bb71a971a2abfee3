"""The names of the tensors of a Qwen3.5's text part.

Decides: the places of our segments: files fuse queries, keys and values of a Gated DeltaNet, and
may stack the experts of a layer, as in memory; transformers writes each expert separately.
Relies on: `decoder` for embedding, last norm and head.
Leaves: the configuration to `qwen3_5`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from mimo_launch.hugging_face import decoder
from mimo_launch.hugging_face.family import Place, rows_of, stacked_expert
from mimo_launch.spec.spec import DeltaNetSizes, HybridModel

_LAYERS = {
    **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"attention.{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{f"deltanet.{x}": f"linear_attn.in_proj_{x}" for x in "zab"},
    "deltanet.norm": "linear_attn.norm",
    "deltanet.out": "linear_attn.out_proj",
    **{f"mlp.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    "moe.router": "mlp.gate",
    **{f"moe.shared.{x}": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
    "moe.shared_gate": "mlp.shared_expert_gate",
}
_HEADS = {f"deltanet.{x}": f"linear_attn.{x}" for x in ("A_log", "dt_bias")}
_EXPERT = re.compile(r"moe\.experts\.(\d+)\.(gate|up|down)\.weight")
# Multi-token prediction, which transformers leaves out.
FURTHER_TOKENS = "mtp."
_DEPTH = {
    "token_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "project": "fc",
    "norm": "norm",
    "block.attention_norm": "layers.0.input_layernorm",
    "block.mlp_norm": "layers.0.post_attention_layernorm",
}
_BLOCK = "mtp.0.block."
_DELTANET = re.compile(r"deltanet\.(conv\.)?([qkv])")


def place(name: str, model: HybridModel) -> Place:
    """Return the place of our tensor `name`, which excludes the module.

    Raises: KeyError for a name that a Qwen3.5 does not have.
    """
    if not name.startswith("layers."):
        return Place(decoder.ENDS[name])
    _, number, inner = name.split(".", 2)
    # Two of our layers form one layer in the files.
    index, is_second = divmod(int(number), 2)
    if inner == "norm.weight":
        norm = "post_attention" if is_second else "input"
        return Place(f"model.layers.{index}.{norm}_layernorm.weight")
    found = _in_layer(inner, model)
    return replace(found, name=f"model.layers.{index}.{found.name}")


def depth_place(name: str, model: HybridModel) -> Place | None:
    """Return the place of a tensor of multi-token prediction; files hold one depth.

    Raises: KeyError for a name that it does not have.
    """
    if not name.startswith("mtp.0."):
        return None
    layer, _, kind = name.removeprefix("mtp.0.").rpartition(".")
    if layer in _DEPTH:
        return Place(f"{FURTHER_TOKENS}{_DEPTH[layer]}.{kind}")
    found = _in_layer(_as_mixer(name.removeprefix(_BLOCK), model), model)
    return replace(found, name=f"{FURTHER_TOKENS}layers.0.{found.name}")


def _as_mixer(inner: str, model: HybridModel) -> str:
    """Return the name of a block's tensor as if it were of a separate layer."""
    return re.sub(r"^mlp\.", "moe.", inner) if model.moe is not None else inner


def _in_layer(name: str, model: HybridModel) -> Place:
    """Return the place of a tensor of a layer, by its name in the layer. Raises: KeyError."""
    layer, _, kind = name.rpartition(".")
    if name in _HEADS:
        return Place(_HEADS[name])
    if (part := _DELTANET.fullmatch(layer)) and model.deltanet is not None:
        return _fused(part[2], model.deltanet, is_convolution=part[1] is not None)
    if expert := _EXPERT.fullmatch(name):
        return Place(f"mlp.experts.{expert[1]}.{expert[2]}_proj.weight")
    return Place(f"{_LAYERS[layer]}.{kind}")


def _fused(part: str, sizes: DeltaNetSizes, *, is_convolution: bool) -> Place:
    """Return the place of the weights that make or convolve queries, keys or values."""
    fused: Mapping[str, int] = {"q": sizes.shared, "k": sizes.shared, "v": sizes.inner}
    first, rows = rows_of(fused, part)
    if not is_convolution:
        return Place("linear_attn.in_proj_qkv.weight", first, rows)
    shape = (sum(fused.values()), 1, sizes.conv)
    return Place("linear_attn.conv1d.weight", first, rows, shape)


def stacked(name: str, model: HybridModel) -> Place | None:
    """Return the place of an expert's weight in files with two stacked tensors per layer."""
    layer = f"{FURTHER_TOKENS}layers.0"
    inner = _as_mixer(name.removeprefix(_BLOCK), model)
    if not name.startswith(_BLOCK) and (of_layer := re.match(r"layers\.(\d+)\.", name)):
        layer, inner = f"model.layers.{int(of_layer[1]) // 2}", name[of_layer.end() :]
    expert = _EXPERT.fullmatch(inner)
    if expert is None or model.moe is None:
        return None
    number, part = int(expert[1]), expert[2]
    return stacked_expert(f"{layer}.mlp.experts", number, part, model.moe, model.hidden)


def is_ignored(name: str, model: HybridModel) -> bool:
    """Return whether a tensor of a file follows from others, or is left out by rule."""
    if name.startswith(FURTHER_TOKENS):
        return model.mtp is None
    return model.tied and name == decoder.HEAD
