"""The `data` section of users' own files: where they are, and how records become samples.

Decides: keys, defaults and limits; that tar shards have a kind with their name, `webdataset`.
Relies on: `base`.
Leaves: generated data to `data`, what fits together to `checks`, samples to the room `data`.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mimo_launch.spec.base import Count, CountFrom0, LocalPath, PathPattern, Strict
from mimo_launch.spec.expect import ExpectedSamples


class Samples(Strict):
    """Keys that every kind of data has."""

    max_bad_samples: CountFrom0 = Field(
        100,
        description="Samples that may be left out because they cannot be read; each is reported by "
        "its id, and one more over the whole run stops it.",
    )
    packing: bool = Field(
        False,
        description="Let records share a sequence: as many as fit in `batch.seq`, in the order of "
        "training. They do not attend to each other. `batch.global` then counts sequences.",
    )


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression of Python: {error}") from error
    return text


Regex = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_regex)]


class CaptionTemplate(Strict):
    """Images and clips, a prompt, and a text to learn, which ends with the end token."""

    kind: Literal["caption"]
    text: str | None = Field(
        None,
        description="Key of a sample's JSON that holds the text; default: its `.txt` member, or "
        "the key `text`, `caption` or `captions`; a list of texts has one for each epoch, in turn.",
    )
    prompt: str = Field("", description="Text before each caption; it is not learnt.")


class ChatTemplate(Strict):
    """Conversations, written by the chat template of the tokenizer; the answers are learnt."""

    kind: Literal["chat"]
    messages: str | None = Field(
        None,
        description="Key of a sample's JSON that holds the list of messages; default `messages` "
        "or `conversations`.",
    )
    answers: Literal["all", "last"] = Field(
        "all", description="The answers that are learnt: all, or only the last of a conversation."
    )
    learn_only: Regex | None = Field(
        None,
        description="Regular expression: of each answer, only the parts that match it are learnt.",
        examples=["(?s)Answer:.*"],
    )
    learn_not: Regex | None = Field(
        None,
        description="Regular expression: the parts of an answer that match it are read, but not "
        "learnt.",
        examples=["(?s)<think>.*?</think>"],
    )
    system: str | None = Field(None, description="System prompt of conversations that have none.")
    variables: dict[str, bool | int | float | str] = Field(
        {},
        description="Variables of the chat template, as `apply_chat_template` takes them as "
        "keyword arguments, such as `enable_thinking: false`.",
        examples=[{"enable_thinking": False}],
    )
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = Field(
        None,
        description="The date that a chat template gets when it asks for today's.",
        examples=["2026-01-31"],
    )


# A template that has only a kind may be written as that kind.
Template = Annotated[
    CaptionTemplate | ChatTemplate,
    Field(discriminator="kind"),
    BeforeValidator(
        lambda value: {"kind": value} if isinstance(value, str) else value,
        json_schema_input_type=CaptionTemplate | ChatTemplate | Literal["caption", "chat"],
    ),
]


HOW = "How a sample becomes text: `caption`, `chat`, or either with its settings."


def unlike(templates: Iterable[Template]) -> tuple[Template, ...]:
    """Return templates, each once, in order."""
    return tuple({each.model_dump_json(): each for each in templates}.values())


Rate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Patterns = PathPattern | Annotated[tuple[PathPattern, ...], Field(strict=False, min_length=1)]
SetName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


def patterns_of(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one pattern or several as a tuple."""
    return (given,) if isinstance(given, str) else given


class VideoSettings(Strict):
    """Which frames of videos are read, if no processor says it or the spec overrides it."""

    fps: Rate | None = Field(
        None,
        description="Frames that are taken per second of a video; default: what the processor "
        "says, or 2 without one. A processor may say that all frames are taken.",
        examples=[2],
    )
    max_frames: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        None,
        description="Most frames that are taken of a video; default: what the processor says.",
        examples=[128],
    )
    sound: bool = Field(
        False,
        description="Whether the sound of a video is heard, by the encoder of clips that language "
        "reads: its rows come between those of the frames, as in a Qwen2.5-Omni or Qwen3-Omni. A "
        "file without sound is a video as before.",
    )
    rate: Rate = Field(
        24.0,
        description="Frames per second of the videos that are `.frames.zip`: those files do not "
        "say it. The default is that of transformers.",
    )


class FetchSettings(Strict):
    """How files at `s3://`, `gs://` and `https://` are fetched, and where they are kept."""

    folder: LocalPath | None = Field(
        None,
        description="Folder on a local disk for what has been fetched, which the ranks of a host "
        "share; default: a folder in your cache.",
        examples=["/local/files"],
    )
    gib: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = Field(
        100.0, description="GiB that it may hold; the least recently used files are removed."
    )
    patience: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = Field(
        300.0,
        description="Seconds for which a request that fails is repeated before the run ends; less "
        "than `train.timeout`.",
    )


