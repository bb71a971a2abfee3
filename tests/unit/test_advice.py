"""What `plan` advises: losses in words, and changes that were planned."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from tests.support.pasting import pasted_advice
from tests.support.poor_specs import (
    B8,
    POOR,
    VIT_L,
    answer,
    fits,
    followed,
    job,
    module,
    seconds,
    with_settings,
)
from tests.support.specs import box, layout_specs, spec

from mimo_launch.checks.all_checks import check, idle_settings, is_legal
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import Changes, advise
from mimo_launch.search.changes import Change, changed, kind_between
from mimo_launch.search.judge import Planned
from mimo_launch.search.ladders import lighter
from mimo_launch.search.moves import neighbours
from mimo_launch.search.placements import placements, smaller_worlds
from mimo_launch.search.search import Search
from mimo_launch.search.tune import Wish, tune
from mimo_launch.search.wastes import wastes
from mimo_launch.spec.editing import edit, lines_of, merge, tree_of
from mimo_launch.spec.load import load_text
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import flow
from mimo_launch.spec.yaml_source import read_text

OF_8, OF_64 = (next(each for each in POOR if each.startswith(start)) for start in ("8,", "64, 30B"))


def near(made: Spec) -> list[Change]:
    """Return the legal changes next to a spec, and those to lighter settings and other places."""
    point, world = Point.of(made), world_size(made)
    points = (
        *neighbours(made, point),
        *lighter(made, point),
        *islice(placements(made, point, {}, world), 20),
        *(each for size in smaller_worlds(made) for each in placements(made, point, {}, size)),
    )
    found = (changed(made, "", each.settings()) for each in points)
    return [
        replace(each, kind=kind_between(made, each.spec))
        for each in found
        if each is not None and is_legal(each.spec, files=False)
    ]


def test_changes_keep_as_many_microbatches_at_once_as_encoders_in_front_need() -> None:
    """Vision dp 4 in front of dp 3: three samples in a microbatch, so four of them, or larger."""
    model = {"layers": 4, "heads": 8}
    modules = {"vision": box(0, dp=4), "language": box(4, dp=3, tp=2, model=model)}
    made = spec(modules, microbatches=8, encoder_microbatches=8)
    legal = near(made)
    schedules = {(m.schedule.microbatches, m.schedule.encoder_microbatches, m.language.grid.dp)
                 for m in (each.spec for each in legal)}  # fmt: skip
    assert {(8, 4, 3), (4, 2, 3), (4, 2, 6)} <= schedules
    assert {each.kind for each in legal} >= {"encoder_microbatches", "microbatches"}


def test_the_neighbourhood_has_every_way_to_place_modules_and_every_depth() -> None:
    """Vision on its own ranks, on all, on some of language's, and on both; fewer ranks; pp 3."""
    modules = {"vision": box(0, dp=4), "language": box(4, dp=4, pp=2, model={"layers": 6})}
    made = spec(modules, microbatches=4, mbs=3)
    found = [each.spec for each in near(made)]
    ways = set()
    for each in found:
        one, own = (set(each.modules[name].rank_range) for name in ("vision", "language"))
        ways.add((not one & own, one <= own, own <= one))
    apart, shared, among, over = (
        (True, False, False),
        (False, True, True),
        (False, True, False),
        (False, False, False),
    )
    assert ways >= {apart, shared, among, over}
    assert {each.language.grid.pp for each in found} >= {1, 2, 3, 4}
    assert {world_size(each) for each in found} >= {6, 9, 11, 12}


def test_experts_are_split_over_whole_hosts() -> None:
    made = with_settings(POOR[OF_64], {"modules.language.experts": {"ep": 8}})
    points = list(neighbours(made, Point.of(made)))
    alike = [each for each in points if each.language.grid == made.language.grid]
    found = {each.language.experts.ep for each in alike if each.language.experts}
    assert found - {8} == {1, 4, 16, 64, 128}
    legal = with_settings(made, {"modules.language.experts": {"ep": 16}})
    assert is_legal(legal)
    assert seconds(legal) > 0


def test_offers_are_legal_fit_and_give_what_they_say() -> None:
    made = POOR[OF_8]
    given = answer(made)
    offers = [loss.change for loss in given.losses if loss.change is not None]
    assert offers
    for offer in offers:
        other = with_settings(made, offer.settings)
        assert not any(found.is_error for found in check(other))
        assert fits(other)
        assert seconds(other) == pytest.approx(offer.step_seconds)
        assert offer.gain == pytest.approx(given.step_seconds / offer.step_seconds - 1)
    assert offers[0].gain == max(offer.gain for offer in offers)


