"""Muon on one rank: beside torch.optim.Muon, its FLOPs and its bytes."""

from datetime import timedelta

import pytest
import torch
from tests.support.memory import memory_of
from tests.support.planted_experts import mixture
from tests.support.specs import box, spec
from tests.unit.test_module_optimizers import alone  # noqa: F401 - a job of one rank.
from torch.utils.flop_counter import FlopCounterMode

from mimo_launch.checks.training_settings import own_optimizer_used
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.models.build import build_modules
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.optimizer.muon import orthogonalised
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.optimizers import MUON, RULES, OptimizerSpec
from mimo_launch.spec.spec import Spec

SETTINGS = {"kind": "muon", "lr": 0.1, "momentum": 0.8, "ns_steps": 5, "weight_decay": 0.1}


def asked(precision: str = "bf16") -> Spec:
    module = box(0, model={"hidden": 24, **mixture()})
    train = {"steps": 4, "precision": precision}
    return spec({"language": module}, train=train, optimizer=SETTINGS, text_only=1.0)


def test_in_bf16_updates_are_those_of_torch() -> None:
    """Two steps, each weight by itself, unfused: torch.optim.Muon for matrices, AdamW for others.

    Products of several matrices at once may round otherwise, so updates agree as bf16 does.
    """
    made = asked()
    plan = Plan.of(made)
    grids = GridSet(plan, 0, timeout=timedelta(seconds=9), device=torch.device("cpu"))
    modules = build_modules(made, plan.layout, grids)
    (module,) = modules.values()
    module.unfilled.draw()
    declared = [each for each in module.declared() if each.parameter.requires_grad]
    theirs, names = {}, {True: [], False: []}
    for each in declared:
        for placed in each.placed:
            values = local_tensor(each.parameter.detach())[placed.first_row : placed.last_row]
            theirs[placed.name] = values.clone().requires_grad_()
            decays = each.decays(embeddings=False)
            names[each.is_matrix].append((placed.name, decays))
    matrices = [theirs[name] for name, _ in names[True]]
    assert {"language.layers.0.attention.k.weight", "language.layers.1.mlp.experts.3.up.weight"} & {
        name for name, _ in names[True]
    }
    assert "language.head.weight" in dict(names[False])
    settings = made.optimizer
    moved = torch.optim.Muon(
        matrices, lr=0.1, momentum=0.8, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    rest = torch.optim.AdamW(
        [
            {"params": [theirs[n] for n, d in names[False] if d is decays], "weight_decay": rate}
            for decays, rate in ((True, 0.1), (False, 0.0))
        ],
        lr=0.1, betas=settings.betas, eps=settings.eps,
    )  # fmt: skip
    start = {name: weight.detach().clone() for name, weight in theirs.items()}
    updates, generator = Updates(made, modules), torch.Generator().manual_seed(0)
    for number in range(2):
        for each in declared:
            grad = torch.randn(each.parameter.shape, generator=generator)
            each.parameter.grad = torch.zeros_like(each.parameter)
            local_tensor(each.parameter.grad).copy_(grad)
            for placed in each.placed:
                theirs[placed.name].grad = grad[placed.first_row : placed.last_row].clone()
        (first, _) = updates.by_module["language"]
        first.torch.orthogonalise(module, grids, torch.zeros(()), None)
        updates.apply(number)
        moved.step()
        rest.step()
    for each in declared:
        for placed in each.placed:
            got = local_tensor(each.parameter.detach())[placed.first_row : placed.last_row]
            right = theirs[placed.name].detach()
            size = (right - start[placed.name]).norm()
            assert (got - right).norm() <= (2e-2 if each.is_matrix else 1e-5) * size, placed.name


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_the_table_counts_the_flops_of_newton_schulz(shape: tuple[int, int]) -> None:
    settings = OptimizerSpec.model_validate(SETTINGS)
    with FlopCounterMode(display=False) as counter:
        orthogonalised(torch.ones(1, *shape), settings.ns_steps)
    assert MUON.flops is not None
    assert counter.get_total_flops() == MUON.flops(settings, *shape)


def test_singular_values_become_about_one() -> None:
    made = orthogonalised(torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(1)), 5)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_matrix_without_a_gradient_rests() -> None:
    assert not orthogonalised(torch.zeros(1, 4, 8), 5).any()


@pytest.mark.parametrize("kind", RULES)
def test_estimated_bytes_of_state_are_those_of_a_run(kind: str) -> None:
    """One momentum per number of a matrix, two moments of any other weight."""
    made = asked("fp64").model_copy()
    made = made.replace(optimizer=made.optimizer.replace(kind=kind))
    plan = Plan.of(made)
    grids = GridSet(plan, 0, timeout=timedelta(seconds=9), device=torch.device("cpu"))
    updates = Updates(made, build_modules(made, plan.layout, grids))
    kept = sum(
        local_tensor(tensor).nbytes
        for optimizer in updates.by_module["language"]
        for state in optimizer.states().values()
        for name, tensor in state.items()
        if name in optimizer.rule.state
    )
    assert memory_of(made, "language").moments == kept


def test_a_class_of_a_user_has_no_matrices() -> None:
    model = {"kind": "tests.support.custom_encoders:Mixer"}
    modules = {"vision": box(0, model=model, optimizer={"kind": "muon"}), "language": box(0)}
    (warning,) = own_optimizer_used(spec(modules), "vision")
    assert warning.headline == "`kind: muon` of `vision` does nothing"
    assert not list(own_optimizer_used(spec({**modules, "vision": box(0)}), "vision"))
