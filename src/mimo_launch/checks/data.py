"""Checks of the images and clips of digits and synthetic data against the encoders that read them.

Decides: which encoders, and which limits of sizes, fit a data set.
Relies on: `kinds.vocabulary` for the size of a digit.
Leaves: tokens to `vocabulary`, shards to `shards`.
"""

from math import gcd

from mimo_launch.checks.rule import Findings, chosen_keys, no_effect
from mimo_launch.data.sample_sizes import sizes_drawn
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import DIGIT_SIDE
from mimo_launch.layout.space import divisors
from mimo_launch.spec.spec import DigitsData, Spec, SyntheticData, UserData

_DATA = Related(("data", "kind"), "digit images are 8x8, one channel")


def input_path(spec: Spec, name: str) -> YamlPath:
    """Return the path of the keys that describe an encoder's input."""
    path = ("modules", name, "model")
    return (*path, "input") if kind_of(spec.modules[name].model).is_custom else path


def ranges_not_empty(spec: Spec, data: DigitsData | SyntheticData) -> Findings:
    """The smallest size and number of strips, images, clips and texts do not exceed the largest."""
    sizes: tuple[str, ...] = ("digits",)
    drawn, most, words = "length of each strip", "the longest", {"text": "text tokens"}
    digits = isinstance(data, DigitsData)
    if isinstance(data, SyntheticData):
        patches, text = ["patches"] * (data.image is None), ["text"] * (data.max_text is not None)
        sizes = ("images", *patches, "frames", *text)
        drawn, most = "number of {}", "the most"
    for what in sizes:
        low, high = (getattr(data, f"{end}_{what}") for end in ("min", "max"))
        if low > high:
            given = f"max_{what}" in data.model_fields_set
            yield Diagnostic(
                code="empty-digit-range" if digits else "empty-image-range",
                headline=f"`min_{what}` {low} is above `max_{what}` {high}",
                path=("data", f"min_{what}"),
                why=f"the {drawn.format(words.get(what, what))} is drawn between the two",
                help=f"write `max_{what}: {low}`",
                related=(Related(("data", f"max_{what}"), most),) * given,
            )


def patch_divides_digit(spec: Spec, name: str) -> Findings:
    """Patches tile an 8x8 digit."""
    model = kind_of(spec.modules[name].model).images
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
    model, data = kind_of(spec.modules[name].model).images, spec.data
    if model is None or model.shuffle == 1:
        return
    if isinstance(data, UserData):  # Images are made of whole rows, or cut to them.
        return
    side, related = model.shuffle, Related(("data", "kind"), "these data")
    if isinstance(data, DigitsData):
        patches = DIGIT_SIDE // model.patch
        sizes, where = divisors(patches), f"a digit of {patches} x {patches} patches"
        related = _DATA
    elif data.image is not None:
        height, width = data.image
        sizes, where = divisors(gcd(height, width)), f"images of {height} x {width} patches"
        related = Related(("data", "image"), "the size of every image")
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


def places_hold_images(spec: Spec, name: str) -> Findings:
    """Images that are made have a learned place for each row and each column of patches."""
    images, data = kind_of(spec.modules[name].model).images, spec.data
    if images is None or (most := images.most_places) is None or isinstance(data, UserData):
        return  # Images of files that are longer are bad samples.
    sides = (max(size.height, size.width) for _, size in sizes_drawn(spec, name))
    longest = max(sides) * images.shuffle
    if longest <= most:
        return
    yield Diagnostic(
        code="image-beyond-places",
        headline=f"`{name}`: images are up to {longest} patches long, with `places: {most}`",
        path=("modules", name, "model", "places"),
        why="each row and each column of patches has a learned vector",
        help=f"write `places: {longest}`",
        related=(Related(("data",), "the sizes of images"),),
    )


def channels_fit_digits(spec: Spec, name: str) -> Findings:
    """Digits are grey: one channel."""
    model = kind_of(spec.modules[name].model).images
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


