"""Blocks of published models compute on GPUs what the one-rank run computes in float64."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.test_layouts_on_gpus import prove, uncompiled
from tests.support.gpu_ranks import NUM_DEVICES
from tests.support.planted_caps import MODEL as CAPPED
from tests.support.planted_deepstack import MODEL as STACKED
from tests.support.planted_gates import MODEL as GATED
from tests.support.planted_latent import MODEL as LATENT
from tests.support.planted_mtp import MTP
from tests.support.planted_nope import MODEL as NOPE
from tests.support.planted_registers import MODEL as REGISTERED
from tests.support.planted_scales import MERGED, NEAREST, POOLED
from tests.support.planted_scales import MODEL as SCALED
from tests.support.planted_sinks import MODEL as SINKS
from tests.support.planted_sliding import MODEL as SLIDING
from tests.support.planted_tiles import TILES
from tests.support.planted_windows import MODEL as WINDOWED
from tests.support.specs import box, brief, hybrid, spec

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.verify.shrink import shrink

pytestmark = pytest.mark.gpu

TOWERS = {
    "windows": WINDOWED, "deepstack": STACKED, "layer scale": SCALED, "nearest": NEAREST,
    "pooled": POOLED, "merged": MERGED, "registers": REGISTERED, "tiles": TILES,
}  # fmt: skip
DECODERS = {
    "sliding windows": SLIDING, "sinks": SINKS, "gates": GATED, "caps": CAPPED,
    "images seen whole": SLIDING | {"bidirectional_images": True}, "latent": LATENT,
    "further tokens": MTP | {"layers": 2}, "layers without rotary positions": NOPE,
}  # fmt: skip
SP: dict[str, Any] = {"sequence_parallel": True}
# Grids of the module with the block, in front of or behind the other one.
GRIDS: dict[str, dict[str, Any]] = {
    "one": {},
    "tp 2": {"tp": 2, **SP},
    "cp 2": {"cp": 2},
    "pp 2": {"pp": 2},
    "dp 2, fully sharded": {"dp": 2, "sharding": "full"},
}


def tower(model: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """Return a tower in front of a decoder of four layers on the same ranks."""
    return {"vision": box(0, model=model, **grid), "language": box(0, model={"layers": 4}, **grid)}


def decoder(model: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """Return language with a model of its own behind a tower on the same ranks."""
    return {"vision": box(0, **grid), "language": box(0, model=model, **grid)}


def delta(grid: dict[str, Any]) -> dict[str, Any]:
    """Return a hybrid with Gated DeltaNet layers; full sharding and stages split it, too."""
    return decoder(hybrid(grid, "G-*G"), grid)


CASES = {
    f"{name}, {where}": tower(model, grid)
    for name, model in TOWERS.items()
    for where, grid in GRIDS.items()
} | {
    f"{name}, {where}": decoder(model, grid)
    for name, model in DECODERS.items()
    for where, grid in GRIDS.items()
} | {f"delta, {where}": delta(grid) for where, grid in GRIDS.items()}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("name", CASES)
def test_a_block_computes_the_one_rank_gradients(
    name: str,
    precision: str,
    ranks_of: Callable[[int], Ranks],
    one_rank: Ranks,
    say: Callable[[str], None],
) -> None:
    """fp64 to 1e-10; fp32, whose kernels are others, to 1e-3. Of fp32, one case is compiled."""
    made = spec(CASES[name], microbatches=2, mbs=2, max_images=2, max_patches=24, text_only=0.2)
    made = shrink(made, precision)
    if world_size(made) > NUM_DEVICES:
        pytest.skip(f"it needs {world_size(made)} GPUs")
    if not name.endswith("one"):
        made = uncompiled(made)
    failed = prove(made, f"{name} {precision}", ranks_of, one_rank, say)
    assert not failed, f"{brief(made)}\n" + "\n".join(failed[:10])
