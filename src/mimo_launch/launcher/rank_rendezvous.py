"""How ranks that something else started meet, before they form a process group.

Decides: the first rank looks at the run folder for all, and says whether there is anything to run;
its store listens only where MASTER_ADDR says.
Relies on: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; under torchrun on the store of its agent.
Leaves: the process group to `worker`.
"""

import os
import time
from datetime import timedelta
from typing import Any

from mimo_launch.launcher.network import listen_at
from mimo_launch.launcher.preload import import_for_workers
from mimo_launch.launcher.torchrun import Joined

POLL_SECONDS = 0.05
_ENDED, _HEARD = "mimo/ended", "mimo/heard"


class JoinedWorld:
    """The ranks of a job, as one of them sees them; `timeout` is in seconds."""

    def __init__(self, joined: Joined, *, timeout: int) -> None:
        """Open the store on the first rank, or wait for it. Raises: OSError, RuntimeError."""
        import_for_workers()
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        self._joined, self._timeout = joined, timeout
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            self._store: Any = next(rendezvous("env://"))[0]
            return
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        first = joined.rank == 0
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=first,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listen_at(host, port).detach() if first else None,
        )

    @property
    def group(self) -> dict[str, Any]:
        """What the process group is made of."""
        joined = self._joined
        return {"store": self._store, "rank": joined.rank, "world_size": joined.world_size}

    def say(self, ended: int | None) -> None:
        """Tell all others the exit code if there is nothing to run, and wait until they know."""
        self._store.set(_ENDED, "" if ended is None else str(ended))
        until = time.monotonic() + self._timeout
        others = self._joined.world_size - 1
        while ended is not None and time.monotonic() < until:
            if self._store.add(_HEARD, 0) >= others:
                return
            time.sleep(POLL_SECONDS)

    def hear(self) -> int | None:
        """Return the exit code that the first rank has told, if there is nothing to run."""
        said = self._store.get(_ENDED).decode()
        self._store.add(_HEARD, 1)
        return int(said) if said else None
