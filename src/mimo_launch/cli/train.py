"""`mimo-launch train`: validate, plan, start the workers (or join them), show progress.

Decides: the options; which steps and ranks the values of `--profile` and `--profile-ranks` mean: a
step number counts from 1, as in the output.
Relies on: `checks` for everything that can be known before a process starts; `cli.launch.origin`
for the role of this process.
Leaves: the run to `cli.launch.start`.
"""

import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mimo_launch.cli.launch.run_command import RunCommand
from mimo_launch.cli.shared.console import console_of, run_output
from mimo_launch.cli.shared.options import Runs, ranks_of, shown_ranks
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import span_text

HELP = """
\b
Examples:
  mimo-launch train topologies/quickstart.yaml --nproc 8
  mimo-launch train spec.yaml --steps 20 --set optimizer.lr=1e-3
  mimo-launch train spec.yaml --runs /scratch/me/runs
  mimo-launch train spec.yaml --device cpu
  mimo-launch train spec.yaml --max-restarts 3
  mimo-launch train spec.yaml --profile 20
  mimo-launch train spec.yaml --profile 20-22 --profile-ranks 0,4
  mimo-launch train spec.yaml --no-resume
  mimo-launch train spec.yaml --nnodes 2 --node-rank 0 --rdzv-endpoint host0:29500
  torchrun --nproc-per-node 8 -m mimo_launch train spec.yaml
  srun --ntasks-per-node 1 mimo-launch train spec.yaml

Validate and plan the spec, start one worker per rank and train: each on its own GPU where the
host has any (see --device), else on its processors. Under torchrun the process joins as the rank
it is given; under srun one task per rank does the same, and one task per host starts the workers of
that host. The run folder holds the resolved spec, the plan, metrics.jsonl and the workers' logs. A
run whose folder has a complete checkpoint continues from it.
The first Ctrl-C or SIGTERM saves a checkpoint after the current step, the second stops immediately.
Exits with 0 when all steps are done, 1 when the run failed, 2 when the spec is wrong, 75 when a
host was lost or a rank killed (start it again, elsewhere), 129, 130 or 143 when interrupted.
"""


@frozen(kw_only=True)
class TrainCommand(RunCommand):
    """Train a spec, one worker per rank."""

    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to run; short for --set train.steps=N.")
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            help="Measure the step of this number, or those of a range such as 20-22, and draw "
            "their timelines. The first two of a process also compile and connect.",
        ),
    ] = None
    profile_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Trace with torch.profiler what these ranks do in those steps, e.g. 0,5-7.",
        ),
    ] = None
    profile_memory: Annotated[
        bool,
        typer.Option(
            "--profile-memory",
            help="Record what those ranks allocate on their GPUs, too; a step takes several times "
            "as long.",
        ),
    ] = False
    runs: Runs = Path("runs")
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            help="Resume from the newest complete checkpoint, or start anew; by default resume if "
            "there is one.",
        ),
    ] = None
    max_restarts: Annotated[int, typer.Option(min=0, help="Times to restart after a failure.")] = 0

    def __call__(self) -> None:
        """Train. Raises: typer.Exit; typer.BadParameter."""
        from mimo_launch.cli.launch.prepare import Start
        from mimo_launch.cli.launch.start import start
        from mimo_launch.cli.run_screens import progress_for
        from mimo_launch.cli.shared.bars import rich_on
        from mimo_launch.launcher.rank_tasks import Training
        from mimo_launch.launcher.run_folder import begun
        from mimo_launch.plan.plan import Plan

        console = console_of(self.ctx)
        console.needs_no_reader = True
        shown = shown_ranks(self.console_ranks)
        settings = [] if self.steps is None else [f"train.steps={self.steps}"]
        spec, origin = self.checked(
            console, settings, begun_by=partial(begun, self.runs, resume=self.resume)
        )
        plan = Plan.of(spec)
        profiled = profiled_steps(self.profile, spec.train.steps)
        traced = traced_ranks(
            self.profile_ranks, profiled, spec.train.steps, plan.layout.world_size
        )
        if self.profile_memory and not traced:
            raise typer.BadParameter(
                f"of which ranks? Add {RANKS} 0", param_hint="--profile-memory"
            )
        request = Start(
            plan=plan,
            task=Training(profiled, traced, self.profile_memory),
            file=self.file,
            runs=self.runs,
            say=console.answer,
            show=lambda plain: progress_for(rich_on(run_output(), console), console, plain=plain),
            resume=self.resume,
            max_restarts=self.max_restarts,
            shown=shown,
            device=self.device.value,
        )
        raise typer.Exit(start(request, origin, console))


STEPS, RANKS = "--profile", "--profile-ranks"


def profiled_steps(text: str | None, total: int) -> range:
    """Return the steps that `--profile` requests, counted from 0, in a run of `total` steps.

    Raises: typer.BadParameter.
    """
    if text is None:
        return range(0)
    # At most 18 digits: no run has more steps.
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    if match is None:
        shown = text if len(text) < 40 else text[:40] + "..."
        raise _bad(f"{shown!r} is neither a step nor a range of steps such as 20-22")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise _bad(f"{text!r} ends before it begins; write {last}-{first}")
    if first < 1:
        raise _bad(f"steps count from 1; write {span_text(1, max(1, last))}")
    if last > total:
        raise _bad(f"the run has {total} steps; write {span_text(min(first, total), total)}")
    return range(first - 1, last)


def traced_ranks(text: str | None, steps: range, total: int, world_size: int) -> frozenset[int]:
    """Return the ranks that `--profile-ranks` requests. Raises: typer.BadParameter."""
    if text is None:
        return frozenset()
    if not steps:
        raise typer.BadParameter(f"which steps? Add {STEPS} {total}", param_hint=RANKS)
    ranks = ranks_of(text, RANKS)
    if max(ranks) >= world_size:
        raise typer.BadParameter(f"the spec has ranks 0-{world_size - 1}", param_hint=RANKS)
    return ranks


def _bad(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=STEPS)
