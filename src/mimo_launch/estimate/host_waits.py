"""How much longer forwards and backwards take because the host has to start their kernels.

Decides: a host starts the kernels of a rank one after another and runs ahead of them, so that long
kernels of one stage hide the starts of those that follow on the same rank: encoders run forward
before language and backward after it, and what reads language between its forwards and backwards.
The time that a step lacks is added to the stages that start slower than they run. A thread that
reads the next step meanwhile takes turns with the one that starts kernels, all along a step.
Relies on: the times of starting and running, by stage.
Leaves: the times to `cost_model`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE

_Key = tuple[str, int]


@frozen(kw_only=True)
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


@dataclass(slots=True)
class _Clocks:
    """How far the host of a rank has started kernels, and until when the device runs them."""

    host: float = 0.0
    device: float = 0.0

    def run(self, stages: Iterable[Starts], *ways: int, share: float) -> None:
        """Run a share of the forwards (0), the backwards (1) or both of each stage in turn."""
        for each in stages:
            times = share * each.times
            running = times * sum(each.running[way] for way in ways)
            starting = times * sum(each.starting[way] for way in ways)
            # The device runs nothing of this before the host begins to start it.
            self.device = max(self.device + running, self.host + max(running, starting))
            self.host += starting


def host_waits(
    stages: Mapping[_Key, Starts],
    roles: Iterable[tuple[_Key, ...]],
    reading: Mapping[tuple[_Key, ...], float] | None = None,
) -> dict[_Key, tuple[float, float]]:
    """Return the seconds that a forward and a backward of each stage wait for the host.

    `roles` are the stages that ranks hold together, in the order of the data; `reading` are the
    seconds of a step in which another thread of such a rank keeps Python. If a stage is in several
    roles, the longest wait counts.
    """
    waits = dict.fromkeys(stages, (0.0, 0.0))
    for role in set(roles):
        mine = _slowed(stages, role, 0.0 if reading is None else reading.get(role, 0.0))
        lacking = sum(each.times * sum(each.lacking) for each in mine.values())
        if not lacking:
            continue
        share = min(1.0, _waited(mine, role) / lacking)
        for key in role:
            forward, backward = (share * each for each in mine[key].lacking)
            waits[key] = max(waits[key], (forward, backward), key=sum)
    return waits


def _slowed(
    stages: Mapping[_Key, Starts], role: tuple[_Key, ...], reading: float
) -> dict[_Key, Starts]:
    """Return the stages of a role, started more slowly by `reading` seconds in a step in all."""
    mine = {key: stages[key] for key in role}
    starting = sum(each.times * sum(each.starting) for each in mine.values())
    if not reading or not starting:
        return mine
    slower = 1 + reading / starting
    return {
        key: replace(each, starting=(each.starting[0] * slower, each.starting[1] * slower))
        for key, each in mine.items()
    }


def _waited(stages: Mapping[_Key, Starts], role: tuple[_Key, ...]) -> float:
    """Return the seconds of a step in which a device waits for its host to start kernels."""
    places = [place for place, (name, _) in enumerate(role) if name == LANGUAGE]
    if not places:
        return max(0.0, -sum(stages[key].slack for key in role))
    found = [stages[key] for key in role]
    before, own, after = (
        found[: places[0]], found[places[0] : places[-1] + 1], found[places[-1] + 1 :]
    )  # fmt: skip
    groups = min((each.times for each in (*before, *after)), default=1)
    clocks, share = _Clocks(), 1 / groups
    for _ in range(groups):
        clocks.run(before, 0, share=share)
        if after:
            clocks.run(own, 0, share=share)
            clocks.run(after, 0, 1, share=share)
            clocks.run(own, 1, share=share)
        else:
            clocks.run(own, 0, 1, share=share)
        clocks.run(reversed(before), 1, share=share)
    return clocks.device - sum(each.times * sum(each.running) for each in found)
