"""Checks of the data against the modules that read them.

Decides: which encoders and vocabularies fit a data set.
Relies on: `tokens` for the vocabulary of the digits task.
Leaves: making samples to `train.data`.
"""

from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.layout.checks.rule import Findings, divisors
from mimo_launch.layout.layout import LANGUAGE
from mimo_launch.layout.tokens import DIGIT_SIDE, DIGITS_BASE_VOCAB
from mimo_launch.spec.model import DecoderModel, DigitsData, Spec, VitModel

_DATA = Related(path=("data", "kind"), label="digit images are 8x8, one channel")
_MODEL = ("modules", LANGUAGE, "model")


def digit_range_not_empty(spec: Spec) -> Findings:
    """The shortest strip is not longer than the longest one."""
    data = spec.data
    if not isinstance(data, DigitsData) or data.min_digits <= data.max_digits:
        return
    is_given = "max_digits" in data.model_fields_set
    yield Diagnostic(
        code="empty-digit-range",
        headline=f"`min_digits` {data.min_digits} is above `max_digits` {data.max_digits}",
        path=("data", "min_digits"),
        why="the length of each strip is drawn between the two",
        help=f"write `max_digits: {data.min_digits}`",
        related=(Related(path=("data", "max_digits"), label="the longest"),) if is_given else (),
    )


def patch_divides_digit(spec: Spec, name: str) -> Findings:
    """Patches tile an 8x8 digit."""
    model = spec.modules[name].model
    if not isinstance(model, VitModel) or not isinstance(spec.data, DigitsData):
        return
    if DIGIT_SIDE % model.patch != 0:
        sizes = ", ".join(f"`patch: {size}`" for size in divisors(DIGIT_SIDE))
        yield Diagnostic(
            code="patch-over-digit",
            headline=f"`{name}`: patch {model.patch} does not tile a digit of {DIGIT_SIDE} pixels",
            path=("modules", name, "model", "patch"),
            why="an image is cut into whole patches",
            help=f"these fit: {sizes}",
            related=(_DATA,),
        )


def channels_fit_digits(spec: Spec, name: str) -> Findings:
    """Digits are grey: one channel."""
    model = spec.modules[name].model
    if not isinstance(model, VitModel) or not isinstance(spec.data, DigitsData):
        return
    if model.channels != 1:
        yield Diagnostic(
            code="channels-unlike-data",
            headline=f"`{name}` reads {model.channels} channels, but digits have 1",
            path=("modules", name, "model", "channels"),
            why="the first layer has one weight per pixel and channel",
            help="write `channels: 1`",
            related=(_DATA,),
        )


def vocab_holds_tokens(spec: Spec) -> Findings:
    """The vocabulary has room for the data's tokens and one placeholder per encoder."""
    model = spec.language.model
    if not isinstance(model, DecoderModel) or isinstance(model.vocab, str):
        return
    num_encoders = len(spec.encoders)
    is_digits = isinstance(spec.data, DigitsData)
    words = DIGITS_BASE_VOCAB if is_digits else 2
    if model.vocab >= words + num_encoders:
        return
    yield Diagnostic(
        code="vocab-too-small",
        headline=f"`vocab` {model.vocab} is less than {words} tokens of the data + "
        f"{num_encoders} placeholder{'s' * (num_encoders != 1)}",
        path=(*_MODEL, "vocab"),
        why="the last ids of the vocabulary stand for the rows of the encoders, one id each",
        help=f"write `vocab: {'digits' if is_digits else words + num_encoders}`",
    )
