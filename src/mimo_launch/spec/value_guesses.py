"""Guesses which value a user meant by a wrong one, where only one is likely.

Decides: the spellings of other tools that are understood: lists of ranks, sizes without a unit,
`1_000`, `4k`, `0x10`, `yes`, a part of the run in place of steps, a name in place of a list. A
guess keeps the meaning; otherwise none is made.
Relies on: JSON Schema fragments for what a key accepts; `foreign_words` for words.
Leaves: the words around a guess to `findings`.
"""

import re
from collections.abc import Callable, Iterator
from sys import float_info
from typing import Any

from mimo_launch.diag.diagnostic import YamlPath
from mimo_launch.spec.base import MAX_INTEGER, MAX_RANKS
from mimo_launch.spec.derived_values import (
    min_lr_of_ratio,
    percent_of_ratio,
    steps_of_epochs,
    steps_of_ratio,
)
from mimo_launch.spec.foreign_words import same_choice
from mimo_launch.spec.wording import allowed_types, flow

_BOOLEANS = {
    **dict.fromkeys(("yes", "on", "y", "t", "1", "true"), "true"),
    **dict.fromkeys(("no", "off", "n", "f", "0", "false"), "false"),
}
_NOTHING = ("none", "nil", "nothing")
# Counts that are powers of two by custom: for these `4k` is 4096, for steps and samples 4000.
_BINARY = ("seq", "hidden", "mlp", "width", "shared", "max_positions", "size", "window")
# Keys that count steps of the run; below, keys that 0 turns off elsewhere and `null` here.
_STEPS = ("warmup", "decay", "every", "keep_every", "log_every")
_EPOCH = {"epoch": 1}
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_OFF_AT_ZERO = ("clip", "every", "keep_every")
_OFF = ("0", "0.0", "false", "no", "off", "never")
_THOUSANDS = {"k": 1, "m": 2, "b": 3, "g": 3}


def guess_values(key: str, value: Any, schema: dict[str, Any]) -> list[str]:
    """Return what to write in place of a wrong value, likeliest first."""
    guesses = [guess for guess in _Key(key, schema).guesses(value) if guess]
    return list(dict.fromkeys(guesses))


def guess_in_spec(path: YamlPath, value: Any, schema: dict[str, Any], data: Any) -> list[str]:
    """Do the same with the data of the spec, which turn a part of the run into steps."""
    if path[-1] == "min_lr" and str(value).strip().endswith("%"):
        rate = min_lr_of_ratio(value, data)
        return [] if rate is None else [str(rate)]
    guesses = guess_values(str(path[-1]), value, schema)
    if not guesses and path[-1] in _STEPS and not isinstance(value, bool):
        part = percent_of_ratio(value) if "string" in allowed_types(schema) else None
        steps = steps_of_ratio(value, data) or steps_of_epochs(_EPOCH.get(str(value)), data)
        return [str(guess) for guess in (part or steps,) if guess is not None]
    return guesses


