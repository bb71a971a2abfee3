"""The vision transformer, an encoder of images and videos.

Decides: its keys, defaults and derived sizes.
Relies on: `media` for what it reads, `encoders` for blocks and projector.
Leaves: nothing.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, Effective
from mimo_launch.spec.encoders import Activation, ProjectorActivation, TransformerEncoder
from mimo_launch.spec.media import Images, Tiles, Videos, Windows

RopeFrequencies = Literal["shared", "in_turn", "alternating"]
Interpolation = Literal[
    "bicubic", "bilinear", "linear", "averaged", "bicubic_averaged", "nearest", "cropped"
]


class VitModel(Images, TransformerEncoder):
    """A vision transformer over images of any size, with a projector to the language width."""

    kind: Literal["vit"]
    shuffle: Count = Field(
        1,
        description="Pixel shuffle: each square of `shuffle` x `shuffle` neighbouring patches "
        "becomes one row, as wide as all of them, before the projector.",
    )
    positions: Literal["sincos", "sincos_mae", "rope2d", "learned", "learned+rope2d"] = Field(
        "sincos",
        description="Positions of patches. `sincos`: fixed 2-D sines and cosines, added; "
        "`sincos_mae`: those of MAE, of columns before rows, as in a native AIMv2; `rope2d`: "
        "queries and keys rotated by row and column, as in Qwen2-VL; `learned`: a table over a "
        "grid of `image`, added, and interpolated for other sizes; `learned+rope2d`: both, as in "
        "Qwen3-VL.",
    )
    rope_frequencies: RopeFrequencies = Field(
        "shared",
        description="Frequencies of 2-D rotary positions. `shared`: rows and columns of patches "
        "rotate at the same ones, those of a head of half the width; `in_turn`: those of the whole "
        "head belong to rows and columns in turn, as in Pixtral; `alternating`: shared; neighbours "
        "in a head rotate together, one pair with columns, the next with rows, as in Kimi K2.5.",
    )
    interpolation: Interpolation = Field(
        "bicubic",
        description="How the table is resized. `bicubic`: between the centres of patches, as in "
        "SigLIP and CLIP; `bilinear`: its corners stay those of the image, as in Qwen3-VL; "
        "`linear`: linearly between the centres, as in PaddleOCR-VL; `averaged`: so, too, and of "
        "an image smaller than the table a patch reads the mean of all that it covers, as in "
        "Cosmos 3 Edge; `bicubic_averaged`: `bicubic` with antialias, as in DINOv2 with registers; "
        "`nearest`: a patch reads the place where its upper left corner lies, as in Idefics3; "
        "`cropped`: linearly between the centres, to a square as long as the longer side of an "
        "image; its patches read the upper left part of the square, as in RADIO.",
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
    registers: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Learned tokens without positions beside the patches of each image, as the "
        "class tokens and registers of RADIO; no row is made of them.",
        examples=[8],
    )
    patch_bias: bool = Field(True, description="A bias in the embedding of patches.")
    qkv_bias: bool = Field(True, description="Biases of queries, keys and values.")
    block_bias: bool = Field(
        True, description="Biases after attention and in the MLPs; Pixtral has none."
    )
    kv_heads: Count | None = Field(
        None, description="Key/value heads, as in EXAONE 4.5; default `heads`."
    )
    qk_norm: bool = Field(
        False,
        description="RMSNorm on the queries of all heads together, and on the keys, as in the "
        "large towers of InternVL.",
    )
    head_qk_norm: Annotated[
        bool,
        Effective(needs="qk_norm", why="without `qk_norm` queries and keys have no norm"),
    ] = Field(
        False,
        description="`qk_norm` normalises each head of queries and of keys by itself, as in "
        "GLM-OCR.",
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
    patch_norm: bool = Field(
        False, description="A norm of patches before their positions, as in GLM-4.1V."
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
    projector_activation: ProjectorActivation = Field(
        "gelu",
        description="The same, or the square of relu(x), inside the projector, before the gate "
        "of one that is `gated`.",
    )
    projector_norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="A norm of the patches of a row before the projector, with this added to "
        "the variance, as in InternVL; with `pooling: linear` of each patch.",
        examples=["1e-5"],
    )
    projector_norm: Literal["layer", "rms"] = Field(
        "layer", description="The kind of that norm: LayerNorm, or RMSNorm (Gemma 3)."
    )
    projector_norm_offset: bool = Field(
        False, description="That RMSNorm multiplies by 1 + weight instead of weight (Gemma 3)."
    )
    projector_norm_of: Literal["row", "patch"] = Field(
        "row",
        description="What that norm is of: all patches of a row together, or each patch of it, as "
        "in PaddleOCR-VL. With `pooling: linear` it is always of each patch.",
    )
    projector_out: Count | None = Field(
        None,
        description="Output width of the projector, if one more linear map after it leads to the "
        "width of language, as in HyperCLOVA X SEED Think.",
        examples=[5120],
    )
    deepstack: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="Layers, counted from 0; language adds their rows to its tokens as well: the "
        "rows of the first one after its layer 0, of the second after 1, and so on (as in "
        "Qwen3-VL). Each has its own projector, a `merger` after a norm.",
        examples=["[8, 16, 24]"],
        strict=False,
    )
    features: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="Layers, counted from 0. Their states are concatenated in each patch before "
        "the projector, in this order, as in ViP-LLaVA. The last layer must be one of them; by "
        "default it is the only one.",
        examples=["[22, 19, 16, 13, 5]"],
        strict=False,
    )
    pooling: Literal["mean", "linear"] | None = Field(
        None,
        description="What makes one row, as wide as one patch, of the patches of its square, which "
        "are otherwise side by side. `mean`: their mean (average pooling, as in Gemma 3); "
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
    tiles: Tiles | None = Field(
        None,
        description="Images are cut into tiles of `image` patches, which attend to themselves "
        "only, as in LLaVA-OneVision.",
        examples=["{grids: [[1, 2], [2, 1], [2, 2]], most: 4}"],
    )

    @property
    def videos(self) -> Videos | None:
        """How videos are read, if they are."""
        return self.video

    @property
    def frames(self) -> int:
        """Number of frames in an array; they share its patches."""
        return self.temporal_patch if self.reads_videos else 1

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of the array of `height x width` rows; it has frames to read videos.

        With tiles a frame is an image.
        """
        channels, *sides = Images.input_shape(self, height, width)
        has_frames = self.reads_videos and self.tiles is None
        return (channels, self.frames, *sides) if has_frames else (channels, *sides)

    @property
    def tiles_before_projector(self) -> bool:
        """Whether learned rows come between those of tiles before the projector, not after it."""
        return self.tiles is not None and self.tiles.whole == "last"

    @property
    def patch_width(self) -> int:
        """Width of a patch after the last layer, with the states of all `features`."""
        return self.hidden * max(1, len(self.features))

    @property
    def row_width(self) -> int:
        """Width of the patches of a row, the input of the projector."""
        return self.patch_width * (1 if self.pooling else self.patches_per_row)

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The layers, in order, with states that are kept for the end."""
        return self.deepstack or tuple(sorted({*self.features} - {self.layers - 1}))

    @property
    def norms_each_patch(self) -> bool:
        """Whether the norm before the projector is of each patch, not of all of a row."""
        return self.projector_norm_of == "patch" or self.pooling == "linear"

    @property
    def merge_width(self) -> int:
        """Width of the patches that a linear map joins into a row; 0 without such a map."""
        return self.patch_width * self.patches_per_row if self.pooling == "linear" else 0

    @property
    def deep_rows(self) -> int:
        """Number of layers that send rows besides the last one."""
        return len(self.deepstack)

    @property
    def learned_tokens(self) -> int:
        """Number of learned tokens that each image has besides its patches."""
        return self.class_token + self.registers

    @property
    def has_table(self) -> bool:
        """Whether positions are learned."""
        return self.positions in ("learned", "learned+rope2d")

    @property
    def has_sines(self) -> bool:
        """Whether positions are fixed sines and cosines."""
        return self.positions in ("sincos", "sincos_mae")

    @property
    def turns_patches(self) -> bool:
        """Whether queries and keys rotate by the place of a patch."""
        return self.positions in ("rope2d", "learned+rope2d")

    @property
    def image_side(self) -> int:
        """Height of the grid of learned positions in pixels, or of a tile."""
        if self.tiles is not None and self.tiles.side is not None:
            return self.tiles.side
        return self.patch * (self.image or (0, 0))[0]

    @property
    def patch_numbers(self) -> int:
        """Size of a patch with its frames, the input of its embedding."""
        return self.patch_size * self.temporal_patch
