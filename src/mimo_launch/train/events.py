"""Defines the events of a run as plain values; the loop emits them, others listen.

Decides: the fields of `metrics.jsonl`.
Relies on: `layout.step_views` for the imbalance.
Leaves: writing to `metrics_file`, drawing to `cli.run_screens`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from mimo_launch.layout.step_views import Imbalance
from mimo_launch.runtime.progress import Best


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All ranks have built their modules; earlier runs have done `first_step` steps."""

    name: str
    plan: str
    steps: int
    world_size: int
    modules: tuple[str, ...]
    log_every: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    """The first step has not ended; `what` describes what the slowest ranks are doing."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The seconds that a step waited for its samples, and that this rank took to read its share.

    The rank reads during the previous step.
    """

    waited_s: float
    read_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The device usage of a step, counted as in `bench`; only rank 0 knows it.

    `time` is when the host knew the numbers of the step, in UTC; `tflop` is the work of each
    module, `tflops_per_rank` the mean over all ranks, and `mfu` its share of the peak, if the peak
    is known. `peak_memory` has for each module the largest peak in bytes of its ranks so far, which
    they exchange while they read samples: tensors on a GPU, the resident set on a CPU.
    """

    time: str
    step_s: float
    tflop: dict[str, float]
    tflops_per_rank: float
    mfu: float | None
    peak_memory: dict[str, int]

    @property
    def at(self) -> float:
        """The time in seconds, as returned by `time.time`."""
        return datetime.fromisoformat(self.time).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One optimizer step.

    `step` counts from 1; norms are before clipping; `tokens` is the number of real tokens of the
    step, with image rows and without padding; `tokens_per_s` is over the time from the start of the
    step (or the end of the previous step, if the host does not wait for it) to the end of its
    update; `bad_samples` could not be read and were left out of the step; `imbalance` is for
    encoders with several replicas; `reading` is for samples from shards; `zero_grads` counts
    gradients that are exactly zero, if the spec asks for it; `aux_loss` balances the load of
    experts; `losses` has all losses by name if there are several, and `loss` is their weighted sum:
    a module's loss has the name of the module, the loss of further tokens is `language.mtp`;
    `source_losses` is the loss of language over the labels of each source of the data; `cached` is
    the number of images with kept rows that were read, by encoder that keeps rows. The fields of
    `usage` are written next to the others.
    """

    step: int
    loss: float
    grad_norm: float
    grad_norms: dict[str, float]
    lr: float
    lrs: dict[str, float]
    tokens: int
    tokens_per_s: float
    skipped: bool
    bad_samples: int = 0
    imbalance: dict[str, Imbalance] = field(default_factory=dict)
    reading: Reading | None = None
    zero_grads: dict[str, int] | None = None
    aux_loss: float | None = None
    losses: dict[str, float] | None = None
    source_losses: dict[str, float] | None = None
    cached: dict[str, int] | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFinished:
    """One evaluation after `step` steps, of the held-out samples of a set, if sets have names.

    `digit_accuracy` is the share of tokens of held-out answers that greedy decoding gets right at
    their position; metrics files use this name for all kinds of answers. `drawn_recognised` is the
    share of images generated from noise that the data set recognises. `code_accuracy` is the share
    of codes that talkers predict correctly after the true ones.
    """

    step: int
    eval_loss: float
    digit_accuracy: float | None
    samples: int
    eval_losses: dict[str, float] | None = None
    drawn_recognised: float | None = None
    code_accuracy: float | None = None
    eval_set: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The last step is done, and `saved` unless the spec disables saving.

    `peak_memory` is the most bytes that a rank has had in this process, as in `Usage`.
    `best` is the best evaluation, if the spec asks for it; `ended_early` if none after it was
    better, and `eval.stop_after` ended the run for that.
    """

    steps: int
    seconds: float
    skipped: int
    saved: bool = True
    peak_memory: int = 0
    best: Best | None = None
    ended_early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """A signal ended the run after `step` steps; `checkpoint` is their checkpoint, if saved.

    `peak_memory` is as in `RunFinished`.
    """

    step: int
    signal: int
    checkpoint: str | None
    peak_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStepComes:
    """The step that needs the most memory by the plan comes soon, and it leaves little room.

    It counts from 1. `rank` needs about `needed_bytes` in it, and may have `gpu_memory`.
    """

    step: int
    rank: int
    needed_bytes: int
    gpu_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCompared:
    """How a run compares with its plan after `step` steps; None for what cannot be compared.

    Seconds are the mean step of the plan, and the median of the steps of this process without the
    first two. Memory is the most bytes in tensors of one rank.
    """

    step: int
    estimated_step_s: float | None
    measured_step_s: float | None
    estimated_memory: int | None
    measured_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """The state was loaded from the checkpoint `resumed_from` after `step` steps.

    `changes` lists settings and data that differ from the checkpoint, as `path: old -> new`.
    """

    step: int
    resumed_from: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete. Training waited for `stall_s`; the write took `seconds`.

    `not_finite` lists its weights that hold a NaN or an infinity.
    """

    step: int
    checkpoint: str
    num_bytes: int
    stall_s: float
    seconds: float
    not_finite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint could not be written; earlier ones are untouched."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPassedOver:
    """A checkpoint is incomplete or damaged, so the run tries an older one."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded:
    """A module took its weights from a checkpoint or a Hugging Face folder (`init_from`).

    `missing` are names that the checkpoint lacks, `misfits` names that have another shape there
    (both keep their initial values), `unused` names in the checkpoint that the module lacks.
    """

    module: str
    checkpoint: str
    num_loaded: int
    missing: tuple[str, ...]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A loss or gradient was not finite, so all ranks skip the step.

    `rank` saw it first, in `module`; it may have come from the samples with the ids `samples`.
    """

    step: int
    what: Literal["loss", "gradient"]
    rank: int
    module: str
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSamples:
    """Samples that could not be read, by id in their split, with the reason.

    `total` counts the whole run; a held-out sample counts once, however often it is evaluated.
    """

    step: int
    reasons: dict[int, str]
    total: int
    split: Literal["train", "heldout"] = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    """A log could not be written; its lines are kept for another attempt."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed:
    """TensorBoard, Weights & Biases or a cache of rows failed; `effect` says what is lost."""

    listener: str
    reason: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFinished:
    """All steps of a bench are timed; `record` is the content of `bench.json` (docs/bench.md)."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesWritten:
    """Answers and pictures for `samples` are in `folder`; at the end also `sheets` of pictures."""

    folder: str
    samples: int
    sheets: tuple[str, ...] = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFinished:
    """A calibration has measured the constants of `plan` that `measured` names.

    `constants` has all constants by name; `file` holds them, or is None if it could not be written.
    `step_s` is the median of the timed steps, `estimated_step_s` its estimate by the constants.
    """

    file: str | None
    constants: dict[str, float]
    measured: tuple[str, ...]
    step_s: float
    estimated_step_s: float


Event = (
    RunStarted
    | RunWaits
    | StepFinished
    | EvalFinished
    | RunFinished
    | RunStopped
    | LargestStepComes
    | PlanCompared
    | RunResumed
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointPassedOver
    | WeightsLoaded
    | NonFinite
    | BadSamples
    | WriteFailed
    | ListenerFailed
    | BenchFinished
    | CalibrationFinished
    | SamplesWritten
)
Listener = Callable[[Event], None]
