"""Events as lines of text, the same on a terminal and in a file.

Decides: the words and numbers of each event; how many names a line shows.
Relies on: events of `train`.
Leaves: when a line is due to `cli.run_screens`.
"""

import math
import signal
from collections.abc import Iterator, Mapping, Sequence

from mimo_launch.diag.quantities import bytes_text, seconds_text, some
from mimo_launch.runtime.progress import Best
from mimo_launch.train.events import (
    BadSamples,
    CheckpointFailed,
    CheckpointPassedOver,
    CheckpointSaved,
    EvalFinished,
    Event,
    LargestStepComes,
    ListenerFailed,
    NonFinite,
    PlanCompared,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    StepFinished,
    WeightsLoaded,
    WriteFailed,
)

MOST_NAMES = 5


def step_line(event: StepFinished) -> str:
    """Return one step as a line of text."""
    norms = " ".join(f"{name} {norm:.3g}" for name, norm in event.grad_norms.items())
    zeros = sum((event.zero_grads or {}).values())
    balance = "" if event.aux_loss is None else f"  aux loss {event.aux_loss:.4f}"
    of = "" if event.losses is None else f" ({_named(event.losses)})"
    extra = "  SKIPPED" if event.skipped else ""
    extra += f"  {event.bad_samples:,} bad samples" if event.bad_samples else ""
    extra += f"  {zeros:,} zero grads" if event.zero_grads is not None else ""
    extra += f"  {sum(event.cached.values()):,} images from the cache" if event.cached else ""
    extra += f"  waited {event.reading.waited_s:.2f} s for data" if event.reading else ""
    return (
        f"step {event.step:>6}  loss {event.loss:.4f}{of}{balance}  "
        f"grad norm {event.grad_norm:.3g} ({norms})  "
        f"lr {event.lr:.2e}  {event.tokens_per_s:,.0f} tokens/s{extra}"
    )


def no_gradient_line(step: int, module: str) -> str:
    """Return a line about a module that gets no gradient from any sample of a step."""
    return (
        f"note: step {step} has no gradient for {module}: weight decay and moments act all the "
        "same (shown once; `grad_norms` in metrics.jsonl is 0 in each such step)"
    )


def _named(losses: Mapping[str, float]) -> str:
    return " ".join(f"{name} {loss:.4f}" for name, loss in losses.items())


def eval_line(event: EvalFinished) -> str:
    """Return one evaluation as a line of text, and a second line if it has no loss."""
    accuracy = (
        "" if event.digit_accuracy is None else f"  digit accuracy {event.digit_accuracy:.1%}"
    )
    if event.drawn_recognised is not None:
        accuracy += f"  drawn digits recognised {event.drawn_recognised:.1%}"
    if event.code_accuracy is not None:
        accuracy += f"  codes {event.code_accuracy:.1%}"
    of = "" if event.eval_losses is None else f" ({_named(event.eval_losses)})"
    name = "" if event.eval_set is None else f"{event.eval_set}: "
    line = (
        f"eval {event.step:>6}  {name}loss {event.eval_loss:.4f}{of}{accuracy}  "
        f"({event.samples} held-out samples)"
    )
    if math.isfinite(event.eval_loss):
        return line
    why = "no held-out sample could be read"
    if event.samples:
        why = "the model's outputs are not finite, or no held-out sample has a label"
    return f"{line}\nwarning: {name}the evaluation after step {event.step} has no loss: {why}"


def finish_line(event: RunFinished, *, bad_samples: int = 0) -> str:
    """Return the end of a run as a line of text; `bad_samples` is the count of the whole run."""
    skipped = f", {event.skipped} skipped" if event.skipped else ""
    bad = f", {bad_samples} bad samples left out" if bad_samples else ""
    saved = "" if event.saved else "; no checkpoint was saved"
    if event.best is not None:
        better = no_better(event.best) if event.ended_early else f"of step {event.best.step}"
        saved = f"; best evaluation: {event.best.value:.4f}, {better}{saved}"
    return f"done: {event.steps} steps{skipped}{bad} in {event.seconds:.1f} s{saved}"


def no_better(best: Best) -> str:
    """Return how many evaluations were no better than the best one."""
    times = "1 evaluation was" if best.since == 1 else f"{best.since} evaluations were"
    return f"{times} no better than that of step {best.step}"


