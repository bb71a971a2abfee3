"""Checks of encoders that read videos.

Decides: where videos may be read, and that their time is given in a way that the spec allows.
Relies on: names of the first members of shards.
Leaves: processors to `shards`, weights to `init_from_folder`, videos themselves to the index.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mimo_launch.checks.rule import Findings, chosen
from mimo_launch.checks.shards import first_suffixes
from mimo_launch.data.sources.tar_files import VIDEO_SUFFIXES
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.diag.installed import AV, is_installed
from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import TokenizerError
from mimo_launch.processors.image_texts import line_break
from mimo_launch.processors.recipes import video_readers
from mimo_launch.spec.spec import (
    CaptionTemplate,
    ChatTemplate,
    DigitsData,
    Spec,
    SyntheticData,
    VitModel,
    WebdatasetData,
)


def videos_can_be_read(spec: Spec, name: str, model: VitModel) -> Findings:
    """One encoder reads videos, and the text or an axis gives their time."""
    if model.video is None:
        return
    for headline, why, help_ in _faults(spec, name, model):
        yield Diagnostic(
            code="videos-not-read",
            headline=headline,
            path=("modules", name, "model", "video"),
            why=why,
            help=help_,
        )


def _faults(spec: Spec, name: str, model: VitModel) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong, why, and what to write instead."""
    video, others = model.video, [each for each in video_readers(spec) if each != name]
    if video is None:
        return
    if others and others[0] < name:
        yield (
            f"`{name}` and `{others[0]}` both read videos",
            "the frames and the time of a video are those that one encoder takes of it",
            f"delete `video` of `{name}`",
        )
    if isinstance(spec.data, DigitsData):
        yield (
            f"`{name}` reads videos, but `kind: digits` has none",
            "a digit is one image",
            "delete `video`, or write `data: {kind: webdataset, ...}` with shards of your own",
        )
    if video.in_seconds and video.per_second is None:
        usual = {"seconds": 2, "nominal_seconds": 25}[video.time]
        key = {2: "tokens_per_second", 25: "position_id_per_seconds"}[usual]
        yield (
            f"`time: {video.time}` of `{name}` does not say how many places a second takes",
            "language counts time in whole places on the first axis of `mrope`",
            f"write `video: {{time: {video.time}, per_second: {usual}}}`, or the `{key}` of the "
            "model that it starts from",
        )
    without = "none" if kind_of(spec.language.model).text.mrope is None else "patches"
    caption = isinstance(spec.data, WebdatasetData) and isinstance(
        spec.data.template, CaptionTemplate
    )
    if video.in_text and caption:
        yield (
            f"`{name}` has the time of videos in the text, but captions have no place for it",
            "the chat template writes what stands around each temporal patch",
            f"write `template: chat` in `data`, or `video: {{time: {without}}}`",
        )
    if (lines := _line_break(spec)) is not None:
        folder, text = lines
        yield (
            f"`{name}` reads videos, but {folder} writes {text} between lines",
            "its processor does so for images, and no processor says where it belongs in a video",
            f"delete `video` of `{name}`, or write `tokenizer: FOLDER` of a model that reads "
            "videos",
        )
    for reader in spec.encoders:
        sources = spec.sources_of(reader)
        if name in sources and len(sources) > 1:
            yield (
                f"`{reader}` reads `{name}`, which reads videos, and {len(sources) - 1} more",
                "the others see images only, so there is nothing of theirs to go with a video",
                f"delete `video` of `{name}`, or write `reads: [{name}]` in `{reader}`",
            )


def _line_break(spec: Spec) -> tuple[str, str] | None:
    """Return the folder of the tokenizer and its token between lines of images, if it has one."""
    data = spec.data
    if not isinstance(data, WebdatasetData) or not isinstance(data.template, ChatTemplate):
        return None
    with suppress(TokenizerError):  # Another check reports it.
        if (text := line_break(Path(data.tokenizer))) is not None:
            return data.tokenizer, text
    return None


def video_settings_used(spec: Spec) -> Findings:
    """Settings of videos have an effect only where videos are read (a warning)."""
    if isinstance(spec.data, WebdatasetData) and not video_readers(spec):
        for key in ("video", "video_marker"):
            if key in chosen(spec.data):
                yield Diagnostic(
                    code="setting-without-effect",
                    headline=f"`{key}` does nothing: no encoder reads videos",
                    path=("data", key),
                    severity=Severity.WARNING,
                    why="an image encoder with `video` in its model reads them",
                    help=f"delete `{key}`, or write `video: {{time: patches}}` in the `model` of "
                    "an encoder",
                )
    made_up = isinstance(spec.data, SyntheticData) and spec.data.max_temporal_patches > 1
    if made_up and not video_readers(spec):
        yield Diagnostic(
            code="setting-without-effect",
            headline="`max_temporal_patches` does nothing: no encoder reads videos",
            path=("data", "max_temporal_patches"),
            severity=Severity.WARNING,
            why="an image of several temporal patches is a video",
            help="delete it, or write `video: {time: none}` in the `model` of an encoder",
        )
    for name, module in spec.encoders.items():
        video = getattr(kind_of(module.model).images, "video", None)
        if video is not None and not video.in_seconds and video.per_second is not None:
            yield Diagnostic(
                code="setting-without-effect",
                headline=f"`per_second` of `{name}` does nothing",
                path=("modules", name, "model", "video", "per_second"),
                severity=Severity.WARNING,
                why=f"with `time: {video.time}` no axis counts seconds",
                help="delete `per_second`, or write `time: seconds`",
            )


def video_package_installed(spec: Spec) -> Findings:
    """Files of videos are decoded by an optional package."""
    if not isinstance(spec.data, WebdatasetData) or not video_readers(spec):
        return
    _, suffixes = first_suffixes(spec.data)
    found = {each.rpartition(".")[2] for each in suffixes} & VIDEO_SUFFIXES
    if found and not is_installed("av"):
        yield Diagnostic(
            code="missing-package",
            headline="`av` is not installed",
            path=("data", "shards"),
            why=f"the shards begin with videos (.{min(found)}), which are decoded with it",
            help=f"pip install '{AV}'",
            related=(Related(path=("data", "kind"), label="these data"),),
        )
