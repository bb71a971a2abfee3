"""The spec as frozen pydantic models: what a user may write, with types and defaults.

Decides: keys, types, defaults and the one-line documentation of each key (the reference page and the
JSON Schema are generated from here).
Relies on: `load` for reading YAML and for turning pydantic's errors into diagnostics.
Leaves: everything that needs two keys at once to `layout.checks`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

AXES = ("tp", "cp", "dp", "pp")
_RANKS = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$")


class Strict(BaseModel):
    """Base of every section: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _rank_range(value: Any) -> Any:
    """Accept `4` and `"0-3"`; anything else is an error that says so."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    match = _RANKS.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("ranks are written `4` or `0-3` (first and last rank, both included)")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"rank range {value} ends before it starts")
    return f"{first}-{last}" if last > first else str(first)


Ranks = Annotated[str, BeforeValidator(_rank_range)]
Float = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def rank_range(ranks: str) -> range:
    """Return the ranks that a validated `ranks:` value names."""
    first, _, last = ranks.partition("-")
    return range(int(first), int(last or first) + 1)


class Grid(Strict):
    """How the ranks of one module are factored; the product must equal their number."""

    tp: PositiveInt = Field(1, description="Tensor-parallel size: each layer's weights are split.")
    cp: PositiveInt = Field(1, description="Context-parallel size: the sequence is split.")
    pp: PositiveInt = Field(1, description="Pipeline size: the layers are split into stages.")
    dp: PositiveInt = Field(1, description="Data-parallel size: the samples are split.")

    @property
    def num_ranks(self) -> int:
        """Number of ranks the grid fills."""
        return self.tp * self.cp * self.pp * self.dp


class VitModel(Strict):
    """A vision transformer over images of any size, with a projector to the language width."""

    kind: Literal["vit"]
    layers: PositiveInt = Field(description="Number of transformer layers.")
    hidden: PositiveInt = Field(description="Width of the residual stream.")
    heads: PositiveInt = Field(description="Number of attention heads.")
    patch: PositiveInt = Field(description="Side of a square patch, in pixels.")
    channels: PositiveInt = Field(1, description="Colour channels of a pixel.")
    mlp: PositiveInt | None = Field(None, description="Width inside the MLP; default 4 x hidden.")
    projector: Literal["mlp", "linear"] = Field(
        "mlp", description="Last layer of the encoder: two linear maps with a GELU, or one."
    )

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP, default applied."""
        return self.mlp or 4 * self.hidden


