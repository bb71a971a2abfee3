"""The kinds of encoder.

Decides: sizes, defaults and derived sizes of each kind of encoder.
Relies on: `base`.
Leaves: language models to `language_models`, what fits together to `checks`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, Layers, Strict

# The second convolution of Whisper has stride 2.
FRAMES_PER_TOKEN = 2
# The exact GELU, its approximation by tanh, and x * sigmoid(1.702 x): arXiv:1606.08415, section 2.
Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]


class EncoderModel(Strict):
    """What layout and data know of every encoder, of a user's own as well.

    An encoder turns an array of a sample (an image, a clip) into patches, which are the tokens of
    its layers, and these into rows for the language model.
    """

    kind: str
    layers: Layers = Field(description="Number of transformer layers.", examples=[4])
    hidden: Count = Field(description="Width of the residual stream.", examples=[128])

    @property
    def patches_per_row(self) -> int:
        """Number of patches that become one row."""
        raise NotImplementedError

    @property
    def deep_rows(self) -> int:
        """Number of layers whose rows go with those of the last one."""
        return 0


class EncoderBlocks(EncoderModel):
    """Blocks of attention among all tokens of an image, and an MLP."""

    heads: Count = Field(description="Number of attention heads.", examples=[4])
    mlp: Count | None = Field(None, description="Width inside the MLP; default 4 x hidden.")

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP, default applied."""
        return self.mlp or 4 * self.hidden


class TransformerEncoder(EncoderBlocks):
    """What the encoders of this program have: blocks, and a projector to the language width."""

    projector: Literal["mlp", "linear", "merger"] = Field(
        "mlp",
        description="Last layer of the encoder. `mlp`: two linear maps with an activation between "
        "them; `linear`: one; `merger`: as `mlp`, but as wide inside as the patches of a row, as "
        "in Qwen2-VL.",
    )
    projector_bias: bool = Field(True, description="Biases in the projector.")

    @property
    def row_width(self) -> int:
        """Width of the patches of a row, the input of the projector."""
        return self.hidden * self.patches_per_row

    def projector_width(self, out: int) -> int:
        """Return the width inside a projector to `out` numbers; 0 if it is one linear map."""
        return {"mlp": out, "merger": self.row_width, "linear": 0}[self.projector]


class Images(Strict):
    """How images of any size become rows: cut into square patches, squares of which are rows."""

    kind: str
    patch: Count = Field(description="Side of a square patch, in pixels.", examples=[4])
    channels: Count = Field(1, description="Colour channels of a pixel.")
    shuffle: Count = Field(
        1,
        description="Each square of `shuffle` x `shuffle` neighbouring patches becomes one row; "
        "its patches stand together in the list.",
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
    def reads_videos(self) -> bool:
        """Whether videos are read, too: arrays then have frames."""
        return False

    @property
    def frames(self) -> int:
        """Frames that an array holds, which share its patches."""
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


class Windows(Strict):
    """Attention inside square windows of an image, in all layers but some."""

    side: Count = Field(
        description="Side of a window, in rows (squares of `shuffle` x `shuffle` patches). Windows "
        "count from the upper left corner; those at the other edges are cut off by them.",
        examples=[4],
    )
    full: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="The layers, counted from 0, that attend to whole images all the same.",
        examples=["[7, 15, 23, 31]"],
        strict=False,
    )


class Videos(Strict):
    """How an encoder of images reads videos: as images of `temporal_patch` frames each."""

    time: Literal["patches", "seconds", "text"] = Field(
        description="Where language is told the time. `patches`: on the first axis of `mrope`, one "
        "place per temporal patch (Qwen2-VL); `seconds`: there, too, by seconds (Qwen2.5-VL); "
        "`text`: each temporal patch is an image behind its time in words (Qwen3-VL).",
        examples=["patches"],
    )
    per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="For `time: seconds`: places on the first axis that a second takes, the "
        "`tokens_per_second` of a folder.",
        examples=[2],
    )


