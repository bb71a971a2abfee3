"""Changes that are offered: their words, what goes with them, their order, and what they answer."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.support.specs import box, spec

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search import advice
from mimo_launch.search.advice import Changes, advise, memory_limit
from mimo_launch.search.changes import Change, changed, kind_between
from mimo_launch.search.judge import Planned
from mimo_launch.search.search import Search
from mimo_launch.search.wastes import Waste, wastes, work_of

TWO = ("vision", "language")


@pytest.mark.parametrize(
    ("vision", "language", "settings", "text"),
    [
        ((0, 4), (0, 4), {"modules.language.ranks": "4-7"}, "give vision 4 ranks of its own"),
        ((0, 2), (4, 4), {"modules.vision.ranks": "2-3"}, "give vision 2 ranks of its own"),
        ((0, 2), (0, 2), {"schedule.encoder_microbatches": None}, "encode all microbatches"),
        ((0, 2), (2, 2), {"schedule.encoder_microbatches": None}, "encode 1 microbatch at once"),
    ],
)
def test_the_words_of_a_change_say_what_it_means_where_modules_lie(
    vision: tuple[int, int], language: tuple[int, int], settings: dict[str, Any], text: str
) -> None:
    modules = {
        name: box(first, dp=dp) for name, (first, dp) in zip(TWO, (vision, language), strict=True)
    }
    made = spec(modules, microbatches=4, mbs=2, encoder_microbatches=2)
    change = changed(made, "", settings)
    assert change is not None
    assert change.text.startswith(text)


OF_LANGUAGE = {
    "recompute: full": "recompute language",
    "recompute: [mlp, norms]": "recompute mlp and norms of language",
    "offload: [activations, optimizer]": "keep activations and moments of language on the host",
    "sequence_parallel: true": "sequence parallelism of language",
    "sharding: full": "sharding full for language",
    "shard_over: 2": "shard language over each 2 replicas",
    "stages: [1, 3]": "cut language into stages of 1 and 3 layers",
    "order: [dp, tp, cp, pp]": "order dp, tp, cp, pp for language",
    "grid: {tp: 2, dp: 1}": "cut language by tp 2",
    "experts: {ep: 2}": "split the experts of language by ep 2",
    "fp8: {}": "compute language in FP8 with Transformer Engine",
}
OF_STEP = {
    "schedule.microbatches: 2": "run 2 microbatches of 4 samples",
    "schedule.microbatches: 8": "run 8 microbatches of 1 sample",
    "schedule.generator_microbatches: 2": "run generators on 2 microbatches at once",
    "schedule.kind: gpipe": "schedule gpipe",
    "schedule.virtual_stages: 2": "2 stages a rank",
    "train.precision: bf16": "compute in bf16",
    "data.packing: true": "pack records into sequences",
}


@pytest.mark.parametrize(
    ("setting", "text"),
    [*((f"modules.language.{key}", text) for key, text in OF_LANGUAGE.items()), *OF_STEP.items()],
)
def test_a_setting_is_named_with_its_value(setting: str, text: str) -> None:
    """The step has 16 samples for two replicas of language."""
    made = spec({"vision": box(0, dp=2), "language": box(2, dp=2)}, microbatches=4, mbs=2)
    change = changed(made, "", yaml.safe_load(setting))
    assert change is not None
    assert change.text == text


def test_only_a_change_to_fewer_gpus_is_called_one() -> None:
    few, many = (spec({"language": box(0, dp=dp)}, mbs=8 // dp) for dp in (2, 4))
    assert (kind_between(many, few), kind_between(few, many)) == ("fewer GPUs", "placement")


def fake(change: Change, seconds: float) -> Planned:
    estimates: Any = SimpleNamespace(step_seconds=seconds)
    return Planned(change, estimates)


def test_a_setting_that_another_one_needed_goes_after_it() -> None:
    """Without the second setting the first is no longer needed, nor is the last, which stays."""
    keys = {
        "modules.language.recompute": "full",
        "modules.language.sharding": "full",
        "schedule.microbatches": 2,
    }
    first, second, last = keys
    base = Estimator.of(Plan.of(spec({"language": box(0, dp=2)}, mbs=2)))
    changes = Changes.of(base, base.estimates(), 10**12)
    change = changed(base.spec, "", keys)
    assert change is not None
    fast = [{first, second, last}, {first, last}, {last}]

    def same(search: Search, each: Change) -> Planned:
        return fake(each, 1.0 if {*each.settings} in fast else 2.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "same", same)
        assert {*changes.simplest(fake(change, 1.0)).change.settings} == {last}


def test_a_slower_step_is_offered_where_it_leaves_many_gpus_out() -> None:
    made = spec({"language": box(0, dp=10)})
    base = Estimator.of(Plan.of(made))
    changes = Changes.of(base, base.estimates(), 10**12)
    now = changes.estimates.step_seconds

    def offered(ranks: int, seconds: float) -> bool:
        smaller = spec({"language": box(0, dp=ranks)}, mbs=1)
        planned = fake(Change("fewer GPUs", {}, smaller), seconds * now)
        changes.search.found = [planned]
        return changes.run() == [planned]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Changes, "_seek", lambda self: None)
        assert [offered(8, seconds) for seconds in (0.9, 1.04, 1.06)] == [True, True, False]
        assert [offered(9, seconds) for seconds in (0.9, 0.99, 1.04)] == [True, False, False]


def test_fewer_gpus_come_after_changes_for_all() -> None:
    made = spec({"vision": box(0), "language": box(1, dp=3)}, microbatches=4, mbs=3)
    base = Estimator.of(Plan.of(made))
    changes = Changes.of(base, base.estimates(), 10**12)
    lost = wastes(made, changes.estimates, base.constants, base.layout.world_size)
    halved = replace(changes.estimates, step_seconds=changes.estimates.step_seconds / 2)
    found = [
        Planned(Change("grid of language", {}, made), changes.estimates),
        Planned(Change("fewer GPUs", {}, made), halved),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Changes, "simplest", lambda self, planned: planned)
        patch.setattr(Changes, "run", lambda self: found)
        patch.setattr(advice, "kind_between", lambda before, after: object())
        patch.setattr(advice, "_lost", lambda *_: next(falling))
        falling = (float(-number) for number in count())
        kinds = [each.planned.change.kind for each in advise(changes, lost, base.constants)[:2]]
    assert kinds == ["grid of language", "fewer GPUs"]


def test_a_loss_is_found_again_where_its_modules_have_others_beside_them() -> None:
    def waste(kind: str, *modules: str) -> Waste:
        return Waste(kind=kind, modules=modules, ranks=(0,), share=0.5, of_all=0.25, text="")

    estimates: Any = SimpleNamespace(step_seconds=4.0)
    found = [
        waste("waits", "vision", "language"),
        waste("waits", "audio"),
        waste("starts", "vision"),
    ]
    for like, seconds in (
        (waste("waits", "vision"), 1.0),
        (waste("waits", "audio", "vision"), 2.0),
        (waste("waits"), 2.0),
        (waste("reads", "vision"), 0.0),
    ):
        assert advice._lost(estimates, found, like) == seconds


def test_a_change_may_need_as_much_as_a_spec_that_fits_and_no_more() -> None:
    def limit(needed: int) -> int:
        estimates: Any = SimpleNamespace(ranks=[SimpleNamespace(total_bytes=needed)])
        return memory_limit(estimates, 100)

    assert [limit(needed) for needed in (50, 95, 100, 120)] == [90, 95, 100, 90]


def test_work_is_that_of_all_ranks_in_all_forwards() -> None:
    """A language model does as much on two ranks as on one, which has twice the microbatches."""
    model = {"layers": 2, "hidden": 64}
    found = []
    for dp, microbatches in ((1, 4), (2, 2)):
        made = spec({"language": box(0, dp=dp, model=model)}, microbatches=microbatches)
        base = Estimator.of(Plan.of(made))
        found.append(work_of(base.layout, base.estimates())["language"])
    assert found[0] == pytest.approx(found[1], rel=0.1)


def test_numbers_that_bf16_makes_faster_are_those_of_products_alone() -> None:
    made = spec({"language": box(0)}, train={"precision": "fp32"})
    base = Estimator.of(Plan.of(made))
    now = base.estimates()
    (row,) = now.ranks
    busy = replace(row, computing=0.9, communicating=0.1, recomputing=0.2, starting=0.25)
    found = wastes(made, replace(now, ranks=(busy,)), base.constants, 1)
    (precision,) = [each for each in found if each.kind == "precision"]
    assert precision.share == pytest.approx(0.35 * (1 - base.constants.fp32_speed))


def test_modules_wait_for_those_that_wait_less_than_half_as_long() -> None:
    made = spec({"vision": box(0), "language": box(1)}, microbatches=2)
    base = Estimator.of(Plan.of(made))
    now = base.estimates()

    def said(least: float) -> str:
        pairs = zip(now.ranks, (0.6, least), strict=True)
        rows = tuple(replace(row, waiting=share, reading=0.0) for row, share in pairs)
        found = wastes(made, replace(now, ranks=rows), base.constants, 2)
        return next(each.text for each in found if each.modules == ("vision",))

    assert said(0.29).startswith("vision waits for language 60")
    assert said(0.31).startswith("vision waits 60")
