"""What a person sees of a run."""

from io import StringIO

from rich.console import Console

from mimo_launch.cli.progress import LiveProgress, PlainProgress, progress_for
from mimo_launch.train.events import EvalFinished, Event, RunFinished, RunStarted, StepFinished


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


def shown(*, terminal: bool) -> str:
    console = Console(file=StringIO(), force_terminal=terminal, width=100, no_color=True)
    with progress_for(console) as progress:
        assert isinstance(progress, LiveProgress if terminal else PlainProgress)
        for event in events():
            progress(event)
    return console.file.getvalue()


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


def test_a_terminal_gets_a_bar_and_a_row_per_module() -> None:
    text = shown(terminal=True)
    assert "5/5" in text
    assert "vision" in text
    assert "grad norm 3" in text
    assert "digit accuracy 87.5%" in text
