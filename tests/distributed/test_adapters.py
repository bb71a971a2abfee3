"""Adapters: on every layout, each trains as on one rank, and the weights below them stay."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from tests.distributed.test_checkpoints import make_spec, numbers, run, run_anew, run_on_rank
from tests.support.planted_experts import mixture
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, hybrid, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.kernel_times import StageKernels
from mimo_launch.kinds.weights import Weight
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layers import expert_adapters
from mimo_launch.layers.adapters import LowRank, _Updated
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.adapters import AdapterSpec
from mimo_launch.spec.module import ModuleSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished, WeightsLoaded
from mimo_launch.train.rank_session import RankSession

LORA = {"rank": 3, "alpha": 5.0}


def made(
    vision: dict[str, Any] | None = None, language: dict[str, Any] | None = None, **rest: Any
) -> Spec:
    """Vision and language with adapters."""
    modules = {
        "vision": box(**({"adapter": LORA} | (vision or {}))),
        "language": box(**({"adapter": LORA} | (language or {}))),
    }
    return spec(modules, **({"microbatches": 2, "mbs": 2} | rest))


EXPERTS = {**LORA, "targets": ["attention", "experts"]}
LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank": made,
    "tp 2": lambda: made({"tp": 2}, {"tp": 2}),
    "sequence parallel, heads shared": lambda: made(
        {"tp": 2, "dp": 2, "sequence_parallel": True},
        {"tp": 4, "sequence_parallel": True, "model": {"kv_heads": 2}},
    ),
    "queries and values alone": lambda: made(
        {"dp": 2, "adapter": {**LORA, "targets": ["q", "v"]}},
        {"tp": 4, "model": {"kv_heads": 1}, "adapter": {**LORA, "targets": ["v"], "rslora": True}},
        mbs=4,
    ),
    "dp 2, fully sharded": lambda: made(
        {"dp": 2, "sharding": "full"}, {"dp": 2, "sharding": "full"}
    ),
    "pp 2, tied": lambda: made({"dp": 2}, {"pp": 2, "model": {"tied": True}}),
    "cp 2, recomputed": lambda: made(
        {"cp": 2, "recompute": "full"}, {"cp": 2, "tp": 2, "first": 0, "recompute": "full"}
    ),
    "experts": lambda: made(
        {"dp": 4},
        {"tp": 2, "dp": 2, "experts": {"ep": 2}, "model": mixture(width=8)},
    ),
    "adapters of experts": lambda: made(
        {"dp": 4},
        {
            "tp": 2,
            "dp": 2,
            "experts": {"ep": 4},
            "adapter": EXPERTS,
            "model": mixture(width=8, shared=1),
        },
    ),
    "adapters of split experts": lambda: made(
        {"dp": 4},
        {
            "tp": 2,
            "dp": 2,
            "sequence_parallel": True,
            "experts": {"ep": 2, "tp": 2},
            "adapter": EXPERTS,
            "model": mixture(width=8),
            "sharding": "full",
            "recompute": "full",
        },
    ),
    "first stages without an adapter": lambda: made(
        {"dp": 2, "adapter": None, "frozen": True},
        {
            "pp": 3,
            "model": hybrid({"tp": 1}, "M-CM*-"),
            "adapter": {**LORA, "targets": ["attention"]},
        },
    ),
    "some layers alone": lambda: made(
        {"dp": 2, "model": {"layers": 2}, "frozen": {"layers": 0}},
        {"pp": 2, "model": {"layers": 4}, "frozen": {"layers": "0-2"}, "recompute": ["mlp"]},
    ),
    "trained projector": lambda: made({"dp": 2, "frozen": "except_projector"}, {"tp": 2}),
    "trained vision": lambda: made({"dp": 2, "adapter": None}, {"tp": 2}),
    "frozen language": lambda: made({"dp": 2}, {"tp": 2, "adapter": None, "frozen": True}),
    "packed documents": lambda: made({"dp": 2}, {"cp": 2}, packing=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_adapters_get_the_gradients_of_one_rank(layout: str) -> None:
    found = verdicts(LAYOUTS[layout]())
    assert not failures(found)
    assert sum(each.tensors for each in found if each.what == "gradients") > 0


@pytest.mark.parametrize("optimizer", [{}, {"kind": "muon", "lr": 0.01}], ids=["adamw", "muon"])
def test_only_adapters_move(optimizer: dict[str, Any]) -> None:
    """Adapters follow AdamW beside Muon, too."""
    assert not failures(training_verdicts(made({"tp": 2}, {"tp": 2}, optimizer=optimizer)))


def sum_over_tp_missing() -> None:
    """The terms of A's gradient stay on their ranks."""
    correct = ParallelContext._sum_of

    def complete(self: Any, weight: Weight) -> Any:
        kind, counted = correct(self, weight)
        return ("complete" if weight.role == "adapter" and kind == "partial" else kind), counted

    ParallelContext._sum_of = complete  # type: ignore[method-assign]


