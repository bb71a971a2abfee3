"""Layouts that `tune` finds: as good as every accepted layout of small jobs, and a blind search."""

from dataclasses import replace
from io import StringIO
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console
from tests.support.blind_search import OF_MODULE, OF_STEP, BlindSearch, own_seconds
from tests.support.poor_specs import B70, POOR, TEXT, job, module
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.cli.tune_screen import explained
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.estimate.traffic import traffic_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.fewer_gpus import counts, smallest, speeds
from mimo_launch.search.judge import Judge, Judgement
from mimo_launch.search.layout_rows import layout_rows, terms_between
from mimo_launch.search.pins import CannotPin, Pins
from mimo_launch.search.team import Team
from mimo_launch.search.tune import Layouts, NoLayout, Wish, tune
from mimo_launch.search.wide_moves import drawn
from mimo_launch.spec.base import AXES
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
OF_8 = next(made for name, made in POOR.items() if name.startswith("8,"))
# Genes of the brute force with one value: fewer layouts than a minute allows.
PLAIN: dict[str, Any] = {
    "ep": (1,),
    "cp": (1,),
    "at_once": (None,),
    "drawn_at_once": (None,),
    "order": (("1f1b", 1),),
    "recompute": ("none",),
}


def of(name: str) -> Spec:
    found = load_spec(TOPOLOGIES / f"{name}.yaml").spec
    assert found is not None
    return found


def found_for(made: Spec, gpus: int, *, plans: float = 100, **more: Any) -> Layouts:
    return tune(made, Wish(gpus=gpus, plans=plans, **more))


@pytest.mark.parametrize(
    ("name", "gpus", "values"),
    [
        ("all_text", 2, {"microbatches": (1, 2), "sharding": ("optimizer",)}),
        ("quickstart", 2, {"microbatches": (1,), "sharding": ("optimizer",)}),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in (
                ("all_text", 8, {"microbatches": (1, 2, 4)}),
                ("quickstart", 4, {"microbatches": (1, 2), "sharding": ("optimizer",)}),
                ("hybrid", 4, {"microbatches": (1, 2)}),
                ("draw", 2, {"microbatches": (1, 2), "drawn_at_once": (None, 2)}),
                ("bench/flow_1b_disjoint", 2, {"microbatches": (1, 2), "sharding": ("optimizer",)}),
                ("bench/talker_1b_disjoint", 2, {"microbatches": (1, 2)}),
            )
        ),
    ],
)
def test_no_accepted_layout_of_a_small_job_is_faster(
    name: str, gpus: int, values: dict[str, Any]
) -> None:
    blind = BlindSearch(of(name))
    blind.world = gpus
    best = found_for(of(name), gpus, plans=400).found[0][0]
    every = blind.every(PLAIN | values, than=best.seconds)
    assert len(every) > 2
    assert best.seconds <= every[0][0] * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["quickstart", pytest.param("bench/talker_1b_disjoint", marks=pytest.mark.sweep)]
)
def test_brute_force_leaves_out_no_layout_that_may_be_the_fastest(name: str) -> None:
    """Language alone computes for as long wherever other modules are, and never longer than all."""
    blind = BlindSearch(of(name))
    blind.world = 2
    values = PLAIN | {"microbatches": (1, 2), "sharding": ("optimizer",)}
    every, own = blind.every(values), dict[Any, set[float]]()
    for seconds, made in every:
        least = own_seconds(Estimator.of(Plan.of(made)))
        assert least <= seconds
        language = made.language
        key = language.ranks, language.grid, language.sequence_parallel, made.schedule.microbatches
        own.setdefault(key, set()).add(round(least, 12))
    assert all(len(each) == 1 for each in own.values())
    assert blind.every(values, than=every[0][0])[0] == every[0]


