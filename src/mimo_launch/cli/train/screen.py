"""Shows a run as it happens: a live table on a terminal, one plain line per log interval elsewhere.

Decides: what a user sees of each event.
Relies on: events of `train`; a Rich console that knows whether it is a terminal.
Leaves: storing metrics to `train.metrics_file`.
"""

from types import TracebackType

from rich.console import Console as RichConsole
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mimo_launch.cli.shared.bars import Bars
from mimo_launch.cli.shared.console import Console, escape_controls
from mimo_launch.cli.shared.lines import eval_line, finish_line, other_lines, start_line, step_line
from mimo_launch.train.events import (
    BadSamples,
    EvalFinished,
    Event,
    RunFinished,
    RunStarted,
    StepFinished,
)


class _Progress:
    """The common part of both listeners: events shown as lines."""

    def __init__(self, rich: RichConsole, *, wraps: bool) -> None:
        self._rich, self._wraps = rich, wraps
        self._bad_samples = 0

    def _tell(self, event: Event) -> None:
        """Print an event that is neither the start nor a step."""
        match event:
            case EvalFinished():
                self._say(eval_line(event))
            case RunFinished():
                self._say(finish_line(event, bad_samples=self._bad_samples))
            case _:
                if isinstance(event, BadSamples):
                    self._bad_samples = event.total
                for line in other_lines(event):
                    self._say(line)

    def _say(self, line: str) -> None:
        self._rich.print(
            escape_controls(line), highlight=False, markup=False, soft_wrap=not self._wraps
        )


class PlainProgress(_Progress):
    """Listener for files, pipes and CI: one line per log interval."""

    def __init__(self, rich: RichConsole) -> None:
        super().__init__(rich, wraps=False)
        self._log_every = self._steps = 1
        self._first = 0

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
                self._first = event.first_step + 1
                self._say(start_line(event))
            case StepFinished():
                ends = (self._first, self._steps)
                due = event.step % self._log_every == 0 or event.step in ends
                if due or event.skipped:
                    self._say(step_line(event))
            case _:
                self._tell(event)


class LiveProgress(_Progress):
    """Listener for a terminal: a bar for the steps and a row per module with its grad norm."""

    def __init__(self, rich: RichConsole, console: Console) -> None:
        super().__init__(rich, wraps=True)
        self._bar = Progress(
            TextColumn("step"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=rich,
        )
        self._task = self._bar.add_task("steps", total=None)
        self._modules: tuple[str, ...] = ()
        self._skipped = 0
        self._live = Bars(self._bar, rich, console)

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
                self._bar.update(self._task, total=event.steps, completed=event.first_step)
                self._modules = event.modules
            case StepFinished():
                self._skipped += event.skipped
                self._bar.update(self._task, completed=event.step)
                self._live.update(Group(self._table(event), self._bar))
            case _:
                self._tell(event)

    def _table(self, event: StepFinished) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("loss", f"{event.loss:.4f}", "tokens/s", f"{event.tokens_per_s:,.0f}")
        for name, loss in (event.losses or {}).items():
            table.add_row(f"loss of {name}", f"{loss:.4f}")
        for name in self._modules:
            rate = f"lr {event.lrs[name]:.2e}" if name in event.lrs else "frozen"
            extra = [] if event.zero_grads is None else [f"{event.zero_grads[name]:,} zero grads"]
            if name in event.imbalance:
                most = event.imbalance[name]
                extra.append(f"most patches {most.before:.2f} -> {most.after:.2f} of mean")
            norm = f"grad norm {event.grad_norms[name]:.3g}"
            table.add_row(name, norm, rate, "  ".join(extra))
        if event.reading is not None:
            waited = f"{event.reading.waited_s:.2f} s"
            table.add_row("waited for data", waited, "read in", f"{event.reading.read_s:.2f} s")
        if self._skipped or self._bad_samples:
            table.add_row("skipped", str(self._skipped), "bad samples", str(self._bad_samples))
        return table


def progress_for(
    rich: RichConsole, console: Console, *, plain: bool = False
) -> PlainProgress | LiveProgress:
    """Return a live listener if `rich` writes to a terminal and it need not be plain.

    `console` writes other messages in the meantime.
    """
    is_live = rich.is_terminal and not plain
    return LiveProgress(rich, console) if is_live else PlainProgress(rich)