TOPOLOGIES = Path(__file__).parents[2] / "topologies"


OFTEN = sorted(TOPOLOGIES.glob("*.yaml"))[::3]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path in OFTEN else pytest.mark.sweep, id=path.stem)
        for path in sorted(TOPOLOGIES.rglob("*.yaml"))
    ],
)
def test_every_advice_for_a_topology_gives_what_it_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    comments = {line for line in text.splitlines() if line.lstrip().startswith("#")}
    for after in advised(text):
        assert comments <= set(after.splitlines())


@pytest.mark.parametrize("examples", [2, pytest.param(30, marks=pytest.mark.sweep)])
def test_every_advice_for_a_random_spec_gives_what_it_says(examples: int) -> None:
    @settings(max_examples=examples, phases=[Phase.generate])
    @given(made=layout_specs(supported_only=False))
    def each(made: Spec) -> None:
        data = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
        advised(yaml.safe_dump(data, sort_keys=False))

    each()


def advised(text: str) -> list[str]:
    """Return a spec after each advice, edited; both ways to paste it, and `--set`, give the same.

    Nothing that is set does nothing after it, unless it did nothing before.
    """
    before = load_text(text).spec
    assert before is not None
    found = []
    for change in (loss.change for loss in answer(before).losses):
        if change is None:
            continue
        tree = tree_of(change.settings)
        applied = edit(text, merge(read_text(text).data, tree))
        pasted = [pasted_advice(text, lines_of(tree), deep=deep) for deep in (False, True)]
        by_set = [f"{path}={flow(value)}" for path, value in change.settings.items()]
        after, *others = (
            load_text(text, overrides=by_set).spec,
            *(load_text(each).spec for each in (applied, *pasted)),
        )
        assert after is not None
        assert all(other == after for other in others)
        assert seconds(after) == pytest.approx(change.step_seconds)
        assert is_legal(after)
        assert idle_settings(after) <= idle_settings(before)
        found.append(applied)
    return found


def test_sizes_of_a_grid_that_become_1_are_in_a_change_and_others_are_not() -> None:
    made = spec({"language": box(0, tp=2, pp=2, dp=2)}, microbatches=4)
    change = changed(made, "grid", {"modules.language.grid": {"pp": 1, "dp": 4}})
    assert change is not None
    assert change.settings == {"modules.language.grid": {"tp": 2, "pp": 1, "dp": 4}}


def gained(poor: str) -> tuple[list[float], float]:
    """Return the seconds of a step as it is and after each advice, and of what `tune` finds."""
    made = POOR[poor]
    steps = [each.step_seconds for each in followed(made)]
    best = tune(made, Wish(gpus=world_size(made), top=1)).found[0][0].seconds
    return steps, min(best, *steps)


def test_advice_puts_language_under_an_encoder_and_finds_a_depth_of_three() -> None:
    """A ViT on 8 of 24 GPUs, an 8B model on 16: on all 24, 128 samples need pp 3 and dp 8."""

    def case(ranks: tuple[int, int], microbatches: int, **grid: int) -> Spec:
        vision, language = module(VIT_L, 0, 7, dp=8), module(B8, *ranks, **grid)
        return job({"vision": vision, "language": language}, 128, microbatches)

    steps = [each.step_seconds for each in followed(case((8, 23), 16, tp=4, dp=4))]
    known = seconds(case((0, 23), 16, pp=3, dp=8))
    assert steps[0] > 1.5 * known
    assert steps[-1] <= known


@pytest.mark.sweep
@pytest.mark.parametrize("poor", POOR)
def test_the_first_advice_three_times_gains_most_of_what_is_known_to_be_possible(poor: str) -> None:
    """Each takes a minute or more."""
    steps, best = gained(poor)
    assert steps[0] > best
    share = (steps[0] - steps[-1]) / (steps[0] - best)
    shown = " | ".join(f"{each:.2f}" for each in [*steps, *[steps[-1]] * (4 - len(steps)), best])
    print(f"| {poor} | {shown} | {share:.0%} |")
    assert share >= 0.8


@pytest.mark.parametrize("poor", [OF_64, next(each for each in POOR if each.startswith("32,"))])
def test_the_words_of_a_change_name_all_that_its_lines_change(poor: str) -> None:
    """Ranks go together: one sentence is about all of them."""
    for change in near(POOR[poor]):
        assert unsaid(change) == []