class VitModel(Images, TransformerEncoder):
    """A vision transformer over images of any size, with a projector to the language width."""

    kind: Literal["vit"]
    shuffle: Count = Field(
        1,
        description="Pixel shuffle: each square of `shuffle` x `shuffle` neighbouring patches "
        "becomes one row, as wide as all of them, before the projector.",
    )
    positions: Literal["sincos", "rope2d", "learned", "learned+rope2d"] = Field(
        "sincos",
        description="Positions of patches. `sincos`: fixed 2-D sines and cosines, added; `rope2d`: "
        "queries and keys rotated by row and column, as in Qwen2-VL; `learned`: a table over a "
        "grid of `image`, added, and interpolated for other sizes; `learned+rope2d`: both, as in "
        "Qwen3-VL.",
    )
    rope_frequencies: Literal["shared", "in_turn"] = Field(
        "shared",
        description="Frequencies of 2-D rotary positions. `shared`: rows and columns of patches "
        "rotate at the same ones, those of a head of half the width; `in_turn`: those of the whole "
        "head belong to rows and columns in turn, as in Pixtral.",
    )
    interpolation: Literal["bicubic", "bilinear", "nearest"] = Field(
        "bicubic",
        description="How the table is resized. `bicubic`: between the centres of patches, as in "
        "SigLIP and CLIP; `bilinear`: its corners stay those of the image, as in Qwen3-VL; "
        "`nearest`: a patch reads the place where its upper left corner lies, as in Idefics3.",
    )
    image: tuple[Count, Count] | None = Field(
        None,
        description="Height and width of the grid of learned positions, in patches.",
        examples=["[24, 24]"],
        strict=False,
    )
    class_token: bool = Field(
        False,
        description="A learned token beside the patches of each image, as in CLIP; no row is made "
        "of it.",
    )
    patch_bias: bool = Field(True, description="A bias in the embedding of patches.")
    qkv_bias: bool = Field(True, description="Biases of queries, keys and values.")
    block_bias: bool = Field(
        True, description="Biases behind attention and in the MLPs; Pixtral has none."
    )
    qk_norm: bool = Field(
        False,
        description="RMSNorm on the queries of all heads together, and on the keys, as in the "
        "large towers of InternVL.",
    )
    layer_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Layer scale: what attention and MLP add is multiplied by a learned weight per "
        "channel, which begins as this number (as in InternVL).",
        examples=[0.1],
    )
    windows: Windows | None = Field(
        None,
        description="Attention inside windows of an image, as in Qwen2.5-VL: cheaper on large "
        "images.",
        examples=["{side: 4, full: [7, 15, 23, 31]}"],
    )
    norm: Literal["layer", "rms"] = Field(
        "layer", description="Every norm of the module: LayerNorm, or RMSNorm (Qwen2.5-VL)."
    )
    pre_norm: bool = Field(False, description="A norm before the first layer, as in CLIP.")
    final_norm: bool = Field(
        True, description="A norm after the last layer; LLaVA projects without one."
    )
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-5, description="Added to the variance in every norm of the module."
    )
    activation: Activation | Literal["swiglu"] = Field(
        "gelu",
        description="Inside the MLPs: the exact GELU, its approximation by tanh (SigLIP), "
        "x * sigmoid(1.702 x) (CLIP), or a gate, silu(gate) * up (Qwen2.5-VL).",
    )
    projector_activation: Activation = Field(
        "gelu", description="The same, inside the projector, which has no gate."
    )
    projector_norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="A norm of the patches of a row in front of the projector, with this added to "
        "the variance, as in InternVL; with `pooling: linear` of each patch.",
        examples=["1e-5"],
    )
    projector_norm: Literal["layer", "rms"] = Field(
        "layer", description="The kind of that norm: LayerNorm, or RMSNorm (Gemma 3)."
    )
    projector_norm_offset: bool = Field(
        False, description="That RMSNorm multiplies by 1 + weight instead of weight (Gemma 3)."
    )
    deepstack: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="Layers, counted from 0, whose rows are added to the tokens of language as "
        "well: those of the first one behind its layer 0, of the second behind 1, and so on (as in "
        "Qwen3-VL). Each has a projector of its own, a `merger` behind a norm.",
        examples=["[8, 16, 24]"],
        strict=False,
    )
    pooling: Literal["mean", "linear"] | None = Field(
        None,
        description="What makes one row, as wide as one patch, of the patches of its square, which "
        "otherwise stand side by side. `mean`: their mean (average pooling, as in Gemma 3); "
        "`linear`: a linear map without bias, which trains with the projector (the patch merger "
        "of Mistral 3).",
    )
    temporal_patch: Count = Field(
        1,
        description="Frames of a patch, for a convolution over time; a single image is repeated.",
    )
    video: Videos | None = Field(
        None,
        description="Videos of shards are read, too: every `temporal_patch` frames are an image.",
        examples=["{time: patches}"],
    )

    @property
    def reads_videos(self) -> bool:
        """Whether videos are read, too: arrays then have frames."""
        return self.video is not None

    @property
    def frames(self) -> int:
        """Frames that an array holds, which share its patches."""
        return self.temporal_patch if self.reads_videos else 1

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of the array of `height x width` rows: with frames, to read videos."""
        channels, *sides = Images.input_shape(self, height, width)
        return (channels, self.frames, *sides) if self.reads_videos else (channels, *sides)

    @property
    def row_width(self) -> int:
        """Width of the patches of a row, the input of the projector."""
        return self.hidden * (1 if self.pooling else self.patches_per_row)

    @property
    def merge_width(self) -> int:
        """Width of the patches that a linear map makes a row of, 0 without such a map."""
        return self.hidden * self.patches_per_row if self.pooling == "linear" else 0

    @property
    def deep_rows(self) -> int:
        """Number of layers whose rows go with those of the last one."""
        return len(self.deepstack)

    @property
    def has_table(self) -> bool:
        """Whether positions are learned."""
        return self.positions in ("learned", "learned+rope2d")

    @property
    def turns_patches(self) -> bool:
        """Whether queries and keys rotate by the place of a patch."""
        return self.positions in ("rope2d", "learned+rope2d")

    @property
    def patch_numbers(self) -> int:
        """Size of a patch with its frames, the input of its embedding."""
        return self.patch_size * self.temporal_patch


class Clips(Strict):
    """How log-mel clips of any length, up to a limit, become rows.

    A patch, as encoders of images say, is what becomes one token: two frames of a clip.
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
    def frames_per_row(self) -> int:
        """Number of frames that become one row."""
        return FRAMES_PER_TOKEN * self.stack

    @property
    def max_rows(self) -> int:
        """Number of rows of the longest clip."""
        return self.frames // self.frames_per_row

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return 1, self.stack

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return (mels, frames) of a clip; it is `width` rows long and one high."""
        return self.mels, height * width * self.frames_per_row

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (mels, frames)."""
        return 1, shape[1] // self.frames_per_row


class AudioModel(Clips, TransformerEncoder):
    """The encoder of Whisper (arXiv:2212.04356), whose second convolution joins two frames."""

    kind: Literal["audio"]


class ConnectorModel(TransformerEncoder):
    """A transformer over the rows of encoders: a resampler, or a merger of several towers."""

    kind: Literal["connector"]
    queries: Count | None = Field(
        None,
        description="Learned queries per image, which become its rows: a resampler. Without them "
        "each row that is read becomes one.",
        examples=[16],
    )
    merge: Literal["rows", "width"] = Field(
        "rows",
        description="How the rows of several encoders come together. `rows`: those of one image "
        "follow each other; `width`: they are added behind a linear map each, as a map of both "
        "side by side would; all encoders then make equally many rows.",
    )

    @property
    def patches_per_row(self) -> int:
        """A token is a row."""
        return 1


# Every kind of encoder except users' own classes.
EncoderKinds = VitModel | AudioModel | ConnectorModel
