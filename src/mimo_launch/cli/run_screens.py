"""Shows a run as it happens: a live table on a terminal, one plain line per log interval elsewhere.

Decides: what a user sees of each event of `train` and `sample`; that "done" is the last line of a
run; for `sample`, that only the paths of the files go to stdout, and a bar appears only on a
terminal.
Relies on: events of `train`; a Rich console that knows whether it is a terminal.
Leaves: the words of a line to `shared.lines`, storing metrics to `train.metrics_file`.
"""

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console as RichConsole
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from mimo_launch.cli.shared.bars import Bars, CountScreen
from mimo_launch.cli.shared.console import Console, escape_controls
from mimo_launch.cli.shared.lines import (
    eval_line,
    finish_line,
    no_gradient_line,
    other_lines,
    start_line,
    step_line,
)
from mimo_launch.diag.quantities import bytes_text, duration_text
from mimo_launch.train.events import (
    BadSamples,
    EvalFinished,
    Event,
    RunFinished,
    RunStarted,
    RunWaits,
    SamplesWritten,
    StepFinished,
)

# The time left is estimated from this many steps, with the evaluations and saves between them.
ETA_STEPS = 50


class _Progress:
    """The common part of both listeners: events shown as lines."""

    def __init__(self, on: RichConsole | Bars, *, wraps: bool) -> None:
        self._on, self._wraps = on, wraps
        self._bad_samples, self._done = 0, ""
        self._without_gradient: set[str] = set()

    def _note_missing_gradients(self, event: StepFinished) -> None:
        """Say once per module that a step gave it no gradient but updated it nevertheless."""
        for name in () if event.skipped else event.lrs:
            if event.grad_norms[name] == 0 and name not in self._without_gradient:
                self._without_gradient.add(name)
                self._say(no_gradient_line(event.step, name))

    def _tell(self, event: Event) -> None:
        """Print an event other than the start or a step."""
        match event:
            case EvalFinished():
                self._say(eval_line(event))
            case RunFinished():
                self._done = finish_line(event, bad_samples=self._bad_samples)
            case _:
                if isinstance(event, BadSamples):
                    self._bad_samples = event.total
                for line in other_lines(event):
                    self._say(line)

    def _finish(self, kind: type[BaseException] | None) -> None:
        """Say at the end that the run is done, unless it has failed."""
        if self._done and kind is None:
            self._say(self._done)

    def _say(self, line: str) -> None:
        self._on.print(Text(escape_controls(line)), soft_wrap=not self._wraps)


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
        self._finish(kind)

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
                self._note_missing_gradients(event)
            case _:
                self._tell(event)


