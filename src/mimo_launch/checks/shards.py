"""Checks of shards and image processors: files that must be there before a run.

Decides: what is checked without reading records: names, small JSON files, the first headers.
Relies on: `data.sources.shard_names` for names, `shard_formats` for other files,
`processors.recipes`.
Leaves: tokenizers to `vocabulary`, records to the index that `train` builds.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.checks.shard_formats import help_for_address, other_format
from mimo_launch.data.shared_images import makers
from mimo_launch.data.sources.fetching import NotFetched, is_address, package_of
from mimo_launch.data.sources.file_formats import open_file, split_files
from mimo_launch.data.sources.media_suffixes import (
    AUDIO_SUFFIXES,
    CODES_SUFFIX,
    FRAMES_SUFFIX,
    IMAGE_FORMATS,
    TARGET,
    VIDEO_SUFFIXES,
    target_of,
)
from mimo_launch.data.sources.remote_files import DataPath
from mimo_launch.data.sources.shard_names import PatternError, shard_files
from mimo_launch.data.sources.source_file import BrokenFile, Part
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.tiles import TileRule
from mimo_launch.processors.files import ProcessorError, UnknownProcessor
from mimo_launch.processors.recipes import (
    processor_folder,
    recipe_of,
    video_recipe_of,
)
from mimo_launch.processors.unlike_tiles import tiles_unlike
from mimo_launch.spec.spec import Images, Spec, UserData, WebdatasetData
from mimo_launch.spec.user_data import Patterns, patterns_of

if TYPE_CHECKING:
    from mimo_launch.processors.image_recipe import ImageRecipe
    from mimo_launch.processors.video_recipe import VideoRecipe

# Number of members to read the headers of, in a millisecond or two.
_LOOKED_AT = 64
_MOST_LISTED = 3
# Number of shards that are opened, for one header each.
MOST_OPENED = 1000


def evaluates_nothing(files: str, line: str) -> Diagnostic:
    """Return the finding that no files of a kind are held out; `line` in `data` would name some."""
    return Diagnostic(
        code="eval-without-shards",
        headline=f"`eval` has no {files} to evaluate on",
        path=("eval",),
        why=f"held-out samples come from {files} of their own",
        help=f"write `{line}` in `data`, or delete `eval`",
        related=(Related(("data", "kind"), "these data"),),
    )


def shards_are_there(spec: Spec, data: WebdatasetData) -> Findings:
    """Every pattern names shards, which are plain tar files."""
    for place, pattern in placed(("data", "shards"), data.shards):
        yield from _pattern(place, pattern)
    sets = data.eval_shards if isinstance(data.eval_shards, dict) else {"": data.eval_shards or ()}
    for name, given in sets.items():
        for place, pattern in placed(("data", "eval_shards", *filter(None, (name,))), given):
            yield from _pattern(place, pattern)
    if spec.eval is not None and not data.heldout_sets:
        yield evaluates_nothing("shards", "eval_shards: PATTERN")


def placed(path: YamlPath, given: Patterns) -> Iterator[tuple[YamlPath, str]]:
    """Yield each pattern of a key with its place: that of the key, or that of an item of a list."""
    for number, pattern in enumerate(patterns_of(given)):
        yield path if isinstance(given, str) else (*path, number), pattern


def _pattern(path: YamlPath, pattern: str) -> Findings:
    files = yield from files_of(path, pattern, ".tar")
    others = [(file, other) for file in files[:MOST_OPENED] if (other := other_format(file))]
    if others:
        file, first = others[0]
        packed = first.is_packed
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        yield Diagnostic(
            code="shards-compressed" if packed else "shards-not-tar",
            headline=f"`{pattern}` names files that are not plain tar files: {file}{more}",
            path=path,
            why=f"{file.name} {first.what}",
            help=first.instead,
        )


def files_of(
    path: YamlPath, pattern: str, suffix: str = ""
) -> Generator[Diagnostic, None, Sequence[Path]]:
    """Yield what is wrong with a pattern; return its local files. `suffix` is for help."""
    key = next(str(each) for each in reversed(path) if isinstance(each, str))
    if is_address(pattern) and key != "media":
        if package := package_of(pattern):
            yield Diagnostic(
                code="missing-package",
                headline=f"a package to fetch `{pattern}` is not installed",
                path=path,
                why="files at this address are fetched with it",
                help=f"pip install {package}",
            )
        return ()
    if (copied := help_for_address(key, pattern)) is not None:
        yield Diagnostic(
            code="shards-not-found",
            headline=f"`{pattern}` is an address, not a path",
            path=path,
            why="samples are read from anywhere in a file, on a file system that every host sees",
            help=copied,
        )
        return ()
    try:
        files = shard_files(pattern)
    except PatternError as error:
        yield Diagnostic(
            code="shards-not-found",
            headline=f"`{pattern}` cannot be expanded: {error}",
            path=path,
            why="every file that a pattern names is checked before a run, and listed in the index",
            help=f"write `{key}: [PATTERN, ...]` with patterns of fewer files",
        )
        return ()
    missing = [str(file) for file in files if not (file.exists() if not suffix else file.is_file())]
    if missing or not files:
        folder = next((file for file in files if file.is_dir()), None)
        names = ", ".join(missing[:_MOST_LISTED]) + ", ..." * (len(missing) > _MOST_LISTED)
        found = f": {len(missing)} of {len(files)} are missing: {names}" if len(files) > 1 else ""
        yield Diagnostic(
            code="shards-not-found",
            headline=f"`{pattern}` names {'no file' if not found else 'files'}{found}",
            path=path,
            is_absence=folder is None,
            why=f"{folder} is a folder" if folder else f"paths are relative to {Path.cwd()}",
            help=f"write `{key}: {folder / f'*{suffix}' if folder else 'PATTERN'}` of files that "
            "exist",
        )
        return ()
    return files


def processor_is_understood(spec: Spec, name: str) -> Findings:
    """The processor of a module is there; that of images is supported and fits its patches."""
    data = spec.data
    if not isinstance(data, UserData):
        return
    kind = kind_of(spec.modules[name].model)
    images = kind.images
    if images is None and kind.clips is None:
        return
    if name in data.processors and not Path(data.processors[name]).exists():
        what = "feature extractor" if images is None else "image processor"
        yield Diagnostic(
            code="processor-not-supported",
            headline=f"the {what} of `{name}` is not there: {data.processors[name]}",
            path=("data", "processors", name),
            is_absence=True,
            why=f"paths are relative to {Path.cwd()}",
            help="name the folder that the encoder's weights come from in `data.processors`",
        )
        return
    if images is None:
        return
    folder, why, grids = processor_folder(spec, name), "", ""
    remedy = "name the folder that the encoder's weights come from in `data.processors`"
    try:
        recipe, videos = recipe_of(spec, name), video_recipe_of(spec, name)
    except ProcessorError as error:
        why = str(error)
        if isinstance(error, UnknownProcessor) and _makes_one_size(folder):
            remedy = "write `processor: transformers` in `data`: its own class makes the images"
    else:
        why = _unfit(name, images, recipe)
        if not why:
            why, grids = tiles_unlike(images, kind.tokens.tiles, recipe)
            remedy = f"write `{grids}` in `tiles` of `{name}`" if grids else remedy
        if not why and videos is not None:
            why = _why_not(name, images, videos, kind.tokens.tiles)
    if why:
        given = name in data.processors and not grids
        yield Diagnostic(
            code="processor-not-supported",
            headline=f"the image processor of `{name}`{f' in {folder}' if folder else ''} "
            "does not fit",
            path=("data", "processors", name) if given else ("modules", name, "model"),
            why=why,
            help=remedy,
        )


def _makes_one_size(folder: Path | None) -> bool:
    """Return whether the files of an unsupported processor declare the size of its images."""
    from mimo_launch.processors.other_classes import recipe_of_class

    try:
        return folder is not None and recipe_of_class(folder).only_size is not None
    except ProcessorError:
        return False


def _unfit(name: str, images: Images, recipe: "ImageRecipe") -> str:
    """Return why the images of a recipe do not fit a module, "" if they do."""
    side, size, most = images.row_side, recipe.only_size, images.most_places
    if len(recipe.mean) != images.channels:
        return f"it makes {len(recipe.mean)} channels, but `{name}` takes {images.channels}"
    if recipe.factor is not None and recipe.factor % side:
        return (
            f"it makes sides that are multiples of {recipe.factor} pixels, but a row of `{name}` "
            f"takes {side} x {side}"
        )
    if size is not None and min(size) < side:
        return (
            f"it makes images of {size[0]} x {size[1]} pixels, but a row of `{name}` takes "
            f"{side} x {side}"
        )
    if size is not None and most is not None and max(size) // side * images.shuffle > most:
        patches = max(size) // side * images.shuffle
        return f"it makes images that are {patches} patches long, but `{name}` has {most} `places`"
    return ""


def _why_not(name: str, images: Images, videos: "VideoRecipe", tiles: TileRule | None) -> str:
    """Return why the processor of videos does not fit the patches of an encoder, or ""."""
    from mimo_launch.processors.frame_sizes import ExactFrames

    side, size = images.row_side, videos.frame_size
    a_row = f"but a row of `{name}` takes {side} x {side}"
    if len(videos.mean) != images.channels:
        return (
            f"it makes videos of {len(videos.mean)} channels, but `{name}` takes {images.channels}"
        )
    if videos.group != images.frames:
        return (
            f"it makes temporal patches of {videos.group} frames, those of `{name}` have "
            f"{images.frames}"
        )
    if tiles is not None:
        made = (size.height, size.width) if isinstance(size, ExactFrames) else None
        if made not in ((tiles.side,) * 2, images.input_shape(tiles.height, tiles.width)[-2:]):
            square = f"{tiles.side} x {tiles.side}"
            return f"it makes no frames of {square} pixels, as are the tiles of `{name}`"
    elif isinstance(size, ExactFrames):
        if min(size.height, size.width) < side:
            return f"it makes frames of {size.height} x {size.width} pixels, {a_row}"
    elif size.factor % side:
        return f"it makes frames with sides that are multiples of {size.factor} pixels, {a_row}"
    return ""


def classes_are_run(spec: Spec, data: UserData) -> Findings:
    """An image processor is run by its own class where `processor` asks for it (a warning)."""
    if data.processor == "own":
        return
    seeing = [name for name, each in spec.modules.items() if kind_of(each.model).images is not None]
    try:
        recipes = [recipe_of(spec, name) for name in seeing]
    except ProcessorError:  # Another check reports it.
        return
    if all(each.made_by is None for each in recipes):
        yield no_effect(
            ("data", "processor"),
            f"`processor: {data.processor}` does nothing: every image processor is supported",
            "it runs the class of a processor that is not",
        )


def processors_have_encoders(spec: Spec, data: UserData) -> Findings:
    """Every module named in `processors` takes images or clips."""
    kinds = {name: kind_of(module.model) for name, module in spec.modules.items()}
    readers = [
        name for name, kind in kinds.items() if kind.images is not None or kind.clips is not None
    ]
    for name in data.processors:
        if name not in readers:
            known = ", ".join(f"`{each}`" for each in readers) or "none"
            made = bool(spec.generators)
            yield Diagnostic(
                code="processor-not-supported",
                headline=f"`processors` names `{name}`, which is not an encoder of images or clips"
                + " or a generator" * made,
                path=("data", "processors", name),
                at_key=True,
                why="a processor says how the images or clips of one encoder are made"
                + ", or those that a generator learns to make" * made,
                help=f"the modules of this spec that have one: {known}",
            )


def first_suffixes(data: UserData) -> tuple[list[DataPath], list[str]]:
    """Return the first file with samples of each source, and suffixes of their first members.

    Both are empty if a source cannot be read, as those of other hosts and of users' classes.
    """
    try:
        shards = split_files(data, "train")
    except NotFetched:
        return [], []
    first, suffixes, opened = dict[int, DataPath](), list[str](), Counter[int]()
    for shard in shards:
        if shard.source in first or opened[shard.source] >= MOST_OPENED:
            continue
        opened[shard.source] += 1
        found: list[str] = []
        try:
            for member in open_file(shard).records(Part()):
                found += member.places
                if len(found) >= _LOOKED_AT:
                    break
        except (OSError, ValueError, BrokenFile):
            if not found:
                return [], []
        if found:
            first[shard.source] = shard.path
            suffixes += found
    return [*first.values()], suffixes


def members_for_encoders(spec: Spec) -> Findings:
    """The first samples have inputs for each encoder, and targets (a warning)."""
    if not isinstance(spec.data, UserData) or len(spec.modules) == 1:
        return
    shards, suffixes = first_suffixes(spec.data)
    if not shards:
        return
    targets = [each for each in suffixes if each.startswith(TARGET)]
    found = {each.rpartition(".")[2] for each in suffixes if each not in targets}
    ends = ", ".join(sorted({*found, *targets})) or "nothing"
    begins, why = f"{shards[0]} begins", f"its first {len(suffixes)} members end in {ends}"
    if len(shards) > 1:
        begins, why = f"{len(shards)} sources begin", why.replace("its", "their", 1)
    key = "shards" if isinstance(spec.data, WebdatasetData) else "sources"

    def without(name: str, does: str, members: str) -> Diagnostic:
        return Diagnostic(
            code="encoder-without-members",
            severity=Severity.WARNING,
            headline=f"`{name}` {does}, but {begins} without any",
            path=("modules", name),
            at_key=True,
            why=why,
            help=f"delete `{name}`, or name {key} with {members}",
            related=(Related(("data", key), f"these {key}"),),
        )

    yield from _without_targets(spec, targets, without)
    for name, module in spec.encoders.items():
        kind = kind_of(module.model)
        if kind.input is None:
            continue
        sound, images = kind.clips is not None, kind.images
        seen = {*IMAGE_FORMATS}
        if images is not None and images.reads_videos:
            seen |= {*VIDEO_SUFFIXES, FRAMES_SUFFIX.rpartition(".")[2]}
        if not found & (AUDIO_SUFFIXES if sound else seen):
            what = "clips" if sound else "images"
            yield without(name, f"reads {what}", what)


def _without_targets(
    spec: Spec, targets: Sequence[str], without: Callable[[str, str, str], Diagnostic]
) -> Findings:
    for name in makers(spec):
        made = {t.rpartition(".")[2] for t in targets if target_of(t)[0] in ("", name)}
        kind = kind_of(spec.modules[name].model)
        what, ending, fits = "images", "png", {*IMAGE_FORMATS}
        if kind.clips is not None:
            what, ending, fits = "clips", "wav", {*AUDIO_SUFFIXES}
        elif kind.codes is not None:
            what, ending, fits = "codes", CODES_SUFFIX, {CODES_SUFFIX}
        if not made & fits:
            members = f"members such as `KEY.target.{ending}`"
            yield without(name, f"learns to make {what}", members)