def test_brute_force_skips_illegal_layouts_alone() -> None:
    """Of two modules on eight ranks, with more stages than layers, cut heads or idle ranks."""
    blind, random, skipped = BlindSearch(of("all_text")), Random(0), 0
    blind.world = 8
    step = {("", key): values[0] for key, values in OF_STEP.items()}
    values = {**OF_MODULE, "start": range(8), "size": range(1, 9), "ep": (1,)}
    every = [dict(zip(OF_MODULE, each, strict=True)) for each in product(*values.values())]
    ways = [own for own in every if blind.divides(own)]
    while skipped < 25:
        own = {name: random.choice(ways) for name in blind.spec.modules}
        genes = step | {(name, key): own[name][key] for name in own for key in OF_MODULE}
        if not (blind.are_together(genes) and all(blind.cuts(*each) for each in own.items())):
            skipped += 1
            assert blind.step(genes) == float("inf")


@pytest.fixture(scope="module")
def of_8() -> Layouts:
    return found_for(OF_8, 8, plans=120, top=5)


def test_layouts_are_legal_fit_and_take_the_seconds_of_their_plans(of_8: Layouts) -> None:
    found = of_8.found
    assert len(found) == 5
    assert all(one.seconds <= other.seconds for (one, _), (other, _) in pairwise(found))
    for planned, estimator in found:
        assert not any(each.is_error for each in check(estimator.spec))
        estimates = Estimator.of(Plan.of(estimator.spec)).estimates()
        assert estimates.step_seconds == pytest.approx(planned.seconds)
        assert max(row.total_bytes for row in estimates.ranks) <= 0.9 * (estimates.gpu_memory or 0)
        assert estimator.spec.batch == OF_8.batch
        assert {name: each.model for name, each in estimator.spec.modules.items()} == {
            name: each.model for name, each in OF_8.modules.items()
        }


def test_a_short_search_lists_other_layouts_near_the_fastest() -> None:
    """Those that place or cut modules otherwise take at most a little longer."""
    found = [each.seconds for each, _ in found_for(OF_8, 8, plans=300, top=5).found]
    assert len(found) == 5
    assert found[-1] < 1.06 * found[0]


def test_two_processes_find_what_one_finds() -> None:
    made = spec({"vision": box(0, dp=2), "language": box(2, tp=2)}, microbatches=2, mbs=4)
    one, two = (found_for(made, 4, plans=100, processes=each) for each in (1, 2))
    assert (one.planned, one.compared) == (two.planned, two.compared)
    assert [each.change.settings for each, _ in one.found] == [
        each.change.settings for each, _ in two.found
    ]


def test_estimates_over_the_run_are_a_part_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    spent, plan_of, whole = list[float](), Judge.plan_of, Judge.whole

    def counted_plan(judge: Judge, made: Spec, most_cost: float = float("inf")) -> Judgement:
        found = plan_of(judge, made, most_cost)
        spent.append(found.cost)
        return found

    def counted_whole(judge: Judge, made: Spec) -> Estimates | None:
        # It has one step at least.
        spent.append(1)
        return whole(judge, made)

    monkeypatch.setattr(Judge, "plan_of", counted_plan)
    monkeypatch.setattr(Judge, "whole", counted_whole)
    assert found_for(OF_8, 8, plans=40).found
    assert sum(spent) <= 1.1 * 40


def test_a_short_search_makes_layouts_lighter_where_plain_ones_do_not_fit() -> None:
    """A 70B model on 32 GPUs fits without full sharding only if it is cut in eight or more."""
    made = job({"language": module(B70, 0, 31, tp=8, pp=4)}, 64, 8, data=TEXT)
    assert made.nodes is not None
    best = found_for(made, 32, plans=160).found[0][1].spec.language
    assert best.sharding == "full"
    assert best.grid.tp * best.grid.pp < 8


class _Doubler:
    def double(self, number: int) -> int:
        return 2 * number


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_team_keeps_the_order_of_a_list(processes: int) -> None:
    with Team(_Doubler(), processes) as team:
        for size in (0, 1, 2, 7):
            assert team.map("double", [(each,) for each in range(size)]) == [
                2 * each for each in range(size)
            ]


PINS: dict[str, Any] = {
    "modules.language.grid.tp": 2,
    "modules.vision.ranks": "0-3",
    "modules.language.recompute": "full",
    "schedule.microbatches": 2,
}


