"""Every file in topologies/ is right in float64 and runs in every precision."""

from pathlib import Path

import pytest
from tests.support.proof import failures, verdicts
from tests.support.running_ranks import run_on_running_ranks

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import EvalFinished, Event, StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.shrink import shrink

TOPOLOGIES = sorted(Path("topologies").glob("*.yaml"))
BENCH = sorted(Path("topologies/bench").glob("*.yaml"))
BENCH_IN_DEFAULT_SUITE = {
    "r1_dp1_dp3", "long_vision_in_language_grid_cp4", "omni_3b_colocated",
}  # fmt: skip


def load(path: Path, *overrides: str) -> Spec:
    checked = load_and_check(path, overrides)
    assert checked.spec is not None, checked.diagnostics
    return checked.spec


def run_steps(spec: Spec) -> list[Event]:
    """Train on one rank of many and return what was emitted."""
    events: list[Event] = []
    with RankSession(Plan.of(spec)) as session:
        train(session, events.append)
    return events


def losses(spec: Spec) -> list[float]:
    events = run_on_running_ranks(run_steps, spec, world_size=world_size(spec))[0]
    return [event.loss for event in events if isinstance(event, StepFinished)]


# Close to others in the default suite, here or in tests of one feature (adapters, recomputation,
# frozen parts, full sharding, packing): these follow with `nox -s sweep`.
LIKE_OTHERS = {
    "adapters", "all_text", "frozen_except_projector", "full_sharding", "packed_documents",
    "qwen3_vl_8b_lora", "recompute", "three_encoders",
    "colocated_fan_out", "colocated_one_to_one", "colocated_pp2_dp_outermost",
    "colocated_pp2_fan_out", "cp2_fan_in", "cp2_fan_out", "cp2_fan_out_sequence_parallel",
    "cp2_sequence_parallel", "disjoint_fan_in_4_1", "disjoint_fan_out_1_3", "disjoint_one_to_one",
    "disjoint_pp2", "frozen_encoder", "gpipe", "hybrid", "pixel_shuffle", "sequence_parallel",
    "two_encoders",
}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=pytest.mark.sweep if p.stem in LIKE_OTHERS else (), id=p.stem)
        for p in TOPOLOGIES
    ],
)
def test_a_topology_computes_the_one_rank_gradients(path: Path) -> None:
    """Oracle 5 in float64: loss, norms, every gradient, the clipped update; two steps."""
    assert failures(verdicts(load(path), steps=2)) == []


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            p, marks=() if p.stem in BENCH_IN_DEFAULT_SUITE else pytest.mark.sweep, id=p.stem
        )
        for p in BENCH
    ],
)
def test_the_layout_of_a_benchmark_computes_the_one_rank_gradients(path: Path) -> None:
    """The same proof on the grids, schedule and kinds of layers of topologies/bench, shrunk."""
    assert failures(verdicts(load(path), steps=2, timeout_s=300)) == []


@pytest.mark.parametrize(
    "microbatches", [1, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 5))]
)
@pytest.mark.parametrize(
    "name",
    [
        "colocated_pp2",
        pytest.param("colocated_pp2_dp_outermost", marks=pytest.mark.sweep),
        pytest.param("colocated_pp2_fan_out", marks=pytest.mark.sweep),
    ],
)
def test_phases_are_right_for_few_and_many_microbatches(name: str, microbatches: int) -> None:
    """One, two and five groups or microbatches, with both orders of pp and dp."""
    spec = load(
        Path(f"topologies/{name}.yaml"),
        f"schedule.microbatches={microbatches}",
        "schedule.encoder_microbatches=1",
        f"batch.global={8 * microbatches}",
    )
    assert failures(verdicts(spec)) == []


# One of each kind; the other topologies follow with `nox -s sweep`.
IN_DEFAULT_SUITE = {"frozen_except_projector"}
# Their layouts train small models here.
OF_PUBLISHED_MODELS = {"qwen2_5_32b_qlora", "qwen3_vl_8b_lora"}


def short(path: Path, precision: str) -> Spec:
    """Return a run of three AdamW steps on the layout of a topology."""
    if path.stem not in OF_PUBLISHED_MODELS:
        return load(path, "train.steps=3", "eval=null", f"train.precision={precision}")
    whole = load(path)
    small = shrink(whole)
    train = small.train.replace(steps=3, precision=precision)
    return small.replace(train=train, optimizer=whole.optimizer)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=() if p.stem in IN_DEFAULT_SUITE else pytest.mark.sweep, id=p.stem)
        for p in TOPOLOGIES
    ],
)
def test_a_topology_trains_in_fp32_and_bf16(path: Path) -> None:
    """Three AdamW steps complete and follow those in float64."""
    exact, single, low = (losses(short(path, each)) for each in ("fp64", "fp32", "bf16"))
    assert single[0] == pytest.approx(exact[0], rel=1e-5)
    assert len(exact) == 3
    assert single == pytest.approx(exact, rel=1e-3)
    assert low == pytest.approx(exact, rel=5e-2)


def test_evaluation_is_the_same_on_every_layout() -> None:
    """Held-out loss and digit accuracy in float64: one rank against fan-in over disjoint ranks."""
    settings = ["train.steps=2", "eval.samples=40", "train.precision=fp64", "optimizer.kind=sgd"]
    wide = load(Path("topologies/quickstart.yaml"), *settings)
    alone = wide.model_copy(
        update={
            "modules": {
                name: module.model_copy(
                    update={"ranks": "0", "grid": module.grid.model_copy(update={"tp": 1, "dp": 1})}
                )
                for name, module in wide.modules.items()
            }
        }
    )
    found = [
        next(
            e
            for e in run_on_running_ranks(run_steps, s, world_size=world_size(s))[0]
            if isinstance(e, EvalFinished)
        )
        for s in (wide, alone)
    ]
    assert found[0].eval_loss == pytest.approx(found[1].eval_loss, rel=1e-9)
    assert found[0].digit_accuracy == found[1].digit_accuracy
    assert found[0].samples == found[1].samples == 40
