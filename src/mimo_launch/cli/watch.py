"""`mimo-launch watch`: the screen of a run that another terminal or host started.

Decides: how often it looks; what it says when the run has ended.
Relies on: only the files of the run folder; `cli.run_screens` for the screen;
`launcher.run_folder` for the state.
Leaves: the output of ranks to `logs`.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import RunFolder

if TYPE_CHECKING:
    from mimo_launch.train.events import EvalFinished, RunStarted, StepFinished

HELP = """
\b
Examples:
  mimo-launch watch runs/quickstart
  mimo-launch watch /shared/runs/big | tee big.txt

Show a run as the terminal that trains it does, from its files alone: the run may be on another
host, as long as its folder can be read here. Ends when the run ends, and Ctrl-C ends the watching,
not the run. Exits with 0, with 1 when the run failed, or with 2 when the folder holds no run.
"""

LOOK_SECONDS = 0.5


def watch(
    ctx: typer.Context,
    *,
    run: RunFolder,
) -> None:
    """Show a run that trains elsewhere."""
    from mimo_launch.cli.run_screens import progress_for
    from mimo_launch.cli.shared.bars import rich_on
    from mimo_launch.launcher.run_folder import State, is_run, status_of
    from mimo_launch.train.events import StepFinished

    console = console_of(ctx)
    if not is_run(run):
        help_ = "name one that `mimo-launch runs` lists, such as runs/NAME"
        console.refuse(f"{run} is no run folder", help_=help_)
    records = Records(run)
    events = records.new()
    usages = [each.usage for each in events if isinstance(each, StepFinished)]
    steps = [each.at - each.step_s for each in usages if each is not None]
    began, rich = min(steps, default=None), rich_on(sys.stdout, console)
    with progress_for(rich, console, began=began) as hear:
        if (started := records.start()) is not None:
            hear(started)
        while True:
            # Read the state first: a run that has ended has written its last records.
            status = status_of(run)
            for event in events:
                hear(event)
            events = records.new()
            if status.state is not State.RUNNING and not events:
                break
            time.sleep(LOOK_SECONDS)
    of = "" if status.steps is None else f" of {status.steps:,}"
    why = f": {status.why}" if status.why else ""
    console.answer(f"{status.state.value} after step {status.step:,}{of}{why}")
    if status.state is State.FAILED:
        raise typer.Exit(1)


class Records:
    """The records of a run: its start, and steps and evaluations since the last look."""

    def __init__(self, run: Path) -> None:
        from mimo_launch.train.metrics_file import METRICS

        self._run, self._file = run, run / METRICS
        self._inode = self._place = 0

    def new(self) -> "list[StepFinished | EvalFinished]":
        """Return the new records. A resumed run replaces the file, and all its records are new."""
        from mimo_launch.spec.files import parse_json
        from mimo_launch.train.metrics_file import from_record

        try:
            # Without O_NONBLOCK, a FIFO of that name would block.
            with open(os.open(self._file, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._place = inode, 0
                file.seek(self._place)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._place += len(whole) + bool(whole)
        found = []
        for line in whole.splitlines():
            try:
                record = parse_json(line.decode("utf-8"))
            except ValueError:
                continue
            event = from_record(record) if isinstance(record, dict) else None
            if event is not None:
                found.append(event)
        return found

    def start(self) -> "RunStarted | None":
        """Return the start of the run; None if its spec cannot be read."""
        from mimo_launch.launcher.run_folder import SPEC, steps_of
        from mimo_launch.layout.layout import world_size
        from mimo_launch.spec.load import load_spec
        from mimo_launch.train.events import RunStarted

        spec = load_spec(self._run / SPEC).spec
        steps = steps_of(self._run)
        if spec is None or steps is None:
            return None
        return RunStarted(
            name=self._run.name,
            plan="",
            steps=steps,
            world_size=world_size(spec),
            modules=tuple(spec.modules),
            log_every=spec.train.log_every,
            first_step=0,
        )
