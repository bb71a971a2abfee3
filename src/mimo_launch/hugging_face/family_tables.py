"""The tables of a family as Markdown: where our keys and our tensors are in a folder.

Decides: the words for each kind of entry; that a text family shows only what differs from a Llama.
Relies on: the entries of `settings` and `tensors`.
Leaves: the page to `families_page`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from mimo_launch.hugging_face import decoders
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.settings import Fixed, InnerSettings, Named, Number, Settings
from mimo_launch.hugging_face.tensors import (
    ExpertStack,
    HeadRows,
    Inside,
    InTurn,
    Place,
    Reshaped,
    Rows,
)
from mimo_launch.spec.module import MODELS
from mimo_launch.spec.wording import text_of

_LLAMA = decoders.decoder(decoders.sizes())
Row = tuple[str, str, str]


def tables(family: Family) -> Iterator[str]:
    """Yield the lines of a family: settings, keys that are always the same, and names."""
    usual = set() if family.model_type == "llama" else set(_rows(_LLAMA, {}))
    rows = [row for row in _rows(family.settings, family.defaults) if row not in usual]
    is_of_text = family.kind in ("decoder", "talker") and bool(usual)
    if rows:
        yield "| our key | in `config.json` | if left out |\n| --- | --- | --- |"
        yield from (f"| `{ours}` | {theirs} | {default} |" for ours, theirs, default in rows)
        yield ""
    if is_of_text:
        yield "All else is read as in a [`llama`](#llama).\n"
    if always := list(_always(family)):
        yield f"Always: {', '.join(always)}.\n"
    known = decoders.TENSORS.table if is_of_text else {}
    names = [
        f"`{ours}` is {described(entry)}"
        for ours, entry in family.tensors.table.items()
        if known.get(ours) != entry
    ]
    if names:
        yield f"Tensors: {'; '.join(names)}.\n"


def _rows(settings: Settings, defaults: dict[str, Any], before: str = "") -> Iterator[Row]:
    """Yield our key, its place in a configuration, and its default."""
    for ours, entry in settings.entries.items():
        name = f"{before}{ours}"
        if isinstance(entry, Number):
            usual = defaults.get(entry.key, next(iter(entry.defaults), "error"))
            usual = next((x for x in entry.defaults[1:] if x), None) if usual is None else usual
            text = "of other settings" if callable(usual) else str(usual).lower()
            yield name, f"`{entry.key}`", text
        elif isinstance(entry, Named):
            values = (f"`{theirs}`: `{value}`" for theirs, value in entry.values.items())
            yield name, f"`{entry.key}`: {', '.join(values)}", f"`{entry.default}`"
        elif isinstance(entry, InnerSettings):
            yield from _rows(entry.settings, defaults, f"{name}.")
        elif not isinstance(entry, Fixed) and (words := getattr(entry, "words", "")):
            theirs, _, text = words.partition("; ")
            yield name, theirs, text


def _always(family: Family) -> Iterator[str]:
    """Yield the keys that are the same in every configuration, unless it is our default."""
    table = family.settings.entries.items()
    fixed = {ours: entry.value for ours, entry in table if isinstance(entry, Fixed)}
    fields = MODELS[family.kind].model_fields
    for key, value in {**family.settings.rest, **fixed}.items():
        is_read = key in family.settings.table and key not in fixed
        if not is_read and fields[key].default != value:
            yield f"`{key}: {text_of(value)}`"


def described(entry: Any, before: str = "") -> str:
    """Return where a tensor is, in words."""
    name = f"`{before}{getattr(entry, 'name', '')}`"
    match entry:
        case str():
            text = f"`{before}{entry}`"
        case Inside():
            text = described(entry.entry, before + entry.before)
        case Place():
            holds = (
                ("transposed", entry.transposed),
                ("channels in turn", entry.channels > 0),
                ("may be missing", entry.optional),
                ("in fp32", entry.at_least_fp32),
            )
            text = ", ".join([name, *(words for words, is_so in holds if is_so)])
        case Rows() | HeadRows():
            text = f"rows of {'each head in ' * isinstance(entry, HeadRows)}{name}"
        case Reshaped():
            text = f"{name} in another shape"
        case ExpertStack():
            turned = ", in turn" if entry.interleaved and entry.part != "down" else ""
            text = f"an entry of {name}{turned}"
        case InTurn():
            text = " and ".join(f"`{before}{each}`" for each in entry.names) + " in turn"
        case _:
            function = entry.func if isinstance(entry, partial) else entry
            text = str(function.__doc__).partition("\n")[0].removesuffix(".")
    return text
