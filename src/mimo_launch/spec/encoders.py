"""Models around the language model: blocks that they share, kinds of encoder, kinds of generator.

Decides: their keys, defaults and derived sizes.
Relies on: `media` for what is read and made, `language_models` for blocks of decoders.
Leaves: the vision transformer to `vit`, users' classes to `custom`, what fits together to `checks`.
"""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, Layers, Strict, Tokens
from mimo_launch.spec.language_models import DecoderBlocks
from mimo_launch.spec.layers import UnbalancedMoe
from mimo_launch.spec.media import Clips, Codes, Images

# The exact GELU, its approximation by tanh, and x * sigmoid(1.702 x): arXiv:1606.08415, section 2.
Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
# One of these, or relu(x)^2 (arXiv:2109.08668).
ProjectorActivation = Activation | Literal["squared_relu"]
Projector = Literal["mlp", "linear", "merger", "gated", "swiglu"]


class EncoderModel(Strict):
    """What layout and data know of every encoder, including custom ones.

    An encoder turns an array of a sample (an image, a clip) into patches, the tokens of its
    layers, and the patches into rows for the language model.
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
        """Number of layers that send rows besides the last one."""
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
    """The parts of built-in encoders: blocks, and a projector to the language width."""

    projector: Projector = Field(
        "mlp",
        description="Last layer of the encoder. `mlp`: two linear maps with an activation between "
        "them; `linear`: one; `merger`: as `mlp`, but as wide inside as the patches of a row, as "
        "in Qwen2-VL; `swiglu`: as `mlp`, with a gate, silu(gate) * up, as in Aya Vision; "
        "`gated`: two linear maps, the first of the patches of a row channel after "
        "channel, then LayerNorm, an activation and a gated MLP, as in GLM-4.1V.",
    )
    projector_mlp: Count | None = Field(
        None,
        description="Width inside the MLP of `projector: gated`, by default that of the blocks; or "
        "between the two maps of `projector: mlp` or `swiglu`, by default that of the rows.",
        examples=[256],
    )
    projector_bias: bool = Field(
        True, description="Biases in the projector; one that is `gated` has one in its first map."
    )

    @property
    def patch_width(self) -> int:
        """Width of a patch after the last layer."""
        return self.hidden

    @property
    def row_width(self) -> int:
        """Width of the patches of a row, the input of the projector."""
        return self.patch_width * self.patches_per_row

    def projector_width(self, out: int) -> int:
        """Return the width inside a projector to `out` numbers; 0 if it is one linear map."""
        given = self.projector_mlp_width
        if self.projector in ("mlp", "swiglu"):
            return given or out
        return {"merger": self.row_width, "linear": 0, "gated": given or 0}[self.projector]

    @property
    def projector_mlp_width(self) -> int | None:
        """Width inside a gated projector, default applied, or between two maps; None for others.

        Also None if the width between two maps is the default, the width of the rows.
        """
        default = self.mlp_width if self.projector == "gated" else None
        has_one = self.projector in ("gated", "mlp", "swiglu")
        return (self.projector_mlp or default) if has_one else None


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
        "follow each other; `width`: each goes through a linear map, and they are added, as a map "
        "of both side by side would; all encoders then make equally many rows.",
    )

    @property
    def patches_per_row(self) -> int:
        """A token is a row."""
        return 1


class AudioModel(Clips, TransformerEncoder):
    """The encoder of Whisper (arXiv:2212.04356); its second convolution joins two frames."""

    kind: Literal["audio"]
    unpadded: bool = Field(
        False,
        description="Leave out the tokens of the silence after a clip, as Qwen2-Audio does: the "
        "convolutions see that silence, attention does not. Tokens at the end that do not fill a "
        "row are attended to.",
    )
    pooling: Literal["mean"] | None = Field(
        None,
        description="What makes one row, as wide as one token, of `stack` tokens, which otherwise "
        "are side by side. `mean`: their mean, before the last norm (Qwen2-Audio).",
    )

    chunk: Count | None = Field(
        None,
        description="Frames of a chunk, as in Qwen2.5-Omni: convolutions and positions begin anew "
        "in each, and its tokens attend only to each other. Silence after a clip is left out.",
        examples=[200],
    )

    @property
    def chunk_frames(self) -> int | None:
        """Frames of a chunk, if there are chunks."""
        return self.chunk

    @property
    def window_rows(self) -> int | None:
        """Rows that attend only to each other, if there are chunks."""
        return None if self.chunk is None else max(1, self.chunk_tokens // self.stack)

    @property
    def drops_silence(self) -> bool:
        """Whether tokens of the silence after a clip are left out."""
        return self.unpadded or self.chunk is not None

    @property
    def row_width(self) -> int:
        """Width of the tokens of a row, the input of the projector."""
        return self.hidden * (1 if self.pooling else self.patches_per_row)


class SubsampledAudio(AudioModel):
    """An encoder with three convolutions of stride 2: a token, and a row, for eight frames."""

    stack: Literal[1] = Field(1, description="Each token is a row.")
    pooling: None = Field(None, description="Each token is a row.")
    unpadded: Literal[True] = Field(True, description="Silence after a clip is left out.")
    fixed_length: Literal[False] = Field(False, description="Silence after a clip is left out.")

    @property
    def frames_per_token(self) -> int:
        """Frames from the middle of one token to that of the next."""
        return 8

    @property
    def frames_seen(self) -> int:
        """Frames that the convolutions of a token see."""
        return 15


class FlowModel(Images, EncoderBlocks):
    """A generator of images: a transformer that learns the path from noise to patches, given rows.

    Rectified flow (arXiv:2209.03003).
    """

    kind: Literal["flow"]
    shuffle: Literal[1] = Field(1, description="Each patch is a row.")


class CodePredictor(Strict):
    """A small decoder inside each frame, for the codes after the first, one after another.

    It is as wide as the talker, and has norms and biases where the talker's blocks have them.
    """

    layers: Layers = Field(description="Number of transformer layers.", examples=[5])
    heads: Count = Field(description="Number of query heads.", examples=[4])
    kv_heads: Count | None = Field(None, description="Key/value heads; default `heads`.")
    head_dim: Count | None = Field(None, description="Size of a head; default hidden/heads.")
    mlp: Count | None = Field(
        None, description="Width inside the MLP; default 8/3 x hidden, rounded up to 64."
    )
    vocab: Tokens = Field(
        description="Number of codes in each codebook after the first.", examples=[2048]
    )
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Added to the mean square in every RMSNorm; default: the talker's."
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Base of the rotary position embedding; default: the talker's."
    )


class PredictorModel(DecoderBlocks):
    """The blocks of a code predictor, with the sizes that it has from its talker."""

    vocab: int


class TalkerModel(Codes, DecoderBlocks, EncoderModel):
    """A generator of speech: a decoder that predicts codec tokens, frame by frame, given rows.

    The rows of language come before the frames, as in the talker of Qwen2.5-Omni
    (arXiv:2503.20215). All codes of a frame are predicted together, as in the parallel pattern of
    MusicGen (arXiv:2306.05284, section 2.2).
    """

    kind: Literal["talker"]
    reads_text: bool | Literal["instead"] = Field(
        False,
        description="Add the embedding of its token to each row of language, as Qwen2.5-Omni does. "
        "`instead`: rows of text are these embeddings alone, and rows of images and clips are "
        "states; each of the two has an MLP to the stream, as in Qwen3-Omni.",
    )
    reads_layer: Count | None = Field(
        None,
        description="Number of layers of language after which its states are read, without the "
        "rows of deepstack that are added to them; by default after all, and the last norm.",
        examples=[24],
    )
    moe: UnbalancedMoe | None = Field(
        None,
        description="Experts in place of the MLP, in the layers that `every` and `first_dense` "
        "select, by default all, as in the talker of Qwen3-Omni.",
        examples=["{experts: 8, top_k: 2, width: 256, shared: 256, shared_gate: true}"],
    )
    predictor: CodePredictor | None = Field(
        None,
        description="A decoder that predicts the codes of a frame after the first one, as in "
        "Qwen3-Omni; `vocab`, `start` and `end` are then of the first codebook alone. By default "
        "all codes of a frame are predicted together.",
        examples=["{layers: 5, heads: 4, vocab: 2048}"],
    )

    @property
    def maps_rows_alone(self) -> bool:
        """Whether codes have the width of the stream; otherwise one map takes rows and codes."""
        return self.predictor is not None or self.maps_text_apart

    @property
    def maps_text_apart(self) -> bool:
        """Whether rows of text are embeddings alone, with a map of their own."""
        return self.reads_text == "instead"

    @property
    def later_vocab(self) -> int | None:
        """Number of codes of each codebook after the first, if they have a predictor."""
        return None if self.predictor is None else self.predictor.vocab

    @property
    def whole_predictor(self) -> CodePredictor | None:
        """The code predictor, defaults applied."""
        if self.predictor is None:
            return None
        made = _blocks_of(self, self.predictor)
        sizes = {"kv_heads": made.num_kv_heads, "head_dim": made.head_size, "mlp": made.mlp_width}
        rest = {"norm_eps": made.norm_eps, "rope_theta": made.rope_theta}
        return self.predictor.replace(**sizes, **rest)

    @property
    def inside_frames(self) -> PredictorModel | None:
        """The blocks of the code predictor, if there is one and it has anything to predict."""
        if self.predictor is None or self.codebooks == 1:
            return None
        return _blocks_of(self, self.predictor)


@lru_cache(maxsize=64)
def _blocks_of(model: TalkerModel, predictor: CodePredictor) -> PredictorModel:
    like = ("hidden", "norm_eps", "rope_theta", "qk_norm", "qkv_bias")
    # Reading a faulty key raises MissingPartError; `model_dump` would leave the key out.
    asked = {key: getattr(predictor, key) for key in CodePredictor.model_fields}
    said = {key: value for key, value in asked.items() if value is not None}
    own = {key: getattr(model, key) for key in like}
    return PredictorModel.model_validate({"kind": "predictor", **own, **said})


GeneratorKinds = FlowModel | TalkerModel
