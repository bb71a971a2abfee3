"""`mimo-launch sample`: pictures and answers that a trained model makes.

Decides: the options; that a layout other than the one of training comes from a separate spec.
Relies on: `cli.launch.start` for everything that it shares with `train`: checks, workers, reports
of failures.
Leaves: pictures and answers to `train.samples`, the screen to `run_screens`.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import Console, console_of
from mimo_launch.cli.shared.options import (
    CheckpointStep,
    ConsoleRanks,
    Device,
    Nproc,
    Overrides,
    RunPath,
    Target,
    Where,
    shown_ranks,
)
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.checkpoint.index import Checkpoint
    from mimo_launch.spec.spec import Spec

HELP = """
\b
Examples:
  mimo-launch sample runs/draw --to samples
  mimo-launch sample runs/draw --to samples --samples 64 --steps 50
  mimo-launch sample runs/draw --to samples --checkpoint 400
  mimo-launch sample runs/draw --to samples --spec one-rank.yaml --device cpu

Load the weights of a checkpoint and write what the model makes of held-out samples: the pictures of
generators as PNG files and as one sheet, and with samples.jsonl its answers beside the true ones.
The layout is that of the run, or of another spec with the same modules. Needs Pillow.
Exits with 0 when all is written, 1 when the run failed, 2 when the checkpoint or the spec is wrong,
75 when a rank was killed, 129, 130 or 143 when interrupted.
"""


@frozen(kw_only=True)
class SampleCommand:
    """Write pictures and answers that a trained model makes of held-out samples."""

    ctx: typer.Context
    run: RunPath
    to: Target
    checkpoint: CheckpointStep = None
    samples: Annotated[int, typer.Option(min=1, help="Held-out samples.")] = 16
    steps: Annotated[int, typer.Option(min=1, help="Steps of a flow from noise to a picture.")] = 20
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 64
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Spec with another layout; default that of the run."),
    ] = None
    nproc: Nproc = None
    device: Where = Device.AUTO
    overrides: Overrides = None
    console_ranks: ConsoleRanks = None

    def __call__(self) -> None:
        """Write the samples. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.cli.launch.origin import Origin, checked_spec
        from mimo_launch.cli.launch.prepare import Start
        from mimo_launch.cli.launch.start import start
        from mimo_launch.cli.run_screens import SampleScreen
        from mimo_launch.launcher.rank_tasks import Sampling
        from mimo_launch.launcher.run_folder import SPEC
        from mimo_launch.plan.plan import Plan

        console = console_of(self.ctx)
        _need_pillow()
        shown, found = shown_ranks(self.console_ranks), _opened(self.run, self.checkpoint, console)
        # Weights come from the checkpoint only, and the plan must include an evaluation.
        settings = [f"eval.samples={self.samples}", "checkpoint=none"]
        settings += weights_from_nowhere(found.spec)
        file = self.spec or found.path.parent.parent / SPEC
        asked, origin = checked_spec(
            file,
            [*settings, *(self.overrides or ())],
            Origin(nproc=self.nproc),
            console,
            device=self.device,
        )
        missing = sorted(set(asked.modules) - set(found.spec.modules))
        if missing:
            help_ = "name a spec with the modules of the run, or leave --spec out"
            console.refuse(f"{found.path} has no module `{missing[0]}`", help_=help_)
        try:
            self.to.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(
                f"{self.to} cannot be made: {error}", param_hint="--to"
            ) from error
        request = Start(
            plan=Plan.of(asked),
            task=Sampling(
                found.path.resolve(), self.to.resolve(), self.samples, self.steps, self.tokens
            ),
            file=file,
            runs=self.to / ".run",
            say=console.note,
            show=partial(SampleScreen, console, total=self.samples),
            resume=False,
            shown=shown,
            device=self.device.value,
        )
        raise typer.Exit(start(request, origin, console))


def weights_from_nowhere(spec: "Spec") -> list[str]:
    """Return the settings with which the modules of a run start from no folder."""
    settings = ["init_from=null"]
    for name, module in spec.modules.items():
        settings.append(f"modules.{name}.init_from=null")
        if module.adapter is not None and module.adapter.init_from is not None:
            settings.append(f"modules.{name}.adapter.init_from=null")
    return settings


def _need_pillow() -> None:
    """Refuse to start without the package that writes pictures. Raises: typer.BadParameter."""
    from importlib.util import find_spec

    if find_spec("PIL") is None:
        raise typer.BadParameter(
            "pictures are written with Pillow, which is not installed: "
            "pip install 'mimo-launch[data]'",
            param_hint="--to",
        )


def _opened(run: Path, step: int | None, console: Console) -> "Checkpoint":
    """Return the checkpoint of a step, or the newest one. Raises: typer.Exit if there is none."""
    from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint

    try:
        return open_checkpoint(run, step)
    except NoCheckpoint as error:
        console.refuse(str(error), help_=error.help)
