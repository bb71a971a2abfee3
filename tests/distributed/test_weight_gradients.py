"""In bf16 the weight gradients of a step are sums in fp32, whoever adds them.

No proof in float64 sees these sums: there autograd adds.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.comm.world import DeviceKind, device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.parameter_segments import SegmentedModule, local_tensor
from mimo_launch.layout.layout import world_size
from mimo_launch.models import fsdp
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

DEEP = {"layers": 3, "hidden": 64, "heads": 4}
Case = dict[str, Any]

# Modules, and what else of a spec.
CASES: dict[str, Case] = {
    "one microbatch": {"vision": {"dp": 2}, "language": {"dp": 2}, "microbatches": 1},
    "eight": {"vision": {"dp": 2}, "language": {"dp": 2}, "microbatches": 8},
    "some without rows": {
        "vision": {},
        "language": {"first": 1},
        "microbatches": 8,
        "text_only": 0.7,
    },
    "tp, shared keys": {
        "vision": {"tp": 2, "recompute": "full"},
        "language": {
            "tp": 4,
            "sequence_parallel": True,
            "recompute": "full",
            "model": {"kv_heads": 2, "tied": True, "qk_norm": True},
        },
        "microbatches": 4,
    },
    "cp and pp": {"vision": {"dp": 2}, "language": {"cp": 2, "pp": 2}, "microbatches": 4},
    "projector only": {
        "vision": {"dp": 2, "frozen": "except_projector"},
        "language": {"dp": 2, "frozen": True},
        "microbatches": 4,
    },
}


def made(case: Case, precision: str) -> Spec:
    vision, language, more = dict(case["vision"]), dict(case["language"]), dict(case)
    del more["vision"], more["language"]
    model = {**DEEP, **language.pop("model", {})}
    modules = {"vision": box(**vision), "language": box(**language, model=model)}
    return spec(modules, mbs=2, train={"precision": precision}, **more)


def gradients_of(
    spec: Spec, in_products: bool, device: DeviceKind = "cpu"
) -> tuple[int, dict[str, Tensor]]:
    """Return how many layers add gradients by themselves, and those of this rank's shards."""
    before = fsdp.accumulate_in_products
    if not in_products:
        fsdp.accumulate_in_products = lambda unit: None
    try:
        return _gradients(spec, device_for(device, dist.get_rank()))
    finally:
        fsdp.accumulate_in_products = before


def _gradients(spec: Spec, device: torch.device) -> tuple[int, dict[str, Tensor]]:
    inputs = step_inputs(build_dataset(spec), "train", tuple(range(spec.batch.global_)), 0)
    with RankSession(Plan.of(spec), device=device) as session:
        layers = [
            layer
            for module in session.modules.values()
            for stage in module.stages.values()
            for layer in stage.modules()
            if isinstance(layer, SegmentedModule)
        ]
        adding = sum(getattr(layer, "weight_gradients", None) is not None for layer in layers)
        session.gradients(inputs)
        return adding, {
            f"{name}.{number}": local_tensor(item.parameter.grad).double().cpu().clone()
            for name in session.modules
            for number, item in enumerate(session.declared(name))
            if item.parameter.grad is not None
        }


SELDOM = {"tp, shared keys", "projector only"}  # Which nox -s sweep runs, too.


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep if n in SELDOM else ()) for n in CASES]
)
def test_sums_in_products_are_no_worse_than_sums_by_fsdp(name: str) -> None:
    exact, mine, theirs = (
        run_on_running_ranks(gradients_of, spec, in_products, world_size=world_size(spec))
        for spec, in_products in runs_of(CASES[name])
    )
    judge(exact, mine, theirs)


def runs_of(case: Case) -> list[tuple[Spec, bool]]:
    """Return what to compare: in float64, in bf16 with sums in products, in bf16 with FSDP2's."""
    return [(made(case, "fp64"), False), (made(case, "bf16"), True), (made(case, "bf16"), False)]


def judge(exact: list[Any], mine: list[Any], theirs: list[Any]) -> None:
    """Fail if sums in products are further from the truth than those of FSDP2."""
    assert all(adding == 0 for adding, _ in (*exact, *theirs))
    assert all(adding > 0 for adding, _ in mine)
    want, got, other = (
        {(r, k): t for r, (_, of) in enumerate(ranks) for k, t in of.items()}
        for ranks in (exact, mine, theirs)
    )
    assert want.keys() == got.keys() == other.keys()
    assert 0 < error(got, want) <= 1.05 * error(other, want) < 0.05


def types_between_backwards(spec: Spec, plant: bool) -> set[torch.dtype]:
    """Return the types in which gradients of experts wait for the backwards that follow."""
    before = fsdp.MixedPrecisionPolicy

    def policy(**given: Any) -> Any:
        return before(**{**given, "reduce_dtype": given["param_dtype"]})

    if plant:
        fsdp.MixedPrecisionPolicy = policy  # type: ignore[assignment, misc]
    seen: set[torch.dtype] = set()
    inputs = step_inputs(build_dataset(spec), "train", tuple(range(spec.batch.global_)), 0)
    try:
        with RankSession(Plan.of(spec)) as session:
            (network,) = session.modules["language"].stages.values()
            units: list[Any] = [m for m in network.modules() if isinstance(m, Experts)]
            weights = [p for m in units for p in m._get_fsdp_state()._fsdp_param_group.fsdp_params]
            correct = session.executor.stages.backward

            def backward(*args: Any) -> None:
                correct(*args)
                for weight in weights:
                    waiting = weight.unsharded_accumulated_grad
                    if waiting is None and hasattr(weight, "_unsharded_param"):
                        waiting = weight.unsharded_param.grad
                    seen.update(() if waiting is None else (waiting.dtype,))

            session.executor.stages.backward = backward  # type: ignore[method-assign]
            session.gradients(inputs)
    finally:
        fsdp.MixedPrecisionPolicy = before  # type: ignore[misc]
    return seen


def test_gradients_of_experts_wait_in_fp32() -> None:
    """Their products are grouped and cannot add to a sum, so FSDP2 does."""
    moe = {"experts": 4, "top_k": 2, "width": 16}
    case: Case = {"vision": {"dp": 2}, "microbatches": 4}
    case["language"] = {"dp": 2, "experts": {"ep": 2}, "model": {"moe": moe}}
    for plant, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        found = run_ranks(types_between_backwards, made(case, "bf16"), plant, world_size=2)
        assert found == [{dtype}] * 2


def error(found: dict[Any, Tensor], want: dict[Any, Tensor]) -> float:
    squares = sum(float((found[k] - want[k]).square().sum()) for k in want)
    return (squares / sum(float(w.square().sum()) for w in want.values())) ** 0.5