def test_every_layout_keeps_what_is_pinned() -> None:
    found = found_for(OF_8, 8, pins=Pins.of(OF_8, PINS), plans=40, top=3).found
    assert found
    for _, estimator in found:
        made = estimator.spec
        assert made.language.grid.tp == 2
        assert made.modules["vision"].ranks == "0-3"
        assert made.language.recompute == "full"
        assert made.schedule.microbatches == 2


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("batch.global", 64, "`batch.global` is no part of a layout"),
        ("modules.sound.grid.tp", 2, "`modules.sound.grid.tp` is no part of a layout"),
        ("modules.language.grid.tp", "two", "`modules.language.grid.tp=two`: "),
    ],
)
def test_what_is_no_part_of_a_layout_cannot_be_pinned(path: str, value: Any, words: str) -> None:
    with pytest.raises(CannotPin, match=words):
        Pins.of(OF_8, {path: value})


def test_a_pin_that_no_layout_can_keep_is_refused() -> None:
    with pytest.raises(NoLayout, match=r"with modules\.language\.grid\.tp as pinned"):
        found_for(OF_8, 8, pins=Pins.of(OF_8, {"modules.language.grid.tp": 3}))


def test_a_pinned_dp_leaves_tp_free() -> None:
    pins = Pins.of(OF_8, {"modules.language.grid.dp": 2})
    kept = pins.kept_by(Point.of(OF_8))
    assert kept is not None
    assert (kept.language.grid.tp, kept.language.grid.dp) == (2, 2)


def test_of_sizes_that_are_not_pinned_dp_gives_way_first() -> None:
    point = Point.of(spec({"language": box(0, tp=2, dp=4)}, mbs=2))
    kept = Pins({"modules.language.grid.pp": 2}).kept_by(point)
    assert kept is not None
    assert kept.language.grid.model_dump() == {"tp": 2, "cp": 1, "pp": 2, "dp": 2}


def test_terms_add_up_to_the_difference(of_8: Layouts) -> None:
    rows = list(layout_rows(of_8.found))
    one, other = rows[0], rows[-1]
    terms = terms_between(one.time, other.time)
    assert sum(each.gain for each in terms) == pytest.approx(other.step_seconds - one.step_seconds)
    assert one.traffic.between == 0
    assert one.traffic.inside > 0


def test_a_term_without_a_difference_that_shows_has_no_sign(of_8: Layouts) -> None:
    row = next(iter(layout_rows(of_8.found)))
    later = replace(row.time, updating=row.time.updating + 1e-9)
    screen = Console(file=StringIO(), width=100)
    screen.print(*explained(replace(row, time=later), row, 100))
    assert isinstance(screen.file, StringIO)
    assert " 0.00 ms" in screen.file.getvalue()
    assert "-0.00 ms" not in screen.file.getvalue()


def test_two_ranks_send_as_many_bytes_as_their_exchanges_have() -> None:
    """Of bf16 weights and edges, and fp32 gradients, each of two ranks sends half, or one all."""
    model = {"layers": 2, "hidden": 64, "heads": 4, "mlp": 128, "vocab": 256}

    def sent(microbatches: int, **grid: Any) -> tuple[float, int]:
        made = spec(
            {"language": box(0, model=model, **grid)},
            microbatches=microbatches,
            seq=64,
            train={"steps": 1, "precision": "bf16"},
        )
        found = Estimator.of(Plan.of(made))
        return traffic_of(found.typical.model).inside, found.estimates().ranks[0].parameters

    for many in (1, 2):
        whole, numel = sent(many, dp=2)
        assert whole == (2 + 4) * numel
        # Weights for each forward and each backward, and gradients of each backward.
        assert sent(many, dp=2, sharding="full")[0] == many * (2 * 2 + 4) * numel
        # The input of the second stage there, and its gradient back.
        assert sent(2 * many, pp=2)[0] == 2 * many * 2 * 64 * 64 * 2
        # A frozen model has no backward.
        assert sent(many, dp=2, sharding="full", frozen=True)[0] == many * 2 * numel
        assert sent(2 * many, pp=2, frozen=True)[0] == 2 * many * 64 * 64 * 2


