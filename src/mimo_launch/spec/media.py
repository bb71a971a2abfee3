"""How images, videos, clips and codec tokens become rows, whatever model reads or makes them.

Decides: keys, defaults and derived sizes; which codes of a codec are not sounds.
Relies on: `base`.
Leaves: the models over their patches and frames to `encoders` and `vit`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import (
    Codebooks,
    Count,
    CountFrom0,
    LayerChoice,
    LayerNumbers,
    Strict,
    Tokens,
)


class Images(Strict):
    """How images of any size become rows: cut into square patches; a square of patches is a row."""

    kind: str
    patch: Count = Field(description="Side of a square patch, in pixels.", examples=[4])
    channels: Count = Field(1, description="Colour channels of a pixel.")
    shuffle: Count = Field(
        1,
        description="Each square of `shuffle` x `shuffle` neighbouring patches becomes one row; "
        "its patches are consecutive in the list.",
    )

    @property
    def patches_per_row(self) -> int:
        """Number of patches in the square that becomes one row."""
        return self.shuffle**2

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return self.shuffle, self.shuffle

    @property
    def row_side(self) -> int:
        """Side, in pixels, of the square that becomes one row."""
        return self.shuffle * self.patch

    @property
    def patch_size(self) -> int:
        """Size of a patch: channels x patch x patch."""
        return self.channels * self.patch**2

    @property
    def most_places(self) -> int | None:
        """The most patches along a side of an image, if there is a limit."""
        return None

    @property
    def videos(self) -> "Videos | None":
        """How videos are read, if they are."""
        return None

    @property
    def reads_videos(self) -> bool:
        """Whether videos are read, too: arrays then have frames."""
        return self.videos is not None

    @property
    def frames(self) -> int:
        """Number of frames in an array; they share its patches."""
        return 1

    @property
    def values_of_patch(self) -> int:
        """Size of a patch of an array, with its frames."""
        return self.patch_size * self.frames

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return (channels, height, width), in pixels, of an image of `height x width` rows."""
        return self.channels, height * self.row_side, width * self.row_side

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of an image (channels, ..., height, width)."""
        return shape[-2] // self.row_side, shape[-1] // self.row_side

    def size_of_square(self, side: int) -> tuple[int, int]:
        """Return height and width, in rows, of a small square picture; at least one row."""
        rows = max(1, side // self.row_side)
        return rows, rows


class Windows(LayerChoice):
    """Attention inside square windows of an image, in all but some layers."""

    chosen = "full"
    meaning = "is to attend to whole images"

    side: Count = Field(
        description="Side of a window, in rows (squares of `shuffle` x `shuffle` patches). Windows "
        "count from the upper left corner; those at the other edges are cut off by them.",
        examples=[4],
    )
    full: LayerNumbers = Field(
        (),
        description="The layers, counted from 0, that attend to whole images all the same.",
        examples=["[7, 15, 23, 31]"],
        strict=False,
    )


class Videos(Strict):
    """How an encoder of images reads videos: as images of `temporal_patch` frames each."""

    time: Literal[
        "none",
        "patches",
        "seconds",
        "nominal_seconds",
        "exact_seconds",
        "text",
        "text_after",
        "text_number",
        "text_clock",
    ] = Field(
        description="Where language gets the time. `patches`: on the first axis of `mrope`, one "
        "place per temporal patch (Qwen2-VL); `seconds`: there, too, by seconds (Qwen2.5-VL); "
        "`nominal_seconds`: there, by seconds of the rate that is asked for, whatever is taken, "
        "and text goes on after the last of them (Qwen2.5-Omni); `exact_seconds`: the same at a "
        "rate that gives whole places (Qwen3-Omni); "
        "`text`: each temporal patch is an image after its time in words (Qwen3-VL); "
        "`text_after`: an image before its time, in whole seconds (GLM-4.1V); `text_number`: "
        "an image after its number (InternVL); `text_clock`: an image after its minute and "
        "second, and before them all how many they are and how long the video lasts (SmolVLM); "
        "`none`: nowhere (LLaVA-OneVision).",
        examples=["patches"],
    )
    per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="For `time: seconds`, `nominal_seconds` and `exact_seconds`: places on the "
        "first axis that a second takes, the `tokens_per_second` or `position_id_per_seconds` of a "
        "folder.",
        examples=[2],
    )

    @property
    def in_text(self) -> bool:
        """Whether the text gives the time of each temporal patch, or its number."""
        return self.time.startswith("text")

    @property
    def in_seconds(self) -> bool:
        """Whether an axis of positions counts the time in seconds."""
        return self.time.endswith("seconds")

    @property
    def on_axis(self) -> bool:
        """Whether an axis of positions counts the time."""
        return self.time == "patches" or self.in_seconds

    @property
    def holds_text(self) -> bool:
        """Whether text after a video goes on from its last time, not from a frame's longer side."""
        return self.time in ("nominal_seconds", "exact_seconds")


