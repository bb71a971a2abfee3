"""Says which parts of a folder are not read as our modules, and which types come nearest.

Decides: the words: the type, the types most like it, and which parts are read.
Relies on: `registry` for what is read.
Leaves: the list of all types to `families_page`.
"""

from collections.abc import Iterator

from mimo_launch.hugging_face.families import own
from mimo_launch.hugging_face.folder import Config, short
from mimo_launch.hugging_face.part import NoSuchPart
from mimo_launch.hugging_face.registry import FAMILIES, KINDS, WHOLES, part_of, parts_of
from mimo_launch.spec.module import MODELS
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.spec import AudioModel, LanguageModel, VitModel
from mimo_launch.spec.wording import listing

_NAMES = {VitModel: "vision", AudioModel: "audio", LanguageModel: "language"}
# The name of a module that is read from a folder, by its kind.
NAMES = {
    kind: name
    for base, name in _NAMES.items()
    for kind, model in MODELS.items()
    if issubclass(model, base)
}
# Types with their own code in the folder, and the type of the same model, or of its language.
_OWN_CODE = {
    "internvl_chat": "internvl",
    "llava_llama": "llava",
    "llava_qwen": "llava_onevision",
    "kimi_vl": "deepseek_v3",
    "phi4mm": "phi4_multimodal",
}
_LIKE = 3
_ALL = "`mimo-launch inspect --families` lists all types"


def not_read(config: Config) -> list[str]:
    """Return what is not read as our modules, one line each. Raises: ConfigError.

    A line begins with a setting, such as `text_config.model_type: gemma`.
    """
    name = config.get("model_type")
    own = f"model_type: {name if isinstance(name, str) else short(name)}"
    found = []
    for kind in KINDS:
        try:
            part_of(config, kind)
        except NoSuchPart as error:
            if error.setting != own:
                found.append("; ".join((error.setting, *_of_part(config, kind), _ALL)))
    if not found and not parts_of(config):
        found.append("; ".join((own, *_of_whole(config), _ALL)))
    return found


def lost(config: Config) -> list[str]:
    """Return the modules that models of this type have but this one lacks. Raises: ConfigError."""
    name = str(config.get("model_type"))
    kinds = dict.fromkeys(each.kind for each in WHOLES[name].families) if name in WHOLES else ()
    there = {NAMES.get(part.family.kind) for part in parts_of(config) if not part.not_computed()}
    found = dict.fromkeys(NAMES[kind] for kind in kinds if kind in NAMES)
    return [each for each in found if each not in there]


def _of_part(config: Config, kind: str) -> Iterator[str]:
    """Yield the types that this part of a whole may have, and the parts that are read."""
    whole = str(config.get("model_type"))
    inside = WHOLES[whole].families if whole in WHOLES else ()
    types = [each.model_type for each in inside if each.kind == kind]
    if types:
        yield f"in a {whole} it may be {listing(list(dict.fromkeys(types)))}"
    else:
        yield f"no {NAMES.get(kind, kind)} of a {whole} is read"
    read = [NAMES.get(part.family.kind, part.family.kind) for part in parts_of(config)]
    if read:
        yield f"read {'is' if len(read) == 1 else 'are'} {' and '.join(read)}"


def _of_whole(config: Config) -> Iterator[str]:
    """Yield the types most like an unknown one, and its parts that would be read."""
    if (same := _OWN_CODE.get(str(config.get("model_type")))) is not None:
        whole = WHOLES.get(same)
        what = "its language alone" if whole is None else f"as in {whole.published[0]}, the model"
        yield f"its code is in the folder; {what} is read with `model_type: {same}`"
        return
    ours = {each.model_type for each in own.FAMILIES}
    known = [name for name in dict.fromkeys([*WHOLES, *FAMILIES]) if name not in ours]
    like = close_matches(str(config.get("model_type")), known)[:_LIKE]
    if len(like) > 1:
        yield f"the types most like it that are read are {', '.join(like[:-1])} and {like[-1]}"
    else:
        yield f"the type most like it that is read is {like[0]}" if like else "none like it is read"
    if parts := list(_readable(config)):
        which = "a folder of its own" if len(parts) == 1 else "folders of their own"
        yield f"of its parts, {' and '.join(parts)} would be read from {which}"


def _readable(config: Config, path: str = "") -> Iterator[str]:
    """Yield the inner configurations that describe one of our modules."""
    for key, inner in config.items():
        if not isinstance(inner, dict) or not key.endswith("_config"):
            continue
        if (name := str(inner.get("model_type"))) in FAMILIES:
            yield f"{path}{key} ({name})"
        else:
            yield from _readable(inner, f"{path}{key}.")
