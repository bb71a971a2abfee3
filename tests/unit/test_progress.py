"""What a person sees of a run."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console as RichConsole
from tests.support.histories import USAGE

from mimo_launch.cli.run_screens import LiveProgress, PlainProgress, progress_for
from mimo_launch.cli.shared.console import Console
from mimo_launch.layout.step_views import Imbalance
from mimo_launch.train.events import (
    BadSamples,
    CheckpointFailed,
    CheckpointPassedOver,
    CheckpointSaved,
    EvalFinished,
    Event,
    ListenerFailed,
    NonFinite,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    RunWaits,
    StepFinished,
    WeightsLoaded,
    WriteFailed,
)


def events(steps: int = 5, log_every: int = 2) -> list[Event]:
    """A run whose third step is skipped."""
    made: list[Event] = [
        RunStarted(
            name="r",
            plan="0" * 12,
            steps=steps,
            world_size=8,
            modules=("vision", "language"),
            log_every=log_every,
            first_step=0,
        )
    ]
    made += [
        StepFinished(
            step=step,
            loss=4.0 / step,
            grad_norm=5.0,
            grad_norms={"vision": 3.0, "language": 4.0},
            lr=1e-3,
            lrs={"vision": 1e-3, "language": 5e-4},
            tokens=100,
            tokens_per_s=1234.5,
            skipped=step == 3,
        )
        for step in range(1, steps + 1)
    ]
    made.append(EvalFinished(step=steps, eval_loss=0.5, digit_accuracy=0.875, samples=64))
    return [*made, RunFinished(steps=steps, seconds=12.5, skipped=1)]


def shown(*, terminal: bool, given: list[Event] | None = None) -> str:
    rich = RichConsole(file=StringIO(), force_terminal=terminal, width=100, no_color=True)
    with progress_for(rich, Console()) as progress:
        assert isinstance(progress, LiveProgress if terminal else PlainProgress)
        for event in events() if given is None else given:
            progress(event)
    return rich.file.getvalue()


def test_a_file_gets_one_line_per_log_interval() -> None:
    """The first, every second and the last step, and the skipped one though it is not due."""
    assert shown(terminal=False).splitlines() == [
        "8 ranks ready, 5 steps",
        "step      1  loss 4.0000  grad norm 5 (vision 3 language 4)  lr 1.00e-03  1,234 tokens/s",
        "step      2  loss 2.0000  grad norm 5 (vision 3 language 4)  lr 1.00e-03  1,234 tokens/s",
        "step      3  loss 1.3333  grad norm 5 (vision 3 language 4)  lr 1.00e-03  1,234 tokens/s"
        "  SKIPPED",
        "step      4  loss 1.0000  grad norm 5 (vision 3 language 4)  lr 1.00e-03  1,234 tokens/s",
        "step      5  loss 0.8000  grad norm 5 (vision 3 language 4)  lr 1.00e-03  1,234 tokens/s",
        "eval      5  loss 0.5000  digit accuracy 87.5%  (64 held-out samples)",
        "done: 5 steps, 1 skipped in 12.5 s",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_module_without_a_gradient_is_named_once(terminal: bool) -> None:
    """Its weights are updated all the same, unless it is frozen or the step is skipped."""
    start, first, *_ = events()
    assert isinstance(first, StepFinished)
    norms = {"vision": 0.0, "language": 0.0}
    steps: list[Event] = [
        replace(first, step=n, grad_norms=norms, lrs={"vision": 1.0}, skipped=n == 1)
        for n in (1, 2, 3)
    ]
    text = " ".join(shown(terminal=terminal, given=[start, *steps]).split())
    assert text.count("has no gradient for") == 1
    assert "note: step 2 has no gradient for vision: weight decay and moments act" in text
    assert "no gradient" not in shown(terminal=terminal, given=events())


@pytest.mark.parametrize("terminal", [False, True])
def test_done_is_the_last_line_of_a_run_and_not_said_of_one_that_then_failed(
    terminal: bool,
) -> None:
    """A record that cannot be closed is told of after the last step."""
    late = ListenerFailed(listener="MLflow", reason="no answer", effect="its points are missing")
    lines = shown(terminal=terminal, given=[*events(), late]).splitlines()
    assert lines[-1].endswith("done: 5 steps, 1 skipped in 12.5 s")
    assert any("MLflow" in line for line in lines)
    rich = RichConsole(file=StringIO(), force_terminal=terminal, width=100)
    progress = progress_for(rich, Console())
    progress.__enter__()
    progress(events()[-1])
    progress.__exit__(RuntimeError, RuntimeError(), None)
    assert "done" not in rich.file.getvalue()


def test_a_terminal_gets_a_bar_and_a_row_per_module() -> None:
    text = shown(terminal=True)
    assert "5/5" in text
    assert "vision" in text
    assert "grad norm 3" in text
    assert "digit accuracy 87.5%" in text


def test_a_terminal_says_how_long_it_takes_and_what_each_module_takes() -> None:
    """Five steps of a quarter of a second, of twenty; MFU only where there is one."""
    start, *steps = events(20)[:6]
    begun = datetime(2026, 11, 23, tzinfo=UTC)
    used = [
        replace(
            each,
            tokens_per_s=400.0,
            losses={"language": 1.25},
            usage=replace(USAGE, time=(begun + n * timedelta(seconds=0.25)).isoformat(), mfu=0.415),
            imbalance={"vision": Imbalance(1.5, 1.0625)},
        )
        for n, each in enumerate(steps)
    ]
    text = shown(terminal=True, given=[start, *used])
    last = text[text.rindex("elapsed") :]
    for words in ("ETA 0:04", "0.25 s per step", "2 TFLOP/s per rank, MFU 41.5%", "memory 1.00 GB"):
        assert words in last
    whole = " ".join(last.split())
    assert "loss 1.2500, memory 2.50 GB" in whole
    on_a_cpu = shown(terminal=True, given=[start, replace(used[0], usage=USAGE)])
    assert "TFLOP/s" in on_a_cpu
    assert "MFU" not in on_a_cpu


def test_before_the_first_step_a_terminal_says_what_it_waits_for() -> None:
    start, step = events()[:2]
    waits = RunWaits(what="rank 3: building its modules")
    text = shown(terminal=True, given=[waits, start])
    assert "waits for rank 3: building its modules" in text
    assert shown(terminal=False, given=[waits]) == ""
    assert "waits for" not in shown(terminal=True, given=[start, step, waits])


OTHERS: list[tuple[Event, str]] = [
    (
        RunResumed(step=4, resumed_from="c/step-4", changes=("optimizer.lr: 0.1 -> 0.2",)),
        "resumed after step 4 from c/step-4\n  changed since: optimizer.lr: 0.1 -> 0.2",
    ),
    (
        RunStopped(step=7, signal=15, checkpoint="c/step-7"),
        "stopped by SIGTERM after step 7; c/step-7",
    ),
    (
        RunStopped(step=7, signal=2, checkpoint=None),
        "stopped by SIGINT after step 7; no checkpoint was saved",
    ),
    (
        CheckpointSaved(
            step=4,
            checkpoint="c/4",
            num_bytes=2_340_000,
            stall_s=0.1,
            seconds=2.0,
            not_finite=("a.weight", "b.weight"),
        ),
        "saved     4  c/4  2.3 MB, stalled 0.10 s, written in 2.00 s\n"
        "warning: weights in it are not finite: a.weight, b.weight",
    ),
    (
        CheckpointFailed(step=4, reason="No space left"),
        "warning: no checkpoint of step 4: No space left",
    ),
    (
        CheckpointPassedOver(checkpoint="c/4", reason="it was not completed"),
        "warning: passed over c/4: it was not completed",
    ),
    (
        WeightsLoaded(
            module="vision",
            checkpoint="c/4",
            num_loaded=9,
            missing=tuple(f"a.{i}" for i in range(7)),
            misfits=("b",),
            unused=(),
        ),
        "vision: 9 weights from c/4\n"
        "  7 not in it, keep their initial values: a.0, a.1, a.2, a.3, a.4, and 2 more\n"
        "  1 of another shape, keep their initial values: b",
    ),
    (
        NonFinite(step=3, what="loss", rank=5, module="language", samples=(8, 9)),
        "warning: step 3 is skipped, its loss is not finite; first on rank 5 in language; "
        "samples 8, 9",
    ),
    (
        BadSamples(step=3, reasons={8: "cut off", 9: "empty"}, total=4),
        "warning: step 3 leaves out samples that cannot be read: 8, 9 (8: cut off); 4 so far",
    ),
    (
        WriteFailed(file="m.jsonl", reason="No space left"),
        "warning: m.jsonl cannot be written, kept for later: No space left",
    ),
    (
        ListenerFailed(listener="TensorBoard", reason="broken", effect="training goes on"),
        "warning: TensorBoard: broken; training goes on",
    ),
]


@pytest.mark.parametrize(("event", "text"), OTHERS, ids=lambda value: type(value).__name__)
def test_everything_else_is_said_when_it_comes(event: Event, text: str) -> None:
    assert shown(terminal=False, given=[event]).rstrip() == text
    on_terminal = shown(terminal=True, given=[event])
    assert text.partition("\n")[0][:40] in on_terminal


def test_a_run_that_goes_on_starts_where_it_was() -> None:
    """The first step of this start is shown; bad samples and zeros are counted."""
    started, *steps = events(steps=9, log_every=4)[:-2]
    given: list[Event] = [replace(started, first_step=5), *steps[5:]]
    lines = shown(terminal=False, given=given).splitlines()
    assert lines[0] == "8 ranks ready, 9 steps, 5 of them done before"
    assert [line.split()[1] for line in lines[1:]] == ["6", "8", "9"]
    assert "6/9" in shown(terminal=True, given=given[:2])


def test_bad_samples_and_zero_gradients_are_counted() -> None:
    first = events()[1]
    assert isinstance(first, StepFinished)
    counted = replace(
        first,
        bad_samples=2,
        imbalance={"vision": Imbalance(1.625, 1.0625)},
        zero_grads={"vision": 3, "language": 4},
    )
    end = RunFinished(steps=5, seconds=1.0, skipped=0)
    given: list[Event] = [
        events()[0],
        BadSamples(step=1, reasons={8: "cut off"}, total=2),
        counted,
        end,
    ]
    plain = shown(terminal=False, given=given)
    assert "2 bad samples  7 zero grads" in plain
    assert "done: 5 steps, 2 bad samples left out in 1.0 s" in plain
    terminal = shown(terminal=True, given=given)
    assert "4 zero grads" in terminal
    words = "busiest replica 6% above the mean, 62% before balancing"
    assert words in " ".join(terminal.split())
    assert "bad samples" in terminal


@pytest.mark.parametrize(
    ("samples", "why"), [(0, "no held-out sample could be read"), (8, "outputs are not finite, or")]
)
def test_an_evaluation_without_a_loss_is_warned_of(samples: int, why: str) -> None:
    for loss in (float("nan"), 0.5):
        out = StringIO()
        found = EvalFinished(step=4, eval_loss=loss, digit_accuracy=None, samples=samples)
        PlainProgress(RichConsole(file=out, width=200))(found)
        warning = "warning: the evaluation after step 4 has no loss: "
        assert (warning in out.getvalue() and why in out.getvalue()) == (loss != 0.5)
