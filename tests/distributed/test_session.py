"""What a step does besides gradients: agreeing on bad numbers, skipping, updating."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.support.graphs import flow
from tests.support.planted_experts import mixture
from tests.support.poison import after_backwards
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from torch.multiprocessing.reductions import StorageWeakRef

from mimo_launch.comm.bridge_transfers import PostedTransfers
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.layout.step_data import StepData
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime import bridges
from mimo_launch.runtime.step_state import StepState
from mimo_launch.spec.spec import Spec
from mimo_launch.train import prefetch
from mimo_launch.train import step as step_module
from mimo_launch.train.events import StepFinished
from mimo_launch.train.loader import UnreadStep, step_inputs
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession


def two_modules(**sections: Any) -> Spec:
    """Vision dp 2 on ranks 0-1 in front of language dp 2 on ranks 2-3."""
    return spec({"vision": box(0, dp=2), "language": box(2, dp=2)}, microbatches=2, **sections)


def inputs_of(made: Spec, step: int) -> UnreadStep:
    dataset = build_dataset(made)
    order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, made.train.seed)
    return step_inputs(dataset, "train", order.ids(step), step)


def weights_of(session: RankSession) -> dict[str, torch.Tensor]:
    return {
        placed.name: local_tensor(declared.parameter.detach()).clone()
        for name in session.modules
        for declared in session.declared(name)
        for placed in declared.placed
    }


def train_with_a_nan(made: Spec) -> list[tuple[bool, float]]:
    """Run three steps; in the second one rank alone sees a NaN in a gradient."""
    seen = []
    with RankSession(Plan.of(made)) as session:

        def spoil(step: StepState) -> None:
            if step.data.step == 1 and session.rank == 1:
                declared = session.declared("vision")[0]
                local_tensor(declared.parameter.grad).view(-1)[0] = float("nan")

        after_backwards(session, spoil)
        before: list[dict[str, torch.Tensor]] = []

        def emit(event: Any) -> None:
            if isinstance(event, StepFinished):
                before.append(weights_of(session))
                seen.append((event.skipped, event.loss))

        train(session, emit)
        moved = [any(not torch.equal(a[name], b[name]) for name in a) for a, b in pairwise(before)]
    return [*seen, *[(m, 0.0) for m in moved]]


def test_all_ranks_skip_the_same_step_when_one_sees_a_nan() -> None:
    """The skipped step moves no weight on any rank; the next one does."""
    made = two_modules(train={"steps": 3, "precision": "fp64"})
    for result in run_on_running_ranks(train_with_a_nan, made, world_size=4):
        (first, _), (second, _), (third, _), (moved_in_second, _), (moved_in_third, _) = result
        assert (first, second, third) == (False, True, False)
        assert (moved_in_second, moved_in_third) == (False, True)


@dataclass(frozen=True)
class WithoutLabels(UnreadStep):
    """A step in which no token has a label."""

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        tokens, labels = super().text(sample)
        return tokens, np.full_like(labels, IGNORE_LABEL)


def metrics_without_labels(made: Spec) -> tuple[float, float]:
    inputs = inputs_of(made, 0)
    samples = tuple(replace(sample, num_labels=0) for sample in inputs.data.samples)
    empty = WithoutLabels(inputs.dataset, "train", StepData(inputs.data.step, samples))
    with RankSession(Plan.of(made)) as session:
        metrics = session.gradients(empty).read()
    return metrics.loss, metrics.norm


def test_a_step_without_labels_has_no_loss_and_no_gradient() -> None:
    assert (
        run_on_running_ranks(metrics_without_labels, two_modules(), world_size=4)
        == [(0.0, 0.0)] * 4
    )


def metrics_of_texts(made: Spec) -> tuple[float, float, float]:
    inputs = inputs_of(made, 0)
    with RankSession(Plan.of(made)) as session:
        metrics = session.gradients(inputs).read()
    return inputs.data.num_terms("flow"), metrics.loss, metrics.norm


def test_a_step_with_nothing_to_draw_still_learns_its_text() -> None:
    made = spec({"language": box(), "flow": box(**flow())}, text_only=1.0, mbs=2)
    [(drawn, loss, norm)] = run_on_running_ranks(metrics_of_texts, made, world_size=1)
    assert drawn == 0
    assert loss > 1
    assert norm > 0


def peaks_told(made: Spec) -> list[dict[str, int]]:
    """Train two steps; every look at its memory finds that rank r has 10 more, and 100 * r."""
    looks = count(100 * dist.get_rank(), 10)
    prefetch.peak_memory = step_module.peak_memory = lambda device: next(looks)
    found = []

    def emit(event: Any) -> None:
        if isinstance(event, StepFinished) and event.usage is not None:
            found.append(event.usage.peak_memory)

    with RankSession(Plan.of(made)) as session:
        train(session, emit)
    return found


def test_the_memory_of_a_module_is_the_largest_of_its_own_ranks() -> None:
    """Of ranks 0 and 1, which rank 0 asks now, or 2 and 3, when they read the step."""
    made = two_modules(train={"steps": 1, "precision": "fp64"})
    [found] = run_ranks(peaks_told, made, world_size=4)[0]
    assert 100 <= found["vision"] < 200
    assert 300 <= found["language"] < 400
    alone = spec({"vision": box(0), "language": box(1)}, train={"steps": 1, "precision": "fp64"})
    [found] = run_ranks(peaks_told, alone, world_size=2)[0]
    assert 10 <= found["vision"] < 100 <= found["language"]


def with_another_plan(made: Spec) -> None:
    if dist.get_rank() == 2:
        made = made.model_copy(update={"name": "other"})
    RankSession(Plan.of(made))


def test_ranks_with_different_plans_refuse_to_start() -> None:
    with pytest.raises(RankError, match="ranks hold different plans"):
        run_ranks(with_another_plan, two_modules(), world_size=4)


def buffers_of_sends(made: Spec) -> tuple[list[tuple[int, int]], int]:
    """Train; return the sends and buffers that this rank waited for, and how many are left."""
    found: list[tuple[int, int]] = []
    wait_all = bridges.wait_all

    def watched(pendings: Sequence[PostedTransfers]) -> None:
        found.extend((len(each.works), len(each.buffers)) for each in pendings)
        wait_all(pendings)

    with pytest.MonkeyPatch.context() as patch, RankSession(Plan.of(made)) as session:
        patch.setattr(bridges, "wait_all", watched)
        train(session, lambda event: None)
        return found, sum(len(bridge.posted) for bridge in session.executor.bridges.values())


def test_buffers_of_sends_live_until_the_step_ends_and_no_longer() -> None:
    made = spec(
        {"vision": box(0), "language": box(1, dp=2)},
        microbatches=2,
        train={"steps": 2, "precision": "fp64"},
    )
    (encoder, _), *_ = found = run_ranks(buffers_of_sends, made, world_size=3)
    assert encoder
    assert all(sends == buffers > 0 for sends, buffers in encoder)
    assert [left for _, left in found] == [0, 0, 0]


def groups_of_one(made: Spec) -> list[str]:
    found, new_group = [], dist.new_group

    def noted(ranks: list[int], **how: Any) -> Any:
        if len(ranks) == 1:
            found.append(how["group_desc"])
        return new_group(ranks, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", noted)
        with RankSession(Plan.of(made)):
            pass
    return found


def test_of_groups_of_one_rank_there_are_only_those_that_fsdp_needs() -> None:
    """On a GPU each group costs memory, and on many ranks time."""
    made = spec({"vision": box(0), "language": box(0, tp=2)})
    for found in run_ranks(groups_of_one, made, world_size=2):
        assert {name.rpartition(".")[2] for name in found} == {"dp_cp"}


def tensors_of(session: RankSession) -> dict[str, torch.Tensor]:
    """Return this rank's parts of weights, gradients and moments by name."""
    found = {}
    for name, module in session.modules.items():
        weights = list(module.parameters())
        found |= {f"weight {n} of {name}": weight for n, weight in enumerate(weights)}
        found |= {f"gradient {n} of {name}": weight.grad for n, weight in enumerate(weights)}
        for optimizer in session.updates.by_module[name]:
            for number, state in enumerate(optimizer.states().values()):
                found |= {f"{key} {number} of {name}": value for key, value in state.items()}
    return {name: local_tensor(each) for name, each in found.items() if each is not None}