def run_name(text: str) -> str:
    """Return the name of a run that is most like a text; "" if none is."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")


def choices_of(schema: dict[str, Any]) -> list[str]:
    """Return the words that a key accepts."""
    parts = (schema, *schema.get("anyOf", ()))
    choices = (each.get("enum", [each["const"]] if "const" in each else []) for each in parts)
    return [str(choice) for each in choices for choice in each]


class _Key:
    """A key, or an item of a list, described by its JSON Schema."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        self.name, self.schema = name, schema
        self.types = allowed_types(schema)
        # Fragments; a value must fit one of them.
        self.parts = [schema, *schema.get("anyOf", ())]
        self.is_name = name in ("name", "project") and "pattern" in schema

    def guesses(self, value: Any) -> Iterator[str]:
        """Yield what a wrong value may mean; nothing, or "", for one without a meaning."""
        form = next((each["format"] for each in self.parts if "format" in each), None)
        readers: dict[Any, Callable[[Any], list[str]]] = {
            "ranks": _ranks,
            "layers": _ranks,
            "size": _size,
        }
        if form in readers:
            yield from readers[form](value)
            return
        yield from self._choices(value)
        if self.name in _OFF_AT_ZERO and "null" in self.types and str(value).lower() in _OFF:
            yield "null"
        yield from self._members(value)
        yield from self._names(value)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield from self._list(value)
        if isinstance(value, str):
            yield from self._of_text(value)
        elif isinstance(value, bool):
            return
        elif isinstance(value, int) and self.is_name:
            yield flow(str(value)) if re.fullmatch(self.schema["pattern"], str(value)) else ""
        elif "boolean" in self.types and value in (0, 1):
            yield from self._boolean(f"{value:g}")
        elif isinstance(value, float) and value == value // 1 and "integer" in self.types:
            yield from self._allowed(int(value))
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], int | float):
            yield from self._list(value[0])
            yield from self._allowed(value[0])

    def _choices(self, value: Any) -> Iterator[str]:
        """Yield the words of the key that another word, a boolean or a number may mean."""
        choices = choices_of(self.schema)
        yield same_choice(choices, value)
        others = [choice for choice in choices if choice != "none"]
        truth = _BOOLEANS.get(str(value).strip().lower()) if isinstance(value, bool | str) else None
        if truth and len(others) == 1 < len(choices):
            yield others[0] if truth == "true" else "none"
        if isinstance(value, int) and not isinstance(value, bool):
            yield from (c for c in choices if re.search(rf"(?<!\d){value}(?!\d)", c))

    def _members(self, value: Any) -> Iterator[str]:
        """Yield a list of known words for other words, in a list, a text or a mapping."""
        arrays = [each for each in self.parts if each.get("type") == "array"]
        choices = arrays[0].get("items", {}).get("enum") if arrays else None
        words = value
        if isinstance(value, dict):
            on = [word for word, is_on in value.items() if is_on is True]
            words = on or [each for each in value.values() if isinstance(each, str)][:1]
        elif isinstance(value, str):
            words = re.split(r"[\s,]+", value.strip())
        if choices and isinstance(words, list):
            meant = [each if each in choices else same_choice(choices, each) for each in words]
            if meant and all(meant):
                yield f"[{', '.join(dict.fromkeys(meant))}]"

    def _names(self, value: Any) -> Iterator[str]:
        """Yield a list of names, or of one number, that was written without brackets."""
        arrays = [each for each in self.parts if each.get("type") == "array"]
        array: dict[str, Any] = arrays[0] if arrays else {}
        items = array.get("items", {})
        kind, choices, pattern = items.get("type"), items.get("enum", ()), items.get("pattern", "")
        if "array" not in self.types or "string" in self.types:
            return
        if isinstance(value, str) and (kind == "string" or choices):
            words = re.split(r"[\s,]+", value.strip().strip("()[]").strip())
            is_list = all(re.fullmatch(r"[\w.-]+", w) and re.search(pattern, w) for w in words)
            if is_list and value.lower() not in _NOTHING and set(words) <= set(choices or words):
                yield flow(words)
        elif type(value) is int and kind == "integer":
            yield from (f"[{each}]" for each in _Key("", items)._allowed(value))

    def _list(self, value: str | float) -> Iterator[str]:
        """Yield a list of the right length: its items as text, or one number for a square."""
        array = next((each for each in self.parts if each.get("type") == "array"), None)
        items = array.get("prefixItems", []) if array else []
        words = re.split(r"\s*[,x;]\s*|\s+", str(value).strip().strip("()[]{}").strip().lower())
        if len(words) == 1 and [each.get("type") for each in items] == ["integer"] * 2:
            words *= 2
        if not items or len(words) != len(items):
            return
        pairs = zip(words, items, strict=True)
        read = [next(_Key("", item).numbers(word), "") for word, item in pairs]
        if all(read):
            yield f"[{', '.join(read)}]"

    def _of_text(self, value: str) -> Iterator[str]:
        """Yield the boolean, null, name or number that a text spells."""
        word = value.strip().strip("'\"").lower()
        if "boolean" in self.types:
            yield from self._boolean(word)
        if "null" in self.types and word in _NOTHING:
            yield "null"
        if self.is_name:
            name = run_name(value)
            yield flow(name) if re.fullmatch(self.schema["pattern"], name) else ""
        if "integer" in self.types or "number" in self.types:
            time = re.fullmatch(r"(\d{1,9})\s*(s|sec|m|min|h)", word)
            if time and self.name == "timeout":
                yield from self._allowed(int(time[1]) * _SECONDS[time[2]])
            yield from self.numbers(word)

    def _boolean(self, word: str) -> Iterator[str]:
        """Yield the boolean that a word spells, unless the key is always the other one."""
        if meant := _BOOLEANS.get(word, ""):
            is_true = meant == "true"
            booleans = (each for each in self.parts if each.get("type") == "boolean")
            yield meant if any(each.get("const", is_true) is is_true for each in booleans) else ""

    def numbers(self, word: str) -> Iterator[str]:
        """Yield the number that a text spells, in a form that YAML reads as a number."""
        plain = self._plain(word)
        factors = re.fullmatch(r"(\d{1,9})\s*\*\s*(\d{1,9})", plain)
        powers = re.fullmatch(r"2(?:\*\*|\^)(\d{1,2})", plain)
        # Steps and seconds are hardly millions: `m` means minutes.
        letters = "kbg" if self.name in (*_STEPS, "timeout") else "kmbg"
        if factors or powers:
            product = int(factors[1]) * int(factors[2]) if factors else 0
            yield from self._allowed(2 ** int(powers[1]) if powers else product)
        elif match := re.fullmatch(r"0([xob])([0-9a-f]{1,16})", plain):
            base = {"x": 16, "o": 8, "b": 2}[match[1]]
            digits = "0123456789abcdef"[:base]
            if set(match[2]) <= set(digits):
                yield from self._allowed(int(match[2], base))
        elif match := re.fullmatch(rf"(\d{{1,9}}(?:\.\d{{1,9}})?)\s*([{letters}])(i?)", plain):
            number, power = float(match[1]), _THOUSANDS[match[2]]
            bases = (1024, 1000) if match[3] or self.name in _BINARY else (1000, 1024)
            for base in bases[:1] if match[3] else bases:
                if number * base**power % 1 == 0:
                    yield from self._allowed(int(number * base**power))
        elif match := re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", plain):
            yield from self._allowed(float(f"{float(match[1]) / 100:.12g}"))
        elif re.fullmatch(r"[-+]?\d{1,18}", plain):
            yield from self._allowed(int(plain))
        elif re.fullmatch(r"[-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:e[-+]?\d{1,3})?", plain):
            number = float(plain)
            if "number" in self.types:
                yield from self._allowed(number)
            elif number == number // 1:
                yield from self._allowed(int(number))

    def _plain(self, word: str) -> str:
        """Return a number without digit separators or a unit, with a decimal point."""
        plain = re.sub(r"(?<=\d)(?:[_ '](?=\d)|,(?=\d{3}(?:\D|$)))", "", word)
        plain = re.sub(rf"(?<=\d)\s+{re.escape(self.name)}$", "", plain) if self.name else plain
        # A comma is a decimal comma unless three digits follow it.
        plain = re.sub(r"^(\d{1,9}),(\d{1,2}(?:e[-+]?\d{1,3})?)$", r"\1.\2", plain)
        ten = re.fullmatch(r"(?:(\d{1,9}(?:\.\d{1,9})?)[*x])?10(?:\^|\*\*)(-?\d{1,2})", plain)
        return f"{ten[1] or 1}e{ten[2]}" if ten else plain

    def _allowed(self, value: Any) -> Iterator[str]:
        """Yield a number if the limits of the key allow it."""
        for each in self.parts:
            number = isinstance(value, int) or each.get("type") == "number"
            if each.get("type") not in ("integer", "number") or not number:
                continue
            if isinstance(value, bool):
                continue
            low, high = each.get("minimum", value), each.get("maximum", value)
            above, below = each.get("exclusiveMinimum"), each.get("exclusiveMaximum")
            choices = choices_of(each)
            if (
                low <= value <= high
                and abs(value) <= (MAX_INTEGER if isinstance(value, int) else float_info.max)
                and (not choices or str(value) in choices)
                and ("multipleOf" not in each or value % each["multipleOf"] == 0)
                and (above is None or value > above)
                and (below is None or value < below)
            ):
                yield str(value)


