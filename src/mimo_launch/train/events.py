"""Defines the events of a run as plain values; the loop emits them, others listen.

Decides: the fields of `metrics.jsonl`.
Relies on: `layout.step_views` for what an imbalance is.
Leaves: writing to `metrics_file`, drawing to `cli.run_screens`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from mimo_launch.layout.step_views import Imbalance


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All ranks have built their modules; `first_step` steps were done before, in earlier runs."""

    name: str
    plan: str
    steps: int
    world_size: int
    modules: tuple[str, ...]
    log_every: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    """The first step has not ended; `what` says in words what the slowest ranks are doing."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The seconds that a step waited for its samples, and that this rank took to read its share.

    The rank reads beside the step before.
    """

    waited_s: float
    read_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a step took of its devices; counted as `bench` does, known to rank 0 only.

    `time` is when the host knew the numbers of the step, in UTC; `tflop` is the work of each
    module, `tflops_per_rank` the mean over all ranks and `mfu` its share of the peak, if that is
    known. `peak_memory` has per module the most bytes that a rank of it has had so far, as the
    ranks told while they read their samples: tensors on a GPU, the resident set on a CPU.
    """

    time: str
    step_s: float
    tflop: dict[str, float]
    tflops_per_rank: float
    mfu: float | None
    peak_memory: dict[str, int]

    @property
    def at(self) -> float:
        """The time of day in seconds, as `time.time` counts them."""
        return datetime.fromisoformat(self.time).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One optimizer step.

    `step` counts from 1; norms are before clipping; `tokens` is the number of real tokens of the
    step, with image rows and without padding; `tokens_per_s` is over the time from the start of the
    step, or from the end of the one before where the host does not wait for it, to the end of its
    update; `bad_samples` could not be read and were left out of the step; `imbalance` is of
    encoders with several replicas; `reading` is for samples of shards; `zero_grads` counts
    gradients that are exactly zero, if the spec says so; `aux_loss` balances the load of experts;
    `losses` are all by name if there are several, of which `loss` is the weighted sum: a module's
    has the name of the module, that of further tokens `language.mtp`;
    the fields of `usage` are written beside the others.
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
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFinished:
    """One evaluation after `step` steps.

    `digit_accuracy` is the share of the tokens of held-out answers that greedy decoding gets right
    at their place. Metrics files have this name, whatever the answers are. `drawn_recognised` is
    the share of images that generators make from noise and that the data set recognises;
    `code_accuracy` that of the codes which talkers find most probable behind the true ones.
    """

    step: int
    eval_loss: float
    digit_accuracy: float | None
    samples: int
    eval_losses: dict[str, float] | None = None
    drawn_recognised: float | None = None
    code_accuracy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The last step is done, and `saved` unless the spec says to save nothing."""

    steps: int
    seconds: float
    skipped: int
    saved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """A signal ended the run after `step` steps; `checkpoint` holds them, if it could be saved."""

    step: int
    signal: int
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """State was taken from the checkpoint `resumed_from` after `step` steps.

    `changes` names settings and data that differ from those it was saved with, as
    `path: old -> new`.
    """

    step: int
    resumed_from: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete. Training waited for `stall_s`, the write took `seconds`.

    `not_finite` names its weights that hold a NaN or an infinity.
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
    """A checkpoint is incomplete or damaged, so the run looks for an older one."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded:
    """A module took its weights from a checkpoint or a Hugging Face folder (`init_from`).

    `missing` are names the checkpoint lacks, `misfits` those it has in another shape (both keep
    their initial values), `unused` those of the checkpoint that the module lacks.
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

    `rank` saw it first, in `module`; `samples` are the ids of the samples it may have come from.
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
    """A log could not be written; its lines are kept and tried again."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed:
    """TensorBoard or Weights & Biases failed; `effect` says what is lost."""

    listener: str
    reason: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFinished:
    """All steps of a bench are timed; `record` is the content of `bench.json` (docs/bench.md)."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesWritten:
    """Answers and pictures of `samples` are in `folder`; at the end also `sheets` of pictures."""

    folder: str
    samples: int
    sheets: tuple[str, ...] = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFinished:
    """A calibration has measured the constants of `plan` that `measured` names.

    `constants` are all of them by name; `file` holds them, or is None if it could not be written.
    `step_s` is the median of the timed steps, `estimated_step_s` what the constants give for it.
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