def unsaid(change: Change) -> list[str]:
    """Return the settings without which the words are the same."""
    found = []
    for path in change.settings:
        others = {key: value for key, value in change.settings.items() if key != path}
        if path.endswith(".ranks"):
            others = {key: value for key, value in others.items() if not key.endswith(".ranks")}
        if replace(change, settings=others).text == change.text:
            found.append(path)
    return found


def test_no_change_is_offered_twice() -> None:
    """A step of tiny layers waits for its hosts, whichever loss one looks at."""
    made = spec({"vision": box(0, dp=4), "language": box(4, tp=2)}, microbatches=4, mbs=4)
    offers = [each.change.settings for each in answer(made).losses if each.change is not None]
    assert offers
    assert all(offers.count(each) == 1 for each in offers)


def test_waiting_for_samples_is_not_waiting_for_other_ranks_too() -> None:
    made = POOR[OF_8]
    base = Estimator.of(Plan.of(made))
    now, world = base.estimates(), base.layout.world_size
    slower = replace(
        now,
        ranks=tuple(
            replace(row, computing=row.computing / 2, waiting=row.waiting / 2 + 0.5, reading=0.5)
            for row in now.ranks
        ),
    )

    def shares(of: Estimates) -> dict[tuple[str, tuple[str, ...]], float]:
        return {(e.kind, e.modules): e.of_all for e in wastes(made, of, base.constants, world)}

    before, after = shares(now), shares(slower)
    assert after.pop(("reads", tuple(made.modules))) == pytest.approx(0.5)
    waits = {key: share for key, share in after.items() if key[0] == "waits"}
    assert waits
    assert waits == pytest.approx({key: before[key] / 2 for key in waits})


def test_only_the_best_change_is_offered_although_it_makes_no_loss_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = POOR[OF_8]
    # A host so slow that vision waits less once kernels are longer.
    constants = replace(Calibration(), layer_overhead=2600.0)
    base = Estimator.of(Plan.of(made), constants)
    changes = Changes.of(base, base.estimates(), 80 * 10**9)
    lost = wastes(made, changes.estimates, base.constants, base.layout.world_size)
    change = changed(made, "precision", {"train.precision": "fp32"})
    assert change is not None
    # In fp32 kernels take long enough to start others meanwhile, and vision waits less.
    helps = Planned(change, Estimator.of(Plan.of(change.spec), constants).estimates())
    same = Planned(Change("same", {}, made), changes.estimates)
    monkeypatch.setattr(Changes, "simplest", lambda self, planned: planned)

    def answers(*found: Planned) -> dict[str, str]:
        monkeypatch.setattr(Changes, "run", lambda self: list(found))
        advice = advise(changes, lost, base.constants)
        return {each.waste.kind: each.planned.change.kind for each in advice if each.planned}

    assert answers(same) == {"starts": "same"}
    assert answers(helps, same) == {"starts": "precision"}
    assert answers(same, helps) == {"starts": "same", "waits": "precision"}


def test_losses_name_modules_ranks_and_numbers() -> None:
    given = answer(POOR[OF_8], seeks=False)
    assert all(loss.change is None for loss in given.losses)
    first = given.losses[0]
    assert first.what.startswith("vision waits for its hosts to start kernels ")
    assert first.what.endswith("% on 4 GPUs")
    assert first.ranks == (0, 1, 2, 3)
    assert first.of_all == pytest.approx(first.share / 2)
    time = given.time
    parts = (time.computing, time.communicating, time.waiting, time.updating)
    assert sum(parts) == pytest.approx(given.step_seconds)


def test_a_gpu_without_a_module_waits_all_the_time() -> None:
    given, full = (
        answer(spec({"vision": box(0), "language": box(first)}), seeks=False) for first in (2, 1)
    )
    (idle,) = [loss for loss in given.losses if loss.kind == "idle"]
    assert (idle.what, idle.ranks) == ("rank 1 holds no module: 1 GPU", (1,))
    # They begin a microsecond later together.
    step = pytest.approx(full.step_seconds, rel=1e-3)
    assert given.step_seconds == step
    assert given.time.waiting * 3 - full.time.waiting * 2 == step
    for part in ("computing", "communicating", "updating"):
        spent = getattr(full.time, part) * 2
        assert getattr(given.time, part) * 3 == pytest.approx(spent, rel=1e-3)