def scaled_twice() -> None:
    """An update is multiplied by its scale twice."""
    correct = _Updated.apply

    def apply(*args: Any) -> Any:
        *given, scale, packed = args
        return correct(*given, scale**2, packed)

    _Updated.apply = apply  # type: ignore[method-assign]


def sum_counts_once_for_each_rank() -> None:
    """The update of a map that ends a region is added after the sum over tp."""

    def forward(self: Any, x_Nf: Any, *_: Any) -> Any:
        out = self.context.leave(F.linear(x_Nf, self.weight))
        if self.adapter is None:
            return out
        return out + self.adapter.product(x_Nf, self.weight * 0, None, None)

    RowLinear.forward = forward  # type: ignore[method-assign]


def names_exchanged() -> None:
    """Keys get the update of values, and values that of keys."""
    correct = LowRank._placed

    def exchanged(self: Any, *args: Any) -> Any:
        queries, *found = correct(self, *args)
        if len(found) < 2:
            return queries, *found
        keys, values = found
        return queries, replace(keys, up=values.up), replace(values, up=keys.up)

    LowRank._placed = exchanged  # type: ignore[method-assign]


def stream_gets_no_gradient() -> None:
    """The gradient of an input lacks the part that comes through A and B."""
    correct = _Updated.backward

    def backward(ctx: Any, grad: Any) -> Any:
        ctx.drops = True
        return correct(ctx, grad)

    _Updated.backward = backward  # type: ignore[method-assign]


def root_forgotten() -> None:
    """`rslora` divides by the rank."""
    AdapterSpec.scale = property(lambda self: self.alpha / self.rank)  # type: ignore[assignment]


