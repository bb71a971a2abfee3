"""Words of other trainers and tools, with the keys and values of a spec that mean the same.

Decides: how the tables of `foreign_words.toml` are read, only when a spec has an unknown word. No
value is offered that would change training.
Relies on: `derived_values` for values in another unit; the choices of a key, since `kind` and
`none` mean another thing under each key.
Leaves: where a key belongs and whether it takes the value to `renaming`; numbers, lists and
booleans to `value_guesses`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cache, partial
from importlib import resources
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec import derived_values
from mimo_launch.spec.derived_values import Derive

# Values that say that something is not wanted.
OFF = ("none", "null", "no", "off", "false", "full", "0", "0.0", "[]", "{}", "")


@frozen
class Synonym:
    """The meaning of a word of another trainer.

    `values` maps their values to ours, if they differ: "" for the default. `derive` computes ours
    from theirs and the data of the spec, and `formula` says how. `note` is the help if no key has
    its meaning, `missing` names a thing that is not here, `why` explains a value that changes.
    """

    key: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    why: str = ""
    derive: Derive | None = None
    formula: str = ""
    missing: str = ""


@cache
def tables() -> dict[str, Any]:
    """Return all tables of words."""
    import tomllib  # Only specs with faults need it.

    path = resources.files(__package__).joinpath("foreign_words.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def synonyms() -> dict[str, Synonym]:
    """Return the meaning of each word for a key, or for no key."""
    found: dict[str, Synonym] = {}
    keys = [{"words": words, "key": key} for key, words in tables()["keys"].items()]
    notes = [{"words": words, "note": note} for words, note in tables()["notes"].items()]
    listed = (tables()[name] for name in ("values", "units", "missing"))
    for entry in (*keys, *notes, *(each for entries in listed for each in entries)):
        given = {name: value for name, value in entry.items() if name != "words"}
        if "derive" in given:
            given["derive"] = getattr(derived_values, given["derive"])
        for word in entry["words"].split():
            found[word] = Synonym(**{"why": _why(word), **given})
    return found


def synonym(section: str, word: str, data: Any = None) -> Synonym | None:
    """Return what a key of a section means; None for words of no trainer.

    `data` is the spec: if it has a number of microbatches, their size gives the size of a step.
    """
    plain = word.strip("-").lower().replace("-", "_")
    found = synonyms().get(f"{section}.{plain}") or synonyms().get(plain)
    if found is not None and found.derive is derived_values.microbatches_of_size:
        counts = tables()["keys"]["schedule.microbatches"].split()
        if number := derived_values.first_count(counts, data):
            derive = partial(derived_values.samples_of_accumulation, number)
            formula = "this x gradient accumulation x dp of `language`, the samples of a step"
            return Synonym("batch.global", derive=derive, formula=formula)
    return found


def word_of(value: object) -> str:
    """Return a value of any spelling as the tables spell it."""
    return str(value).strip().strip("'\"").lower().removeprefix("torch.")


def same_choice(choices: Collection[str], value: object) -> str:
    """Return the choice that a word of another tool means; "" if it is none of them."""
    word = word_of(value)
    for choice in choices:
        if word == choice.lower() and value != choice:
            return choice
    for table in _tables_of(choices):
        for ours, theirs in table.get("words", {}).items():
            if ours in choices and word in theirs.split():
                return str(ours)
    return ""


def why_other(choices: Collection[str], value: object) -> str:
    """Return why the choice for a word does not quite mean the same; "" if it does."""
    return _why(word_of(value)) if same_choice(choices, value) else ""


def not_here(choices: Collection[str], value: object) -> str:
    """Return that a word names something that is not here; "" for an unknown word."""
    parts = list(value.values()) if isinstance(value, dict) else []
    for word in map(word_of, [value, *parts]):
        for table in _tables_of(choices):
            if any(re.match(pattern, word) for pattern in table.get("missing", ())):
                return str(table["note"]).format(word[:40])
    return ""


def kind_of_model(name: str, *, speaks: bool) -> str:
    """Return the kind of a model by the name of its family; "" if it is unknown.

    `speaks` says that the module is the language model.
    """
    plain = word_of(name).replace("-", "_").replace(".", "_")
    families = tables()["languages" if speaks else "encoders"].items()
    return next((kind for kind, names in families if any(re.match(n, plain) for n in names)), "")


def _why(word: str) -> str:
    return next((why for words, why in tables()["why"].items() if word in words.split()), "")


def _tables_of(choices: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the tables of a key with these choices: each is for all keys that have some words."""
    yield from (each for each in tables()["choices"] if set(each["of"].split()) <= set(choices))
