"""Finds the parts of a folder.

Decides: the list of families, and which models hold several modules.
Relies on: one file per architecture.
Leaves: the meaning of their configurations to these files.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mimo_launch.hugging_face import (
    decoder,
    deepseek_v3,
    gemma2,
    gemma3,
    gemma3_text,
    glm,
    glm4_moe,
    glm4v,
    glm4v_moe,
    glm46v,
    gpt_oss,
    idefics3,
    intern_vit,
    internvl,
    kimi_k2,
    llava,
    llava_onevision,
    ministral3,
    mistral3,
    moe_decoder,
    nemotron_h,
    nemotron_h_omni,
    own_folders,
    pixtral,
    quantized,
    qwen2_5_omni,
    qwen2_5_omni_talker,
    qwen2_5_vl,
    qwen2_audio,
    qwen2_vl,
    qwen3_5,
    qwen3_next,
    qwen3_vl,
    qwen3_vl_moe,
    radio,
    vit,
    vit_pairs,
    voxtral,
    whisper,
)
from mimo_launch.hugging_face.family import Alone, Family, NoSuchPart, Part, Whole
from mimo_launch.hugging_face.folder import Config, short

# Whole models of a vision transformer with a merger and a language model with M-RoPE.
QWEN_VL = (
    qwen2_vl.WHOLE,
    qwen2_5_vl.WHOLE,
    qwen3_vl.WHOLE,
    qwen3_vl_moe.WHOLE,
    *qwen3_5.WHOLES,
    glm4v.WHOLE,
    glm4v_moe.WHOLE,
    glm46v.WHOLE,
)
# Whole models of a tower, a projector and a decoder.
WITH_TOWER = (
    llava.WHOLE,
    internvl.WHOLE,
    *idefics3.WHOLES,
    gemma3.WHOLE,
    mistral3.WHOLE,
    voxtral.WHOLE,
    qwen2_audio.WHOLE,
    llava_onevision.WHOLE,
    nemotron_h_omni.WHOLE,
)
_WHOLES: tuple[Whole, ...] = (*WITH_TOWER, *QWEN_VL, *qwen2_5_omni.WHOLES, *vit_pairs.PAIRS)
WHOLES = {each.model_type: each for each in _WHOLES}
_ALL: tuple[Family[Any], ...] = (
    *decoder.FAMILIES,
    *moe_decoder.FAMILIES,
    gemma2.TEXT,
    gemma3_text.TEXT,
    *glm.FAMILIES,
    ministral3.TEXT,
    gpt_oss.TEXT,
    deepseek_v3.TEXT,
    kimi_k2.TEXT,
    glm4_moe.TEXT,
    *vit.FAMILIES,
    *(each for whole in QWEN_VL for each in whole.families),
    intern_vit.VISION,
    radio.VISION,
    pixtral.VISION,
    *(whole.towers[f"{whole.model_type}_vision"] for whole in idefics3.WHOLES),
    qwen2_5_omni.TEXT,
    qwen2_5_omni.VISION,
    qwen2_5_omni_talker.TALKER,
    whisper.ENCODER,
    voxtral.AUDIO,
    qwen2_audio.AUDIO,
    nemotron_h.HYBRID,
    qwen3_next.HYBRID,
    *own_folders.FAMILIES,
)
FAMILIES = {each.model_type: each for each in _ALL}
# Models with special prefixes for a part, by `model_type`.
_ALONE: tuple[Alone[Any], ...] = (
    *vit.FOLDERS,
    radio.FOLDER,
    whisper.FOLDER,
    nemotron_h.FOLDER,
)
PARTS: dict[str, Callable[[Config, str], Part[Any]]] = {
    **{each.family.model_type: each.part for each in _ALONE},
    **{name: whole.part for name, whole in WHOLES.items()},
}
KINDS = ("vit", "audio", "decoder", "hybrid", *(each.kind for each in own_folders.FAMILIES))


def part_of(config: Config, kind: str) -> Part[Any]:
    """Return the part of a folder for a kind of module. Raises: NoSuchPart; ConfigError."""
    part = _part_of(config, kind)
    unread = (*quantized.refused(config), *quantized.refused(part.config))
    return replace(part, refused=(*part.refused, *dict.fromkeys(unread)))


def _part_of(config: Config, kind: str) -> Part[Any]:
    name = config.get("model_type")
    if isinstance(name, str) and name in PARTS:
        return PARTS[name](config, kind)
    family = family_of(config)
    if family is None or family.kind != kind:
        raise NoSuchPart(f"model_type: {name if isinstance(name, str) else short(name)}")
    return Part(family=family, config=config)


def parts_of(config: Config) -> list[Part[Any]]:
    """Return the parts of a folder that are our modules, encoders first. Raises: ConfigError."""
    found = []
    for kind in KINDS:
        try:
            found.append(part_of(config, kind))
        except NoSuchPart:
            continue
    return found


def family_of(config: Config) -> Family[Any] | None:
    """Return the family that a configuration names, or None if it is unknown."""
    name = config.get("model_type")
    return FAMILIES.get(name) if isinstance(name, str) else None


def model_types(kind: str) -> list[str]:
    """Return the `model_type`s of folders that hold a module of a kind."""
    names = [name for name, family in FAMILIES.items() if family.kind == kind]
    holds = [n for n, whole in WHOLES.items() if kind in {x.kind for x in whole.families}]
    return [*names, *holds]
