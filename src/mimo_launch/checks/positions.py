"""Checks of position embeddings (rotary, sines and cosines, tables) and of windows.

Decides: which widths of models and heads fit the position embedding of a model; which tokens and
layers windows need.
Relies on: `widths` for heads that divide the width.
Leaves: how widths are cut over tp to `widths`.
"""

from mimo_launch.checks.rule import Findings, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.spec.language_models import CausalModel, DecoderBlocks
from mimo_launch.spec.spec import (
    AudioModel,
    DecoderModel,
    SlidingWindow,
    Spec,
    VitModel,
    Windows,
)


def head_size_even(spec: Spec, name: str, model: CausalModel) -> Findings:
    """Rotary positions turn pairs of numbers."""
    if not model.attends or model.head_size % 2 == 0 or model.rope_theta is None:
        return
    given = model.head_dim is not None
    fits = f"head_dim: {model.head_size + 1}"
    yield Diagnostic(
        code="odd-head-size",
        headline=f"`{name}`: the head size {model.head_size} is odd",
        path=("modules", name, "model", "head_dim" if given else "hidden"),
        why="rotary positions rotate the dimensions of a head in pairs",
        help=f"write `{fits}`",
    )


def mrope_fills_head(spec: Spec, name: str, model: DecoderModel) -> Findings:
    """Every pair of a head turns with one axis."""
    if model.mrope is None:
        return
    pairs, given = model.head_size // 2, sum(model.mrope)
    if given == pairs:
        return
    # The shares of Qwen2-VL: 2 to 3 to 3.
    side = max(1, 3 * pairs // 8)
    fits = f"mrope: [{pairs - 2 * side}, {side}, {side}]" if pairs > 2 * side else "head_dim: 128"
    yield Diagnostic(
        code="mrope-over-head",
        headline=f"`{name}`: mrope rotates {' + '.join(map(str, model.mrope))} = {given} pairs, "
        f"but a head has {pairs}",
        path=("modules", name, "model", "mrope"),
        why="rotary positions rotate the dimensions of a head in pairs, each pair with one axis",
        help=f"write `{fits}`",
    )


def scaling_in_order(spec: Spec, name: str, model: DecoderBlocks) -> Findings:
    """There are wavelengths between those that stay and those that turn slower."""
    if model.rope_scaling is None or model.rope_scaling.rope_type == "linear":
        return
    low, high = model.rope_scaling.low_freq_factor, model.rope_scaling.high_freq_factor
    if low < high:
        return
    path = ("modules", name, "model", "rope_scaling")
    yield Diagnostic(
        code="rope-scaling-order",
        headline=f"`{name}`: high_freq_factor {high:g} is not above low_freq_factor {low:g}",
        path=(*path, "high_freq_factor"),
        why="wavelengths between original length / high_freq_factor and original length / "
        "low_freq_factor are interpolated, so the first bound must be below the second",
        help=f"write `high_freq_factor: {4 * low:g}`",
        related=(Related(path=(*path, "low_freq_factor"), label=f"{low:g}"),),
    )


def hidden_holds_positions(spec: Spec, name: str, model: VitModel) -> Findings:
    """2-D sine and cosine positions take a quarter of the width each."""
    if model.positions != "sincos" or model.hidden % 4 == 0:
        return
    fits = next_multiple(model.hidden, 4 * model.heads)
    yield Diagnostic(
        code="hidden-not-multiple-of-4",
        headline=f"`{name}`: hidden {model.hidden} is not a multiple of 4",
        path=("modules", name, "model", "hidden"),
        why="patch positions are sines and cosines of row and column, a quarter of `hidden` each",
        help=f"write `hidden: {fits}`",
    )


def heads_hold_places(spec: Spec, name: str, model: VitModel) -> Findings:
    """2-D rotary positions turn pairs by row and as many by column."""
    if not model.turns_patches:
        return
    size = model.hidden // model.heads
    if size % 4 == 0:
        return
    fits = model.heads * next_multiple(size, 4)
    yield Diagnostic(
        code="head-not-multiple-of-4",
        headline=f"`{name}`: the head size {size} is not a multiple of 4",
        path=("modules", name, "model", "hidden"),
        why="`rope2d` rotates half of the pairs of a head by row of a patch, half by column",
        help=f"write `hidden: {fits}`",
        related=(Related(path=("modules", name, "model", "heads"), label=f"{model.heads} heads"),),
    )


def learned_positions_have_grid(spec: Spec, name: str, model: VitModel) -> Findings:
    """A table of positions has a size."""
    if not model.has_table or model.image is not None:
        return
    yield Diagnostic(
        code="positions-without-grid",
        headline=f"`{name}` has learned positions, but no `image` to size their table",
        path=("modules", name, "model", "positions"),
        why="the table has one row per patch of an image of that size",
        help="write `image: [24, 24]`: height and width of the image, in patches",
    )


def class_token_has_place(spec: Spec, name: str, model: VitModel) -> Findings:
    """2-D rotary positions turn patches by their places, and a class token has none."""
    if not model.class_token or not model.turns_patches:
        return
    yield Diagnostic(
        code="class-token-without-place",
        headline=f"`{name}`: a class token has no row and column to rotate it by",
        path=("modules", name, "model", "class_token"),
        why="2-D rotary positions rotate queries and keys by the row and column of a patch",
        help="delete `class_token`, or write `positions: learned`",
        related=(Related(path=("modules", name, "model", "positions"), label=model.positions),),
    )


def windows_have_layers(spec: Spec, name: str, model: VitModel | DecoderModel) -> Findings:
    """Layers that attend to whole images or sequences exist, and others attend in windows."""
    windows: Windows | SlidingWindow | None
    if isinstance(model, VitModel):
        key, whole, do, windows = "windows", "images", "do", model.windows
    else:
        key, whole, do, windows = "sliding_window", "sequences", "does", model.sliding_window
    if windows is None:
        return
    path = ("modules", name, "model", key)
    beyond = [number for number in windows.full if number >= model.layers]
    kept = sorted({number for number in windows.full if number < model.layers})
    if beyond:
        yield Diagnostic(
            code="full-layer-not-in-model",
            headline=f"`{name}`: layer {beyond[0]} is to attend to whole {whole}, but the last "
            f"layer is {model.layers - 1}",
            path=(*path, "full", windows.full.index(beyond[0])),
            why="layers are counted from 0",
            help=f"write `full: {kept}`",
            related=(
                Related(path=("modules", name, "model", "layers"), label=f"{model.layers} layers"),
            ),
        )
    elif len(kept) == model.layers:
        yield Diagnostic(
            code="setting-without-effect",
            severity=Severity.WARNING,
            headline=f"`{key}` of `{name}` {do} nothing",
            path=path,
            at_key=True,
            why="every layer is in `full`",
            help=f"delete `{key}`",
        )


def windows_hold_all_tokens(spec: Spec, name: str, model: VitModel) -> Findings:
    """A class token is in no window."""
    if model.windows is None or not model.class_token:
        return
    yield Diagnostic(
        code="class-token-without-window",
        headline=f"`{name}`: a class token belongs to no window",
        path=("modules", name, "model", "class_token"),
        why="`windows` cut the patches of an image into squares, which attend to themselves only",
        help="delete `class_token` or `windows`",
        related=(Related(path=("modules", name, "model", "windows"), label="windows"),),
    )


def hidden_holds_sinusoids(spec: Spec, name: str, model: AudioModel) -> Findings:
    """Half of the width is sines, half is cosines."""
    if model.hidden % 2 == 0:
        return
    yield Diagnostic(
        code="odd-audio-width",
        headline=f"`{name}`: hidden {model.hidden} is an odd number",
        path=("modules", name, "model", "hidden"),
        why="positions in a clip are sines and cosines, half of `hidden` each",
        help=f"write `hidden: {next_multiple(model.hidden, 2 * model.heads)}`",
    )
