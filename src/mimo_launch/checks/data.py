"""Checks of the data against the modules that read them.

Decides: which encoders and vocabularies fit a data set.
Relies on: `kinds.vocabulary` for the vocabulary of the digits task.
Leaves: making samples to `data`.
"""

from math import gcd

from mimo_launch.checks.rule import Findings, divisors
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.kinds.vocabulary import DIGIT_SIDE, DIGITS_BASE_VOCAB
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.spec.model import (
    CustomModel,
    DigitsData,
    LanguageModel,
    Spec,
    SyntheticData,
    WebdatasetData,
    image_input,
)

_DATA = Related(path=("data", "kind"), label="digit images are 8x8, one channel")
_MODEL = ("modules", LANGUAGE, "model")


def input_path(spec: Spec, name: str) -> YamlPath:
    """Return where an encoder's input is described."""
    path = ("modules", name, "model")
    return (*path, "input") if isinstance(spec.modules[name].model, CustomModel) else path


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
    model = image_input(spec.modules[name].model)
    if model is None or not isinstance(spec.data, DigitsData):
        return
    if DIGIT_SIDE % model.patch != 0:
        sizes = ", ".join(f"`patch: {size}`" for size in divisors(DIGIT_SIDE))
        yield Diagnostic(
            code="patch-over-digit",
            headline=f"`{name}`: patch {model.patch} does not tile a digit of {DIGIT_SIDE} pixels",
            path=(*input_path(spec, name), "patch"),
            why="an image is cut into whole patches",
            help=f"these fit: {sizes}",
            related=(_DATA,),
        )


def shuffle_tiles_images(spec: Spec, name: str) -> Findings:
    """Images hold whole squares of the patches that become one row."""
    model, data = image_input(spec.modules[name].model), spec.data
    if model is None or model.shuffle == 1:
        return
    if isinstance(data, WebdatasetData):  # Images are made of whole rows, or cut to them.
        return
    side, related = model.shuffle, Related(path=("data", "kind"), label="these data")
    if isinstance(data, DigitsData):
        patches = DIGIT_SIDE // model.patch
        sizes, where = divisors(patches), f"a digit of {patches} x {patches} patches"
        related = _DATA
    elif data.image is not None:
        height, width = data.image
        sizes, where = divisors(gcd(height, width)), f"images of {height} x {width} patches"
        related = Related(path=("data", "image"), label="the size of every image")
    else:
        sizes = [each for each in range(1, side + 1) if each**2 <= data.max_patches]
        where = f"images of at most {data.max_patches} patches"
    if side in sizes:
        return
    fits = ", ".join(f"`shuffle: {size}`" for size in sizes)
    yield Diagnostic(
        code="shuffle-over-image",
        headline=f"`{name}`: squares of {side} x {side} patches do not fit into {where}",
        path=(*input_path(spec, name), "shuffle"),
        why="pixel shuffle makes one row of each square, and an image is cut into whole squares",
        help=f"these fit: {fits}",
        related=(related,),
    )


def image_ranges_not_empty(spec: Spec) -> Findings:
    """Of synthetic images and clips, the smallest size and number are not above the largest."""
    data = spec.data
    if not isinstance(data, SyntheticData):
        return
    ranges = {"images": (data.min_images, data.max_images)}
    if data.image is None:
        ranges["patches"] = data.min_patches, data.max_patches
    ranges["frames"] = data.min_frames, data.max_frames
    for what, (least, most) in ranges.items():
        if least > most:
            given = f"max_{what}" in data.model_fields_set
            yield Diagnostic(
                code="empty-image-range",
                headline=f"`min_{what}` {least} is above `max_{what}` {most}",
                path=("data", f"min_{what}"),
                why=f"the number of {what} is drawn between the two",
                help=f"write `max_{what}: {least}`",
                related=(Related(path=("data", f"max_{what}"), label="the most"),) * given,
            )


def channels_fit_digits(spec: Spec, name: str) -> Findings:
    """Digits are grey: one channel."""
    model = image_input(spec.modules[name].model)
    if model is None or not isinstance(spec.data, DigitsData):
        return
    if model.channels != 1:
        yield Diagnostic(
            code="channels-unlike-data",
            headline=f"`{name}` reads {model.channels} channels, but digits have 1",
            path=(*input_path(spec, name), "channels"),
            why="the first layer has one weight per pixel and channel",
            help="write `channels: 1`",
            related=(_DATA,),
        )


def vocab_holds_tokens(spec: Spec) -> Findings:
    """The vocabulary has room for the data's tokens and one placeholder per encoder."""
    model = spec.language.model
    if not isinstance(model, LanguageModel) or isinstance(model.vocab, str):
        return
    if isinstance(spec.data, WebdatasetData):  # Its tokens are those of the tokenizer.
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
