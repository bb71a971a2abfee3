"""Lists the families: what is read, written and refused, and where each setting and tensor is.

Decides: the form of the list and of the page;
`python -m mimo_launch.hugging_face.families_page docs/families.md` writes it.
Relies on: the declarations of families and wholes; there is no second list. `family_tables` for the
settings and tensors of a family.
Leaves: printing to `cli.inspect`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face.families.own import FAMILIES as OWN
from mimo_launch.hugging_face.family_tables import described, tables
from mimo_launch.hugging_face.not_read import NAMES
from mimo_launch.hugging_face.part import Whole
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES
from mimo_launch.spec.wording import text_of

_HEAD = """# Families

Every model type of `config.json` that is read, made from the code by
`python -m mimo_launch.hugging_face.families_page`. `mimo-launch inspect --families` prints the
same. Each type has a section below: where our keys and tensors are. [Hugging Face
weights](hugging-face.md) explains the keys, and how folders are read.

In a section, `*` is the number of a layer or of an expert. Each prefix of names comes with its
replacement in the names of the part; the first one is written today.

* *Published as*: names on the hub of models with this type; others have it, too. The type is
  `model_type` in the `config.json` of a folder.
* *Read as*: the modules of a spec that start from the folder, each with its possible model types.
* *Written as*: the class of `transformers` that loads what `mimo-launch export` writes, of all
  modules together or of one alone.
* *Refused*: `inspect` and `validate` name these settings, and nothing starts. Other settings are
  read, or change no number.

Weights in FP8 with a scale per block of 128 x 128, or per matrix, in MXFP4, and in whole numbers
(GPTQ, AWQ, compressed-tensors) are read as the numbers that they encode; any other
`quantization_config` is refused. So are, in any family, `is_causal` of a language model other than
`true`, `per_layer_config` where the table does not name it, and `rope_scaling` beside
`rope_parameters` that say something else. Other names of settings that `transformers` takes as
well, such as `num_attention_heads` for `num_heads`, are read.
"""


@frozen
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
    for name, whole in sorted(WHOLES.items()):
        kinds = dict.fromkeys(family.kind for family in whole.families)
        modules = {
            NAMES.get(kind, kind): tuple(
                dict.fromkeys(x.model_type for x in whole.families if x.kind == kind)
            )
            for kind in kinds
        }
        refused = tuple(rule.words for rule in whole.refusals.rules)
        found.append(FamilyEntry(name, whole.published, modules, whole.architecture, refused))
    return found


def modules() -> list[FamilyEntry]:
    """Return the model types of single modules, alone or inside a whole model."""
    own = {family.model_type for family in OWN}
    return [
        FamilyEntry(
            name,
            family.published,
            {NAMES.get(family.kind, family.kind): (name,)},
            family.architecture if family.stands_alone and name not in own else "",
            tuple(dict.fromkeys(rule.words for rule in family.refusals.rules)),
        )
        for name, family in sorted(FAMILIES.items())
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
    seen: dict[str, str] = {}
    own = {each.model_type for each in OWN}
    for name in sorted({**WHOLES, **FAMILIES}.keys() - own):
        parts += [f"## {_code(name)}\n", *_section(name, seen)]
    return "\n".join(parts)


def _section(name: str, seen: dict[str, str]) -> Iterator[str]:
    """Yield the section of a type; `seen` are the tables of earlier types, by their text."""
    if (whole := WHOLES.get(name)) is not None:
        parts = {f"[{_code(x.model_type)}](#{x.model_type})": x.kind for x in whole.families}
        yield f"A whole model of {', '.join(parts)}.\n"
        yield from _decided(whole)
        yield from ([f"{whole.notes}\n"] if whole.notes else [])
        return
    family = FAMILIES[name]
    text = "\n".join(tables(family))
    like = seen.setdefault(text, name)
    yield f"Read as [{_code(like)}](#{like}).\n" if like != name else text
    yield from ([f"{family.notes}\n"] if family.notes else [])


def _decided(whole: Whole) -> Iterator[str]:
    """Yield the names of a whole model's parts and projector, and the keys that it decides."""
    for prefixes in whole.names:
        said = (f"`{there}` ({_code(name)})" if name else _code(there) for there, name in prefixes)
        yield f"Its files begin the names of a part with {', '.join(said)}.\n"
    fixed = {key: x for key, x in getattr(whole, "fixed", {}).items() if not callable(x)}
    if fixed:
        yield f"It decides {', '.join(f'`{key}: {text_of(x)}`' for key, x in fixed.items())}.\n"
    if projector := getattr(whole, "projector", {}):
        places = (f"`{ours}` is {described(place)}" for ours, place in projector.items())
        yield f"Its projector: {'; '.join(places)}.\n"


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
