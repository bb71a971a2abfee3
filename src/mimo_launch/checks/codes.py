"""Checks of codec tokens: the codes of a talker, and the data that it learns them from.

Decides: which codes a talker can tell apart, and which talkers can say digits.
Relies on: `kinds` for the codes of a model.
Leaves: the graph around a talker to `graph`.
"""

from mimo_launch.checks.rule import Findings, divisors
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import DIGIT_SIDE
from mimo_launch.spec.spec import DigitsData, Spec

# A pixel of a digit has one of the values 0 to 16.
PIXEL_VALUES = 17


def ends_are_codes(spec: Spec, name: str) -> Findings:
    """`start` and `end` are two codes of the vocabulary, beside others that are said."""
    model = kind_of(spec.modules[name].model).codes
    if model is None:
        return
    path, tp = ("modules", name, "model"), spec.modules[name].grid.tp
    if model.vocab < max(3, tp):
        yield Diagnostic(
            code="codes-outside-vocab",
            headline=f"`{name}`: a vocabulary of {model.vocab} codes is too small",
            path=(*path, "vocab"),
            why=f"every tp rank holds at least one of its codes, and there are {tp}"
            if model.vocab >= 3
            else "it holds `start`, `end`, and at least one code to say",
            help=f"write `vocab: {max(3, tp)}`, or what your codec has and 2 more",
        )
        return
    for key, code in (("start", model.start_code), ("end", model.end_code)):
        if code >= model.vocab:
            yield Diagnostic(
                code="codes-outside-vocab",
                headline=f"`{name}`: `{key}` {code} is not among {model.vocab} codes",
                path=(*path, key),
                why="codes count from 0",
                help=f"write `vocab: {code + 1}`, or delete `{key}`",
                related=(Related(path=(*path, "vocab"), label=f"0 to {model.vocab - 1}"),),
            )
    if model.start_code == model.end_code:
        key = "end" if model.end is not None else "start"
        other = "start" if key == "end" else "end"
        yield Diagnostic(
            code="codes-outside-vocab",
            headline=f"`{name}`: `start` and `end` are both the code {model.end_code}",
            path=(*path, key),
            why="the talker sees `start` in front of the first frame, and says `end` behind the "
            "last one",
            help=f"write another code, or delete `{key}`",
            related=(Related(path=(*path, other), label="the same"),)
            * (other in model.model_fields_set),
        )


def codes_fit_digits(spec: Spec, name: str) -> Findings:
    """Digits are said pixel by pixel: frames of whole pixels, and codes for their values."""
    model = kind_of(spec.modules[name].model).codes
    if model is None or not isinstance(spec.data, DigitsData):
        return
    path, pixels = ("modules", name, "model"), DIGIT_SIDE**2
    data = Related(path=("data", "kind"), label=f"digits of {pixels} pixels, values 0 to 16")
    if pixels % model.codebooks:
        sizes = ", ".join(f"`codebooks: {size}`" for size in divisors(pixels))
        yield Diagnostic(
            code="codes-unlike-data",
            headline=f"`{name}`: frames of {model.codebooks} codes do not hold the {pixels} pixels "
            "of a digit",
            path=(*path, "codebooks"),
            why="each code is a pixel, and a digit is cut into whole frames",
            help=f"these fit: {sizes}",
            related=(data,),
        )
    if min(model.start_code, model.end_code) >= PIXEL_VALUES:
        return
    yield Diagnostic(
        code="codes-unlike-data",
        headline=f"`{name}`: {model.vocab} codes leave none for some values of a pixel",
        path=(*path, "vocab"),
        why=f"the codes 0 to {PIXEL_VALUES - 1} are the values of a pixel, beside `start` and "
        "`end`",
        help=f"write `vocab: {PIXEL_VALUES + 2}`, without `start` and `end`",
        related=(data,),
    )
