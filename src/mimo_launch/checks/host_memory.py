"""Whether the ranks of a host fit into its memory, where they compute on its processors.

Decides: that an estimate may be off by as much as for a GPU before a run is refused.
Relies on: `estimate.estimates` for bytes; the caller for the memory there is.
Leaves: GPUs to `memory`.
"""

from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.estimate.rows import Estimates


def memory_lacking(estimates: Estimates, ranks: range, memory: int) -> list[str]:
    """Return why `ranks` cannot share `memory` bytes and what to do; empty if they can."""
    shares = [
        (len([rank for rank in row.ranks if rank in ranks]), row.memory) for row in estimates.ranks
    ]
    parts = {
        "weights": sum(n * m.weights for n, m in shares),
        "gradients": sum(n * m.gradients for n, m in shares),
        "optimizer": sum(n * m.optimizer for n, m in shares),
        "activations": sum(n * m.activations for n, m in shares),
    }
    needed = sum(parts.values())
    if needed <= (1 + TOLERANCE) * memory:
        return []
    shown = ", ".join(f"{bytes_text(size)} {name}" for name, size in parts.items())
    return [
        f"error: the {len(ranks)} ranks of this host need about {bytes_text(needed)}, "
        f"and it has {bytes_text(memory)}",
        f"   = why:  estimated for nominal samples: {shown}",
        f"   = help: {_smaller(parts)}, or more hosts",
    ]


def _smaller(parts: dict[str, int]) -> str:
    """Return what to change about the two largest parts."""
    model = "a smaller `vocab`, `hidden` or `layers`"
    changes = {
        "weights": model,
        "gradients": model,
        "optimizer": model,
        "activations": "a smaller `batch.seq`, or `recompute: full`",
    }
    largest = sorted(parts, key=lambda name: parts[name], reverse=True)[:2]
    return ", ".join(dict.fromkeys(changes[name] for name in largest))