class UserData(Samples):
    """Your own files, of whatever format: the keys that say how a record becomes a sample."""

    tokenizer: LocalPath = Field(
        description="Local Hugging Face folder with tokenizer.json.", examples=["models/qwen"]
    )
    template: Template | None = Field(
        None, description=f"{HOW} Sources that name none have it.", examples=["chat"]
    )
    image_marker: str = Field(
        "<image>", description="The text that marks an image in the texts of records."
    )
    audio_marker: str = Field(
        "<audio>", description="The text that marks a clip in the texts of records."
    )
    video_marker: str = Field(
        "<video>",
        description="The text that marks a video in the texts of records, if an encoder reads "
        "them.",
    )
    target_marker: str = Field(
        "<target>",
        description="The text that marks a target image in the texts of records, if a generator "
        "learns to make them; it leaves no token.",
    )
    target_reads: Count = Field(
        64,
        description="Most rows of `language` that a generator reads for a target image: those of "
        "the last tokens before it, but none before the previous target.",
    )
    processors: dict[str, LocalPath] = Field(
        {},
        description="By encoder or generator, the Hugging Face folder with the "
        "preprocessor_config.json that says how its images or the frames of its clips are made; "
        "default: the folder of its `init_from`, if it has one.",
    )
    processor: Literal["own", "transformers"] = Field(
        "own",
        description="Image processors that are not supported: `own` refuses them; with "
        "`transformers` their own class makes the images, in a process beside each rank. All "
        "images of such a processor must have one size, which its files declare.",
    )
    video: VideoSettings = Field(
        VideoSettings.model_construct(fps=None, max_frames=None, rate=24.0),
        description="Which frames are taken of videos.",
    )
    max_rows: Count = Field(
        256,
        description="For modules without a processor: most rows of an image. Images keep their "
        "aspect ratio, as nearly as whole rows allow.",
    )
    too_long: Literal["drop", "truncate", "error"] = Field(
        "drop",
        description="Samples longer than `batch.seq`: leave them out, cut their end off (never "
        "inside an image), or refuse to train.",
    )
    long_clips: Literal["refuse", "cut"] = Field(
        "refuse",
        description="Clips longer than the window of their encoder: `refuse` leaves their samples "
        "out, `cut` lets the encoder hear their beginning.",
    )
    max_image_pixels: Annotated[int, Field(ge=1, le=89_000_000)] = Field(
        36_000_000,
        description="Images with more pixels than this are bad; they are never decoded.",
    )
    max_characters: Count = Field(
        4_000_000,
        description="Samples with a text of more characters than this are bad; it is never "
        "tokenized, which takes some 300 bytes of memory per character.",
    )
    index: LocalPath | None = Field(
        None,
        description="Folder for the index of the samples; default `.mimo-index` beside the shards, "
        "or under your cache folder if that cannot be written.",
    )
    expect: ExpectedSamples | LocalPath | None = Field(
        None,
        description="What samples hold, for plans where the shards are not: in numbers, or as a "
        "file that `mimo-launch data --stats FILE` wrote where they are. Shards that are here "
        "count more.",
        examples=[{"images": 1.5, "rows": 240, "text": 400}, "stats.json"],
    )
    fetch: FetchSettings = Field(
        FetchSettings.model_construct(folder=None, gib=100.0, patience=300.0),
        description="How files at addresses such as `s3://bucket/x.tar` are fetched.",
    )
    decode_threads: Count = Field(
        4, description="Threads of each rank that decode the images and clips of a step."
    )

    @property
    def templates(self) -> tuple[Template, ...]:
        """The different templates of records, first the one for sources that name none."""
        return () if self.template is None else (self.template,)

    @property
    def heldout_names(self) -> tuple[str, ...]:
        """The names of the sets of held-out samples; that of an only set is empty."""
        return ()

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources to train on; empty if the data are not made of sources."""
        return ()


class WebdatasetData(UserData):
    """Your shards: tar files of images, clips, JSON and text, as webdataset writes them."""

    kind: Literal["webdataset"]
    template: Template = Field(description=HOW, examples=["chat"])
    shards: Patterns = Field(
        description="Tar files to train on: a pattern with `*` or `{000..009}`, or a list of them. "
        "A file counts as often as it is written.",
        examples=["data/{000..009}.tar"],
    )
    eval_shards: Patterns | dict[SetName, Patterns] | None = Field(
        None,
        description="Tar files of held-out samples, for `eval`; or several sets of them by name, "
        "each evaluated by itself.",
        examples=["held-out/*.tar", {"photos": "photos-*.tar", "charts": "charts-*.tar"}],
        json_schema_extra={
            "expected": "a pattern, a list of patterns, or either by the name of each set "
            "(letters, digits, `_` and `-`, a letter first)"
        },
    )

    @property
    def heldout_sets(self) -> dict[str, tuple[str, ...]]:
        """The patterns of each set of held-out samples; the name of an only set is empty."""
        asked = self.eval_shards
        sets = asked if isinstance(asked, dict) else {} if asked is None else {"": asked}
        return {name: patterns_of(each) for name, each in sets.items()}

    @property
    def heldout_names(self) -> tuple[str, ...]:
        """The names of the sets of held-out samples."""
        return tuple(self.heldout_sets)
