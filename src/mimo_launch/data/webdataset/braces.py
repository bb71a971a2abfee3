"""Braces of a pattern, as in bash: `{a,b}`, `{0..9}`, `{000..990..10}`, `{a..z}`, nested or not.

Decides: which braces are refused before any name is made: too many names, too many letters, too
deeply nested braces.
Relies on: `braceexpand` for the names, as the webdataset library does; the count follows its rules.
Leaves: `*` and files to `shard_names`.
"""

import re
import string

# The longest file name (Linux: NAME_MAX).
MAX_DIGITS = 255
# All names together, at about 300 letters each.
MAX_LETTERS = 64_000_000
MAX_DEPTH = 32
# As in `braceexpand`: ranges of letters run from A to Z, then from a to z.
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTER_RANGE = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")


class PatternError(ValueError):
    """A pattern cannot be expanded; the message says why, in one line."""


def expanded(pattern: str, most: int) -> list[str]:
    """Return the names that a pattern with braces expands to, at most `most`.

    Raises: PatternError.
    """
    from braceexpand import braceexpand

    if num_names(pattern) > most:
        raise PatternError(f"its braces stand for more than {most:,} names")
    names, letters = [], 0
    for name in braceexpand(pattern):
        letters += len(name)
        if letters > MAX_LETTERS:
            raise PatternError(f"its braces stand for names of more than {MAX_LETTERS:,} letters")
        names.append(name)
    return names


def num_names(pattern: str) -> int:
    """Return the number of names that a pattern expands to, without making them.

    Raises: PatternError.
    """
    depth = deepest = 0
    for _, sign in _signs(pattern):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        deepest = max(deepest, depth)
    if depth != 0:
        raise PatternError("its braces are not balanced")
    if deepest > MAX_DEPTH:
        raise PatternError(f"its braces are nested more than {MAX_DEPTH} deep")
    return _product(pattern)


def _signs(text: str) -> list[tuple[int, str]]:
    """Return braces and commas with their positions; a backslash escapes the next character."""
    found = re.finditer(r"\\.|[{},]", text, re.DOTALL)
    return [(each.start(), each[0]) for each in found if each[0][0] != "\\"]


def _product(text: str) -> int:
    """Return the product of the counts of all braces in a text that is not itself a list."""
    number, depth, start = 1, 0, 0
    for place, sign in _signs(text):
        if sign == "{":
            start = place + 1 if depth == 0 else start
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                number *= _inside(text[start:place])
    return number


def _inside(text: str) -> int:
    """Return the number of alternatives of the text between two braces."""
    if found := _NUMBERS.match(text):
        if max(len(each or "") for each in found.groups()) > MAX_DIGITS:
            raise PatternError(f"a number in its braces has more than {MAX_DIGITS} digits")
        first, last = int(found[1]), int(found[2])
    elif found := _LETTER_RANGE.match(text):
        first, last = _LETTERS.index(found[1]), _LETTERS.index(found[2])
    else:
        # Alternatives are separated by commas outside inner braces.
        number = depth = start = 0
        for place, sign in _signs(text):
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if sign == "," and depth == 0:
                number += _product(text[start:place])
                start = place + 1
        return number + _product(text[start:])
    return abs(last - first) // (int(found[3] or 1) or 1) + 1
