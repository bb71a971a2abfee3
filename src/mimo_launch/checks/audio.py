"""Checks of audio encoders: their positions, their rows, and the sound they are given.

Decides: which sizes of an audio encoder fit together and fit the data.
Relies on: the model types of the spec.
Leaves: heads and widths, which all models have, to `widths`.
"""

from collections.abc import Iterator

from mimo_launch.checks.data import input_path
from mimo_launch.checks.rule import Findings, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.spec.encoders import FRAMES_PER_TOKEN
from mimo_launch.spec.model import AudioModel, DigitsData, Spec, SyntheticData, clip_input


def hidden_holds_sinusoids(spec: Spec, name: str) -> Findings:
    """Half of the width is sines, half is cosines."""
    model = spec.modules[name].model
    if not isinstance(model, AudioModel) or model.hidden % 2 == 0:
        return
    yield Diagnostic(
        code="odd-audio-width",
        headline=f"`{name}`: hidden {model.hidden} is an odd number",
        path=("modules", name, "model", "hidden"),
        why="positions in a clip are sines and cosines, half of the width each",
        help=f"write `hidden: {next_multiple(model.hidden, 2 * model.heads)}`",
    )


def frames_are_whole_rows(spec: Spec, name: str) -> Findings:
    """The longest clip is cut into whole rows."""
    model = clip_input(spec.modules[name].model)
    if model is None or model.frames % model.frames_per_row == 0:
        return
    row = model.frames_per_row
    fits = max(row, model.frames // row * row)
    yield Diagnostic(
        code="frames-over-rows",
        headline=f"`{name}`: {model.frames} frames are not whole rows of {row}",
        path=(*input_path(spec, name), "frames"),
        why=f"{FRAMES_PER_TOKEN} frames become a token, and `stack` {model.stack} of them a row",
        help=f"write `frames: {fits}`, or another `stack`",
        related=(Related(path=(*input_path(spec, name), "stack"), label=f"stack {model.stack}"),)
        * ("stack" in model.model_fields_set),
    )


def clips_hold_a_row(spec: Spec, name: str) -> Findings:
    """Some synthetic clip is long enough for a row."""
    model, data = clip_input(spec.modules[name].model), spec.data
    if model is None or not isinstance(data, SyntheticData):
        return
    if model.fixed_length or data.max_frames >= model.frames_per_row:
        return
    yield Diagnostic(
        code="row-over-clips",
        headline=f"`{name}`: no clip of at most {data.max_frames} frames has a row of "
        f"{model.frames_per_row}",
        path=(*input_path(spec, name), "stack"),
        why="a clip is cut into whole rows",
        help=f"write `max_frames: {model.frames_per_row}` under `data`, or a smaller `stack`",
        related=(Related(path=("data", "max_frames"), label="the longest clip"),)
        * ("max_frames" in data.model_fields_set),
    )


def digits_are_seen(spec: Spec, name: str) -> Findings:
    """Handwritten digits make no sound."""
    if clip_input(spec.modules[name].model) is None or not isinstance(spec.data, DigitsData):
        return
    yield Diagnostic(
        code="sound-not-in-data",
        headline=f"`{name}` is an audio encoder, but digits are images",
        path=("modules", name, "model", "kind"),
        why="each encoder needs data of its kind",
        help="write `kind: vit`, or data with sound",
        related=(Related(path=("data", "kind"), label="images only"),),
    )


def frame_limits_used(spec: Spec) -> Findings:
    """Limits of synthetic clips where no clip has a random length."""
    data = spec.data
    if not isinstance(data, SyntheticData) or any(_vary(spec)):
        return
    for key in ("min_frames", "max_frames"):
        if key in data.model_fields_set:
            yield Diagnostic(
                code="setting-without-effect",
                severity=Severity.WARNING,
                headline=f"`{key}` does nothing here",
                path=("data", key),
                why="no audio encoder takes clips of different lengths",
                help=f"delete `{key}`",
            )


def _vary(spec: Spec) -> Iterator[bool]:
    """Yield, for each audio encoder, whether its clips have different lengths."""
    for module in spec.encoders.values():
        if clips := clip_input(module.model):
            yield not clips.fixed_length
