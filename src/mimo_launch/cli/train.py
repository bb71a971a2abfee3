"""`mimo-launch train`: validate, plan, start the workers (or join them), show progress.

Decides: the options; which steps and ranks the words of `--profile` and `--profile-ranks` mean.
Relies on: `checks` for everything that can be known before a process starts; `cli.launch.origin`
for what started this process.
Leaves: the run to `cli.launch.start`, which of the steps to profile a resumed run still has to
`launcher.rank_tasks`.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import console_of, run_output
from mimo_launch.cli.shared.options import (
    ConsoleRanks,
    Device,
    Endpoint,
    JobName,
    Nnodes,
    NodeRank,
    Nproc,
    Overrides,
    Runs,
    Where,
    ranks_of,
    shown_ranks,
)

if TYPE_CHECKING:
    from mimo_launch.launcher.rank_tasks import ProfiledSteps

HELP = """
\b
Examples:
  mimo-launch train topologies/quickstart.yaml --nproc 8
  mimo-launch train spec.yaml --steps 20 --set optimizer.lr=1e-3
  mimo-launch train spec.yaml --runs /scratch/me/runs
  mimo-launch train spec.yaml --device cpu
  mimo-launch train spec.yaml --max-restarts 3
  mimo-launch train spec.yaml --steps 5 --profile 2
  mimo-launch train spec.yaml --profile 20-22 --profile-ranks 0,4
  mimo-launch train spec.yaml --no-resume
  mimo-launch train spec.yaml --nnodes 2 --node-rank 0 --rdzv-endpoint host0:29500
  torchrun --nproc-per-node 8 -m mimo_launch train spec.yaml
  srun --ntasks-per-node 1 mimo-launch train spec.yaml

Validate and plan the spec, start one worker per rank and train: each on a GPU of its own where the
host has any (see --device), else on its processors. Under torchrun the process joins as the rank
it is given; under srun one task per rank does the same, and one task per host starts the workers of
that host. The run folder holds the resolved spec, the plan, metrics.jsonl and the workers' logs. A
run whose folder has a complete checkpoint continues from it.
The first Ctrl-C or SIGTERM saves a checkpoint after the current step, the second stops at once.
Exits with 0 when all steps are done, 1 when the run failed, 2 when the spec is wrong, 129, 130
or 143 when interrupted.
"""


def train(
    ctx: typer.Context,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to train.")],
    nproc: Nproc = None,
    device: Where = Device.AUTO,
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to run; short for --set train.steps=N.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            help="Measure this many steps after two others, or the steps of a range such as 20-22, "
            "and draw their timelines.",
        ),
    ] = None,
    profile_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Trace with torch.profiler what these ranks do in those steps, e.g. 0,5-7; on "
            "GPUs also what they allocate.",
        ),
    ] = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume",
            help="Resume from the newest complete checkpoint, or start anew; by default resume if "
            "there is one.",
        ),
    ] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="Times to restart after a failure.")] = 0,
    console_ranks: ConsoleRanks = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = None,
    rdzv_id: JobName = "run",
) -> None:
    """Train a spec, one worker per rank."""
    from mimo_launch.cli.launch.origin import asked_origin, checked_spec
    from mimo_launch.cli.launch.prepare import Start
    from mimo_launch.cli.launch.start import start
    from mimo_launch.cli.run_screens import progress_for
    from mimo_launch.cli.shared.bars import rich_on
    from mimo_launch.launcher.rank_tasks import Training
    from mimo_launch.plan.plan import Plan

    console = console_of(ctx)
    console.needs_no_reader = True
    shown = shown_ranks(console_ranks)
    settings = [*(overrides or ()), *([f"train.steps={steps}"] if steps is not None else [])]
    origin = asked_origin(nproc, nnodes, node_rank, rdzv_endpoint, rdzv_id)
    spec, origin = checked_spec(file, settings, origin, console, device=device)
    plan = Plan.of(spec)
    profiled = profiled_steps(profile, spec.train.steps)
    traced = traced_ranks(profile_ranks, profiled, plan.layout.world_size)
    request = Start(
        plan=plan,
        task=Training(profiled, traced),
        file=file,
        runs=runs,
        say=console.answer,
        show=lambda plain: progress_for(rich_on(run_output(), console), console, plain=plain),
        resume=resume,
        max_restarts=max_restarts,
        shown=shown,
        device=device.value,
    )
    raise typer.Exit(start(request, origin, console))


STEPS, RANKS = "--profile", "--profile-ranks"


def profiled_steps(text: str | None, total: int) -> "ProfiledSteps":
    """Return the steps that `--profile` asks for in a run of `total` steps.

    Raises: typer.BadParameter.
    """
    from mimo_launch.launcher.rank_tasks import NO_STEPS, ProfiledSteps

    if text is None:
        return NO_STEPS
    # More digits than any number of steps has are no number.
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    if match is None:
        shown = text if len(text) < 40 else text[:40] + "..."
        raise _bad(f"{shown!r} is neither a number of steps nor a range such as 20-22")
    if match[2] is None:
        if not int(match[1]):
            raise _bad(f"0 steps are nothing to measure; write 1, or leave {STEPS} out")
        return ProfiledSteps(int(match[1]))
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise _bad(f"{text!r} ends before it begins; write {last}-{first}")
    if first < 1:
        raise _bad(f"steps count from 1; write 1-{max(1, last)}")
    if last > total:
        raise _bad(f"the run has {total} steps; write {min(first, total)}-{total}")
    return ProfiledSteps(last - first + 1, first - 1)


def traced_ranks(text: str | None, steps: "ProfiledSteps", world_size: int) -> frozenset[int]:
    """Return the ranks that `--profile-ranks` asks for. Raises: typer.BadParameter."""
    if text is None:
        return frozenset()
    if not steps.number:
        raise typer.BadParameter(f"which steps? Add {STEPS} 1", param_hint=RANKS)
    ranks = ranks_of(text, RANKS)
    if max(ranks) >= world_size:
        raise typer.BadParameter(f"the spec has ranks 0-{world_size - 1}", param_hint=RANKS)
    return ranks


def _bad(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=STEPS)
