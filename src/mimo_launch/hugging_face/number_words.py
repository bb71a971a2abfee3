"""Whole numbers in English words, as SmolVLM says how many frames a video has.

Decides: hyphens, commas and the place of "and", as the package num2words has them.
Relies on: nothing.
Leaves: numbers of a million and more, of which no video has frames.
"""

_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number from 0 to 999,999 in words."""
    if not 0 <= number < 10**6:
        raise ValueError(f"{number} is not below a million")
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _below_thousand(rest)
    found = f"{_below_thousand(thousands)} thousand"
    if not rest:
        return found
    return f"{found}{' and ' if rest < 100 else ', '}{_below_thousand(rest)}"


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if not hundreds:
        return _below_hundred(rest)
    found = f"{_SMALL[hundreds]} hundred"
    return f"{found} and {_below_hundred(rest)}" if rest else found


def _below_hundred(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
