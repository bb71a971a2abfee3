"""Every section of the spec except modules, data and optimizer: batch, train and the rest.

Decides: keys, defaults and limits of these sections.
Relies on: `base`.
Leaves: what fits together to `checks`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr

from mimo_launch.spec.base import (
    MAX_INTEGER,
    Count,
    Layers,
    LocalPath,
    Microbatches,
    Samples,
    Size,
    Strict,
    Tokens,
    num_bytes,
)
from mimo_launch.spec.values import GPUS, PRECISIONS, GpuName, NetworkName, Precision, PrecisionName

ScheduleKind = Literal["1f1b", "gpipe", "interleaved", "bubble_filling"]


class ScheduleSpec(Strict):
    """Order of the work inside a step."""

    kind: ScheduleKind = Field("1f1b", description="Pipeline schedule.")
    microbatches: Microbatches = Field(
        1, description="Microbatches a language replica runs per step."
    )
    encoder_microbatches: Microbatches | None = Field(
        None,
        description="Microbatches that encoders take at once (more memory, fewer and larger "
        "products); default all for encoders that share ranks with language, 1 for those on their "
        "own ranks. Where a step has both, it is for the former.",
    )
    generator_microbatches: Microbatches | None = Field(
        None,
        description="For generators that share ranks with language: microbatches they work on at "
        "once (more memory, fewer and larger products); default 1.",
    )
    virtual_stages: Layers = Field(
        1, description="For `interleaved`: stages of the language model that each rank holds."
    )


class BatchSpec(Strict):
    """Size of a step."""

    global_: Samples = Field(
        alias="global",
        description="Samples per optimizer step over all replicas.",
        examples=[32],
    )
    seq: Tokens = Field(
        description="Tokens per sample, embedded rows included; padded.", examples=[64]
    )


class TrainSpec(Strict):
    """Length and numerics of the run."""

    steps: Count = Field(
        100,
        description="Optimizer steps; beside `epochs`, the most of them.",
    )
    epochs: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = Field(
        None,
        description="Times that the samples are taken, in place of `steps`: the run ends with the "
        "step that takes the last of them.",
        examples=[3],
    )
    seed: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = Field(
        0, description="Seed of weights and data order."
    )
    precision: PrecisionName = Field(
        "fp32", description="Compute type; bf16 keeps fp32 weights, reductions and norms."
    )
    log_every: Count = Field(10, description="Steps between two lines of plain output.")
    timeout: Count = Field(
        600,
        description="Seconds without progress of any rank, or in one collective, after which the "
        "run has failed.",
    )
    max_skipped: Count = Field(
        10, description="Steps in a row with a non-finite loss or gradient that stop the run."
    )
    count_zero_grads: bool = Field(
        False, description="Count the gradients that are exactly zero, per module and step."
    )
    on_write_error: Literal["continue", "stop"] = Field(
        "continue",
        description="What a run does when a checkpoint or a log cannot be written (a full disk).",
    )
    allow_changed_data: bool = Field(
        False,
        description="Go on from a checkpoint although the samples of the shards have changed "
        "since; some samples of that epoch may come twice or not at all.",
    )

    # Whether `steps` follow from `epochs`, and the steps that the spec had before; None for none.
    _counted: bool = PrivateAttr(False)
    _written_steps: int | None = PrivateAttr(None)

    @property
    def are_steps_known(self) -> bool:
        """Whether `steps` is the length of the run, and not a default beside `epochs`."""
        return self.epochs is None or "steps" in self.model_fields_set

    @property
    def written_steps(self) -> int | None:
        """The steps that the spec says itself; None if its epochs alone say the length."""
        if self._counted:
            return self._written_steps
        return self.steps if self.are_steps_known else None

    def with_counted(self, steps: int) -> Self:
        """Return this section with the steps of its epochs."""
        made = self.replace(steps=steps)
        made._counted, made._written_steps = True, self.written_steps
        return made

    @property
    def numbers(self) -> Precision:
        """The types of numbers that `precision` names."""
        return PRECISIONS[self.precision]


HeldOut = Samples | Literal["all"]


class EvalSpec(Strict):
    """Evaluation on held-out samples; always once more after the last step."""

    every: Count | None = Field(None, description="Steps between evaluations.")
    at_start: bool = Field(
        False, description="Evaluate before the first step, too; a run that goes on does not again."
    )
    samples: HeldOut = Field(
        256,
        description="Held-out samples per evaluation, the first ones of the set; `all`, or more "
        "than there are, takes each of them once.",
    )
    metric: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,63}\.)?(loss|accuracy)$")] = (
        Field(
            "loss",
            description="The number by which evaluations are judged: `loss` (smaller is better) or "
            "`accuracy` (larger is better); of one of several sets `SET.loss`.",
            examples=["accuracy", "photos.loss"],
            json_schema_extra={
                "expected": "`loss` or `accuracy`, with the name of a set before it if "
                "sets have names (`photos.loss`)"
            },
        )
    )
    stop_after: Count | None = Field(
        None,
        description="End the run after this many evaluations in a row that were not better than "
        "the best one before.",
        examples=[3],
    )

    @property
    def judged_set(self) -> str:
        """The name of the set that `metric` is of; empty for an only set."""
        return self.metric.rpartition(".")[0]

    @property
    def judged_number(self) -> str:
        """`loss` or `accuracy`."""
        return self.metric.rpartition(".")[2]


class RowCacheSpec(Strict):
    """Where the rows of a frozen encoder are kept, and how many."""

    folder: LocalPath | None = Field(
        None,
        description="Folder that keeps them, for any number of runs and encoders. Default: "
        "`mimo-launch/rows` in the cache of the user (`XDG_CACHE_HOME`, else `~/.cache`).",
        examples=["/scratch/rows"],
    )
    limit_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        100.0, description="Size in GiB up to which a run fills the folder; nothing is deleted."
    )


class CheckpointSpec(Strict):
    """When to save, and how many checkpoints to keep; always once more after the last step."""

    every: Count | None = Field(
        None,
        description="Steps between two checkpoints; without it there is only the one at the end.",
        examples=[100],
    )
    keep: Count = Field(2, description="Newest checkpoints to keep; older ones are deleted.")
    keep_every: Count | None = Field(
        None,
        description="Steps between two checkpoints that are never deleted; they are saved whatever "
        "`every` says.",
        examples=[1000],
    )
    frozen_weights: bool = Field(
        True,
        description="Save weights that do not train, too. `false`: leave out those that "
        "`init_from` holds; a reader of the checkpoint reads them there again, and refuses a "
        "folder with changed files.",
    )
    keep_best: bool = Field(
        False,
        description="Save after each evaluation that is better than all before, by `eval.metric`, "
        "and never delete the newest of these checkpoints.",
    )
    asynchronous: bool = Field(
        True, description="Copy the state and go on training while the copy is written."
    )


class WandbSpec(Strict):
    """Where Weights & Biases files a run."""

    project: Annotated[str, Field(pattern=r"^[^/\\#?%:]{1,128}$")] = Field(
        description="Project that shows the run.",
        examples=["my-project"],
        json_schema_extra={"expected": "at most 128 characters, none of `/ \\ # ? % :`"},
    )
    entity: str | None = Field(None, description="Team or user; default that of your login.")
    mode: Literal["online", "offline"] = Field(
        "online", description="`offline` writes to the run folder; `wandb sync` sends it later."
    )


# No `@`, or only after the host; or a path.
NO_LOGIN = r"^([^@]*|[^:@/]*://[^/@]*/.*|[./].*|[^:@/]*:/[^/].*)$"


class MlflowSpec(Strict):
    """Where MLflow files a run."""

    experiment: Annotated[str, Field(min_length=1, max_length=250)] = Field(
        description="Experiment that shows the run; made if there is none of this name.",
        examples=["my-experiment"],
        json_schema_extra={"expected": "a name of at most 250 characters"},
    )
    tracking_uri: Annotated[str, Field(pattern=NO_LOGIN)] | None = Field(
        None,
        description="Address of the tracking server, or of its database; default that of "
        "`MLFLOW_TRACKING_URI`. Logins belong in MLflow's environment variables, since specs are "
        "saved and sent.",
        examples=["http://mlflow:5000"],
        json_schema_extra={"expected": "an address without a login"},
    )


class LogSpec(Strict):
    """Where metrics go besides `metrics.jsonl` and the console."""

    tensorboard: bool = Field(
        False, description="Write TensorBoard event files into `tensorboard/` of the run folder."
    )
    wandb: WandbSpec | None = Field(None, description="Report to Weights & Biases.")
    mlflow: MlflowSpec | None = Field(None, description="Report to an MLflow tracking server.")


class NodesSpec(Strict):
    """The hosts, for warnings about traffic that leaves one, and about memory."""

    gpus: Count = Field(description="Ranks per host.", examples=[8])
    gpu: GpuName | None = Field(
        None,
        description="GPU of every rank, for estimates: its memory and its "
        "[rates](estimates.md#gpus); default: the rates of an H200.",
        examples=["h100-80gb"],
    )
    network: NetworkName | None = Field(
        None,
        description="Network between hosts, for estimates: an adapter of this many Gbit/s for each "
        "GPU; default 400.",
        examples=["ib-400g"],
    )
    gpu_memory: Size | None = Field(
        None,
        description="Memory of one GPU, to find ranks that will not fit; as `nvidia-smi` shows it "
        "or as it is sold. Default: that of `gpu`.",
        examples=["141GB"],
    )

    @property
    def memory(self) -> int | None:
        """Memory of one GPU in bytes."""
        if self.gpu_memory is not None:
            return num_bytes(self.gpu_memory)
        return None if self.gpu is None else GPUS[self.gpu].memory
