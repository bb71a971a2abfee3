"""Bounds that need no plan: never above the estimates of a plan, and not far below."""

from dataclasses import replace
from itertools import islice
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.poor_specs import B7, IMAGES, POOR, TEXT, VIT_H, job, module
from tests.support.specs import OF_PHI4, box, layout_specs, spec

from mimo_launch.checks.all_checks import is_legal, is_legal_layout
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.bounds import least_bytes, least_seconds
from mimo_launch.search.changes import changed
from mimo_launch.search.judge import Judge
from mimo_launch.search.ladders import ladders
from mimo_launch.search.moves import neighbours
from mimo_launch.search.settled_points import settled
from mimo_launch.search.wide_moves import jump
from mimo_launch.spec.spec import Spec


def shares(made: Spec) -> tuple[float, float]:
    """Return the bounds of time and memory as shares of the estimates."""
    estimator = Estimator.of(Plan.of(made)).brief
    estimates = estimator.estimates()
    most = max(row.total_bytes for row in estimates.ranks)
    return least_seconds(estimator) / estimates.step_seconds, least_bytes(estimator, {}) / most


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.sweep)])
def test_bounds_are_never_above_the_estimates(examples: int) -> None:
    @settings(max_examples=examples, phases=[Phase.generate], deadline=None)
    @given(made=layout_specs(supported_only=False))
    def each(made: Spec) -> None:
        seconds, needed = shares(made)
        assert seconds <= 1 + 1e-9
        assert needed <= 1

    each()


def test_a_frozen_stage_on_ranks_without_language_runs_ahead() -> None:
    """It waits for nothing, so the bound is not the sum of the work of all stages."""
    model = {"layers": 24, "hidden": 2048, "heads": 16, "mlp": 8192}
    tower, language = box(0, pp=2, model=model, frozen=True), box(1, pp=2)
    phases = {"microbatches": 8, "encoder_microbatches": 1, "mbs": 2, "max_patches": 4096}
    assert shares(spec({"vision": tower, "language": language}, **phases))[0] <= 1 + 1e-9
    # One that shares all ranks waits for language.
    alone = spec({"vision": tower, "language": box(0, pp=2)}, **phases)
    assert 0.9 < shares(alone)[0] <= 1 + 1e-9


def test_a_frozen_tower_on_ranks_of_later_stages_runs_ahead_of_the_last_backwards() -> None:
    model = {"layers": 24, "hidden": 2048, "heads": 16, "mlp": 8192}
    phases = {"microbatches": 8, "encoder_microbatches": 1, "mbs": 2, "max_patches": 4096}
    for rank, least in ((0, 0.99), (1, 0.9)):
        tower = box(rank, model=model, frozen=True)
        found = shares(spec({"vision": tower, "language": box(0, pp=2)}, **phases))[0]
        assert least < found <= 1 + 1e-9


def test_frozen_stages_run_ahead_of_the_backwards_of_later_ones() -> None:
    """The first stage may begin a group before the projector has its backward of the last one."""
    model = {"layers": 4, "hidden": 64, "mlp": 64, "projector": "mlp", "projector_mlp": 65536}
    tower = box(0, pp=2, model=model, frozen="except_projector")
    phases = {"microbatches": 8, "encoder_microbatches": 1, "mbs": 2, "max_patches": 4096}
    found = shares(spec({"vision": tower, "language": box(0, dp=2)}, **phases))[0]
    assert 0.95 < found <= 1 + 1e-9


@pytest.mark.parametrize("virtual", [1, 2, 3])
def test_bounds_count_the_idle_time_of_every_order_of_a_pipeline(virtual: int) -> None:
    kind = "interleaved" if virtual > 1 else "1f1b"
    language = module(B7, 0, 31, pp=4, dp=8)
    made = job({"language": language}, 64, 8, data=TEXT, kind=kind, virtual_stages=virtual)
    assert 0.93 < shares(made)[0] <= 1 + 1e-9


@pytest.mark.parametrize("at_once", [None, 4, 8])
@pytest.mark.parametrize("virtual", [1, 2, 3])
def test_bounds_of_memory_count_what_every_stage_of_a_rank_holds(
    virtual: int, at_once: int | None
) -> None:
    """Its microbatches in flight, and its gradients; groups of encoders drain the pipeline."""
    modules = {"language": module(B7, 0, 31, pp=4, dp=8)}
    if at_once:
        modules["vision"] = module(VIT_H, 0, 31, dp=32)
    schedule = {"kind": "interleaved" if virtual > 1 else "1f1b", "virtual_stages": virtual}
    schedule |= {"encoder_microbatches": at_once} if at_once else {}
    made = job(modules, 256, 8, data=IMAGES if at_once else TEXT, **schedule)
    assert 0.95 < shares(made)[1] <= 1


def test_bounds_of_memory_count_no_weights_of_stages_that_are_done() -> None:
    """Of two on each rank the last is done before the first has its first backward."""
    model = {"layers": 64, "hidden": 2048, "heads": 16, "mlp": 8192}
    made = spec(
        {"language": box(0, pp=2, model=model)},
        microbatches=2,
        kind="interleaved",
        virtual_stages=2,
        train={"precision": "bf16"},
    )
    assert 0.7 < shares(made)[1] <= 1