class Tiles(Strict):
    """Images of any size as tiles of one size, and a learned row at the end of each line."""

    whole: Literal["first", "last"] = Field(
        "first",
        description="Where the tile that shows all of an image comes, and which lines end with the "
        "learned row. `first`: those of the other tiles together, after the projector, as in "
        "LLaVA-OneVision; `last`: the lines of all tiles, before the projector, and a second "
        "learned row comes before the whole image, as in Phi-4 multimodal. There an image fills "
        "its grid, and squares of `shuffle` x `shuffle` patches may be a row.",
    )

    grids: tuple[Annotated[tuple[Count, Count], Field(strict=False)], ...] = Field(
        description="Grids of tiles, each by height and width, into which an image may be cut; "
        "a tile that shows all of it is added.",
        examples=["[[1, 2], [2, 1], [2, 2]]"],
        strict=False,
    )
    most: Count | None = Field(
        None,
        description="Rows of more tiles than these are averaged, so that they are about as many.",
        examples=[9],
    )
    each: bool = Field(
        False,
        description="Every image is cut, as in LLaVA-NeXT; otherwise the only image of a sample "
        "is, and each of several is one tile, as in LLaVA-OneVision.",
    )
    side: Count | None = Field(
        None,
        description="Side of a tile in pixels, if that is not one of whole patches: what is left "
        "at the right and below is not seen.",
        examples=[384],
    )


# The second convolution of Whisper has stride 2.
FRAMES_PER_TOKEN = 2