def start_line(event: RunStarted) -> str:
    """Return the start of the steps as a line of text."""
    ranks = f"{event.world_size} rank" + "s" * (event.world_size != 1)
    done = f", {event.first_step} of them done before" if event.first_step else ""
    return f"{ranks} ready, {event.steps} steps{done}"


def other_lines(event: Event) -> list[str]:
    """Return lines for the events that are shown as soon as they happen."""
    lines: list[str] = []
    match event:
        case RunResumed():
            lines = [f"resumed after step {event.step} from {event.resumed_from}"]
            lines += [f"  changed since: {change}" for change in event.changes]
        case RunStopped():
            name = signal.Signals(event.signal).name
            saved = event.checkpoint or "no checkpoint was saved"
            lines = [f"stopped by {name} after step {event.step}; {saved}"]
        case LargestStepComes() | PlanCompared():
            lines = [_plan_line(event)]
        case CheckpointSaved():
            size = _size(event.num_bytes)
            times = f"stalled {event.stall_s:.2f} s, written in {event.seconds:.2f} s"
            lines = [f"saved {event.step:>5}  {event.checkpoint}  {size}, {times}"]
            bad = event.not_finite
            lines += [f"warning: weights in it are not finite: {_names(bad)}"] if bad else []
        case WeightsLoaded():
            lines = [f"{event.module}: {event.num_loaded} weights from {event.checkpoint}"]
            lines += _exceptions(event)
        case NonFinite():
            ids = _names([str(sample) for sample in event.samples])
            lines = [
                f"warning: step {event.step} is skipped, its {event.what} is not finite; first on "
                f"rank {event.rank} in {event.module}; samples {ids}"
            ]
        case BadSamples():
            ids = _names([str(sample) for sample in event.reasons])
            sample, reason = next(iter(event.reasons.items()))
            what = "step" if event.split == "train" else "the evaluation after step"
            lines = [
                f"warning: {what} {event.step} leaves out samples that cannot be read: {ids} "
                f"({sample}: {reason}); {event.total} so far"
            ]
        case CheckpointFailed():
            lines = [f"warning: no checkpoint of step {event.step}: {event.reason}"]
        case CheckpointPassedOver():
            lines = [f"warning: passed over {event.checkpoint}: {event.reason}"]
        case WriteFailed():
            lines = [f"warning: {event.file} cannot be written, kept for later: {event.reason}"]
        case ListenerFailed():
            lines = [f"warning: {event.listener}: {event.reason}; {event.effect}"]
    return lines


def _exceptions(event: WeightsLoaded) -> Iterator[str]:
    """Yield which weights were not loaded, and why."""
    for names, words in (
        (event.missing, "not in it, keep their initial values"),
        (event.misfits, "of another shape, keep their initial values"),
        (event.unused, "in it only, not used"),
    ):
        if names:
            yield f"  {len(names)} {words}: {_names(names)}"


def _plan_line(event: LargestStepComes | PlanCompared) -> str:
    """Return what a plan says of a step, or how a run compares with it."""
    if isinstance(event, PlanCompared):
        return f"against the plan: {', '.join(_compared(event))}"
    sizes = f"{bytes_text(event.needed_bytes)} of {bytes_text(event.gpu_memory)}"
    return (
        f"note: step {event.step:,} comes, the largest of the plan: about {sizes} on rank "
        f"{event.rank:,}"
    )


def _compared(event: PlanCompared) -> Iterator[str]:
    """Yield what a run has measured of what its plan estimated."""
    if event.measured_step_s is not None and event.estimated_step_s is not None:
        measured, planned = map(seconds_text, (event.measured_step_s, event.estimated_step_s))
        yield f"a step takes {measured} (estimated {planned})"
    if event.measured_memory is not None and event.estimated_memory is not None:
        measured, planned = map(bytes_text, (event.measured_memory, event.estimated_memory))
        yield f"the fullest GPU holds {measured} of tensors (estimated {planned})"


def _names(names: Sequence[str]) -> str:
    return some(names, MOST_NAMES, sep=", ")


def _size(num_bytes: int) -> str:
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
