"""Shows a run as it happens: a live table on a terminal, one plain line per log interval elsewhere.

Decides: what a person sees of each event.
Relies on: events of `train`; a Rich console that knows whether it is a terminal.
Leaves: storing metrics to `train.metrics`.
"""

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mimo_launch.train.events import EvalFinished, Event, RunFinished, RunStarted, StepFinished


def step_line(event: StepFinished) -> str:
    """Return one step as a line of text."""
    norms = " ".join(f"{name} {norm:.3g}" for name, norm in event.grad_norms.items())
    skipped = "  SKIPPED" if event.skipped else ""
    return (
        f"step {event.step:>6}  loss {event.loss:.4f}  grad norm {event.grad_norm:.3g} ({norms})  "
        f"lr {event.lr:.2e}  {event.tokens_per_s:,.0f} tokens/s{skipped}"
    )


def eval_line(event: EvalFinished) -> str:
    """Return one evaluation as a line of text."""
    accuracy = (
        "" if event.digit_accuracy is None else f"  digit accuracy {event.digit_accuracy:.1%}"
    )
    return (
        f"eval {event.step:>6}  loss {event.eval_loss:.4f}{accuracy}  "
        f"({event.samples} held-out samples)"
    )


class PlainProgress:
    """Listener for files, pipes and CI: one line per log interval."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._log_every = self._steps = 1

    def __enter__(self) -> "PlainProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, event: Event) -> None:
        """Print an event if it is due."""
        match event:
            case RunStarted():
                self._log_every, self._steps = event.log_every, event.steps
                ranks = f"{event.world_size} rank" + "s" * (event.world_size != 1)
                self._say(f"{ranks} ready, {event.steps} steps")
            case StepFinished():
                due = event.step % self._log_every == 0 or event.step in (1, self._steps)
                if due or event.skipped:
                    self._say(step_line(event))
            case EvalFinished():
                self._say(eval_line(event))
            case RunFinished():
                self._say(finish_line(event))

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def finish_line(event: RunFinished) -> str:
    """Return the end of a run as a line of text."""
    skipped = f", {event.skipped} skipped" if event.skipped else ""
    return f"done: {event.steps} steps{skipped} in {event.seconds:.1f} s"


class LiveProgress:
    """Listener for a terminal: a bar for the steps and a row per module with its grad norm."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("step"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("steps", total=None)
        self._modules: tuple[str, ...] = ()
        self._live = Live(self._bar, console=console, refresh_per_second=8)

    def __enter__(self) -> "LiveProgress":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case RunStarted():
                self._bar.update(self._task, total=event.steps)
                self._modules = event.modules
            case StepFinished():
                self._bar.update(self._task, completed=event.step)
                self._live.update(Group(self._table(event), self._bar))
            case EvalFinished():
                self._console.print(eval_line(event), highlight=False)
            case RunFinished():
                self._console.print(finish_line(event), highlight=False)

    def _table(self, event: StepFinished) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("loss", f"{event.loss:.4f}", "tokens/s", f"{event.tokens_per_s:,.0f}")
        for name in self._modules:
            rate = f"lr {event.lrs[name]:.2e}" if name in event.lrs else "frozen"
            table.add_row(name, f"grad norm {event.grad_norms[name]:.3g}", rate)
        return table


def progress_for(console: Console) -> PlainProgress | LiveProgress:
    """Return the listener that suits where the output goes."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)
