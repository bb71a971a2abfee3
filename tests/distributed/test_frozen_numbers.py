"""Weights that do not train: matrices in the type of products, and no shard beside a lone rank's.

What ranks hold and what they compute is compared with weights that are all held in fp32.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.support.exports import with_sections
from tests.support.hugging_face import made as made_of_text
from tests.support.hugging_face import save, tiny
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import stage_memory
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.values import NumberType, Precision
from mimo_launch.train.events import StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession

VIT = {"kind": "vit", "layers": 2, "hidden": 48, "heads": 4, "patch": 4}
DECODER = {"kind": "decoder", "layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 128}
MOE = {"moe": {"experts": 4, "top_k": 2, "width": 64}}
LORA = {"adapter": {"rank": 4, "alpha": 8}}


def asked(
    vision: dict[str, Any], language: dict[str, Any], precision: str = "bf16", **model: Any
) -> Spec:
    """Return a spec of two modules; `model` changes language."""
    return spec(
        {
            "vision": box(0, model=VIT, **vision),
            "language": box(0, model=DECODER | model, **language),
        },
        mbs=2,
        seq=64,
        microbatches=2,
        train={"steps": 3, "precision": precision},
        optimizer={"lr": 0.01},
    )


STEPS = {
    "one rank": (1, asked({"frozen": True}, LORA)),
    "a frozen language": (1, asked({}, {"frozen": True})),
    "layers": (1, asked({"frozen": "except_projector"}, {"frozen": {"layers": "0-1"}})),
    "experts": (2, asked({"dp": 2, "frozen": True}, {"dp": 2, "experts": {"ep": 2}} | LORA, **MOE)),
    "dp 2": (2, asked({"dp": 2, "frozen": True}, {"dp": 2} | LORA)),
    "tp 2": (2, asked({"tp": 2, "frozen": True}, {"tp": 2} | LORA)),
    "full": (2, asked({"dp": 2}, {"dp": 2, "sharding": "full"} | LORA)),
    "over one": (2, asked({"dp": 2}, {"dp": 2, "shard_over": 1} | LORA)),
}


def stored(numbers: Precision, *, trains: bool, ndim: int) -> NumberType:
    """Return the type of all weights that train."""
    return numbers.stored


def run(made: Spec, wide: bool) -> tuple[list[float], dict[str, int]]:
    """Return losses and norms of each step, and the bytes that this rank holds of each module."""
    held = stored if wide else Precision.held
    with patch.object(Precision, "held", held), RankSession(Plan.of(made)) as session:
        holds = {
            name: sum(local_tensor(each).nbytes for each in module.parameters())
            for name, module in session.modules.items()
        }
        events: list[Any] = []
        train(session, events.append)
    steps = [each for each in events if isinstance(each, StepFinished)]
    return [value for each in steps for value in (each.loss, each.grad_norm)], holds


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_weights_in_fp32(name: str) -> None:
    ranks, made = STEPS[name]
    narrow = run_on_running_ranks(run, made, False, world_size=ranks)
    wide = run_on_running_ranks(run, made, True, world_size=ranks)
    for (found, holds), (expected, held) in zip(narrow, wide, strict=True):
        assert found == expected
        assert sum(holds.values()) < sum(held.values())


@pytest.mark.parametrize("name", STEPS)
def test_a_plan_counts_what_ranks_hold(name: str) -> None:
    ranks, made = STEPS[name]
    plan = Plan.of(made)
    work = Estimator.of(plan).model.work
    (_, holds), *_ = run_on_running_ranks(run, made, False, world_size=ranks)
    for module in plan.layout.modules:
        parts = plan.spec, plan.layout, module, module.stages[0]
        estimated = stage_memory(*parts, work[module.name][0], 0)
        assert estimated.weights == pytest.approx(holds[module.name], rel=0.02)


@pytest.mark.parametrize(
    ("dtype", "saved", "words"),
    [
        (torch.float32, {}, ["float32"]),
        (torch.float16, {}, ["float16"]),
        (torch.bfloat16, {}, []),
        (torch.float32, {"frozen_weights": False}, []),
    ],
)
def test_bits_that_checkpoints_would_lose_are_named(
    dtype: torch.dtype, saved: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    save(tiny("llama").to(dtype), tmp_path)
    made = made_of_text("llama", "one rank", tmp_path, "bf16", **LORA)
    made = with_sections(made, checkpoint={"every": 1, **saved})
    found = [each for each in check(made) if "frozen weights" in each.headline]
    assert [each.headline for each in found] == [
        f"frozen weights of `language` are {word} in {tmp_path}, and bfloat16 in this run"
        for word in words
    ]
    assert not any(each.is_error for each in found)