def expert_terms_stay() -> None:
    """Ranks that split an expert keep their terms of a gradient."""
    expert_adapters.enter_tp = lambda x, group: x


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "sum over tp": (sum_over_tp_missing, "tp 2"),
    "scale": (scaled_twice, "one rank"),
    "after the sum": (sum_counts_once_for_each_rank, "tp 2"),
    "exchanged": (names_exchanged, "one rank"),
    "input": (stream_gets_no_gradient, "one rank"),
    "terms of experts": (expert_terms_stay, "adapters of split experts"),
    "rslora": (root_forgotten, "queries and values alone"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_rejected(name: str) -> None:
    plant, layout = BUGS[name]
    assert failures(verdicts(LAYOUTS[layout](), prepare=plant)), f"{name} passes"


def base_trains() -> None:
    """The weights of a module with an adapter train."""
    ModuleSpec.body_trains = property(lambda self: self.frozen is False)  # type: ignore[assignment]


def test_no_map_with_an_update_trains() -> None:
    with pytest.raises(RankError, match="a map with an update is frozen"):
        verdicts(LAYOUTS["one rank"](), prepare=base_trains)


def adapted(layout: str, steps: int, **sections: Any) -> Spec:
    """A run of digits that trains an adapter of language, and all of vision."""
    return make_spec(layout, steps, modules={("language", "adapter"): LORA}, **sections)


def test_a_run_goes_on_on_another_layout(tmp_path: Path) -> None:
    alone = numbers(run(adapted("one rank", 5), tmp_path / "alone"))
    run(adapted("colocated dp4, tp2 dp2", 3), tmp_path / "run")
    went_on = numbers(run_anew(adapted("pp2", 5), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)


def test_an_adapter_begins_on_trained_weights_and_changes_nothing_at_first(tmp_path: Path) -> None:
    run(make_spec("one rank", 3), tmp_path / "base")
    init = {(name, "init_from"): str(tmp_path / "base") for name in ("vision", "language")}
    plain = make_spec("one rank", 1, modules=init)
    made = make_spec("disjoint dp2, tp2", 1, modules=init | {("language", "adapter"): LORA})
    found = run(made, tmp_path / "adapted")
    first = next(e for e in run(plain, tmp_path / "plain") if isinstance(e, StepFinished))
    mine = next(e for e in found if isinstance(e, StepFinished))
    assert mine.loss == pytest.approx(first.loss, rel=1e-12)
    loaded = [e for e in found if isinstance(e, WeightsLoaded) and e.module == "language"]
    assert [e.missing for e in loaded] == [()]


def first_loss(spec: Spec, folder: Path) -> float:
    """Return the loss of the first step, before an update."""
    return float(next(e for e in run(spec, folder) if isinstance(e, StepFinished)).loss)


def test_a_trained_adapter_stays_the_same_update_or_is_missed(tmp_path: Path) -> None:
    """Another factor goes into B; an adapter without a place is an error, not left out."""
    run(adapted("one rank", 3), tmp_path / "run")
    init = {(name, "init_from"): str(tmp_path / "run") for name in ("vision", "language")}

    def started(layout: str, adapter: object, **more: object) -> Spec:
        language = {("language", key): value for key, value in more.items()}
        modules = init | {("language", "adapter"): adapter} | language
        return make_spec(layout, 1, modules=modules)

    loss = first_loss(started("one rank", LORA), tmp_path / "same")
    other = started("disjoint dp2, tp2", {**LORA, "alpha": 20.0, "rslora": True})
    assert first_loss(other, tmp_path / "factor") == pytest.approx(loss, rel=1e-12)
    for adapter in ({**LORA, "targets": ["q"]}, None):
        with pytest.raises(RankError, match=r"does not fit: .*adapters without a place: .*lora_a"):
            # Without the checks, which refuse a start without an adapter before.
            run_ranks(run_on_rank, started("one rank", adapter), tmp_path / "less", world_size=1)
    for adapter in (None, {**LORA, "rank": 2}):
        (found,) = (each for each in check(started("one rank", adapter)) if each.is_error)
        assert found.code == "adapter-start-unlike"
        assert ("`init_partial: true` to start another" in found.help) == (adapter is not None)
        allowed = started("one rank", adapter, init_partial=True)
        assert not [each for each in check(allowed) if each.is_error]
    for adapter in ({**LORA, "targets": ["q"]}, None):
        resumed = make_spec("one rank", 5, modules={("language", "adapter"): adapter})
        with pytest.raises(RankError, match=r"(?s)cannot resume from it: .* there only: .*lora_a"):
            run_anew(resumed, tmp_path / "run")


def trained_numbers(spec: Spec) -> dict[str, int]:
    """Return the number of trained elements of each module on this rank."""
    with RankSession(Plan.of(spec)) as session:
        return {
            name: sum(p.numel() for p in module.parameters() if p.requires_grad)
            for name, module in session.modules.items()
        }


@pytest.mark.parametrize(
    "language",
    [
        {},
        {"model": mixture(width=8, shared=1), "adapter": EXPERTS},
        {"model": {"mtp": {"depth": 1}}},
        {"model": {"layers": 2}, "frozen": {"layers": 0}},
    ],
    ids=["dense", "experts", "depths, which have none", "layers, some of which have none"],
)
def test_the_plan_counts_what_trains(language: dict[str, Any]) -> None:
    asked = made({}, language)
    (found,) = run_on_running_ranks(trained_numbers, asked, world_size=1)
    (alike,) = Estimator.of(Plan.of(asked)).estimates().ranks
    planned: Counter[str] = Counter()
    for stage in alike.stages:
        planned[stage.module] += stage.trained_parameters
    assert planned == found


def backward_seconds(**language: Any) -> float:
    """Return the time of the kernels of language in a backward, in bf16."""
    model = {"hidden": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64, "mlp": 4096}
    made = spec({"vision": box(), "language": box(model=model, **language)}, seq=2048)
    train = made.train.model_copy(update={"precision": "bf16"})
    plan = Plan.of(made.model_copy(update={"train": train}))
    costs, module = Estimator.of(plan).model, plan.layout.language
    work, stage = costs.work["language"][0], module.stages[0]
    return StageKernels(plan.spec, plan.layout, module, stage, work, costs.constants).backward()


def test_an_adapter_costs_its_products_and_saves_gradients_of_weights() -> None:
    small, large = (backward_seconds(adapter={"rank": rank}) for rank in (4, 512))
    assert backward_seconds(frozen=True) < small < large
    assert small < backward_seconds()
