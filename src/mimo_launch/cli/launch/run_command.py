"""The options of commands that start the ranks of a spec: `train` and `bench`.

Decides: which options they share.
Relies on: `origin` for the role of this process and for the checks of the spec.
Leaves: what the ranks do to the commands.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.launch.origin import Origin, checked_spec, node_place
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.options import (
    ConsoleRanks,
    Device,
    Endpoint,
    JobName,
    Nnodes,
    NodeRank,
    Nproc,
    Overrides,
    Where,
)
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.data.run_length import Begun
    from mimo_launch.estimate.device_constants import Calibration
    from mimo_launch.spec.spec import Spec


@frozen(kw_only=True)
class RunCommand:
    """What to run, and where: here, on several hosts, or as a rank that another program started."""

    ctx: typer.Context
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Spec to run.")]
    nproc: Nproc = None
    device: Where = Device.AUTO
    overrides: Overrides = None
    console_ranks: ConsoleRanks = None
    nnodes: Nnodes = None
    node_rank: NodeRank = 0
    rdzv_endpoint: Endpoint = None
    rdzv_id: JobName = "run"

    def checked(
        self,
        console: Console,
        settings: Sequence[str] = (),
        constants: "Calibration | None" = None,
        change: "Callable[[Spec], Spec] | None" = None,
        begun_by: "Callable[[Spec], Begun] | None" = None,
    ) -> "tuple[Spec, Origin]":
        """Return the checked spec with further `settings`, and the role of this process.

        Raises: as `checked_spec`.
        """
        place = node_place(self.nnodes or 1, self.node_rank, self.rdzv_endpoint, self.rdzv_id)
        origin = Origin(place=place, launches=self.nnodes is not None, nproc=self.nproc)
        settings = [*(self.overrides or ()), *settings]
        return checked_spec(
            self.file,
            settings,
            origin,
            console,
            device=self.device,
            constants=constants,
            change=change,
            begun_by=begun_by,
        )
