"""Checks of encoders that take several pictures: the tiles of an image, the frames of a video.

Decides: what tiles cannot be combined with; that all encoders see the same number of images, where
processors make several of one; where videos may be read, and that their time is given in a way that
the spec allows.
Relies on: `kinds` for what language does with images; `processors.recipes`; names of the first
members of shards.
Leaves: whether a processor makes the same tiles to `data.samples.readers`; processors of videos
to `shards`, weights to `init_from_folder`, videos themselves to the index.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.checks.rule import Findings, chosen_keys, no_effect
from mimo_launch.checks.shards import first_suffixes
from mimo_launch.data.sources.media_suffixes import VIDEO_SUFFIXES
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.diag.installed import AV, is_installed
from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import ProcessorError, TokenizerError
from mimo_launch.processors.image_texts import line_break
from mimo_launch.processors.recipes import recipe_of, video_readers
from mimo_launch.processors.unlike_tiles import tiles_unlike
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.ovis2_vision import IndicatedTiles
from mimo_launch.spec.spec import (
    CaptionTemplate,
    ChatTemplate,
    DigitsData,
    Spec,
    SyntheticData,
    UserData,
    VitModel,
    WebdatasetData,
)

if TYPE_CHECKING:
    from mimo_launch.processors.cut_rules import Cut


def tiles_fit(spec: Spec, name: str, model: VitModel) -> Findings:
    """A tile is an image with the grid of learned positions; each of its patches may be a row."""
    if model.tiles is None:
        return
    always = isinstance(model.tiles, IndicatedTiles)
    # All, or none if a part is missing.
    for path, why, remedy in list(_misfits(spec, name, model)):
        yield Diagnostic(
            code="tiles-do-not-fit",
            headline=f"`{name}` cuts images into tiles, which do not fit to "
            f"`{'.'.join(map(str, path[-2:]))}`",
            path=path,
            why=why,
            help=remedy if always else f"{remedy}, or delete `tiles` of `{name}`",
            related=(Related(("modules", name, "model", "tiles"), "tiles"),),
        )


def _misfits(spec: Spec, name: str, model: VitModel) -> Iterator[tuple[YamlPath, str, str]]:
    """Yield the keys that do not fit tiles, why, and what to write instead."""
    path: YamlPath = ("modules", name, "model")
    if model.positions != "learned":
        why = "`image`, the grid of learned positions, is the size of a tile"
        yield (*path, "positions"), why, "write `positions: learned`"
    if model.image is not None and model.tiles is not None and model.tiles.side is not None:
        least = model.patch * max(model.image)
        if model.tiles.side < least:
            why = f"{max(model.image)} patches of {model.patch} pixels are {least} pixels"
            yield (*path, "tiles", "side"), why, f"write `side: {least}`"
    yield from _squares_beyond_tiles(path, model)
    yield from _misfits_of_last(path, model)
    if model.video is not None and model.temporal_patch > 1:
        why = "each frame of a video is a tile"
        yield (*path, "temporal_patch"), why, "write `temporal_patch: 1`, or delete `video`"
    if model.video is not None and model.video.time != "none":
        why = "frames of a video follow each other without their time"
        yield (*path, "video", "time"), why, "write `time: none`"
    if model.windows is not None:
        yield (*path, "windows"), "patches attend to those of their tile", "delete `windows`"
    if model.deepstack:
        why = "rows of several layers are not averaged"
        yield (*path, "deepstack"), why, "delete `deepstack`"
    if isinstance(spec.data, DigitsData):
        yield ("data", "kind"), "strips of digits have no tiles", "write `kind: synthetic`"
    language = kind_of(spec.language.model)
    path = ("modules", LANGUAGE, "model")
    if language.text.mrope is not None:
        why = "lines of rows and learned rows have no place on the axes"
        yield (*path, "mrope"), why, "delete `mrope`"
    if language.attending.whole_images:
        why = "tiles are images of their own"
        yield (*path, "bidirectional_images"), why, "write `bidirectional_images: false`"


def _squares_beyond_tiles(path: YamlPath, model: VitModel) -> Iterator[tuple[YamlPath, str, str]]:
    """Yield the key by which the squares of patches that become rows do not fit tiles."""
    side = model.shuffle
    if not isinstance(model.tiles, IndicatedTiles) and not model.tiles_before_projector:
        if side > 1:
            yield (*path, "shuffle"), "every patch of a tile may become a row", "write `shuffle: 1`"
    elif model.image is not None and any(each % side for each in model.image):
        sides = ", ".join(str(-(-each // side) * side) for each in model.image)
        why = f"squares of {side} x {side} patches fill a tile"
        yield (*path, "image"), why, f"write `image: [{sides}]`"


def _misfits_of_last(path: YamlPath, model: VitModel) -> Iterator[tuple[YamlPath, str, str]]:
    """Yield the same of other keys where the whole image comes last."""
    if model.tiles is None or not model.tiles_before_projector:
        return
    if not model.tiles.each:
        why = "with `whole: last` every image is cut, if only into one tile beside the whole"
        yield (*path, "tiles", "each"), why, "write `each: true` in `tiles`"
    if model.tiles.most is not None:
        why = "with `whole: last` all tiles keep all their rows"
        yield (*path, "tiles", "most"), why, "delete `most`"
    if model.video is not None:
        why = "with `whole: last` no rows of frames are known"
        yield (*path, "video"), why, "delete `video`"


def processors_cut_alike(spec: Spec, data: UserData) -> Findings:
    """If an image becomes several, each encoder sees the same number; a generator makes one."""
    cuts: dict[str, Cut | None] = {}
    for name, module in spec.modules.items():
        kind = kind_of(module.model)
        if kind.images is not None:
            try:
                recipe = recipe_of(spec, name)
            except ProcessorError:  # Another check reports it for this module.
                return
            if any(tiles_unlike(kind.images, kind.tokens.tiles, recipe)):  # And this.
                return
            cuts[name] = recipe.cut
    first = next((name for name in spec.encoders if cuts.get(name) is not None), None)
    for name, cut in cuts.items():
        if cut is not None and name in spec.generators:
            why = "a generator learns to make one image"
            remedy = f"name the folder of a processor of one in `data.processors` for `{name}`"
        elif name in spec.encoders and first is not None and cut != cuts[first]:
            why = f"each of them is an image in the text, of which `{first}` makes rows, too"
            remedy = f"name one folder for `{first}` and `{name}` in `data.processors`"
        else:
            continue
        yield Diagnostic(
            code="processor-not-supported",
            headline=f"the image processor of `{name if cut else first}` makes several images of "
            f"one, but `{name}` does not take them",
            path=("modules", name, "model"),
            why=why,
            help=remedy,
        )


def videos_can_be_read(spec: Spec, name: str, model: VitModel) -> Findings:
    """One encoder reads videos, and the text or an axis gives their time."""
    if model.video is None:
        return
    for headline, why, help_ in _video_faults(spec, name, model):
        yield Diagnostic(
            code="videos-not-read",
            headline=headline,
            path=("modules", name, "model", "video"),
            why=why,
            help=help_,
        )


def _video_faults(spec: Spec, name: str, model: VitModel) -> Iterator[tuple[str, str, str]]:
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
        usual = {"seconds": 2, "nominal_seconds": 25, "exact_seconds": 13}[video.time]
        key = "tokens_per_second" if usual == 2 else "position_id_per_seconds"
        yield (
            f"`time: {video.time}` of `{name}` does not say how many places a second takes",
            "language counts time in whole places on the first axis of `mrope`",
            f"write `video: {{time: {video.time}, per_second: {usual}}}`, or the `{key}` of the "
            "model that it starts from",
        )
    without = "none" if kind_of(spec.language.model).text.mrope is None else "patches"
    templates = spec.data.templates if isinstance(spec.data, UserData) else ()
    caption = any(isinstance(each, CaptionTemplate) for each in templates)
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


def sound_can_be_heard(spec: Spec) -> Findings:
    """One encoder hears the sound of videos, and its rows have places among those of the frames."""
    data = spec.data
    if not isinstance(data, UserData) or not data.video.sound or not video_readers(spec):
        return
    for why, help_ in _sound_faults(spec, data):
        yield Diagnostic(
            code="videos-not-read",
            headline="`sound: true` in `data.video`: the sound of videos cannot be heard here",
            path=("data", "video", "sound"),
            why=why,
            help=f"{help_}, or write `sound: false`",
        )


def _sound_faults(spec: Spec, data: UserData) -> Iterator[tuple[str, str]]:
    """Yield why the sound of videos cannot be heard, and what to write instead."""
    read = spec.sources_of(LANGUAGE)
    for name in video_readers(spec):
        video = getattr(kind_of(spec.modules[name].model).images, "videos", None)
        if video is not None and not video.holds_text:
            yield (
                f"with `time: {video.time}` of `{name}` no processor says where it belongs among "
                "the frames",
                f"write `video: {{time: nominal_seconds, per_second: 25}}` in `model` of `{name}`",
            )
        readers = [each for each in spec.encoders if name in spec.sources_of(each)]
        if name not in read or readers:
            other = next(iter(readers), LANGUAGE)
            yield (
                f"its rows come between those of `{name}`, but `{other}` makes others of these",
                f"let `{LANGUAGE}` alone read `{name}`",
            )
    heard = [each for each in read if kind_of(spec.modules[each].model).clips is not None]
    if len(heard) != 1:
        several = f"{' and '.join(f'`{each}`' for each in heard)} would all hear it"
        yield (
            several if heard else f"`{LANGUAGE}` reads no encoder of clips",
            f"let `{LANGUAGE}` read one encoder of clips, such as `kind: audio`",
        )
    if any(isinstance(each, CaptionTemplate) for each in data.templates):
        yield (
            "tokens surround a video with its sound, and captions have no place for them",
            "write `template: chat` in `data`",
        )


def _line_break(spec: Spec) -> tuple[str, str] | None:
    """Return the folder of the tokenizer and its token between lines of images, if it has one."""
    data = spec.data
    if not isinstance(data, UserData):
        return None
    if not any(isinstance(each, ChatTemplate) for each in data.templates):
        return None
    with suppress(TokenizerError):  # Another check reports it.
        if (text := line_break(Path(data.tokenizer))) is not None:
            return data.tokenizer, text
    return None


def video_settings_used(spec: Spec) -> Findings:
    """Settings of videos have an effect only where videos are read (a warning)."""
    if isinstance(spec.data, UserData) and not video_readers(spec):
        for key in ("video", "video_marker"):
            if key in chosen_keys(spec.data):
                yield no_effect(
                    ("data", key),
                    f"`{key}` does nothing: no encoder reads videos",
                    "an image encoder with `video` in its model reads them",
                    f"delete `{key}`, or write `video: {{time: patches}}` in the `model` of "
                    "an encoder",
                )
    made_up = isinstance(spec.data, SyntheticData) and spec.data.max_temporal_patches > 1
    if made_up and not video_readers(spec):
        yield no_effect(
            ("data", "max_temporal_patches"),
            "`max_temporal_patches` does nothing: no encoder reads videos",
            "an image of several temporal patches is a video",
            "delete it, or write `video: {time: none}` in the `model` of an encoder",
        )
    for name, module in spec.encoders.items():
        video = getattr(kind_of(module.model).images, "video", None)
        if video is not None and not video.in_seconds and video.per_second is not None:
            yield no_effect(
                ("modules", name, "model", "video", "per_second"),
                f"`per_second` of `{name}` does nothing",
                f"with `time: {video.time}` no axis counts seconds",
                "delete `per_second`, or write `time: seconds`",
            )


def video_package_installed(spec: Spec) -> Findings:
    """Files of videos are decoded by an optional package."""
    if not isinstance(spec.data, UserData) or not video_readers(spec):
        return
    _, suffixes = first_suffixes(spec.data)
    found = {each.rpartition(".")[2] for each in suffixes} & VIDEO_SUFFIXES
    if found and not is_installed("av"):
        key = "shards" if isinstance(spec.data, WebdatasetData) else "sources"
        yield Diagnostic(
            code="missing-package",
            headline="`av` is not installed",
            path=("data", key),
            why=f"the {key} begin with videos (.{min(found)}), which are decoded with it",
            help=f"pip install '{AV}'",
            related=(Related(("data", "kind"), "these data"),),
        )
