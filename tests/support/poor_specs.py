"""Specs with poor layouts, and what follows from advice about them.

Models, GPUs and batches are as in practice; placement, grids, microbatches and settings waste time
in a different way in each.
"""

from typing import Any

import yaml

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.load_and_check import check_text
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.answer import PlanAnswer, answer_of
from mimo_launch.search.changes import Settings
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow

VIT_L = {"kind": "vit", "layers": 24, "hidden": 1024, "heads": 16, "patch": 14}
VIT_H = {"kind": "vit", "layers": 32, "hidden": 1280, "heads": 16, "patch": 14}
IMAGES = {"kind": "synthetic", "image": [32, 32], "min_text": 64, "text_only": 0.0}
TEXT = {"kind": "synthetic"}


def decoder(layers: int, hidden: int, heads: int, mlp: int, **more: Any) -> dict[str, Any]:
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 8, "mlp": mlp}
    return {"kind": "decoder", **sizes, "vocab": 128256, **more}


B1, B8 = decoder(16, 2048, 32, 8192), decoder(32, 4096, 32, 14336)
B7 = decoder(28, 3584, 28, 18944, kv_heads=4, qkv_bias=True)
B32, B70 = decoder(64, 5120, 64, 25600), decoder(80, 8192, 64, 28672)
MOE = {"experts": 128, "top_k": 8, "width": 768, "aux_loss": 0.001}
B30 = decoder(48, 2048, 32, 6144, kv_heads=4, head_dim=128, moe=MOE)


def module(model: dict[str, Any], first: int, last: int, **more: Any) -> dict[str, Any]:
    grid = {axis: more.pop(axis) for axis in ("tp", "cp", "pp", "dp") if axis in more}
    return {"model": model, "ranks": f"{first}-{last}", "grid": grid, **more}


def job(
    modules: dict[str, Any],
    batch: int,
    microbatches: int,
    *,
    gpu: str = "h100-80gb",
    network: str = "ib-400g",
    seq: int = 4096,
    data: dict[str, Any] = IMAGES,
    **schedule: Any,
) -> Spec:
    """Return a job in bf16 on hosts of 8 GPUs; by default with images of 1,024 patches."""
    return spec_from_data(
        {
            "version": 1,
            "name": "poor",
            "modules": modules,
            "schedule": {"microbatches": microbatches, **schedule},
            "batch": {"global": batch, "seq": seq},
            "data": data,
            "train": {"precision": "bf16"},
            "nodes": {"gpus": 8, "gpu": gpu, "network": network},
        }
    )


# By GPUs, models and what is poor.
POOR = {
    "8, 1B: half of the GPUs for a small encoder, tp where dp would do": job(
        {"vision": module(VIT_L, 0, 3, dp=4), "language": module(B1, 4, 7, tp=4)}, 32, 8
    ),
    "16, 8B: as many microbatches as stages, needless recomputing": job(
        {
            "vision": module(VIT_H, 0, 15, dp=16),
            "language": module(B8, 0, 15, tp=2, pp=8, recompute="full"),
        },
        64,
        8,
        gpu="h200-141gb",
    ),
    "32, 8B: two encoders on ranks of their own, tp over a whole host": job(
        {
            "vision": module(VIT_H, 0, 7, dp=8),
            "hearing": module(VIT_L, 8, 15, dp=8),
            "language": module(B8, 16, 31, tp=8, dp=2),
        },
        64,
        4,
    ),
    "64, 7B: half of the GPUs for an encoder, a pipeline without need": job(
        {"vision": module(VIT_H, 0, 31, dp=32), "language": module(B7, 32, 63, tp=4, pp=2, dp=4)},
        256,
        8,
    ),
    "64, 8B: full sharding with the smallest microbatches": job(
        {
            "vision": module(VIT_H, 0, 63, dp=64, sharding="full"),
            "language": module(B8, 0, 63, tp=4, dp=16, sharding="full"),
        },
        512,
        32,
    ),
    "64, 30B of experts: recomputing and a pipeline, experts split over 4": job(
        {"language": module(B30, 0, 63, tp=4, pp=4, dp=4, recompute="full", experts={"ep": 4})},
        256,
        16,
        data=TEXT,
    ),
    "128, 8B: tp over two hosts, recomputing": job(
        {
            "vision": module(VIT_H, 0, 127, dp=128),
            "language": module(B8, 0, 127, tp=16, dp=8, recompute="full"),
        },
        512,
        16,
    ),
    "256, 32B: half of the GPUs for an encoder, tp over a whole host": job(
        {"vision": module(VIT_H, 0, 127, dp=128), "language": module(B32, 128, 255, tp=8, dp=16)},
        1024,
        8,
        gpu="h200-141gb",
    ),
    "256, 70B: a deep pipeline with few microbatches, everything recomputed": job(
        {
            "vision": module(VIT_H, 0, 255, dp=256, recompute="full"),
            "language": module(B70, 0, 255, tp=4, pp=16, dp=4, recompute="full"),
        },
        256,
        16,
    ),
    "512, 8B: full sharding over all hosts and a slow network": job(
        {
            "vision": module(VIT_H, 0, 511, dp=512),
            "language": module(B8, 0, 511, dp=512, sharding="full"),
        },
        1024,
        2,
        network="roce-100g",
    ),
    "512, 70B: a deep pipeline with few microbatches, recomputing": job(
        {
            "vision": module(VIT_H, 0, 511, dp=512),
            "language": module(B70, 0, 511, tp=8, pp=16, dp=4, recompute="full"),
        },
        1024,
        16,
    ),
    "1,024, 70B, 32,768 tokens: recomputing, no sequence parallelism": job(
        {"language": module(B70, 0, 1023, tp=8, cp=4, pp=8, dp=4, recompute="full")},
        256,
        16,
        seq=32768,
        data=TEXT,
    ),
}


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


def answer(made: Spec, **options: bool) -> PlanAnswer:
    """Return what `plan` says first."""
    estimator = Estimator.of(Plan.of(made))
    return answer_of(estimator, estimator.estimates(), **options)


def with_settings(made: Spec, settings: Settings) -> Spec:
    """Return a spec with settings, as `--set` makes it."""
    text = yaml.safe_dump(dump_spec(made))
    found = check_text(
        text, overrides=[f"{path}={flow(value)}" for path, value in settings.items()]
    )
    if found.spec is None:
        raise ValueError("; ".join(each.headline for each in found.diagnostics if each.is_error))
    return found.spec


def followed(made: Spec, times: int = 3) -> list[PlanAnswer]:
    """Return the answers for a spec, and for it with the first advice followed so many times.

    Advice that makes a step slower, on fewer GPUs, or less exact, in FP8, is not followed.
    """
    answers = [answer(made)]
    while len(answers) <= times and answers[-1].losses:
        first = answers[-1].losses[0]
        change = first.change
        if change is None or change.gain < 0 or first.kind == "precision":
            break
        made = with_settings(made, change.settings)
        answers.append(answer(made))
    return answers