@pytest.mark.parametrize(
    ("poor", "said"),
    [
        # Only what is a large part of the loss is named: vision has no tp, and no full sharding.
        ("128, 8B", "language exchanges activations (tp 16) "),
        ("512, 8B", "language exchanges weights and gradients (dp 512) "),
        ("256, 70B", "vision and language wait in the pipeline of language (pp 16) "),
        ("64, 7B", "vision waits for language "),
        ("64, 7B", "language waits in its pipeline (pp 2) "),
        (
            "64, 30B",
            "language exchanges tokens of experts (ep 4), activations (tp 4) and weights and "
            "gradients (dp 4) ",
        ),
        ("128, 8B", "language computes forwards again "),
    ],
)
def test_losses_name_who_causes_them_and_what_is_exchanged(poor: str, said: str) -> None:
    made = next(each for name, each in POOR.items() if name.startswith(poor))
    assert any(loss.what.startswith(said) for loss in answer(made, seeks=False).losses)


@pytest.mark.parametrize("poor", POOR)
def test_parts_of_stages_are_those_of_their_ranks(poor: str) -> None:
    estimates = Estimator.of(Plan.of(POOR[poor])).estimates()
    for row in estimates.ranks:
        for part in ("communicating", "all_to_all", "sharding", "recomputing"):
            parts = sum(getattr(stage, part) for stage in row.stages)
            assert parts == pytest.approx(getattr(row, part))
            assert all(getattr(stage, part) >= 0 for stage in row.stages)


@pytest.mark.parametrize("poor", POOR)
def test_what_is_exchanged_between_layers_for_experts_and_by_replicas_adds_up(poor: str) -> None:
    made = POOR[poor]
    time = answer(made, seeks=False).time
    parts = (time.between_layers, time.of_experts, time.of_replicas)
    assert all(each >= 0 for each in parts)
    assert sum(parts) == pytest.approx(time.communicating)
    assert (time.of_experts > 0) == (poor == OF_64)


def test_losses_name_all_axes_over_which_data_is_exchanged_and_the_host() -> None:
    model = {"layers": 8, "hidden": 1024, "heads": 8, "head_dim": 128, "mlp": 4096, "vocab": 1024}
    experts = {"experts": 4, "top_k": 2, "width": 512}

    def said(**more: Any) -> str:
        own = {"model": model, **more}
        made = spec({"language": box(0, **own)}, seq=2048, train={"steps": 1, "precision": "bf16"})
        found = answer(made, seeks=False)
        assert found.time.communicating == pytest.approx(
            sum((found.time.between_layers, found.time.of_experts, found.time.of_replicas))
            + found.time.with_host
        )
        return next(loss.what for loss in found.losses if loss.kind == "communicates")

    assert "weights and gradients (cp 2)" in said(cp=2, sharding="full")
    assert said(offload=["activations"]).startswith("language exchanges activations with the host ")
    split = {"tp": 2, "experts": {"tp": 2}, "sequence_parallel": True}
    assert "tokens of experts (expert_tp 2)" in said(model={**model, "moe": experts}, **split)


def test_one_rank_alone_is_advised_to_keep_its_weights_gathered() -> None:
    own = module(B8 | {"layers": 4}, 0, 0, sharding="full")
    losses = answer(job({"language": own}, 8, 4, data={"kind": "synthetic", "text_only": 1})).losses
    changes = [loss.change.settings for loss in losses if loss.change is not None]
    assert any(change.get("modules.language.sharding") == "optimizer" for change in changes)
    assert not any("(1 rank)" in loss.what for loss in losses)


def deep(made: Spec, layers: int) -> Spec:
    model = made.language.model.model_copy(update={"layers": layers})
    language = made.language.model_copy(update={"model": model})
    return made.model_copy(update={"modules": {**made.modules, "language": language}})


def test_fewer_changes_may_be_planned_of_models_with_more_layers() -> None:
    """A plan of 2,000 layers takes a third of a second; `plan` answers within seconds."""

    def most(made: Spec) -> float:
        base = Estimator.of(Plan.of(made)).brief
        return Changes.of(base, base.estimates(), 10**12).search.left

    assert most(deep(POOR[OF_8], 500)) < most(POOR[OF_8]) / 2


def test_a_setting_that_does_nothing_after_a_change_goes_without_time_for_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequence parallelism at tp 1; no more plans may be made."""
    made = spec({"language": box(0, tp=2, sequence_parallel=True)}, mbs=2)
    grid = {"modules.language.grid": {"tp": 1, "dp": 2}}
    change = changed(made, "grid", grid)
    assert change is not None
    changes, after = (Estimator.of(Plan.of(each)) for each in (made, change.spec))
    search = Changes.of(changes, changes.estimates(), 10**12)
    monkeypatch.setattr(Search, "same", lambda *_: None)
    found = search.simplest(Planned(change, after.estimates()))
    assert found.change.settings == {**grid, "modules.language.sequence_parallel": False}
