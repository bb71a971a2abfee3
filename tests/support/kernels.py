"""Tables of kernels for tests: one rate for all sizes."""

from mimo_launch.estimate.kernel_table import COMPUTE, KERNELS, Grid, KernelTable


def flat(compute: float = 600.0, memory: float = 1e12, **rates: float) -> KernelTable:
    """Return a table with one rate for products and attention, and one for all passes over memory.

    `rates` changes those whose name begins with a word.
    """
    grids = {}
    for name, (sizes, unit) in KERNELS.items():
        rate = compute if unit == COMPUTE else memory
        for word, other in rates.items():
            rate = other if name.startswith(word) else rate
        grids[name] = Grid(((1.0,),) * len(sizes), (rate,))
    return KernelTable(device="flat", source="made up", grids=grids)