class LiveProgress(_Progress):
    """Listener for a terminal: the progress of the run, the time left, and a row per module.

    `began` is when the run began, in seconds of `time.time`; by default now.
    """

    def __init__(
        self,
        rich: RichConsole,
        console: Console,
        began: float | None = None,
    ) -> None:
        self._live = Bars(Text("starting workers"), rich, console)
        super().__init__(self._live, wraps=True)
        self._bar = Progress(
            TextColumn("step"), BarColumn(bar_width=None), MofNCompleteColumn(), console=rich
        )
        self._task = self._bar.add_task("steps", total=None)
        self._modules: tuple[str, ...] = ()
        self._skipped = self._steps = 0
        self._began = time.time() if began is None else began
        self._seconds: deque[float] = deque(maxlen=ETA_STEPS)
        self._last: float | None = None
        self._is_stepping = False

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
        self._finish(kind)

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case RunWaits():
                if not self._is_stepping:
                    self._live.update(Text(f"waits for {event.what}"))
            case RunStarted():
                self._bar.update(self._task, total=event.steps, completed=event.first_step)
                self._modules, self._steps = event.modules, event.steps
            case StepFinished():
                self._is_stepping = True
                self._skipped += event.skipped
                self._note_time(event)
                self._note_missing_gradients(event)
                self._bar.update(self._task, completed=event.step)
                self._live.update(Group(self._table(event), self._bar))
            case _:
                self._tell(event)

    def _note_time(self, event: StepFinished) -> None:
        """Note how long steps take, including evaluations and saves between them."""
        now = time.time() if event.usage is None else event.usage.at
        taken = now - self._last if self._last is not None else event.tokens / event.tokens_per_s
        self._seconds.append(taken)
        self._last = now

    def _table(self, event: StepFinished) -> Table:
        table = Table.grid(padding=(0, 2))
        for row in self._rows(event):
            table.add_row(*map(Text, row))
        return table

    def _rows(self, event: StepFinished) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each row."""
        left = (self._steps - event.step) * sum(self._seconds) / len(self._seconds)
        elapsed = f"elapsed {duration_text(max(0.0, time.time() - self._began))}"
        seconds = f"{event.tokens / event.tokens_per_s:.3g} s per step"
        yield "time", elapsed, f"ETA {duration_text(left)}", seconds
        use = event.usage
        rate = "" if use is None else f"{use.tflops_per_rank:.3g} TFLOP/s per rank"
        rate += "" if use is None or use.mfu is None else f", MFU {use.mfu:.1%}"
        yield "loss", f"{event.loss:.4f}", f"{event.tokens_per_s:,.0f} tokens/s", rate
        for name in self._modules:
            lr = f"lr {event.lrs[name]:.2e}" if name in event.lrs else "frozen"
            yield name, f"grad norm {event.grad_norms[name]:.3g}", lr, self._more(event, name)
        if event.reading is not None:
            waited = f"waited {event.reading.waited_s:.2f} s"
            yield "data", waited, f"read in {event.reading.read_s:.2f} s"
        if self._skipped or self._bad_samples:
            yield "left out", f"{self._skipped} steps skipped", f"{self._bad_samples} bad samples"

    @staticmethod
    def _more(event: StepFinished, name: str) -> str:
        """Return other facts about a module: losses, memory, zero gradients, imbalance."""
        said = []
        for loss, value in (event.losses or {}).items():
            # The loss of further tokens is called `language.mtp`.
            module, _, part = loss.partition(".")
            if module == name:
                said.append(f"{part} loss {value:.4f}".strip())
        if event.usage is not None and event.usage.peak_memory.get(name):
            said.append(f"memory {bytes_text(event.usage.peak_memory[name])}")
        if event.zero_grads is not None:
            said.append(f"{event.zero_grads[name]:,} zero grads")
        if name in event.imbalance:
            most = event.imbalance[name]
            said.append(
                f"busiest replica {most.after - 1:.0%} above the mean,"
                f" {most.before - 1:.0%} before balancing"
            )
        return ", ".join(said)


def progress_for(
    rich: RichConsole, console: Console, *, plain: bool = False, began: float | None = None
) -> PlainProgress | LiveProgress:
    """Return a live listener if `rich` writes to a terminal and it need not be plain.

    `console` writes other messages in the meantime; `began` is when the run began, or None for now.
    """
    is_live = rich.is_terminal and not plain
    return LiveProgress(rich, console, began) if is_live else PlainProgress(rich)


class SampleScreen(CountScreen):
    """Listener that draws a bar of `total` samples, then lists the written files.

    With `plain` it draws no bar.
    """

    def __init__(self, console: Console, plain: bool, *, total: int) -> None:
        super().__init__(console, plain, what="samples", total=total)
        self._total = total

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case SamplesWritten(is_last=True):
                self._bars.stop()
                self._console.answer(
                    f"wrote {event.samples} samples to {event.folder}: "
                    + ", ".join(["samples.jsonl", *event.sheets])
                )
            case SamplesWritten():
                self._count(min(event.samples, self._total))
            case _:
                for line in other_lines(event):
                    self._console.note(line)