def kept_after_close(made: Spec) -> tuple[int, list[str]]:
    """Run a step; return the number of tensors, and those in memory once the session is closed."""
    inputs = inputs_of(made, 0)
    gc.disable()
    try:
        with RankSession(Plan.of(made), randomise=True) as session:
            session.step(inputs).read()
            tensors = tensors_of(session)
            memory = {n: StorageWeakRef(each.untyped_storage()) for n, each in tensors.items()}
            tensors.clear()
        return len(memory), [name for name, each in memory.items() if not each.expired()]
    finally:
        gc.enable()


CLOSED = {
    "replicas": two_modules(train={"steps": 1, "precision": "bf16"}),
    "fully sharded": spec(
        {"vision": box(0, dp=2, sharding="full"), "language": box(2, dp=2, sharding="full")}
    ),
    "experts, kept on the host": spec(
        {
            "vision": box(0, dp=4, offload=["activations"]),
            "language": box(0, dp=4, model=mixture()),
        },
        train={"steps": 1, "precision": "bf16"},
    ),
    "recomputed": spec(
        {"vision": box(0, recompute="full"), "language": box(1, pp=3, recompute="full")},
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_session_keeps_no_tensors(name: str) -> None:
    """Not even until garbage is collected: the next session needs their memory."""
    for number, kept in run_on_running_ranks(kept_after_close, CLOSED[name], world_size=4):
        assert number >= 20
        assert kept == []


STEPS = 4
# Of each module: peak rate, weight decay, steps of warm-up. 0 is a value, not the common one.
MOVES = {"vision": (0.0, 0.5, 3), "depth": (0.2, 0.0, 0), "language": (0.1, 0.3, 3)}
BETAS, EPS = (0.7, 0.8), 0.05


Weights = dict[str, torch.Tensor]


def moved_weights(made: Spec) -> tuple[list[Weights], list[Weights]]:
    """Return gradients drawn for some steps, and the weights before and after each of them."""
    torch.manual_seed(0)
    gradients: list[Weights] = []
    with RankSession(Plan.of(made), randomise=True) as session:
        weights = [weights_of(session)]
        for step in range(STEPS):
            gradients.append({})
            for declared in (d for name in session.modules for d in session.declared(name)):
                declared.parameter.grad = torch.zeros_like(declared.parameter)
                drawn = local_tensor(declared.parameter.grad).normal_()
                gradients[step] |= {placed.name: drawn.clone() for placed in declared.placed}
            session.updates.apply(step)
            weights.append(weights_of(session))
    return gradients, weights


def test_adamw_moves_each_module_as_torch_does_with_its_settings() -> None:
    """Rates that warm up, betas, eps and decay; a module's own settings, 0 among them."""
    own = {
        name: {"optimizer": {"lr": lr, "weight_decay": decay, "warmup": warmup}}
        for name, (lr, decay, warmup) in MOVES.items()
        if name != "language"
    }
    made = spec(
        {
            "vision": box(0, **own["vision"]),
            "depth": box(0, **own["depth"]),
            "language": box(0, model=mixture()),
        },
        optimizer={
            "kind": "adamw", "lr": 0.1, "weight_decay": 0.3, "betas": BETAS, "eps": EPS,
            "schedule": {"warmup": 3},
        },
    )  # fmt: skip
    [(gradients, weights)] = run_ranks(moved_weights, made, world_size=1)
    for name, start in weights[0].items():
        lr, decay, warmup = MOVES[name.partition(".")[0]]
        spared = "norm" in name or name.endswith(".bias") or "embedding" in name
        weight = torch.nn.Parameter(start.clone())
        theirs = torch.optim.AdamW(
            [weight], betas=BETAS, eps=EPS, weight_decay=0.0 if spared else decay
        )
        for step in range(STEPS):
            theirs.param_groups[0]["lr"] = lr * min(1, (step + 1) / max(1, warmup))
            weight.grad = gradients[step][name]
            theirs.step()
            torch.testing.assert_close(
                weights[step + 1][name], weight.detach(), rtol=1e-12, atol=1e-12
            )


def norms_before_and_after(made: Spec) -> dict[str, tuple[float, float]]:
    """Apply one AdamW step of zero gradients: only weight decay moves weights."""
    with RankSession(Plan.of(made), randomise=True) as session:
        before = weights_of(session)
        for declared in (d for name in session.modules for d in session.declared(name)):
            declared.parameter.grad = torch.zeros_like(declared.parameter)
        session.updates.apply(0)
        after = weights_of(session)
    return {n: (float(before[n].norm()), float(after[n].norm())) for n in before}


TABLES = {"vision.positions.weight", "vision.class_token.weight", "language.embedding.weight"}


@pytest.mark.parametrize("embeddings", [False, True])
def test_embeddings_positions_and_class_tokens_decay_if_asked(embeddings: bool) -> None:
    """AdamW with zero gradients multiplies a decayed weight by 1 - lr * decay.

    Embeddings, a tied one on both of its stages, tables of positions and class tokens as asked.
    """
    tower = {"positions": "learned", "image": [2, 2], "class_token": True}
    vision = box(0, optimizer={"lr": 0.2, "weight_decay": 0.5}, model=tower)
    made = spec(
        {"vision": vision, "language": box(0, pp=2, model={"tied": True})},
        optimizer={
            "kind": "adamw",
            "lr": 0.1,
            "weight_decay": 0.1,
            **({"decay": {"embeddings": True}} if embeddings else {}),
        },
    )
    tables = set()
    for norms in run_on_running_ranks(norms_before_and_after, made, world_size=2):
        for name, (before, after) in norms.items():
            factor = 1 - (0.2 * 0.5 if name.startswith("vision") else 0.1 * 0.1)
            spared = "norm" in name or name.endswith(".bias")
            if name in TABLES:
                tables.add(name)
                spared = not embeddings
            assert after == pytest.approx(before * (1 if spared else factor), rel=1e-12), name
    assert tables == TABLES


def first_weights(made: Spec) -> dict[str, torch.Tensor]:
    with RankSession(Plan.of(made)) as session:
        return weights_of(session)


def test_a_model_starts_as_the_seed_of_training_says() -> None:
    """Every drawn weight is another under another seed, and the same under the same."""
    found = []
    for seed in (1, 1, 2):
        made = spec({"vision": box(0), "language": box(0)})
        made = made.model_copy(update={"train": made.train.model_copy(update={"seed": seed})})
        found += run_on_running_ranks(first_weights, made, world_size=1)
    first, again, other = found
    for name, weight in first.items():
        assert weight.equal(again[name]), name
        assert weight.equal(other[name]) == bool(weight.min() == weight.max()), name


def losses(made: Spec) -> list[float]:
    events: list[Any] = []
    with RankSession(Plan.of(made)) as session:
        train(session, events.append)
    return [e.loss for e in events if isinstance(e, StepFinished)]


def test_adamw_runs_alike_on_two_layouts_and_precisions_stay_close() -> None:
    """Five AdamW steps: dp 2 + dp 2 against one rank in float64; fp32 and bf16 near them."""
    common = {"optimizer": {"kind": "adamw", "lr": 1e-2, "weight_decay": 0.1, "clip": 1.0}}

    def run(precision: str, *, alone: bool) -> list[float]:
        sections = {**common, "train": {"steps": 5, "precision": precision}}
        if alone:
            modules = {"vision": box(0), "language": box(0)}
            made = spec(modules, microbatches=2, mbs=2, **sections)
            return run_on_running_ranks(losses, made, world_size=1)[0]
        return run_on_running_ranks(losses, two_modules(**sections), world_size=4)[0]

    exact = run("fp64", alone=True)
    assert run("fp64", alone=False) == pytest.approx(exact, rel=1e-9)
    assert run("fp32", alone=False) == pytest.approx(exact, rel=1e-4)
    assert run("bf16", alone=False) == pytest.approx(exact, rel=5e-2)


def clipped_step(made: Spec) -> list[tuple[float, float]]:
    """Return, per weight, how far it moved and how far clipped SGD should move it."""
    with RankSession(Plan.of(made), randomise=True) as session:
        before = weights_of(session)
        metrics = session.gradients(inputs_of(made, 0))
        gradients = {
            placed.name: local_tensor(declared.parameter.grad).clone()
            for name in session.modules
            for declared in session.declared(name)
            for placed in declared.placed
        }
        norm = metrics.read().norm
        session.update()
        after = weights_of(session)
    factor = made.optimizer.lr * min(1.0, made.optimizer.clip / norm)
    return [
        (float((before[n] - after[n]).norm()), float((factor * gradients[n]).norm()))
        for n in before
    ]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp64", 1e-9), ("fp32", 1e-4)])
@pytest.mark.parametrize("clip", [1e-3, 1e6])
def test_an_update_is_clipped_by_the_norm_of_all_modules(
    precision: str, tolerance: float, clip: float
) -> None:
    """A norm below the bound leaves gradients as they are. The factor of float64 is not rounded."""
    made = two_modules(
        optimizer={"kind": "sgd", "lr": 10.0, "clip": clip}, train={"precision": precision}
    )
    for weights in run_on_running_ranks(clipped_step, made, world_size=4):
        assert weights
        for moved, wanted in weights:
            assert moved == pytest.approx(
                wanted, rel=tolerance, abs=1e-6 if precision == "fp32" else 0
            )


def contexts_and_handles(made: Spec) -> dict[str, tuple[bool, bool]]:
    """Return which modules are compiled, and whose weights have a communicator to reduce over."""
    with RankSession(Plan.of(made)) as session:
        return {
            name: (
                module.context.compiled,
                session.grids.group(name, "dp", "cp").handle is not None,
            )
            for name, module in session.modules.items()
        }


def test_compiling_is_as_written_and_one_rank_has_no_communicator() -> None:
    made = two_modules()
    for name, value in {"vision": True, "language": "auto"}.items():
        module = made.modules[name].model_copy(update={"compile": value})
        made = made.model_copy(update={"modules": {**made.modules, name: module}})
    alone = spec({"language": box(0, compile=True)})
    found = run_ranks(contexts_and_handles, made, world_size=4)
    assert found[0] == {"vision": (True, True)}
    assert found[3] == {"language": (False, True)}
    assert run_ranks(contexts_and_handles, alone, world_size=1) == [{"language": (True, False)}]
