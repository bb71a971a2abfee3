"""The role of this process: a launcher by its options, or a rank or launcher of torchrun or srun.

Decides: which usage errors are found before anything starts.
Relies on: `launcher.torchrun_slurm` for the environment.
Leaves: acting in the role to `start`.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.options import Device
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.data.run_length import Begun
    from mimo_launch.estimate.device_constants import Calibration
    from mimo_launch.launcher.torchrun_slurm import Joined, NodePlace
    from mimo_launch.spec.spec import Spec


@frozen(kw_only=True)
class Origin:
    """A rank if `joined`, the launcher of one of several hosts if `place`, else the only launcher.

    `launches` says that the options decide this, whatever the environment says. `nproc` is the
    requested number of workers per host, `world_size` the number of ranks, if known.
    """

    joined: "Joined | None" = None
    place: "NodePlace | None" = None
    launches: bool = False
    nproc: int | None = None
    world_size: int | None = None

    @property
    def speaks(self) -> bool:
        """Whether this process reports problems to the user: a launcher or the first rank."""
        return self.joined is None or self.joined.rank == 0


def node_place(
    nnodes: int, node_rank: int, endpoint: str | None, run_id: str
) -> "NodePlace | None":
    """Return this host's place among several, from the options. Raises: typer.BadParameter."""
    from mimo_launch.launcher.network import parse_endpoint
    from mimo_launch.launcher.torchrun_slurm import NodePlace

    if node_rank >= nnodes:
        raise typer.BadParameter(
            f"{node_rank} is not below --nnodes {nnodes}", param_hint="--node-rank"
        )
    if nnodes == 1:
        return None
    if endpoint is None:
        raise typer.BadParameter(
            f"--nnodes {nnodes} needs the HOST:PORT where launchers meet, on the host with "
            "--node-rank 0",
            param_hint="--rdzv-endpoint",
        )
    try:
        parse_endpoint(endpoint)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rdzv-endpoint") from error
    return NodePlace(node_rank, nnodes, endpoint, run_id)


def origin_of(options: Origin, spec: "Spec") -> Origin:
    """Return the role of this process in a job with the ranks of `spec`.

    For a rank of srun, sets the environment for torch. Raises: typer.BadParameter.
    """
    from mimo_launch.launcher.torchrun_slurm import (
        Joined,
        NodelistError,
        WrongEnvironment,
        WrongTasks,
        slurm_environment,
        slurm_place,
        slurm_task,
        torchrun_rank,
    )
    from mimo_launch.layout.layout import world_size

    try:
        joined = None if options.launches else torchrun_rank()
    except WrongEnvironment as error:
        raise typer.BadParameter(str(error), param_hint="torchrun") from error
    if joined is not None:
        return Origin(joined=joined, world_size=joined.world_size)
    world, place, nproc = world_size(spec), options.place, options.nproc
    if not options.launches:
        try:
            task = slurm_task(os.environ)
            if task is not None:
                found = slurm_place(task, world)
                if isinstance(found, Joined):
                    os.environ.update(slurm_environment(task))
                    return Origin(joined=found, world_size=found.world_size)
                place = found
        except (WrongTasks, NodelistError) as error:
            raise typer.BadParameter(str(error), param_hint="srun") from error
    nodes = 1 if place is None else place.num_nodes
    if nproc is None and world % nodes:
        raise typer.BadParameter(
            f"the {world} ranks of the spec do not spread evenly over {nodes} hosts",
            param_hint="--nnodes",
        )
    return Origin(place=place, world_size=world if nproc is None else nproc * nodes)


def checked_spec(
    file: Path,
    settings: Sequence[str],
    options: Origin,
    console: Console,
    *,
    device: Device,
    constants: "Calibration | None" = None,
    change: "Callable[[Spec], Spec] | None" = None,
    begun_by: "Callable[[Spec], Begun] | None" = None,
) -> tuple["Spec", Origin]:
    """Return a spec that fits the number of ranks, and the role of this process in the job.

    Show the findings, and make the index of the shards. Unless `device` is the processor, the
    spec must fit the memory of the GPUs, estimated with `constants`. With `change`, all
    of this applies to the spec that it returns. `begun_by` is as in `load_and_check`.

    Raises: typer.Exit for a spec with mistakes, or unusable data; typer.BadParameter; what `change`
    raises.
    """
    from mimo_launch.checks.load_and_check import load_and_check
    from mimo_launch.cli.shared.readiness import ready_shards, show_findings

    check = partial(
        load_and_check,
        file,
        settings,
        on_gpus=device is not Device.CPU,
        constants=constants,
        change=change,
        begun_by=begun_by,
    )
    origin, checked = options, check()
    if checked.spec is not None:
        origin = origin_of(options, checked.spec)
        checked = check(origin.world_size, runs_here=True)
    if origin.speaks:
        show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    spec = checked.spec
    ready_shards(spec, console, speaks=origin.speaks)
    if spec.train.epochs is not None:
        counted = check(origin.world_size, runs_here=True)  # The index counts all samples.
        if counted.spec is None or not counted.spec.train.are_steps_known:
            show_findings(counted, console)
            raise typer.Exit(2)
        spec = counted.spec
    return spec, origin