def frames_are_whole_rows(spec: Spec, name: str) -> Findings:
    """The longest clip, or each chunk of a clip, splits into whole rows."""
    model = kind_of(spec.modules[name].model).clips
    if model is None:
        return
    chunk, row = model.chunk_frames, model.frames_per_row
    key, frames = ("frames", model.frames) if chunk is None else ("chunk", chunk)
    # The last token of a chunk may see fewer frames.
    if frames % row == 0 or (chunk and model.chunk_tokens % model.stack == 0):
        return
    fits = max(row, frames // row * row)
    yield Diagnostic(
        code="frames-over-rows",
        headline=f"`{name}`: {frames} frames are not whole rows of {row}",
        path=(*input_path(spec, name), key),
        why=f"{model.frames_per_token} frames become a token, and `stack` {model.stack} of them "
        "a row",
        help=f"write `{key}: {fits}`, or another `stack`",
        related=(Related((*input_path(spec, name), "stack"), f"stack {model.stack}"),)
        * ("stack" in model.model_fields_set),
    )


def clips_hold_a_row(spec: Spec, name: str) -> Findings:
    """Some synthetic clip is long enough for a row."""
    model, data = kind_of(spec.modules[name].model).clips, spec.data
    if model is None or not isinstance(data, SyntheticData):
        return
    if model.has_one_length or model.rows_of(data.max_frames):
        return
    yield Diagnostic(
        code="row-over-clips",
        headline=f"`{name}`: no clip of at most {data.max_frames} frames has a row of "
        f"{model.frames_per_row}",
        path=(*input_path(spec, name), "stack"),
        why="a clip is cut into whole rows",
        help=f"write `max_frames: {model.frames_per_row}` under `data`, or a smaller `stack`",
        related=(Related(("data", "max_frames"), "the longest clip"),)
        * ("max_frames" in data.model_fields_set),
    )


def digits_are_seen(spec: Spec, name: str) -> Findings:
    """Handwritten digits are images, so no encoder of audio reads them."""
    if kind_of(spec.modules[name].model).clips is None or not isinstance(spec.data, DigitsData):
        return
    yield Diagnostic(
        code="sound-not-in-data",
        headline=f"`{name}` is an audio encoder, but digits are images",
        path=("modules", name, "model", "kind"),
        why="each encoder needs data of its kind",
        help="write `kind: vit`, or data with sound",
        related=(Related(("data", "kind"), "images only"),),
    )


def tasks_have_generator(spec: Spec, data: DigitsData) -> Findings:
    """Digits are drawn by generators, and generators draw digits."""
    if bool(spec.generators) == ("draw" in data.tasks):
        return
    generator = next(iter(spec.generators), None)
    yield Diagnostic(
        code="draw-without-generator",
        headline="`tasks` asks for digits to draw, but no module makes images"
        if generator is None
        else f"`{generator}` makes images, but `tasks` asks for none",
        path=("data", "tasks") if generator is None else ("modules", generator),
        at_key=generator is not None,
        why="only samples to draw have an image that a generator can learn to make",
        help="add a module with `model: {kind: flow, ...}` and `reads: [language]`, or write "
        "`tasks: [read]`"
        if generator is None
        else f"write `tasks: [{', '.join([*data.tasks, 'draw'])}]` in `data`",
        related=() if generator is None else (Related(("data",), "nothing to draw"),),
    )


def frame_limits_used(spec: Spec) -> Findings:
    """Limits of clips have no effect where none is read, or all have one length (a warning)."""
    data = spec.data
    clips = [kind_of(module.model).clips for module in spec.encoders.values()]
    if isinstance(data, UserData) and "long_clips" in chosen_keys(data) and not any(clips):
        yield no_effect(
            ("data", "long_clips"),
            "`long_clips` does nothing: no encoder reads clips",
            "it says what becomes of clips longer than the window of their encoder",
        )
    if not isinstance(data, SyntheticData) or any(c and not c.has_one_length for c in clips):
        return
    for key in ("min_frames", "max_frames"):
        if key in chosen_keys(data):
            yield no_effect(
                ("data", key),
                f"`{key}` does nothing here",
                "no audio encoder takes clips of different lengths",
            )