def test_bounds_of_memory_count_gradients_and_what_is_outside_of_layers() -> None:
    made = job({"language": module(B7, 0, 15, dp=16, sharding="full")}, 16, 1, data=TEXT)
    assert 0.93 < shares(made)[1] <= 1


@pytest.mark.parametrize("poor", POOR)
def test_bounds_of_large_jobs_are_near_the_estimates(poor: str) -> None:
    seconds, needed = shares(POOR[poor])
    assert 0.8 <= seconds <= 1 + 1e-9
    assert 0.5 <= needed <= 1


@pytest.mark.parametrize("poor", POOR)
def test_what_language_reads_and_starts_is_a_bound_for_all_modules(poor: str) -> None:
    model = Estimator.of(Plan.of(POOR[poor])).brief.model
    assert 0.5 * model.reading < model.least_reading <= model.reading


def test_a_bound_that_is_enough_deals_out_no_samples() -> None:
    made = POOR[next(each for each in POOR if "vision" in POOR[each].modules)]
    estimator = Estimator.of(Plan.of(made)).brief
    enough = estimator.model.least_reading
    assert least_seconds(estimator, enough) == enough
    assert not estimator.works
    assert least_seconds(estimator, enough * 1.0001) == least_seconds(estimator) > enough


def test_stages_are_costed_once_for_layouts_that_cut_them_alike() -> None:
    made = POOR[next(each for each in POOR if each.startswith("64, 7B"))]
    estimator = Estimator.of(Plan.of(made)).brief
    first = least_seconds(estimator)
    assert len(estimator.kept) == 1 + 2
    assert least_seconds(replace(estimator, plan=Plan.of(made))) == first
    assert len(estimator.kept) == 1 + 2


def test_stages_are_costed_apart_where_one_layer_rotates_and_another_does_not() -> None:
    model = {"layers": 4, "hidden": 4096, "heads": 32, "mlp": 16384, "nope": {"layers": [1]}}
    made = spec({"language": box(0, pp=4, model=model)}, mbs=8, seq=2048)
    estimator = Estimator.of(Plan.of(made)).brief
    still, turned = (estimator.model.stages["language", stage] for stage in (1, 2))
    assert still.forwards < turned.forwards
    assert still.backwards < turned.backwards


@pytest.mark.parametrize(
    "model",
    [
        {"layers": 4, "shared_keys": {"layers": 2}},
        {"layers": 4, "per_layer_embeddings": {"width": 4}},
    ],
)
def test_pipelines_that_models_forbid_are_no_layouts(model: dict[str, object]) -> None:
    alone, cut = (spec({"language": box(0, pp=pp, model=model)}) for pp in (1, 4))
    assert is_legal_layout(alone)
    assert not is_legal_layout(cut)


def test_a_pipeline_of_layers_that_share_distances_is_no_layout() -> None:
    found = [
        is_legal_layout(spec({"audio": box(0, model=model, pp=pp), "language": box(pp)}))
        for model in ({"kind": "conformer"}, OF_PHI4)
        for pp in (1, 2)
    ]
    assert found == [True, True, True, False]


def test_grids_that_cut_clips_of_a_conformer_are_no_layouts() -> None:
    """A search leaves out their sequence parallelism, so that it may still take tp."""
    alone, cut = (
        spec({"audio": box(0, model={"kind": "conformer"}, **grid), "language": box(0, tp=2)})
        for grid in ({"tp": 2}, {"cp": 2})
    )
    assert is_legal_layout(alone)
    assert not is_legal_layout(cut)
    point = Point.of(alone)
    moved = settled(alone, point.moved("audio", sequence_parallel=True))
    rungs = [rung for ladder in ladders(alone, point) for rung in ladder]
    assert rungs
    assert not any(each.places["audio"].sequence_parallel for each in (moved, *rungs))


# Layouts of one spec that share what is kept of their stages.
_MOST_LAYOUTS = 6


@settings(max_examples=15, phases=[Phase.generate], deadline=None)
@given(made=layout_specs(supported_only=False), random=st.randoms(use_true_random=False))
def test_other_layouts_are_judged_alike_whatever_was_judged_before(
    made: Spec, random: Random
) -> None:
    whole = Estimator.of(Plan.of(made))
    base = whole.brief
    judge, point = Judge(base, limit=2**62), Point.of(made)
    near = [*neighbours(made, point), jump(made, point, world_size(made), random)]
    changes = (changed(made, "", each.settings()) for each in random.sample(near, len(near)))
    for change in islice(filter(None, changes), _MOST_LAYOUTS):
        assert is_legal_layout(change.spec) == is_legal(change.spec, files=False)
        bound = judge.bound(change.settings)
        if bound is None:
            continue
        # A bound that is too large to be of use stays too large.
        most = bound.seconds * random.uniform(0.2, 1.2)
        quick = judge.bound(change.settings, most)
        assert quick is not None
        assert quick == bound if bound.seconds < most else most <= quick.seconds <= bound.seconds
        found = judge.plan_of(change.spec).estimates
        plan, new = Plan.of(change.spec), {"known": {}, "kept": {}, "works": {}}
        alone = replace(base, plan=plan, spec=change.spec, **new).estimates()
        assert found == alone
        assert whole.on(plan).estimates() == Estimator.of(plan).estimates()
        assert bound.seconds <= alone.step_seconds * (1 + 1e-9)
