"""Data of `kind: files`, sources of any format and how they are mixed; data sets of users' own.

Decides: keys, defaults and limits of sources; their names.
Relies on: `user_data` for the keys of every kind of users' files.
Leaves: what fits together to `checks`, formats and orders to the room `data`.
"""

from itertools import chain, count
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mimo_launch.spec.base import ClassPath, Count, Strict
from mimo_launch.spec.user_data import (
    HOW,
    Patterns,
    SetName,
    Template,
    UserData,
    patterns_of,
    unlike,
)

Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class WeightChange(Strict):
    """Other weights of sources, from a step on."""

    step: Count = Field(description="The step, counted from 0, from which these weights hold.")
    weights: dict[str, Weight] = Field(
        min_length=1,
        description="New weights by source, 0 for none of it; other sources keep theirs.",
        examples=[{"chats": 1, "charts": 2}],
    )


# `package.module:Name` of a data set, and the arguments that it is called with.
_CLASS: dict[str, Any] = {
    "examples": ["my_data:Pairs"],
    "json_schema_extra": {"expected": "`package.module:Name`"},
}
Options = dict[str, Any]


class Source(Strict):
    """Files of one format, which is recognised by their content; or a data set of one's own."""

    path: Patterns | None = Field(
        None,
        description="A file, a folder, a pattern with `*` or `{000..009}`, or a list of these: tar "
        "shards, JSON lines or lists, Parquet, Arrow. A file counts as often as it is written.",
        examples=["data/llava.jsonl"],
    )
    kind: ClassPath | None = Field(
        None,
        description="In place of `path`, `package.module:Name` of a data set of your own "
        "(docs/custom-data.md).",
        **_CLASS,
    )
    options: Options = Field({}, description="Keyword arguments that `kind` is called with.")
    media: Patterns | None = Field(
        None,
        description="Folder that the paths of images, clips and videos in records are relative to, "
        "by default that of the file; or a list: paths are relative to the first, and files may "
        "lie in any. Records name no files elsewhere.",
        examples=["data/images"],
    )
    name: SetName | None = Field(
        None,
        description="Name of the source in metrics and `weight_changes`; default: that of its "
        "file or folder.",
    )
    weight: Weight | None = Field(
        None,
        description="Share of this source in every block of 1,000 samples, relative to the weights "
        "of the others, 0 for none of it; every source has one, or none has.",
        examples=[3],
    )
    epochs: Count = Field(
        1, description="Without weights: how often the source counts in an epoch of all sources."
    )
    template: Template | None = Field(
        None,
        description="How a record of this source becomes text; default: the `template` of `data`.",
        examples=["caption"],
    )

    @property
    def paths(self) -> tuple[str, ...]:
        """Its paths and patterns; none of a class."""
        return patterns_of(self.path or ())


# A source that has only a path may be written as that path.
AnySource = Annotated[
    Source,
    BeforeValidator(
        lambda value: {"path": value} if isinstance(value, str) else value,
        json_schema_input_type=Source | str,
    ),
]
Sources = Annotated[tuple[AnySource, ...], Field(strict=False, min_length=1)]


class FilesData(UserData):
    """Your files as they are: tar shards, JSON with images beside it, Parquet, `datasets`."""

    kind: Literal["files"]
    sources: Sources = Field(description="Files to train on.", examples=[["data/llava.jsonl"]])
    eval_sources: Sources | dict[SetName, Sources] | None = Field(
        None,
        description="Files of held-out samples, for `eval`, as `sources`; or several sets of them "
        "by name, each evaluated by itself.",
        examples=[["held-out.jsonl"], {"photos": ["photos.jsonl"], "charts": ["charts.jsonl"]}],
        json_schema_extra={
            "expected": "a list of sources, or one by the name of each set (letters, digits, `_` "
            "and `-`, a letter first)"
        },
    )

    weigh: Literal["samples", "tokens"] = Field(
        "samples", description="What the weights of sources share out: samples, or their tokens."
    )
    weight_changes: Annotated[tuple[WeightChange, ...], Field(strict=False)] = Field(
        (),
        description="Weights that change during the run, in the order of steps.",
        examples=[[{"step": 1000, "weights": {"chats": 1, "charts": 2}}]],
    )

    @property
    def is_mixed(self) -> bool:
        """Whether weights mix the sources."""
        return any(each.weight is not None for each in self.sources)

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources: as written, or those of files; of equal ones, with a number."""
        given = [each.name or _name_of(each) for each in self.sources]
        written = [place for place, each in enumerate(self.sources) if each.name is not None]
        keeps, taken, names = dict[str, int](), set(given), list[str]()
        for place in (*written, *range(len(given))):  # A name that is written stays as it is.
            keeps.setdefault(given[place], place)
        numbers = {name: count(2) for name in given}
        for place, name in enumerate(given):
            made = name
            while made in taken and keeps[name] != place:
                made = f"{name}-{next(numbers[name])}"
            taken.add(made)
            names.append(made)
        return tuple(names)

    @property
    def source_weights(self) -> dict[str, float]:
        """The weights of the sources at the start, by name."""
        return {
            name: each.weight or 0.0
            for name, each in zip(self.source_names, self.sources, strict=True)
        }

    @property
    def heldout_sets(self) -> dict[str, tuple[Source, ...]]:
        """The sources of each set of held-out samples; the name of an only set is empty."""
        asked = self.eval_sources
        return asked if isinstance(asked, dict) else {} if asked is None else {"": asked}

    @property
    def heldout_names(self) -> tuple[str, ...]:
        """The names of the sets of held-out samples."""
        return tuple(self.heldout_sets)

    @property
    def templates(self) -> tuple[Template, ...]:
        """The different templates of records, first the one for sources that name none, if any."""
        every = (*self.sources, *chain.from_iterable(self.heldout_sets.values()))
        shared = [self.template] if any(each.template is None for each in every) else []
        own = (each.template for each in every)
        return unlike(each for each in (*shared, *own) if each is not None)


class CustomData(UserData):
    """A data set of one's own: `kind` names its class (docs/custom-data.md)."""

    kind: ClassPath = Field(
        description="`package.module:Name` of the class, or function.", **_CLASS
    )
    template: Template = Field(description=HOW, examples=["chat"])
    options: Options = Field({}, description="Keyword arguments that it is called with.")
    eval_options: Options | None = Field(
        None,
        description="Keyword arguments that it is called with for held-out samples, in place of "
        "`options`; for `eval`.",
        examples=[{"split": "held-out"}],
    )
    media: Patterns | None = Field(
        None,
        description="Folder that paths in samples are relative to, by default that of the Python "
        "file; or a list: paths are relative to the first, and files may lie in any.",
        examples=["data/images"],
    )

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its class, as the only source."""
        return (self._source(self.options),)

    @property
    def heldout_sets(self) -> dict[str, tuple[Source, ...]]:
        """The only set of held-out samples, without a name, if there is any."""
        asked = self.eval_options
        return {} if asked is None else {"": (self._source(asked),)}

    @property
    def heldout_names(self) -> tuple[str, ...]:
        """The names of the sets of held-out samples."""
        return tuple(self.heldout_sets)

    def _source(self, options: Options) -> Source:
        return Source(path=None, kind=self.kind, options=options, media=self.media, name=None)


def _name_of(source: Source) -> str:
    """Return the last part of a path that is no pattern, without suffixes; of a class, its name."""
    path = source.kind.replace(":", "/") if source.kind else next(iter(source.paths), "")
    parts = [each for each in path.split("/") if each and not set(each) & set("*?[{")]
    return parts[-1].partition(".")[0] if parts and parts[-1].partition(".")[0] else "source"
