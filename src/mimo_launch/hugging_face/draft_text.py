"""The file that a draft of a family becomes: a declaration to complete, with comments.

Decides: the words, and that settings of unknown meaning are refused where they differ.
Relies on: `draft` for what is like the nearest family, and what is new.
Leaves: finding it to `draft`.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from mimo_launch.hugging_face.draft import Draft
from mimo_launch.hugging_face.folder import short
from mimo_launch.hugging_face.registry import declared_at

_MOST_NAMED = 5


def text_of(drafts: Iterable[Draft]) -> str:
    """Return a file for `families`: candidates to complete, with comments on what to decide."""
    drafts = list(drafts)
    types = " and ".join(each.model_type for each in drafts)
    declared = [each for each in drafts if not each.is_far]
    modules = sorted({declared_at(each.family)[0] for each in declared})
    lines = [
        f'"""{types}: say in a line how it differs from its nearest relative.',
        "",
        f"Source: `transformers`, models/{drafts[0].model_type}.",
        '"""',
        "",
        "from dataclasses import replace",
        "",
    ]
    if modules:
        lines.append(f"from mimo_launch.hugging_face.families import {', '.join(modules)}")
    if any(map(_refused, declared)):
        lines.append("from mimo_launch.hugging_face.refusals import only, refusals")
    return "\n".join([*lines, *chain.from_iterable(map(_lines_of, drafts)), *_PROOF, ""])


_PROOF = (
    "",
    "# The proof: rows of `tests/support/folders.py` with this configuration, its keys and what is",
    "# refused, and a row of `tests/support/families.py` with a tiny model of `transformers`; of a",
    "# decoder it is in `KINDS` of `tests/support/hugging_face.py`. Then run",
    "#   pytest tests/unit/test_folders.py tests/distributed/test_families.py",
    "# A folder of several parts also needs a whole, as in `families/mistral3.py`. Of its prefixes",
    "# `export` writes the first ones: those of `save_pretrained` of `transformers`.",
)


_RANDOM = re.compile("drop|jitter")


def _is_random(key: str) -> bool:
    return _RANDOM.search(key) is not None


def _refused(draft: Draft) -> dict[str, Any]:
    """Return the new settings that say what a model computes, other than at random."""
    return {key: each for key, each in draft.new_settings.items() if not _is_random(key)}


def _lines_of(draft: Draft) -> Iterator[str]:
    """Yield the declaration of one part."""
    if draft.is_far:
        section = draft.section or "the configuration"
        yield "\n"
        yield f"# {draft.model_type} (`{section}`). No type that is read is like it. If no module"
        yield "# computes it, its tensors are left out: `beside` or `left_out` of the whole."
        return
    nearest = ".".join(declared_at(draft.family))
    where = f" (`{draft.section}`)" if draft.section else ""
    before = f", after the prefix `{draft.prefix}`" if draft.prefix else ""
    yield "\n"
    yield f"# {draft.model_type}{where}. The nearest type that is read, {draft.family.model_type},"
    yield f"# takes {draft.taken} of its tensors{before}."
    if draft.as_near:
        yield f"# As near: {', '.join(draft.as_near[:_MOST_NAMED])}."
    yield "# Names and settings do not show what the code of the model computes: compare it."
    yield from _listed("Tensors that it does not know; name each in `tensors`:", draft.new_tensors)
    yield from _listed("Tensors that it needs and the folder lacks:", draft.absent)
    yield from _listed("Tensors of another shape:", draft.reshaped)
    yield from _listed("Settings that it refuses:", draft.refused)
    new = [f"{key}: {short(value)}" for key, value in draft.new_settings.items()]
    yield from _listed(
        "Settings that it does not read here, and refuses below if they differ. Find out from the\n"
        "# code of the model what each one does:",
        new,
    )
    yield f"{_constant(draft.model_type)} = replace("
    yield f"    {nearest},"
    yield f'    model_type="{draft.model_type}",'
    yield f'    architecture="{draft.architecture}",  # The class of transformers that loads it.'
    yield "    published=(),  # Names on the hub."
    yield '    notes="",'
    yield f"    defaults={nearest}.defaults,  # Write those of its configuration class."
    yield f"    rank={nearest}.rank + 1,"
    if random := tuple(filter(_is_random, draft.new_settings)):
        yield f"    random={nearest}.random + {random!r},"
    if refused := _refused(draft):
        yield f"    refused={nearest}.refused"
        yield "    + refusals("
        for key, value in refused.items():
            yield f"        only({key!r}, {value!r}),"
        yield "    ),"
    yield ")"


def _listed(title: str, items: Iterable[str]) -> Iterator[str]:
    items = list(items)
    if items:
        yield f"# {title}"
        yield from (f"#   {each}" for each in items)


def _constant(model_type: str) -> str:
    return re.sub(r"\W", "_", model_type).upper()