def _ranks(value: Any) -> list[str]:
    """Return a range such as `0-3` for a list of its ranks, or for another spelling of it."""
    if isinstance(value, dict) and len(value) == 2:
        first, stop = value.get("start"), value.get("end", value.get("stop"))
    else:
        match = re.fullmatch(r"\s*(\d{1,9})\s*:\s*(\d{1,9})\s*", str(value))
        first, stop = map(int, match.groups()) if match else (None, None)
    if type(first) is int and type(stop) is int and 0 <= first < stop < MAX_RANKS:
        # `4:8` or `{start: 4, end: 8}`: the last rank may be left out, as Python does, or not.
        return [_range(list(range(first, last + 1))) for last in (stop - 1, stop)]
    return [_range(sorted(_listed(value)))]


def _range(ranks: list[int]) -> str:
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < MAX_RANKS:
        return ""
    if ranks != list(range(ranks[0], ranks[-1] + 1)):
        return ""  # They are not one range.
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _listed(value: Any) -> list[int]:
    """Return the ranks that a value lists, with one below 0 if it lists anything else."""
    if isinstance(value, list):
        return [rank for each in value[:MAX_RANKS] for rank in _listed(each)]
    if isinstance(value, float | int) and not isinstance(value, bool):
        return [int(value)] if abs(value) < MAX_RANKS and value == value // 1 else [-1]
    if isinstance(value, dict) and set(value) == {"first", "last"}:
        value = f"{value['first']}-{value['last']}"
    text = value.strip().strip("[]{}\"'").strip() if isinstance(value, str) else ""
    if match := re.fullmatch(r"range\(\s*(?:(\d{1,9})\s*,)?\s*(\d{1,9})\s*\)", text):
        return list(range(int(match[1] or 0), min(int(match[2]), MAX_RANKS + 1)))
    # Not `:`, which in Python leaves out the last rank; `_ranks` offers both readings.
    span = r"(\d{1,9})(?:\s*(?:-|\.\.\.?|\u2013|\u2014|to)\s*(\d{1,9}))?"
    ranks: list[int] = []
    for part in re.split(r"\s*,\s*|(?<=\d)\s+(?=\d)", text):
        match = re.fullmatch(span, part)
        first, last = sorted((int(match[1]), int(match[2] or match[1]))) if match else (-1, -1)
        ranks += range(first, min(last, MAX_RANKS) + 1)
        if len(ranks) > MAX_RANKS:
            return [-1]
    return ranks


def _size(value: Any) -> list[str]:
    """Return a size with its unit; a bare number means GB, MiB or bytes by its magnitude."""
    text = "" if isinstance(value, bool) else str(value)
    match = re.fullmatch(r"\s*(\d{1,14}(?:\.\d{1,9})?)\s*(?:([mgtMGT])(i?)[bB]?)?\s*", text)
    number = float(match[1]) if match else 0.0
    if match is None or number == 0:
        return []
    if match[2]:
        size = f"{match[1]}{match[2].upper()}{match[3]}B"
    elif number >= 10**9:
        size = f"{number / 10**9:.9g}GB"
    else:
        size = f"{match[1]}GB" if number < 1000 else f"{match[1]}MiB"
    return [size]