class DecoderModel(Strict):
    """A decoder-only language model of Llama shape (RMSNorm, RoPE, GQA, SwiGLU)."""

    kind: Literal["decoder"]
    layers: PositiveInt = Field(description="Number of transformer layers.")
    hidden: PositiveInt = Field(description="Width of the residual stream.")
    heads: PositiveInt = Field(description="Number of query heads.")
    kv_heads: PositiveInt | None = Field(None, description="Key/value heads; default `heads`.")
    head_dim: PositiveInt | None = Field(None, description="Size of a head; default hidden/heads.")
    mlp: PositiveInt | None = Field(
        None, description="Width inside the MLP; default 8/3 x hidden, rounded up to 64."
    )
    vocab: PositiveInt | Literal["digits"] = Field(
        description="Number of tokens, or `digits` for the vocabulary of that data set."
    )
    vocab_multiple: PositiveInt = Field(
        128, description="The vocabulary is padded to a multiple of this, whatever tp is."
    )
    qk_norm: bool = Field(False, description="RMSNorm on each query and key head.")
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        10000.0, description="Base of the rotary position embedding."
    )

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads, default applied."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Size of one head, default applied."""
        return self.head_dim or self.hidden // self.heads

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP, default applied."""
        return self.mlp or -(-8 * self.hidden // (3 * 64)) * 64


Model = Annotated[VitModel | DecoderModel, Field(discriminator="kind")]


class ModuleOptimizer(Strict):
    """Optimizer settings of one module that differ from the common ones."""

    lr: NonNegative | None = Field(None, description="Peak learning rate of this module.")
    weight_decay: NonNegative | None = Field(None, description="Weight decay of this module.")
    warmup: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Warm-up steps of this module."
    )


class ModuleSpec(Strict):
    """One module: its model, its ranks and its grid."""

    model: Model = Field(description="Kind and sizes of the model.")
    ranks: Ranks = Field(description="First and last rank, both included: `0-3`, or one rank: `4`.")
    grid: Grid = Field(Grid(), description="Sizes of the parallel axes.")  # type: ignore[call-arg]
    order: tuple[Literal["tp", "cp", "dp", "pp"], ...] = Field(
        AXES, description="Axes from fastest to slowest varying with the rank.", strict=False
    )
    sequence_parallel: bool = Field(
        False, description="Split the activations between tp layers over tp as well."
    )
    frozen: bool = Field(False, description="Train nothing in this module, its projector included.")
    sharding: Literal["optimizer", "full"] = Field(
        "optimizer",
        description="`optimizer`: weights stay gathered through a step, one reduce-scatter. "
        "`full`: weights are gathered layer by layer as they are used.",
    )
    recompute: Literal["none", "full"] = Field("none", description="Recompute activations.")
    backend: Literal["torch", "transformer_engine"] = Field(
        "torch", description="Library that provides the layers."
    )
    init_from: str | None = Field(None, description="Folder with Hugging Face weights.")
    optimizer: ModuleOptimizer = Field(
        ModuleOptimizer(),  # type: ignore[call-arg]
        description="Overrides of the common optimizer settings.",
    )

    @property
    def rank_range(self) -> range:
        """The ranks of this module."""
        return rank_range(self.ranks)


class ScheduleSpec(Strict):
    """Order of the work inside a step."""

    kind: Literal["1f1b", "gpipe", "interleaved", "bubble_filling"] = Field(
        "1f1b", description="Pipeline schedule."
    )
    microbatches: PositiveInt = Field(
        1, description="Microbatches a language replica runs per step."
    )
    encoder_microbatches: PositiveInt | None = Field(
        None,
        description="For encoders that share ranks with language: microbatches they encode at once "
        "(more memory, fewer phases); default all.",
    )


class BatchSpec(Strict):
    """Size of a step."""

    global_: PositiveInt = Field(
        alias="global", description="Samples per optimizer step over all replicas."
    )
    seq: PositiveInt = Field(description="Tokens per sample, embedded rows included; padded.")


class DigitsData(Strict):
    """Strips of real handwritten digits to be read out; ships with the package."""

    kind: Literal["digits"]
    min_digits: Annotated[int, Field(ge=1, le=16)] = Field(1, description="Shortest strip.")
    max_digits: Annotated[int, Field(ge=1, le=16)] = Field(6, description="Longest strip.")
    text_only: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Share of samples whose digits are spelled in words, without an image."
    )
    samples: PositiveInt = Field(20000, description="Training strips in one epoch.")


class SyntheticData(Strict):
    """Random tokens and images of random sizes, a pure function of (seed, sample)."""

    kind: Literal["synthetic"]
    text_only: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Probability that a sample has no image for a given encoder."
    )
    max_patches: PositiveInt = Field(12, description="Largest image, in patches.")
    samples: PositiveInt = Field(4096, description="Training samples in one epoch.")


Data = Annotated[DigitsData | SyntheticData, Field(discriminator="kind")]


class LrSchedule(Strict):
    """Learning rate over the run, as a factor of `lr`."""

    kind: Literal["constant", "cosine", "wsd"] = Field(
        "constant", description="`wsd` is warm-up, stable, decay (linear over `decay` steps)."
    )
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Linear warm-up steps.")
    decay: Annotated[int, Field(ge=0)] = Field(0, description="Last steps of `wsd` that decay.")
    min_lr: NonNegative = Field(0.0, description="Learning rate at the end of cosine and wsd.")


class OptimizerSpec(Strict):
    """The update rule, common to all modules unless a module overrides it."""

    kind: Literal["adamw", "sgd"] = Field("adamw", description="Update rule.")
    lr: NonNegative = Field(3e-4, description="Peak learning rate.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.95), description="AdamW's decay rates of the two moments.", strict=False
    )
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-8, description="AdamW's term in the denominator."
    )
    weight_decay: NonNegative = Field(
        0.0, description="Decoupled weight decay; never applied to norms and biases."
    )
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Largest global gradient norm, over all modules; `null`: no clipping."
    )
    schedule: LrSchedule = Field(
        LrSchedule(),  # type: ignore[call-arg]
        description="Learning rate over the run.",
    )


class TrainSpec(Strict):
    """Length and numerics of the run."""

    steps: PositiveInt = Field(100, description="Optimizer steps.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of weights and data order.")
    precision: Literal["fp64", "fp32", "bf16"] = Field(
        "fp32", description="Compute type; bf16 keeps fp32 weights, reductions and norms."
    )
    log_every: PositiveInt = Field(10, description="Steps between two lines of plain output.")
    timeout: PositiveInt = Field(
        600, description="Seconds after which a collective that does not finish is an error."
    )


class EvalSpec(Strict):
    """Evaluation on held-out samples; always once more after the last step."""

    every: PositiveInt | None = Field(None, description="Steps between evaluations.")
    samples: PositiveInt = Field(256, description="Held-out samples per evaluation.")


class CheckpointSpec(Strict):
    """When to save, and how many saves to keep."""

    every: PositiveInt = Field(description="Steps between two saves.")
    keep: PositiveInt = Field(2, description="Saves to keep.")


class NodesSpec(Strict):
    """The hosts, for warnings about traffic that leaves one."""

    gpus: PositiveInt = Field(description="Ranks per host.")


class Spec(Strict):
    """A whole training run."""

    version: Literal[1] = Field(description="Version of this format.")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="Name of the run and of its folder under `runs/`."
    )
    modules: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ModuleSpec] = Field(
        description="Encoders and `language`, which computes the loss."
    )
    schedule: ScheduleSpec = Field(
        ScheduleSpec(),  # type: ignore[call-arg]
        description="Order of the work inside a step.",
    )
    batch: BatchSpec = Field(description="Size of a step.")
    data: Data = Field(description="What to train on.")
    optimizer: OptimizerSpec = Field(
        OptimizerSpec(),  # type: ignore[call-arg]
        description="The update rule.",
    )
    train: TrainSpec = Field(
        TrainSpec(),  # type: ignore[call-arg]
        description="Length and numerics of the run.",
    )
    eval: EvalSpec | None = Field(None, description="Evaluation on held-out samples.")
    checkpoint: CheckpointSpec | None = Field(None, description="Saving and resuming.")
    nodes: NodesSpec | None = Field(None, description="Hosts, for warnings in `plan`.")
    idle_ranks: Ranks | None = Field(
        None, description="Ranks that no module uses, on purpose: `6-7`."
    )

    @property
    def language(self) -> ModuleSpec:
        """The module that computes the loss."""
        return self.modules["language"]

    @property
    def encoders(self) -> dict[str, ModuleSpec]:
        """Every other module, in the order written."""
        return {name: module for name, module in self.modules.items() if name != "language"}
