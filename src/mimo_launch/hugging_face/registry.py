"""Finds the parts of a folder.

Decides: the list of families, and which models hold several modules.
Relies on: one file per architecture.
Leaves: the meaning of their configurations to these files.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mimo_launch.hugging_face import (
    decoder,
    gemma3,
    idefics3,
    intern_vit,
    internvl,
    llava,
    moe_decoder,
    nemotron_h,
    own_folders,
    qwen2_5_omni,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    vit,
    whisper,
)
from mimo_launch.hugging_face.family import Family, NoSuchPart, Part
from mimo_launch.hugging_face.folder import Config, short

# Whole models of a vision transformer with a merger and a decoder with M-RoPE.
QWEN_VL = (qwen2_vl.WHOLE, qwen2_5_vl.WHOLE, qwen3_vl.WHOLE)
# Those of a tower, a projector and a decoder.
SEEING = (llava.WHOLE, internvl.WHOLE, *idefics3.WHOLES)
_ALL: tuple[Family[Any], ...] = (
    *decoder.FAMILIES,
    *moe_decoder.FAMILIES,
    gemma3.TEXT,
    *vit.FAMILIES,
    *(each for whole in QWEN_VL for each in whole.families),
    intern_vit.VISION,
    *(whole.vision[f"{whole.model_type}_vision"] for whole in idefics3.WHOLES),
    qwen2_5_omni.TEXT,
    qwen2_5_omni.VISION,
    qwen2_5_omni.TALKER,
    whisper.ENCODER,
    nemotron_h.HYBRID,
    *own_folders.FAMILIES,
)
FAMILIES = {each.model_type: each for each in _ALL}
# Models with prefixes of their own for a part, by `model_type`.
PARTS: dict[str, Callable[[Config, str], Part[Any]]] = {
    vit.SIGLIP: vit.tower,
    vit.CLIP: vit.tower,
    "siglip": partial(vit.tower_of_pair, vit.SIGLIP),
    "clip": partial(vit.tower_of_pair, vit.CLIP),
    **{whole.model_type: whole.part for whole in (*SEEING, *QWEN_VL)},
    gemma3.MODEL_TYPE: gemma3.part,
    qwen2_5_omni.MODEL_TYPE: qwen2_5_omni.part,
    qwen2_5_omni.THINKER_TYPE: qwen2_5_omni.part,
    whisper.WHISPER: whisper.part,
    nemotron_h.NEMOTRON_H: nemotron_h.part,
}
KINDS = ("vit", "audio", "decoder", "hybrid", *(each.kind for each in own_folders.FAMILIES))


def part_of(config: Config, kind: str) -> Part[Any]:
    """Return the part of a folder that is a module of a kind. Raises: NoSuchPart; ConfigError."""
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


def parts_not_read(config: Config) -> list[tuple[str, list[str]]]:
    """Return the parts of a folder that are no module of ours. Raises: ConfigError.

    Each is a setting, such as `text_config.model_type: gemma`, with the model types that we read.
    """
    name, found = config.get("model_type"), []
    own = f"model_type: {name if isinstance(name, str) else short(name)}"
    for kind in KINDS:
        try:
            part_of(config, kind)
        except NoSuchPart as error:
            if error.setting != own:
                whole = next((each for each in SEEING if each.model_type == name), None)
                types = [x.model_type for x in _ALL if x.kind == kind]
                found.append((error.setting, types if whole is None else whole.types(kind)))
    if not found and not parts_of(config):
        ours = {each.model_type for each in own_folders.FAMILIES}
        known = (name for name in dict.fromkeys([*FAMILIES, *PARTS]) if name not in ours)
        found.append((own, list(known)))
    return found


def family_of(config: Config) -> Family[Any] | None:
    """Return the family that a configuration names, None if it is unknown."""
    name = config.get("model_type")
    return FAMILIES.get(name) if isinstance(name, str) else None


def model_types(kind: str) -> list[str]:
    """Return the `model_type`s of folders that hold a module of a kind."""
    omni = qwen2_5_omni.MODEL_TYPE, qwen2_5_omni.THINKER_TYPE
    both = (*(whole.model_type for whole in (*SEEING, *QWEN_VL)), *omni)
    text = (*both, gemma3.MODEL_TYPE)
    whole = {"vit": ("siglip", "clip", *both), "decoder": text, "talker": omni[:1]}
    names = [name for name, family in FAMILIES.items() if family.kind == kind]
    return [*names, *whole.get(kind, ())]
