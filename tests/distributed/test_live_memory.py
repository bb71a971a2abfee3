"""The most memory of a step in tensors, as it is allocated and as it is estimated, within 4 %.

Sums over tensors of every part: weights, gradients, moments, activations, buffers of FSDP2. In
these steps the peak is in no reduction over ranks, where gloo, unlike NCCL, copies its input.
"""

from typing import Any

import pytest
from tests.support.live_steps import most_alive
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import Box, box, spec

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

VIT = {"kind": "vit", "layers": 4, "hidden": 96, "heads": 4, "patch": 2, "mlp": 384, "shuffle": 2}
DECODER = {
    "kind": "decoder", "layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32,
    "mlp": 384, "vocab": 1024,
}  # fmt: skip
# The peak is at the end of the last backward, in sums of gradients.
HEAVY = {"layers": 6, "hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "mlp": 2048}


def step(
    *,
    each: Box | None = None,
    vision: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
    first: int = 0,
    tokens: int = 256,
    image: int = 24,
    microbatches: int = 2,
    precision: str = "bf16",
) -> Spec:
    """Return a spec with images of one size; language begins on rank `first`."""
    common = {"compile": False, **(each or {})}
    modules = {
        "vision": box(0, model=VIT | (vision or {}), **common),
        "language": box(first, model=DECODER | (decoder or {}), **common),
    }
    return spec(
        modules, mbs=2, seq=tokens, microbatches=microbatches,
        data={"kind": "synthetic", "text_only": 0.0, "image": [image, image]},
        train={"steps": 1, "precision": precision},
    )  # fmt: skip


def frozen(made: Spec) -> Spec:
    """Return a spec with vision frozen, and an adapter in language."""
    modules = {n: m.model_dump(by_alias=True) for n, m in made.modules.items()}
    modules["vision"]["frozen"] = True
    modules["language"]["adapter"] = {"rank": 4, "alpha": 8}
    return Spec.model_validate(made.model_dump(by_alias=True) | {"modules": modules})


STEPS = {
    "activations": (1, step()),
    "one microbatch": (1, step(microbatches=1)),
    "fp32": (1, step(precision="fp32")),
    "rows of three layers": (1, step(vision={"deepstack": [0, 1]})),
    "weights": (1, step(decoder=HEAVY, tokens=24, image=4)),
    "weights in one microbatch": (1, step(decoder=HEAVY, tokens=24, image=4, microbatches=1)),
    "dp 2": (2, step(each={"dp": 2})),
    "dp 2, fully sharded": (2, step(each={"dp": 2, "sharding": "full"})),
    "ranks of their own": (2, step(first=1)),
    "adapters on a frozen model": (1, frozen(step(tokens=64, image=8))),
    "adapters, dp 2": (2, frozen(step(each={"dp": 2}, tokens=64, image=8))),
}


SELDOM = ("one microbatch", "weights in one microbatch", "rows of three layers")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep if n in SELDOM else ()) for n in STEPS]
)
def test_a_step_allocates_what_the_estimate_says(name: str) -> None:
    ranks, made = STEPS[name]
    estimator = Estimator.of(Plan.of(made))
    for rank, measured in enumerate(run_on_running_ranks(most_alive, made, world_size=ranks)):
        [alike] = (each for each in estimator.classes if rank in each.ranks)
        memory = estimator.memory(alike)
        # Kernels of this processor have no workspace.
        assert memory.allocated - memory.workspace == pytest.approx(measured, rel=0.04)