def test_matrices_of_muon_travel_to_a_rank_each_and_back() -> None:
    """Each of two ranks sends half of its halves, in bf16, and gets as much back."""
    model = {"layers": 2, "hidden": 64, "heads": 4, "head_dim": 16, "mlp": 128, "vocab": 256}

    def sent(kind: str) -> float:
        made = spec(
            {"language": box(0, dp=2, model=model)},
            optimizer={"kind": kind},
            train={"steps": 1, "precision": "bf16"},
        )
        return traffic_of(Estimator.of(Plan.of(made)).typical.model).inside

    # Four of attention and three of an MLP.
    matrices = model["layers"] * (4 * 64 * 64 + 3 * 64 * 128)
    assert sent("muon") - sent("adamw") == 2 * 2 * (2 * matrices / 2) / 2


def test_only_groups_on_several_hosts_send_between_them() -> None:
    """Of 16 ranks on hosts of 8: dp 16 crosses hosts, tp 8 does not."""
    made = next(each for name, each in POOR.items() if name.startswith("16,"))
    assert world_size(made) == 16
    model = Estimator.of(Plan.of(made)).typical.model
    assert traffic_of(model).between > 0
    assert made.nodes is not None
    wide = made.replace(nodes=made.nodes.replace(gpus=16))
    inside = traffic_of(Estimator.of(Plan.of(wide)).typical.model)
    assert inside.between == 0
    assert inside.inside == pytest.approx(sum(vars_of(traffic_of(model))))


def vars_of(traffic: Any) -> tuple[float, float]:
    return traffic.inside, traffic.between


def test_the_fewest_gpus_lose_less_than_five_percent() -> None:
    made = spec({"language": box(0, dp=4)}, microbatches=1, mbs=4)
    found = speeds(made, Wish(gpus=4, plans=60))
    assert [each.gpus for each in found] == counts(4, 4) == [1, 2, 3, 4]
    steps = [each.best[0].seconds for each in found if each.best]
    assert all(after <= before for before, after in pairwise(steps))
    least = smallest(found)
    assert least is not None
    assert least.best is not None
    assert min(steps) > 0.95 * least.best[0].seconds
    assert all(min(steps) <= 0.95 * step for step in steps[: steps.index(least.best[0].seconds)])


def test_counts_of_gpus_are_whole_hosts_and_not_many() -> None:
    assert counts(64, 8) == [8, 16, 24, 32, 40, 48, 56, 64]
    assert counts(4096, 8) == [256 * each for each in range(1, 17)]
    assert counts(24, 8) == [8, 16, 24]
    assert counts(200, 8) == [*range(16, 200, 16), 200]


def test_a_random_layout_needs_no_more_ranks_than_there_are() -> None:
    """Two modules on one rank share it."""
    made, random = of("quickstart"), Random(0)
    for world in (1, 2, 8):
        for _ in range(40):
            point = drawn(made, Point.of(made), world, random)
            assert all(place.ranks and place.ranks.stop <= world for place in point.places.values())


def test_settings_that_hardly_help_are_left_out() -> None:
    """Dp of vision on 64 GPUs is sharded over parts of it for 0.02 % of a step."""
    made = next(each for name, each in POOR.items() if name.startswith("64, 7B"))
    found = found_for(made, 64, plans=40, top=1).found[0][1].spec
    assert all(module.shard_over is None for module in found.modules.values())
    assert all(module.order == AXES for module in found.modules.values())


def test_nothing_lies_on_the_host_that_a_gpu_can_keep() -> None:
    made = of("quickstart")
    vision = made.modules["vision"].replace(offload=("activations",))
    made = made.replace(modules={**made.modules, "vision": vision})
    for _, estimator in found_for(made, 4, plans=200, top=5).found:
        assert not any(module.offload for module in estimator.spec.modules.values())
