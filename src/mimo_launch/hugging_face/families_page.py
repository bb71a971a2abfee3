"""Lists the families: what is read, written and refused.

Decides: the form of the list and of the page;
`python -m mimo_launch.hugging_face.families_page docs/families.md` writes it.
Relies on: the declarations of families and wholes; there is no second list.
Leaves: printing to `cli.inspect`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.hugging_face.architectures import stands_alone
from mimo_launch.hugging_face.not_read import NAMES
from mimo_launch.hugging_face.own_folders import FAMILIES as OWN
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES

_HEAD = """# Families

Every model type of `config.json` that is read, made from the code by
`python -m mimo_launch.hugging_face.families_page`. `mimo-launch inspect --families` prints the
same. What the settings mean is in [Hugging Face weights](hugging-face.md).

* *Published as*: names on the hub of models with this type; others have it, too. The type is
  `model_type` in the `config.json` of a folder.
* *Read as*: the modules of a spec that start from the folder, each with its possible model types.
* *Written as*: the class of `transformers` that loads what `mimo-launch export` writes, of all
  modules together or of one alone.
* *Refused*: `inspect` and `validate` name these settings, and nothing starts. Other settings are
  read, or change no number.

Weights in FP8 with a scale per block of 128 x 128, or per matrix, and in MXFP4 are read as what
they stand for; any other `quantization_config` is refused.
"""

# Names on the hub by model type, from the docs of transformers, with later models of the same type.
# A user who looks for a model by its name may not know its model type.
_PUBLISHED: dict[str, tuple[str, ...]] = {
    "llava": ("llava-hf/llava-1.5-7b-hf",),
    "internvl": ("OpenGVLab/InternVL3-1B-hf",),
    "idefics3": ("HuggingFaceM4/Idefics3-8B-Llama3",),
    "smolvlm": ("HuggingFaceTB/SmolVLM2-2.2B-Instruct",),
    "gemma3": ("google/gemma-3-4b-it",),
    "mistral3": ("mistralai/Mistral-Small-3.1-24B-Instruct-2503",),
    "voxtral": ("mistralai/Voxtral-Mini-3B-2507",),
    "qwen2_audio": ("Qwen/Qwen2-Audio-7B",),
    "llava_onevision": ("llava-hf/llava-onevision-qwen2-7b-ov-hf",),
    "nemotron_h_omni": ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",),
    "qwen2_vl": ("Qwen/Qwen2-VL-7B-Instruct",),
    "qwen2_5_vl": ("Qwen/Qwen2.5-VL-7B-Instruct",),
    "qwen3_vl": ("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"),
    "qwen3_vl_moe": ("Qwen/Qwen3-VL-30B-A3B-Instruct",),
    "qwen3_5": ("Qwen/Qwen3.5-27B", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"),
    "qwen3_5_moe": ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B"),
    "glm4v": ("zai-org/GLM-4.1V-9B-Thinking",),
    "glm4v_moe": ("zai-org/GLM-4.5V",),
    "glm46v": ("zai-org/GLM-4.6V",),
    "qwen2_5_omni": ("Qwen/Qwen2.5-Omni-7B",),
    "siglip": ("google/siglip-base-patch16-224",),
    "clip": ("openai/clip-vit-base-patch32",),
    "llama": ("meta-llama/Llama-3.1-8B",),
    "qwen2": ("Qwen/Qwen2-7B", "Qwen/Qwen2.5-7B"),
    "qwen3": ("Qwen/Qwen3-8B",),
    "mistral": ("mistralai/Mistral-7B-v0.3",),
    "mixtral": ("mistralai/Mixtral-8x7B-v0.1",),
    "qwen3_moe": ("Qwen/Qwen3-30B-A3B",),
    "gemma2": ("google/gemma-2-9b",),
    "gemma3_text": ("google/gemma-3-1b-it",),
    "glm": ("zai-org/glm-4-9b-chat-hf",),
    "glm4": ("zai-org/GLM-4-9B-0414",),
    "gpt_oss": ("openai/gpt-oss-20b",),
    "deepseek_v3": ("deepseek-ai/DeepSeek-V3",),
    "kimi_k2": ("moonshotai/Kimi-K2-Instruct",),
    "glm4_moe": ("zai-org/GLM-4.5", "zai-org/GLM-4.6"),
    "nemotron_h": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    "qwen3_next": ("Qwen/Qwen3-Next-80B-A3B-Instruct",),
    "whisper": ("openai/whisper-large-v3",),
    "radio": ("nvidia/C-RADIOv4-H",),
}


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """A model type: names on the hub, families per module, what is written and refused."""

    model_type: str
    published: tuple[str, ...]
    modules: dict[str, tuple[str, ...]]
    written: str
    refused: tuple[str, ...]

    @property
    def read_as(self) -> str:
        """The modules in one line of Markdown."""
        return "; ".join(
            name + ("" if types == (self.model_type,) else f": {', '.join(map(_code, types))}")
            for name, types in self.modules.items()
        )


def wholes() -> list[FamilyEntry]:
    """Return the model types with several modules, or with one module and parts left out."""
    found = []
    for name, whole in WHOLES.items():
        kinds = dict.fromkeys(family.kind for family in whole.families)
        modules = {
            NAMES.get(kind, kind): tuple(
                dict.fromkeys(x.model_type for x in whole.families if x.kind == kind)
            )
            for kind in kinds
        }
        refused = tuple(rule.words for rule in whole.refusals.rules)
        found.append(
            FamilyEntry(name, _PUBLISHED.get(name, ()), modules, whole.architecture, refused)
        )
    return found


def modules() -> list[FamilyEntry]:
    """Return the model types of single modules, alone or inside a whole model."""
    own = {family.model_type for family in OWN}
    return [
        FamilyEntry(
            name,
            _PUBLISHED.get(name, ()),
            {NAMES.get(family.kind, family.kind): (name,)},
            family.architecture if stands_alone(family) and name not in own else "",
            tuple(dict.fromkeys(rule.words for rule in family.refusals.rules)),
        )
        for name, family in FAMILIES.items()
    ]


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, intro, entries in (
        ("Whole models", "Refused is what the families of its modules refuse, and:", wholes()),
        (
            "Modules",
            "Folders of one module, and modules of whole models. Where nothing is written, only a "
            "whole model is, or\na folder of our own.",
            modules(),
        ),
    ):
        parts += [f"## {title}\n\n{intro}\n", *_table(entries), ""]
    return "\n".join(parts)


def _table(entries: list[FamilyEntry]) -> Iterator[str]:
    yield "| `model_type` | published as | read as | written as | refused |"
    yield "| --- | --- | --- | --- | --- |"
    for each in entries:
        written = _code(each.written) if each.written else ""
        refused = "; ".join(each.refused)
        names = ", ".join(each.published)
        yield f"| {_code(each.model_type)} | {names} | {each.read_as} | {written} | {refused} |"


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
