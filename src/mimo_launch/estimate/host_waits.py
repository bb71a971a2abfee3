"""How much longer forwards and backwards take because the host has to start their kernels.

Decides: a host starts the kernels of a rank one after another and runs ahead of them, so that long
kernels of one stage hide the starts of another on the same rank. The time that a step lacks in
total is added to the stages that start slower than they run.
Relies on: the times of starting and running, by stage.
Leaves: the times to `cost_model`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Seconds of one forward and one backward of a stage; a step has `times` of each.

    `running` is the time of the kernels, `starting` the host's time to start them.
    """

    times: int
    running: tuple[float, float]
    starting: tuple[float, float]

    @property
    def lacking(self) -> tuple[float, float]:
        """How much longer starting takes than running, in each direction, at least 0."""
        forward, backward = (
            max(0.0, host - kernels)
            for host, kernels in zip(self.starting, self.running, strict=True)
        )
        return forward, backward

    @property
    def slack(self) -> float:
        """How much longer a step's kernels run than they take to start; may be negative."""
        return self.times * (sum(self.running) - sum(self.starting))


def host_waits(
    stages: Mapping[_Key, Starts], roles: Iterable[tuple[_Key, ...]]
) -> dict[_Key, tuple[float, float]]:
    """Return the seconds that a forward and a backward of each stage wait for the host.

    `roles` are the stages that ranks hold together. If a stage is in several roles, the longest
    wait counts.
    """
    waits = dict.fromkeys(stages, (0.0, 0.0))
    for role in set(roles):
        lacking = sum(stages[key].times * sum(stages[key].lacking) for key in role)
        if not lacking:
            continue
        share = max(0.0, -sum(stages[key].slack for key in role)) / lacking
        for key in role:
            forward, backward = (share * each for each in stages[key].lacking)
            waits[key] = max(waits[key], (forward, backward))
    return waits
