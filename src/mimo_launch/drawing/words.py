"""What the rows of a plan say, as short text.

Decides: how runs and bridges are written; JSON has numbers instead.
Relies on: `rows`; `diag.quantities` has ranks, sizes and times.
Leaves: tables to `cli`.
"""

from mimo_launch.drawing.rows import BridgeRow, HeldModule


def runs_text(held: HeldModule) -> str:
    """Return how often a module runs in a step."""
    if held.group_size == 1:
        return str(held.groups)
    return f"{held.groups} group{'s' * (held.groups > 1)} of {held.group_size}"


def fan_text(bridge: BridgeRow) -> str:
    """Return the direction of a bridge with its numbers of replicas."""
    return f"{bridge.fan} {bridge.num_src}:{bridge.num_dst}"
