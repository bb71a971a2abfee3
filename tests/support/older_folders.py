"""Folders as other versions of `transformers` wrote them: another form of the same weights.

`OLDER` names the family, what its `config.json` and its tensors become, and settings of the spec.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]


def same(found: Any) -> Any:
    """Return what is the same in all versions."""
    return found


def renamed(name_of: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    """Return a change of all names."""
    return lambda held: {name_of(name): each for name, each in held.items()}


def of_version_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions before 5 wrote it."""
    both = config.pop("rope_parameters")
    full = both["full_attention"]
    theta = {"rope_theta": full.pop("rope_theta"), "rope_scaling": full}
    del config["layer_types"]
    local = {"rope_local_base_freq": both["sliding_attention"]["rope_theta"]}
    return {**config, **theta, **local, "sliding_window_pattern": 2}


def of_one_that_sees(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a Gemma 3 with a vision tower."""
    return {"model_type": "gemma3", "vision_config": {}, "text_config": config}


def beside_a_tower(name_of: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    """Return a change of names, with tensors of a tower and of its projector."""
    more = ("vision_tower.vision_model.post_layernorm", "multi_modal_projector.mm_soft_emb_norm")
    return lambda held: renamed(name_of)(held) | {f"{x}.weight": torch.ones(4) for x in more}


def glm_of_version_4(config: Config) -> Config:
    """Return a GLM-4 as versions before 5 wrote it."""
    rope = config.pop("rope_parameters")
    return config | {key: rope[key] for key in ("rope_theta", "partial_rotary_factor")}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions before 4.52 wrote it."""
    vision, text = config.pop("vision_config"), config.pop("text_config")
    rope = text.pop("rope_parameters")
    if config["model_type"] == "qwen2_vl":
        vision["in_chans"] = vision.pop("in_channels")
    for key in ("model_type", "rope_parameters"):
        del vision[key]
    theirs = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    return {
        **text, **config, "vision_config": vision, "rope_theta": rope["rope_theta"],
        "rope_scaling": theirs,
    }  # fmt: skip


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as versions from 4.52 to 5 wrote it."""
    text, tied = config["text_config"], config.pop("tie_word_embeddings")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "type": "default"}}
    config["vision_config"]["model_type"] = config["model_type"]
    del config["vision_config"]["rope_parameters"]
    return {**config, "text_config": {**text, "tie_word_embeddings": tied}}


def of_version_4_52(name: str) -> str:
    """Return what versions from 4.52 to 5 called a tensor."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


def stacked(tensors: Tensors) -> Tensors:
    """Return tensors in which the experts of a layer stand in two, as in memory."""
    found, experts = {}, re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := experts.fullmatch(name):
            parts.setdefault(match[1], {})[f"{match[2]}.{match[3]}"] = tensor
        else:
            found[name] = tensor
    for name, each in parts.items():
        numbers = range(len(each) // 3)
        found[f"{name}.down_proj"] = torch.stack([each[f"{i}.down"] for i in numbers])
        both = [torch.cat([each[f"{i}.gate"], each[f"{i}.up"]]) for i in numbers]
        found[f"{name}.gate_up_proj"] = torch.stack(both)
    return found


def as_loaded(name: str) -> str:
    """Return what a tensor of a Cosmos 3 Edge is called in a model, and maybe in other folders."""
    name = re.sub(r"\.to_([qkv])\.", r".\1_proj.", name).replace(".to_out.", ".o_proj.")
    return name.replace("mlp.up_proj.", "mlp.fc1.").replace("mlp.down_proj.", "mlp.fc2.")


def transposed(held: Tensors) -> Tensors:
    """Return experts as older versions stored them."""
    return {k: x.mT.contiguous() if "mlp.experts." in k else x for k, x in held.items()}


_SEES = {"model": {"bidirectional_images": True}}
_TIED = {"language": {"tied": True}}


def with_angles(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the angles of a Llama 4's tower, which are complex and not read."""
    angles = torch.zeros(17, 1, 4, dtype=torch.complex64)
    return held | {"vision_model.rotary_embedding.freqs_ci": angles}


OLDER: dict[str, tuple[str, Any, Any, dict[str, Any], bool]] = {
    "llama4 with angles": ("llama4, seeing", same, with_angles, {}, True),
    "gemma3 of version 4": ("gemma3_text", of_version_4, same, {}, True),
    "gemma3 with a tower": (
        "gemma3_text",
        of_one_that_sees,
        beside_a_tower(lambda name: name.replace("model.", "model.language_model.", 1)),
        _SEES,
        False,
    ),
    "gemma3 with a tower, version 4": (
        "gemma3_text",
        lambda config: of_one_that_sees(of_version_4(config)),
        beside_a_tower(lambda name: f"language_model.{name}"),
        _SEES,
        True,
    ),
    "shieldgemma2 as published": (
        "gemma3, seeing",
        lambda config: config | {"model_type": "shieldgemma2"},
        renamed(lambda name: f"model.{name}"),
        {},
        True,
    ),
    "shieldgemma2 of transformers 5": (
        "gemma3, seeing",
        lambda config: config | {"model_type": "shieldgemma2"},
        renamed(lambda name: f"model.model.{name}"),
        {},
        False,
    ),
    "glm4 of version 4": ("glm4", glm_of_version_4, same, {}, True),
    "qwen2_vl before 4.52": ("qwen2_vl, tied", flat, same, _TIED, True),
    "qwen2_vl of 4.52": ("qwen2_vl, tied", nested, renamed(of_version_4_52), _TIED, True),
    "qwen2_5_vl before 4.52": ("qwen2_5_vl, tied", flat, same, _TIED, True),
    "qwen3_vl_moe, transposed experts": ("qwen3_vl_moe", same, transposed, {}, False),
    "cosmos3_edge, names of a loaded model": (
        "cosmos3_edge",
        same,
        renamed(as_loaded),
        {},
        False,
    ),
    "qwen3_5_moe, experts in one tensor": ("qwen3_5_moe", same, stacked, {}, False),
}
