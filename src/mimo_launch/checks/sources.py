"""Checks of the sources of `kind: files`: what must be there before a run.

Decides: what is checked without reading records: names, folders, the beginning of each file.
Relies on: `data.sources.file_formats` for files and formats; `shards` for patterns.
Leaves: records to the index that `train` builds.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from mimo_launch.checks.packages import named_is_there, not_installed
from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.checks.shard_formats import known_format
from mimo_launch.checks.shards import MOST_OPENED, evaluates_nothing, files_of, placed
from mimo_launch.data.sources.file_formats import (
    IN_FOLDERS,
    NoFormat,
    format_of,
    is_table,
    source_files,
    splits_in,
)
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.diag.installed import PYARROW, is_installed
from mimo_launch.spec.files_data import Source
from mimo_launch.spec.spec import CustomData, FilesData, Spec


def sources_are_there(spec: Spec, data: FilesData) -> Findings:
    """Every source names files of a known format, and folders of media."""
    for path, source in _sources(data):
        yield from _source(path, source)
    if spec.eval is not None and not data.heldout_sets:
        yield evaluates_nothing("files", "eval_sources: [PATH]")


def every_source_has_a_template(spec: Spec, data: FilesData) -> Findings:
    """A source without a template of its own needs that of the data."""
    del spec
    if data.template is not None:
        return
    bare = next((path for path, source in _sources(data) if source.template is None), None)
    if bare is not None:
        yield Diagnostic(
            code="missing-key",
            headline="`data` lacks `template`",
            path=("data",),
            at_key=True,
            why=f"`{'.'.join(map(str, bare))}` has no template of its own, so nothing says how its "
            "records become text",
            help="add `template: chat` or `template: caption`",
            related=(Related(bare, "a source without a template"),),
        )


def heldout_is_there(spec: Spec, data: CustomData) -> Findings:
    """An evaluation has samples of its own."""
    if spec.eval is not None and data.eval_options is None:
        yield evaluates_nothing("options", "eval_options: {...}")


def _sources(data: FilesData) -> Iterator[tuple[YamlPath, Source]]:
    for number, source in enumerate(data.sources):
        yield ("data", "sources", number), source
    for name, sources in data.heldout_sets.items():
        for number, source in enumerate(sources):
            yield ("data", "eval_sources", *filter(None, (name,)), number), source


def _source(path: YamlPath, source: Source) -> Findings:
    yield from _class_or_files(path, source)
    if source.path is not None:
        yield from _files(path, source)


def _class_or_files(path: YamlPath, source: Source) -> Findings:
    both = source.kind is not None
    if source.kind is not None:
        yield from named_is_there((*path, "kind"), "", source.kind)
    elif source.options:
        yield no_effect(
            (*path, "options"),
            "`options` of a source of files does nothing",
            "a class of your own, which `kind` names, is called with them",
        )
    if both == (source.path is None):
        return
    yield _not_read(
        path,
        "a source has both `path` and `kind`" if both else "a source has no `path`",
        "it is files, or a class of your own",
        "delete `kind`, or delete `path`" if both else "write `path: FILE`, or `kind: MODULE:NAME`",
    )


def _files(path: YamlPath, source: Source) -> Findings:
    there, named = True, list[Path]()
    for key, given in (("path", source.path or ()), ("media", source.media or ())):
        for place, pattern in placed((*path, key), given):
            found = yield from files_of(place, pattern)
            there = there and bool(found)
            named += found if key == "path" else ()
            if key == "media" and found and not all(map(Path.is_dir, found)):
                there = False
                yield _not_read(
                    place,
                    f"`{pattern}` is no folder",
                    "files of records name media by paths in a folder",
                    "write the folder",
                )
    if not there:
        return
    for folder in named[:MOST_OPENED]:
        if splits := splits_in(folder):
            names = ", ".join(splits)
            yield _not_read(
                (*path, "path"),
                f"`{folder}` holds several splits",
                f"one is trained on, and another may be held out: {names}",
                f"write `{splits[-1]}` in place of `{folder}`"
                if len(named) > 1
                else f"write `path: {splits[-1]}`",
            )
            return
    try:
        files = {each: source_files(source.replace(path=each)) for each in source.paths}
    except NoFormat as error:
        yield _not_read(
            (*path, "path"),
            f"`{source.path}` cannot be read",
            str(error),
            "save the data set again, or name its files",
        )
        return
    if empty := [pattern for pattern, found in files.items() if not found]:
        ends = ", ".join(IN_FOLDERS)
        yield _not_read(
            (*path, "path"),
            f"`{empty[0]}` holds no file of records",
            f"in a folder, files that end in {ends} are read; images are named by records",
            "write the files: `path: FOLDER/NAME.json`, or a pattern; for images alone, write "
            "first a file with a line of JSON for each",
        )
    yield from _formats(path, [*chain(*files.values())][:MOST_OPENED])


def _formats(path: YamlPath, files: Sequence[NamedShard]) -> Findings:
    """Yield a finding about the first file that holds no records."""
    for shard in files:
        try:
            format_of(shard.path)
        except (OSError, NoFormat) as error:
            other = known_format(shard.path) if isinstance(shard.path, Path) else None
            yield _not_read(
                (*path, "path"),
                f"{shard.path} is no file of records",
                f"{shard.path.name} {other.what}" if other else str(error),
                other.of_source or other.instead
                if other
                else "name tar shards, or JSON with a record in each line",
            )
            return


def table_package_installed(spec: Spec, data: FilesData) -> Findings:
    """Parquet and Arrow files are read by an optional package."""
    del spec
    if is_installed("pyarrow"):
        return
    for path, source in _sources(data):
        table = next(
            (
                f.path
                for f in source_files(source)[:MOST_OPENED]
                if not f.custom and is_table(f.path)
            ),
            None,
        )
        if table is not None:
            yield not_installed(PYARROW, (*path, "path"), f"{table} is read with it")
            return


def _not_read(path: YamlPath, headline: str, why: str, help_: str) -> Diagnostic:
    return Diagnostic(code="source-not-read", headline=headline, path=path, why=why, help=help_)
