"""Specs with poor layouts, and a wide search for the best layout of each.

Models, GPUs and batches are as in practice; placement, grids, microbatches and settings waste time
in a different way in each.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import Change, changed
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.spec import Spec

VIT_L = {"kind": "vit", "layers": 24, "hidden": 1024, "heads": 16, "patch": 14}
VIT_H = {"kind": "vit", "layers": 32, "hidden": 1280, "heads": 16, "patch": 14}
AUDIO = {"kind": "audio", "layers": 32, "hidden": 1280, "heads": 20}


def decoder(layers: int, hidden: int, heads: int, mlp: int) -> dict[str, Any]:
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 8, "mlp": mlp}
    return {"kind": "decoder", **sizes, "vocab": 128256}


B1, B8 = decoder(16, 2048, 32, 8192), decoder(32, 4096, 32, 14336)
B32, B70 = decoder(64, 5120, 64, 25600), decoder(80, 8192, 64, 28672)


def module(model: dict[str, Any], first: int, last: int, **more: Any) -> dict[str, Any]:
    grid = {axis: more.pop(axis) for axis in ("tp", "cp", "pp", "dp") if axis in more}
    return {"model": model, "ranks": f"{first}-{last}", "grid": grid, **more}


def job(
    modules: dict[str, Any], batch: int, microbatches: int, gpu: str = "h100-80gb", **schedule: Any
) -> Spec:
    """Return a job in bf16 on hosts of 8 GPUs, with images of 1,024 patches in 4,096 tokens."""
    return spec_from_data(
        {
            "version": 1,
            "name": "poor",
            "modules": modules,
            "schedule": {"microbatches": microbatches, **schedule},
            "batch": {"global": batch, "seq": 4096},
            "data": {"kind": "synthetic", "image": [32, 32], "min_text": 64, "text_only": 0.0},
            "train": {"precision": "bf16"},
            "nodes": {"gpus": 8, "gpu": gpu, "network": "ib-400g"},
        }
    )


POOR = {
    # Half of the GPUs for a small encoder, and tp where dp would do.
    8: job({"vision": module(VIT_L, 0, 3, dp=4), "language": module(B1, 4, 7, tp=4)}, 32, 8),
    # A deep pipeline with as many microbatches as stages, and recomputing that nobody needs.
    16: job(
        {
            "vision": module(VIT_H, 0, 15, dp=16),
            "language": module(B8, 0, 15, tp=2, pp=8, recompute="full"),
        },
        64,
        8,
        gpu="h200-141gb",
    ),
    # Two encoders on ranks of their own, language with tp across all of a host.
    32: job(
        {
            "vision": module(VIT_H, 0, 7, dp=8),
            "hearing": module(VIT_L, 8, 15, dp=8),
            "language": module(B8, 16, 31, tp=8, dp=2),
        },
        64,
        4,
    ),
    # Full sharding over all hosts, with the smallest microbatches.
    64: job(
        {
            "vision": module(VIT_H, 0, 63, dp=64, sharding="full"),
            "language": module(B8, 0, 63, tp=4, dp=16, sharding="full"),
        },
        512,
        32,
    ),
    256: job(
        {"vision": module(VIT_H, 0, 127, dp=128), "language": module(B32, 128, 255, tp=8, dp=16)},
        1024,
        8,
        gpu="h200-141gb",
    ),
    512: job(
        {
            "vision": module(VIT_H, 0, 511, dp=512),
            "language": module(B70, 0, 511, tp=8, pp=16, dp=4, recompute="full"),
        },
        1024,
        16,
    ),
}  # fmt: skip


def fits(made: Spec) -> bool:
    """Return whether a spec is legal and needs 90 % of the memory of its GPUs at most."""
    if any(found.is_error for found in check(made)):
        return False
    if made.nodes is None or made.nodes.memory is None:
        return True
    estimator = Estimator.of(Plan.of(made))
    return all(
        estimator.memory(each).total <= 0.9 * made.nodes.memory for each in estimator.classes
    )


def seconds(made: Spec) -> float:
    """Return the estimate of a step."""
    return Estimator.of(Plan.of(made)).estimates().step_seconds


def all_layouts(made: Spec) -> Iterator[Change]:
    """Yield many layouts: placements x grids of language x microbatches x settings."""
    world, batch = world_size(made), made.batch.global_
    others = [name for name in made.modules if name != "language"]
    for tp, pp, dp in product((1, 2, 4, 8), (1, 2, 4, 8, 16), range(1, world + 1)):
        own = tp * pp * dp
        if own > world or batch % dp or not (own == world or 2 * own >= world):
            continue
        left = world - own
        placed: dict[str, Any] = {
            "modules.language.ranks": f"{left}-{world - 1}",
            "modules.language.grid": {"tp": tp, "pp": pp, "dp": dp},
        }
        sizes = [tp for tp in (1, 2, 4, 8) if (left or world) % tp == 0]
        for size in sizes[: 1 if left == 0 else 4]:
            for name in others:
                last = (left or world) - 1
                placed[f"modules.{name}.ranks"] = f"0-{last}" if last else "0"
                placed[f"modules.{name}.grid"] = {"tp": size, "dp": (left or world) // size}
            share = batch // dp
            counts = [n for n in range(1, share + 1) if share % n == 0 and n >= min(share, pp)]
            kinds = [("1f1b", 1)] + [("interleaved", 2), ("bubble_filling", 1)] * (pp > 1)
            for count, (kind, virtual), recompute, sharding in product(
                counts, kinds, ("none", "full"), ("optimizer", "full")
            ):
                if sharding == "full" and kind != "1f1b":
                    continue
                settings = {
                    **placed,
                    "schedule.microbatches": count,
                    "schedule.kind": kind,
                    "schedule.virtual_stages": virtual,
                    "modules.language.recompute": recompute,
                    "modules.language.sharding": sharding,
                    **{f"modules.{name}.sharding": "optimizer" for name in others},
                    **{f"modules.{name}.recompute": recompute for name in others},
                }
                if found := changed(made, "any", {}, settings):
                    yield found
