"""One module of a spec: its model, its ranks, its grid, and how it trains.

Decides: the kinds of model that a module may be; how a class of a user's package is named, and
which keys describe its rows to layout and data.
Relies on: a file per kind.
Leaves: what modules do together to `spec`; finding a user's class to `checks.packages`, calling it
to `models.custom_stages`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from mimo_launch.spec.adapters import AdapterSpec
from mimo_launch.spec.aut import AutModel
from mimo_launch.spec.base import (
    CLASS_PATH,
    MAX_INTEGER,
    Axis,
    ClassPath,
    Count,
    CountFrom0,
    ExpertGrid,
    Grid,
    LayerRange,
    Layers,
    LocalPath,
    NonNegative,
    Ranks,
    Strict,
    rank_range,
)
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.custom_loss import CustomLoss
from mimo_launch.spec.dinov3 import Dinov3Model
from mimo_launch.spec.encoders import AudioModel, ConnectorModel, EncoderModel, GeneratorKinds
from mimo_launch.spec.fp8 import Fp8Spec
from mimo_launch.spec.gemma4_vision import Gemma4VisionModel
from mimo_launch.spec.hybrid import HybridModel
from mimo_launch.spec.language_models import DecoderModel
from mimo_launch.spec.llama4_vision import Llama4VisionModel
from mimo_launch.spec.media import Clips, Images
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.of_kind import OfKind
from mimo_launch.spec.optimizers import ModuleOptimizer
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.sections import RowCacheSpec
from mimo_launch.spec.values import SHARDINGS, Sharding, ShardingName
from mimo_launch.spec.vit import VitModel


class ImageInput(Images):
    """Images of any size, cut into square patches."""

    kind: Literal["image"]


class AudioInput(Clips):
    """Log-mel clips; a patch is the five frames around a token's two, band by band."""

    kind: Literal["audio"]


class CustomModel(EncoderModel):
    """A custom encoder or generator: `kind` names its class (docs/custom-encoders.md)."""

    kind: ClassPath = Field(
        description="`package.module:Name` of the class, or function.",
        examples=["my_encoders.mixer:Mixer"],
        json_schema_extra={"expected": "`package.module:Name`"},
    )
    layers: Layers = Field(
        description="Number of layers, which are split over pipeline stages.", examples=[4]
    )
    hidden: Count = Field(
        description="Width of the tokens between layers, and between stages.", examples=[128]
    )
    heads: Count | None = Field(
        None, description="Number of attention heads, if it has any; they are checked against tp."
    )
    input: Annotated[ImageInput | AudioInput, Field(discriminator="kind")] = Field(
        description="What it reads, and how many rows it makes of it; of a generator, what it "
        "learns to make.",
        examples=["{kind: image, patch: 4}"],
    )
    loss: bool = Field(
        False,
        description="It is a generator (docs/custom-generators.md): it reads `language` and "
        "returns a loss.",
    )
    parameters: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        None,
        description="Number of parameters of the whole module, for the estimates of `plan`, which "
        "never imports the class; without it they leave the module out.",
    )
    options: dict[str, Any] = Field(
        {}, description="Whatever else the class needs to know; nothing else reads it."
    )

    def __hash__(self) -> int:
        """Return a hash of the JSON form, since `options` may hold lists."""
        return hash(self.model_dump_json())

    @property
    def patches_per_row(self) -> int:
        """Number of patches that become one row."""
        return self.input.patches_per_row


def nearest_class_path(value: str) -> str:
    """Return the class path that a text such as `pkg/mod.py:Name` may mean, or ""."""
    module, _, name = value.strip().removesuffix("()").rpartition(":")
    if not module:
        module, _, name = name.rpartition(".")
    guess = f"{module.removesuffix('.py').replace('/', '.').replace('-', '_').strip('.')}:{name}"
    return guess if re.fullmatch(CLASS_PATH, guess) else ""


def looks_like_class_path(value: str, kinds: list[str]) -> bool:
    """Return whether an unknown `kind` looks like a class path rather than one of `kinds`."""
    return any(sign in value for sign in ":./()") and not close_matches(value, kinds)


Balance = Literal["none", "linked", "all"]
# Parts of a layer: attention or a recurrent mixer; an MLP or experts; norms of the stream.
RecomputedPart = Literal["attention", "mlp", "norms"]
RecomputedParts = Annotated[tuple[RecomputedPart, ...], Field(strict=False, min_length=1)]
Recompute = Literal["none", "full"] | RecomputedParts
# What of a module may lie in the memory of the host.
Offloaded = Literal["activations", "optimizer"]

