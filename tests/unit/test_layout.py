"""The layout of a spec: what follows from single settings."""

from collections import Counter

import pytest
from tests.support.graphs import talker
from tests.support.specs import box, spec

from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.rank_groups import groups_of, rank_groups

EXPERTS = {"moe": {"experts": 4, "top_k": 2, "width": 8}}


@pytest.mark.parametrize(("tp", "is_split"), [(1, False), (2, True)])
def test_sequence_parallelism_splits_tokens_over_tp_where_there_is_any(
    tp: int, is_split: bool
) -> None:
    made = spec({"language": box(0, tp=tp, sequence_parallel=True)})
    assert build_layout(made).language.sequence_parallel is is_split


def test_the_weight_of_a_module_scales_all_its_losses() -> None:
    """Those of further tokens, too, which share theirs among their depths."""
    model = {"mtp": {"depth": 2, "loss_weight": 0.5}}
    made = spec({"language": box(0, loss_weight=3.0, model=model), "speech": box(0, **talker())})
    found = {loss.name: loss.weight for loss in build_layout(made).losses}
    assert found == {"language": 3.0, "language.mtp": 0.75, "language.mtp2": 0.75, "speech": 1.0}


@pytest.mark.parametrize(
    "modules",
    [
        {"vision": box(0, dp=4), "language": box(0, tp=2, dp=2)},
        {"vision": box(0, dp=2), "language": box(2, tp=2, cp=2, pp=2, model={"tied": True})},
        {"language": box(0, dp=4, pp=2, experts={"ep": 2}, model=EXPERTS)},
    ],
)
def test_the_groups_of_a_rank_are_those_of_all_that_hold_it(modules: dict) -> None:
    layout = build_layout(spec(modules))
    for rank in range(layout.world_size):
        mine = Counter(groups_of(layout, rank))
        assert mine == Counter(each for each in rank_groups(layout) if rank in each.ranks)


def test_stages_hold_as_many_layers_as_the_spec_says() -> None:
    """By default earlier ones are longer."""
    for stages, want in ((None, [2, 2, 1]), ([1, 3, 1], [1, 3, 1])):
        made = spec({"language": box(0, pp=3, model={"layers": 5}, stages=stages)})
        language = build_layout(made).language
        assert [stage.num_layers for stage in language.stages] == want
        assert [each for stage in language.stages for each in stage.layers] == list(range(5))


@pytest.mark.parametrize(("grid", "want"), [({}, [4, 4]), ({"tp": 2}, [8]), ({"cp": 2}, [4, 4])])
def test_layers_are_gathered_together_by_what_a_tp_rank_holds_of_them(
    grid: dict[str, int], want: list[int]
) -> None:
    """Of 20 million parameters each, cut over tp and whole on every cp rank."""
    model = {"layers": 8, "hidden": 1280, "heads": 16, "kv_heads": 16, "mlp": 5120}
    (stage,) = build_layout(spec({"language": box(0, model=model, **grid)})).language.stages
    assert [*map(len, stage.units)] == want
