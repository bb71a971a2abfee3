"""Every setting of an optimizer, and the seed, reaches the weights of a module on one rank."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.specs import box, spec

from mimo_launch.checks.training_settings import optimizer_settings_used
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.data.build import build_dataset
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.models.build import RankModule, build_modules
from mimo_launch.optimizer.module_optimizers import Updates, rate_at
from mimo_launch.optimizer.sgd import LocalSGD
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.optimizers import ADAMW, RULES, SGD
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

LR = 0.5


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def asked(seed: int = 0, model: dict[str, Any] | None = None, **optimizer: Any) -> Spec:
    """A decoder alone, whose updates have no warm-up."""
    plain = {"lr": LR, "clip": None, "schedule": {"kind": "constant"}}
    modules = {"language": box(0, model=model or {})}
    return spec(modules, train={"steps": 4, "seed": seed, "precision": "fp64"},
                optimizer=plain | optimizer)  # fmt: skip


def built(made: Spec) -> dict[str, RankModule]:
    plan = Plan.of(made)
    grids = GridSet(plan, 0, timeout=timedelta(seconds=9), device=torch.device("cpu"))
    modules = build_modules(made, plan.layout, grids)
    for module in modules.values():
        module.unfilled.draw()
    return modules


def values(modules: dict[str, RankModule]) -> dict[str, torch.Tensor]:
    return {
        placed.name: local_tensor(each.parameter.detach()).clone()
        for module in modules.values()
        for each in module.declared()
        for placed in each.placed
    }


def updated(made: Spec, *gradients: float) -> tuple[dict[str, torch.Tensor], ...]:
    """Return all weights before and after steps in which every gradient is the same number."""
    modules = built(made)
    before, updates = values(modules), Updates(made, modules)
    for number, gradient in enumerate(gradients):
        for parameter in modules["language"].parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        updates.apply(number)
    return before, values(modules)


def test_initial_weights_are_those_of_the_seed() -> None:
    first, again, other = (values(built(asked(seed))) for seed in (0, 0, 1))
    name = "language.layers.0.attention.q.weight"
    assert first[name].equal(again[name])
    assert not first[name].equal(other[name])


def test_betas_and_eps_are_those_of_the_spec() -> None:
    """Two steps of AdamW by hand (arXiv:1711.05101, algorithm 2), without decay."""
    betas, eps, gradients = (0.5, 0.75), 0.25, (1.0, -0.25)
    made = asked(kind="adamw", betas=betas, eps=eps, weight_decay=0.0)
    m = v = moved = 0.0
    for number, gradient in enumerate(gradients, start=1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        root = (v / (1 - betas[1] ** number)) ** 0.5
        moved -= LR * m / (1 - betas[0] ** number) / (root + eps)
    before, after = updated(made, *gradients)
    for name, start in before.items():
        assert torch.allclose(after[name] - start, torch.full_like(start, moved)), name


def test_routers_and_experts_decay_and_norms_do_not() -> None:
    """Tables of embeddings do if the spec says so."""
    moe = {"experts": 4, "top_k": 2, "width": 8, "aux_loss": 0.0}
    before, after = updated(asked(model={"moe": moe}, kind="sgd", weight_decay=0.25), 0.0)
    decayed = {n for n, start in before.items() if torch.allclose(after[n], start * (1 - LR / 4))}
    kept = {name for name, start in before.items() if after[name].equal(start)}
    assert decayed | kept == set(before)
    assert {name for name in decayed if ".router." in name}
    assert {name for name in before if "norm" in name or "embedding" in name} == kept
    tables = asked(kind="sgd", weight_decay=0.25, decay={"embeddings": True})
    before, after = updated(tables, 0.0)
    assert {name for name in before if after[name].equal(before[name])} == {
        name for name in before if "norm" in name
    }


@pytest.mark.parametrize(("own", "rate"), [(None, LR), (0.0, 0.0), (0.125, 0.125)])
def test_a_module_may_have_a_rate_of_its_own_even_0(own: float | None, rate: float) -> None:
    made = spec(
        {"language": box(0, optimizer={"lr": own})},
        optimizer={"lr": LR, "schedule": {"kind": "constant"}},
    )
    assert rate_at(made, 3, "language") == rate


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_step_without_a_gradient_is_one_with_a_gradient_of_0(kind: str) -> None:
    """Decay acts and moments go on, with every optimizer alike."""
    decay, betas, eps, gradients = 0.25, (0.5, 0.75), 0.25, (1.0, 0.0, 0.0)
    made = asked(kind=kind, betas=betas, eps=eps, weight_decay=decay)
    before, after = updated(made, *gradients)
    name = "language.layers.0.attention.q.weight"
    right, m, v = before[name], 0.0, 0.0
    for number, gradient in enumerate(gradients, start=1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        moved = m / (1 - betas[0] ** number) / ((v / (1 - betas[1] ** number)) ** 0.5 + eps)
        right = right * (1 - LR * decay) - LR * (moved if kind == "adamw" else gradient)
    assert torch.allclose(after[name], right)
    assert not torch.allclose(after[name], before[name] - LR * gradients[0])


@pytest.mark.parametrize("kind", RULES)
def test_a_weight_keeps_the_state_that_its_rule_names(kind: str) -> None:
    """Before the first update, too: a checkpoint of step 0 has it."""
    made = asked(kind=kind)
    modules = built(made)
    updates = Updates(made, modules)
    optimizers = updates.by_module["language"]
    assert [each.rule for each in optimizers] == list(RULES[kind])
    for _ in range(2):
        kept = [(each.rule, state) for each in optimizers for state in each.states().values()]
        assert len(kept) == (len(list(modules["language"].parameters())) if kept else 0)
        for rule, state in kept:
            assert tuple(name for name in state if name != "step") == rule.state
        for parameter in modules["language"].parameters():
            parameter.grad = torch.ones_like(parameter)
        updates.apply(0)


def test_a_rule_for_matrices_leaves_all_other_weights_to_the_next_one() -> None:
    made = asked(kind="sgd")
    modules = built(made)
    matrices = replace(SGD, matrices_only=True)
    layout = replace(modules["language"].layout, rules=(matrices, ADAMW))
    first, second = Updates(
        made, {"language": replace(modules["language"], layout=layout)}
    ).by_module["language"]
    names = {
        id(each.parameter): each.placed[0].name.rpartition("layers.0.")[2]
        for each in modules["language"].declared()
    }
    held = [
        {names[id(weight)] for group in each.torch.param_groups for weight in group["params"]}
        for each in (first, second)
    ]
    assert (first.rule, second.rule) == (matrices, ADAMW)
    assert "attention.o.weight" in held[0]
    assert {"attention_norm.weight", "language.embedding.weight"} <= held[1]


def test_a_setting_is_used_if_any_module_reads_it() -> None:
    """One module of two follows SGD, so that betas count for the other; then both do."""
    data = asked(kind="adamw", betas=(0.5, 0.75)).model_dump(mode="json", by_alias=True)
    data["modules"] = {"vision": box(0), "language": box(0, optimizer={"kind": "sgd"})}
    made = spec(data["modules"], optimizer=data["optimizer"])
    assert not list(optimizer_settings_used(made))
    alone = spec({"language": data["modules"]["language"]}, optimizer=data["optimizer"])
    assert [each.headline for each in optimizer_settings_used(alone)] == [
        "`betas` does nothing with `kind: sgd`"
    ]


def moved(made: Spec) -> dict[str, bool]:
    """Return whether each weight of language moves in a step of training."""
    dataset = build_dataset(made)
    inputs = step_inputs(dataset, "train", tuple(range(made.batch.global_)), 0)
    session = RankSession(Plan.of(made), randomise=True)
    before = values(session.modules)
    session.step(inputs)
    return {name: not new.equal(before[name]) for name, new in values(session.modules).items()}


# What else language says, and which of its weights train then.
TRAINED: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "everything": ({}, lambda name: True),
    "the upper layer": (
        {"frozen": {"layers": "0"}},
        lambda name: not name.startswith(("language.layers.0.", "language.embedding.")),
    ),
    "adapters": ({"adapter": {"rank": 2}}, lambda name: "lora_" in name),
}


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("kind", RULES)
def test_a_step_moves_all_that_trains_and_nothing_else(kind: str, trained: str) -> None:
    """Biases of experts, too: they move with their router, though no optimizer has them."""
    more, trains = TRAINED[trained]
    moe = {"experts": 4, "top_k": 2, "width": 8, "bias_update_rate": 0.5}
    language = box(0, model={"layers": 2, "moe": moe}, **more)
    plain = {"kind": kind, "lr": LR, "schedule": {"kind": "constant"}}
    made = spec({"language": language}, train={"precision": "fp64"}, optimizer=plain, mbs=4, seq=24)
    found = moved(made)
    assert found == {name: trains(name) for name in found}
    assert sum(name.endswith("expert_bias") for name in found) == 2


def test_a_weight_that_a_class_of_a_user_freezes_stays() -> None:
    vision = box(0, model={"kind": "tests.support.custom_encoders:Partly"})
    plain = {"lr": LR, "schedule": {"kind": "constant"}}
    found = moved(spec({"vision": vision}, optimizer=plain, mbs=4))
    own = {name: moves for name, moves in found.items() if name.startswith("vision.")}
    assert own == {name: not name.endswith(".channels.weight") for name in own}
    assert list(own.values()).count(False) == 1


def test_plain_descent_forgets_earlier_gradients() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    groups = [{"params": [weight], "weight_decay": 0.0, "lr": LR}]
    descent = LocalSGD(groups, asked(kind="sgd").optimizer)
    for step in range(1, 4):
        weight.grad = torch.tensor([1.0, -2.0])
        descent.step()
        assert weight.tolist() == [-LR * step, 2 * LR * step]
