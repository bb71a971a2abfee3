"""Starts the run of a checked spec, on one host or several.

Decides: which launcher opens the run folder, and which shows the run.
Relies on: `launcher` for hosts and workers.
Leaves: checks and messages before the run to `prepare`, attempts and exit codes to `attempts`,
ranks of torchrun or srun to `joined`.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from mimo_launch.cli.launch.attempts import Attempts, host_lacks, interrupted_by
from mimo_launch.cli.launch.joined import run_joined
from mimo_launch.cli.launch.prepare import Start, announce, prepare, screen_of
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import custom_classes_fail
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.cli.launch.origin import Origin
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.run_folder import RunFolder
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.launcher.torchrun_slurm import NodePlace


def start(request: Start, origin: "Origin", console: Console) -> int:
    """Run as the rank or launcher that this process is, and return the exit code."""
    from mimo_launch.launcher.host_resources import allow_open_files, too_few_files
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.layout.layout import world_size

    allow_open_files()
    num_hosts = 1 if origin.place is None else origin.place.num_nodes
    here = 1 if origin.joined is not None else world_size(request.spec) // num_hosts
    lacking = too_few_files(here)
    if lacking is not None:
        return host_lacks(lacking, console)
    if origin.speaks and (origin.place is None or origin.place.node == 0):
        announce(request)
    if origin.joined is not None:
        return run_joined(request, origin.joined, console)
    request = request.on_host_of(here)
    with StopRequest() as stop:
        launcher = _Launcher(request, console, stop)
        return launcher.alone() if origin.place is None else launcher.with_others(origin.place)


@frozen
class _Launcher:
    """Starts the workers of this host for a `request`."""

    request: Start
    console: Console
    stop: "StopRequest"

    def alone(self) -> int:
        """Start all workers of the job here."""
        from mimo_launch.launcher.hosts import OneHost
        from mimo_launch.launcher.signals import Interrupted

        try:
            ended = custom_classes_fail(self.request.spec, self.console, self.stop)
            if ended is not None:
                return ended
            prepared = prepare(self.request, self.console, self.stop)
        except Interrupted as interrupted:
            return interrupted_by(interrupted.signal, self.console)
        if isinstance(prepared, int):
            return prepared
        request, folder = prepared
        with folder.lock:
            hosts = OneHost(request.num_workers, request.run, folder.lock)
            return self._run(hosts, request, folder)

    def with_others(self, place: "NodePlace") -> int:
        """Start the workers of this host once the launchers of all hosts have met."""
        from mimo_launch.launcher.host_rendezvous import Dismissed, HostsError
        from mimo_launch.launcher.hosts import ManyHosts
        from mimo_launch.launcher.signals import Interrupted

        request, console = self.request, self.console
        others = f"node {place.node} of {place.num_nodes}: meeting the others"
        console.note(f"{others} at {place.endpoint}")
        try:
            in_common = f"{request.device} {request.task.in_common}"
            hosts = ManyHosts(place, request.plan, in_common, request.run, self.stop)
            prepared: tuple[Start, RunFolder] | int | None = 2
            try:
                prepared = custom_classes_fail(request.spec, console, self.stop)
                if prepared is None and place.node == 0:
                    prepared = prepare(request, console, self.stop)
                if isinstance(prepared, int):
                    return prepared
                request, folder = prepared or (request, None)
                hosts.lock = None if folder is None else folder.lock
                return self._run(hosts, request, folder)
            finally:
                if isinstance(prepared, int):
                    hosts.dismiss(prepared)
                hosts.close()
                if isinstance(prepared, tuple):
                    prepared[1].lock.close()
        except HostsError as error:
            console.note(f"error: {error}")
            return error.code
        except Dismissed as dismissed:
            console.note("node 0 has nothing to run; its launcher says why")
            return dismissed.code
        except Interrupted as interrupted:
            return interrupted_by(interrupted.signal, console)

    def _run(self, hosts: "Hosts", request: Start, folder: "RunFolder | None") -> int:
        """Run attempts on this host; the launcher that opened the `folder` shows the run."""
        from mimo_launch.launcher.start_workers import Audience

        console = self.console

        def audience() -> Audience:
            # Events come from rank 0, so the launcher of rank 0's host shows them.
            screen = (
                nullcontext(lambda event: None)
                if folder is None
                else screen_of(request, folder, console, plain=False)
            )
            return Audience(screen=screen, note=console.note, printed=request.say)

        return Attempts(
            job=request.job,
            hosts=hosts,
            audience=audience,
            console=console,
            stop=self.stop,
            max_restarts=request.max_restarts,
        ).run()
