"""Seconds of one collective or transfer between given ranks.

Decides: which ranks talk over the network.
Relies on: `calibration` for latencies and bandwidths.
Leaves: how many bytes there are to `cost_model`.
"""

from dataclasses import dataclass

from mimo_launch.estimate.calibration import Calibration
from mimo_launch.spec.model import Spec

MICRO, GIGA = 1e-6, 1e9


@dataclass(frozen=True)
class LinkTimes:
    """Times what goes between ranks of a job."""

    spec: Spec
    constants: Calibration

    def collective(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds in which a ring gathers, or reduces and scatters, `size` bytes.

        An all-to-all in which each rank has so many bytes for all ranks takes as long.
        """
        if len(ranks) == 1:
            return 0.0
        bandwidth = self._between(ranks, self.constants.collective_bandwidth)
        share = (len(ranks) - 1) / len(ranks)
        return self.constants.collective_latency * MICRO + size * share / bandwidth

    def transfer(self, ranks: tuple[int, ...], size: float) -> float:
        """Return the seconds in which `size` bytes get from one of these ranks to another."""
        bandwidth = self._between(ranks, self.constants.p2p_bandwidth)
        return self.constants.p2p_latency * MICRO + size / bandwidth

    def _between(self, ranks: tuple[int, ...], inside: float) -> float:
        """Return the bytes per second between ranks; `inside` is for those of one host, in GB."""
        nodes = self.spec.nodes
        crosses = nodes is not None and min(ranks) // nodes.gpus != max(ranks) // nodes.gpus
        return (self.constants.network_bandwidth if crosses else inside) * GIGA