class Clips(Strict):
    """How log-mel clips of any length, up to a limit, become rows.

    As in encoders of images, a patch is the input of one token: two frames of a clip.
    """

    mels: Count = Field(80, description="Mel bands of a frame: 80, or 128 in large-v3.")
    frames: Count = Field(
        3000,
        description="Longest clip, in frames of 10 ms; half as many positions are stored.",
    )
    fixed_length: bool = Field(
        False,
        description="Pad every clip with silence to `frames`, as Whisper does; otherwise only to "
        "whole rows.",
    )
    stack: Count = Field(
        1,
        description="Frame stacking: this many neighbouring tokens become one row, as wide as all "
        "of them, before the projector.",
    )

    @property
    def patches_per_row(self) -> int:
        """Number of tokens that become one row."""
        return self.stack

    @property
    def features(self) -> Literal["whisper", "nemo", "phi4"]:
        """Whose log-mel frames it reads; see `data.torch_media`."""
        return "whisper"

    @property
    def frames_per_token(self) -> int:
        """Frames from the middle of one token to that of the next."""
        return FRAMES_PER_TOKEN

    @property
    def frames_seen(self) -> int:
        """Frames that the convolutions of a token see, as many before its middle as after it."""
        return 5

    @property
    def chunk_frames(self) -> int | None:
        """Frames of a chunk, if convolutions begin anew in each; clips keep their own length."""
        return None

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk, of which the last one may see fewer frames."""
        return -(-(self.chunk_frames or self.frames) // self.frames_per_token)

    def tokens_of(self, frames: int) -> int:
        """Return the number of tokens of a clip."""
        if self.chunk_frames is None:
            return frames // self.frames_per_token
        chunks, rest = divmod(frames, self.chunk_frames)
        return chunks * self.chunk_tokens + -(-rest // self.frames_per_token)

    def rows_of(self, frames: int) -> int:
        """Return the number of rows of a clip."""
        return self.tokens_of(frames) // self.stack

    def frames_of(self, tokens: int) -> int:
        """Return the frames of the longest clip with this many tokens."""
        if self.chunk_frames is None:
            return tokens * self.frames_per_token
        chunks, rest = divmod(tokens, self.chunk_tokens)
        return chunks * self.chunk_frames + rest * self.frames_per_token

    @property
    def frames_per_row(self) -> int:
        """Number of frames that become one row."""
        return self.frames_of(self.stack)

    @property
    def max_rows(self) -> int:
        """Number of rows of the longest clip."""
        return self.rows_of(self.frames)

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return 1, self.stack

    @property
    def drops_silence(self) -> bool:
        """Whether tokens of the silence after a clip are left out."""
        return False

    @property
    def has_one_length(self) -> bool:
        """Whether all clips have the same number of tokens."""
        return self.fixed_length and not self.drops_silence

    def input_shape(self, height: int, width: int, loose: int = 0) -> tuple[int, ...]:
        """Return (mels, frames) of a clip that is `width` rows long and one row high.

        `loose` tokens follow its rows, and then the frame of silence that the last token sees. A
        clip in chunks has no such frame, and may be shorter (`fits`).
        """
        frames = self.frames_of(height * width * self.stack + loose)
        sees_silence = self.drops_silence and self.chunk_frames is None
        return self.mels, frames + (sees_silence and frames < self.frames)

    def fits(self, shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
        """Return whether a clip of one shape has the tokens of `wanted`, an `input_shape`."""
        if self.chunk_frames is None or len(shape) < len(wanted):
            return shape == wanted
        tokens = [self.tokens_of(each[1]) for each in (shape, wanted)]
        return shape[0] == wanted[0] and tokens[0] == tokens[1]

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (mels, frames)."""
        return 1, self.rows_of(shape[1])

    def size_of_square(self, side: int) -> tuple[int, int]:
        """Return one row: a picture is no clip."""
        del side
        return 1, 1


class Codes(Strict):
    """How clips of codec tokens become rows: one for each frame, and one for the end.

    A frame has a code of each codebook. A row predicts the next frame from the one before it: the
    first row reads `start`, and the last row predicts `end`.
    """

    kind: str
    codebooks: Codebooks = Field(
        1, description="Codebooks of the codec; a frame has a code of each.", examples=[8]
    )
    vocab: Tokens = Field(
        description="Number of codes in each codebook, `start` and `end` included.",
        examples=[1026],
    )
    start: CountFrom0 | None = Field(
        None, description="The code before the first frame; default: the last but one."
    )
    end: CountFrom0 | None = Field(
        None, description="The code after the last frame; default: the last one."
    )

    @property
    def later_vocab(self) -> int | None:
        """Number of codes of each codebook after the first, if `vocab` is of the first alone.

        Only the first codebook then has `start` and `end`.
        """
        return None

    @property
    def book_sizes(self) -> tuple[int, ...]:
        """Number of codes of each codebook."""
        later = self.vocab if self.later_vocab is None else self.later_vocab
        return (self.vocab, *(later,) * (self.codebooks - 1))

    @property
    def ending_books(self) -> int:
        """Number of codebooks, from the first on, that have `start` and `end`."""
        return self.codebooks if self.later_vocab is None else 1

    @property
    def start_code(self) -> int:
        """The code before the first frame, default applied."""
        return self.vocab - 2 if self.start is None else self.start

    @property
    def end_code(self) -> int:
        """The code after the last frame, default applied."""
        return self.vocab - 1 if self.end is None else self.end

    @property
    def patches_per_row(self) -> int:
        """A frame is a row."""
        return 1

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in frames, of the part that becomes one row."""
        return 1, 1

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return (codebooks, frames) of a clip of `width` rows, one high."""
        return self.codebooks, height * width - 1

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (codebooks, frames)."""
        return 1, shape[1] + 1

    def size_of_square(self, side: int) -> tuple[int, int]:
        """Return height and width, in rows, of a picture: its pixels are the codes of frames."""
        return self.size_in_rows((self.codebooks, max(1, side**2 // self.codebooks)))
