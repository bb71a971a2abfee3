"""Options that several commands share, so that they mean the same everywhere.

Decides: their names and help.
Relies on: typer.
Leaves: the options of a single command to that command.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mimo_launch.comm.world import DeviceKind
    from mimo_launch.estimate.device_constants import Calibration
    from mimo_launch.launcher.run_on_ranks import RankDevice
    from mimo_launch.spec.spec import Spec


class Device(StrEnum):
    """Where workers compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Replace one value; may be repeated."),
]
Nproc = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workers to start on this host; by default the ranks of the spec, shared evenly "
        "among hosts.",
    ),
]
Where = Annotated[
    Device, typer.Option("--device", help="Where workers compute; auto uses GPUs if there are any.")
]
HostProcesses = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        min=1,
        help="Processes per host that the job will have; default: as many as the spec needs.",
    ),
]
HostCount = Annotated[int, typer.Option("--nnodes", min=1, help="Hosts, with --nproc.")]
ResultAsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Runs = Annotated[Path, typer.Option(help="Folder that holds run folders.")]
ConsoleRanks = Annotated[
    str | None,
    typer.Option(
        metavar="RANKS",
        help="Show the output of these ranks too, e.g. 0,5-7; default: none, it is in logs/.",
    ),
]
Nnodes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Hosts of the job, 1 by default; if given, RANK and WORLD_SIZE are ignored."
    ),
]
NodeRank = Annotated[int, typer.Option(min=0, help="Number of this host, from 0.")]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where the launchers meet: a port on host 0; needed with --nnodes above 1.",
    ),
]
JobName = Annotated[str, typer.Option(help="Name of the job, the same on all hosts.")]

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or a checkpoint in it.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Target = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")]
CheckpointStep = Annotated[
    int | None,
    typer.Option(min=0, metavar="STEP", help="Checkpoint of this step; default the newest."),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE.json",
        help="Constants for estimates, from `bench --calibrate`.",
    ),
]


def world_of(nproc: int | None, nnodes: int) -> int | None:
    """Return the processes of a job, None if unknown. Raises: typer.BadParameter."""
    if nproc is None and nnodes > 1:
        raise typer.BadParameter("with how many ranks each? Add --nproc 8", param_hint="--nnodes")
    return None if nproc is None else nproc * nnodes


def constants_of(path: Path | None) -> "Calibration | None":
    """Return the constants that `--calibration` names. Raises: typer.BadParameter."""
    from mimo_launch.estimate.device_constants import CalibrationError, load

    try:
        return None if path is None else load(path)
    except CalibrationError as error:
        raise typer.BadParameter(str(error), param_hint="--calibration") from None


def device_here(spec: "Spec", wanted: "DeviceKind", num_workers: int) -> "RankDevice":
    """Return the device of `num_workers` workers on this host. Raises: typer.BadParameter."""
    from mimo_launch.launcher.gpus import NotEnoughGpus, device_of, refuse_backends

    try:
        device = device_of(wanted, num_workers)
        refuse_backends(spec, device)
        return device
    except NotEnoughGpus as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def shown_ranks(text: str | None) -> frozenset[int]:
    """Return the ranks that `--console-ranks` names. Raises: typer.BadParameter."""
    return frozenset() if text is None else ranks_of(text, "--console-ranks")


def ranks_of(text: str, option: str) -> frozenset[int]:
    """Return the ranks that the value of an option names. Raises: typer.BadParameter."""
    from mimo_launch.launcher.worker_logs import parse_ranks

    try:
        return parse_ranks(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