# Every kind of encoder except users' own classes.
VisionKinds = VitModel | Dinov3Model | Gemma4VisionModel | Llama4VisionModel | Ovis2VisionModel
EncoderKinds = VisionKinds | AudioModel | AutModel | ConformerModel | ConnectorModel
Kinds = EncoderKinds | GeneratorKinds | DecoderModel | HybridModel
_AnyModel = Annotated[Kinds, Field(discriminator="kind")] | CustomModel
Model = Annotated[_AnyModel, OfKind(_AnyModel)]
# The class of each kind, encoders first.
MODELS: Mapping[str, type[Kinds]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(Kinds)
}


class FrozenLayers(Strict):
    """Layers that keep their weights, while the rest of the module trains."""

    layers: LayerRange = Field(
        description="First and last frozen layer, both included, counted from 0. What comes before "
        "layer 0, such as an embedding, is frozen with it.",
        examples=["0-11"],
    )


class ModuleSpec(Strict):
    """One module: its model, its ranks and its grid."""

    model: Model = Field(
        description="Kind and sizes of the model.",
        examples=["{kind: vit, layers: 4, hidden: 128, heads: 4, patch: 4}"],
    )
    ranks: Ranks = Field(
        description="First and last rank, both included: `0-3`, or one rank: `4`.", examples=["0-3"]
    )
    grid: Grid = Field(Grid.model_construct(), description="Sizes of the parallel axes.")
    order: tuple[Literal["tp", "cp", "dp", "pp"], ...] = Field(
        ("tp", "cp", "dp", "pp"),
        description="Axes, from the fastest to the slowest varying with the rank.",
        strict=False,
    )
    stages: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] | None = Field(
        None,
        description="Layers of each pipeline stage, in order; default: as equal as possible, "
        "earlier ones longer. With `virtual_stages` there are pp * virtual_stages, of which stage "
        "i is on pp rank i modulo pp.",
        examples=[[9, 7]],
    )
    experts: ExpertGrid | None = Field(
        None,
        description="Sizes of the grid of the model's experts; without it every rank of a stage "
        "holds all of them.",
        examples=["{ep: 4}"],
    )
    reads: tuple[str, ...] | None = Field(
        None,
        description="Modules from which this one takes rows. Default: of `language`, every module "
        "that no other one reads and that does not read `language`; of any other, none.",
        examples=[["vision"]],
        strict=False,
    )
    loss_weight: NonNegative = Field(
        1.0,
        description="What the loss of this module, a mean over the step, counts in the sum of all "
        "losses; for `language` and generators.",
    )
    loss: CustomLoss | None = Field(
        None,
        description="Of `language`: a loss of your own in place of the cross-entropy of the next "
        "tokens (docs/custom-losses.md).",
        examples=["{kind: my_losses:weighted, columns: {weight: 1}}"],
    )
    sequence_parallel: bool = Field(
        False, description="Split the activations between tp layers over tp as well."
    )
    placeholder: CountFrom0 | None = Field(
        None,
        description="Of an encoder: the id of the token that marks the place of one of its rows, "
        "such as `<image>` in a tokenizer. Encoders without one own the last ids of the "
        "vocabulary, in the order of the spec.",
    )
    frozen: bool | Literal["except_projector"] | FrozenLayers = Field(
        False,
        description="`true`: train nothing in this module, its projector included. "
        "`except_projector`: train only the projector of an encoder. `{layers: 0-11}`: train the "
        "other layers, and what comes after all of them; with an `adapter`, only the updates in "
        "the other layers.",
    )
    adapter: AdapterSpec | None = Field(
        None,
        description="Train low-rank updates of the maps in the layers; the weights of the module "
        "stay as they are, except a projector's with `frozen: except_projector`.",
        examples=["{rank: 16, targets: [attention, mlp]}"],
    )
    quantize_base: QuantizedBase | None = Field(
        None,
        description="Keep the maps in the layers in 4 or 8 bits, in a module with an `adapter` or "
        "a frozen one; products are computed in `precision`.",
        examples=["{kind: nf4}"],
    )
    cache: bool | RowCacheSpec = Field(
        False,
        description="Of an encoder with `frozen: true`: keep the rows of every picture and clip on "
        "disk, and read them there when it comes again with the same weights. `true` takes all "
        "defaults.",
        examples=["{limit_gib: 20}"],
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of what attention and the MLP of a layer add to the stream that each "
        "training step drops, the same on every layout.",
        examples=[0.1],
    )
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Of `language`: share of the weights of attention that each training step "
        "drops. Attention then keeps its scores for some queries at a time, and is slower.",
        examples=[0.1],
    )
    sharding: ShardingName = Field(
        "optimizer",
        description="`optimizer`: weights stay gathered through a step, and gradients take one "
        "reduce-scatter. `full`: weights are gathered layer by layer as they are used.",
    )
    shard_over: Count | None = Field(
        None,
        description="Replicas (along dp) that hold one copy of the weights together, for example "
        "those of a host; a divisor of dp. Default: all of them. Gradients are summed over copies "
        "after the sum inside each.",
        examples=[8],
    )
    recompute: Recompute = Field(
        "none",
        description="Compute activations again in the backward instead of keeping them: `full`: "
        "whole layers. A list names parts of each layer: `attention`, or a recurrent mixer; `mlp`, "
        "or experts; `norms`: the inputs of products, which are norms of the stream.",
        examples=[["mlp", "norms"]],
    )
    offload: tuple[Offloaded, ...] = Field(
        (),
        description="What of this module lies in the memory of the host. `activations`: what its "
        "layers keep for their backward goes there while the next layer computes, and comes back "
        "one layer ahead. `optimizer`: the moments of AdamW, as with `offload` of `optimizer`, "
        "which is for all modules.",
        examples=[["activations"]],
        strict=False,
    )
    backend: Literal["torch", "transformer_engine"] = Field(
        "torch", description="Library that provides the layers."
    )
    fp8: Fp8Spec | None = Field(
        None,
        description="Multiply in 8 bits in the blocks of this module; needs `backend: "
        "transformer_engine` and GPUs with FP8. `{}` takes all defaults.",
        examples=["{scaling: current}"],
    )
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="Fuse passes over activations (norms, rotations, activation functions, loss) "
        "with torch.compile; `auto`: on GPUs, below fp64.",
    )
    balance: Balance = Field(
        "linked",
        description="Give each replica of an encoder about as many patches of a step as the "
        "others, so that one large image does not hold up all: samples move, and images of one "
        "sample go to several replicas if whole samples are too uneven. `linked`: samples move "
        "among replicas that feed the same language replicas; `all`: among all of them, at the "
        "price of a bridge between all; `none`: samples stay where their index puts them.",
    )
    init_from: LocalPath | None = Field(
        None,
        description="Checkpoint, or run folder with one, or a local Hugging Face folder, to take "
        "this module's weights from; nothing else of it is read.",
    )
    init_partial: bool = Field(
        False,
        description="Let weights that are missing in `init_from`, or have another shape there, "
        "keep their initial values; they are listed.",
    )
    optimizer: ModuleOptimizer = Field(
        ModuleOptimizer.model_construct(),
        description="Overrides of the common optimizer settings.",
    )

    @property
    def drops(self) -> bool:
        """Whether a step drops anything."""
        of_adapter = 0.0 if self.adapter is None else self.adapter.dropout
        return any((self.dropout, self.attention_dropout, of_adapter))

    @property
    def row_cache(self) -> RowCacheSpec | None:
        """Where its rows are kept, if they are."""
        if isinstance(self.cache, RowCacheSpec):
            return self.cache
        return RowCacheSpec() if self.cache else None

    @property
    def body_trains(self) -> bool:
        """Whether its own weights train, but for a projector's; all of them, or some layers."""
        some = self.frozen is False or isinstance(self.frozen, FrozenLayers)
        return some and self.adapter is None

    @property
    def frozen_layers(self) -> range:
        """The layers that keep their weights while others train."""
        some = self.frozen
        return rank_range(some.layers) if isinstance(some, FrozenLayers) else range(0)

    def layer_trains(self, number: int) -> bool:
        """Return whether the weights of a layer, or of a depth after all layers, train.

        The weights before the layers, such as an embedding, train with layer 0.
        """
        return self.body_trains and number not in self.frozen_layers

    @property
    def projector_trains(self) -> bool:
        """Whether the weights of its projector train, if it has one."""
        return self.frozen == "except_projector" or self.body_trains

    @property
    def trains_besides_projector(self) -> bool:
        """Whether any weight trains that is not a projector's."""
        return self.body_trains or self.adapter is not None

    @property
    def lowest_trained(self) -> int:
        """The first layer of which anything trains; the number of layers if none."""
        if not self.trains_besides_projector:
            return self.model.layers
        frozen = self.frozen_layers
        return frozen.stop if frozen and frozen.start == 0 else 0

    @property
    def fsdp(self) -> Sharding:
        """How `sharding` and `shard_over` hold the weights."""
        usual = SHARDINGS[self.sharding]
        if self.shard_over in (None, self.grid.dp):
            return usual
        return replace(usual, shard=(Axis.DP_SHARD, Axis.CP), replicate=(Axis.DP_COPY,))

    @property
    def recomputes(self) -> bool:
        """Whether whole layers are computed again in the backward."""
        return self.recompute == "full"

    @property
    def recomputed_parts(self) -> frozenset[str]:
        """The parts of layers that are computed again, if not whole layers are."""
        return frozenset() if isinstance(self.recompute, str) else frozenset(self.recompute)

    @property
    def recomputes_mixers(self) -> bool:
        """Whether attention, or a recurrence, is computed again with its layer or as a part."""
        return self.recomputes or "attention" in self.recomputed_parts

    @property
    def offloads(self) -> bool:
        """Whether the host holds what layers keep for their backward."""
        return "activations" in self.offload

    @property
    def rank_range(self) -> range:
        """The ranks of this module."""
        return rank_range(self.ranks)
