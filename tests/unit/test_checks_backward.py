"""Settings of `recompute` and `offload`: reported where nothing is kept until a backward."""

import pytest
from tests.unit.test_checks_model import VALID, codes

from mimo_launch.checks.all_checks import check
from mimo_launch.search.settled_points import may_offload
from mimo_launch.spec.load import load_text

NOTHING, IDLE = list[str](), ["setting-without-effect"]
FROZEN = "vision.frozen=true"
DEPTH = "language.model.mtp={depth: 1}"


@pytest.mark.parametrize("setting", ["recompute=full", "recompute=[mlp]", "offload=[activations]"])
@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("vision", [], NOTHING),
        ("vision", [FROZEN], IDLE),
        ("vision", ["vision.frozen=except_projector"], IDLE),
        ("vision", ["vision.frozen={layers: 0}"], NOTHING),
        ("vision", ["vision.frozen={layers: 0-1}"], IDLE),
        ("vision", ["vision.adapter={rank: 2}"], NOTHING),
        ("language", ["language.frozen=true"], NOTHING),
        ("language", ["language.frozen=true", "vision.frozen=except_projector"], NOTHING),
        ("language", [FROZEN, "language.frozen={layers: 0}"], NOTHING),
        ("language", [FROZEN, "language.frozen={layers: 0-1}"], IDLE),
        ("language", [FROZEN, "language.frozen={layers: 0-1}", DEPTH], NOTHING),
        ("language", ["language.frozen={layers: 0-1}"], NOTHING),
    ],
)
def test_activations_are_kept_where_a_backward_runs(
    setting: str, name: str, overrides: list[str], expected: list[str]
) -> None:
    assert codes(*(f"modules.{each}" for each in (f"{name}.{setting}", *overrides))) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["modules.vision.offload=[optimizer]"], NOTHING),
        (["modules.vision.offload=[optimizer]", f"modules.{FROZEN}"], IDLE),
        (["modules.vision.offload=[optimizer]", "modules.vision.frozen=except_projector"], NOTHING),
        (["modules.vision.offload=[optimizer]", "optimizer.kind=sgd"], IDLE),
        (["modules.vision.offload=[optimizer]", "optimizer.kind=muon"], NOTHING),
        (["modules.vision.offload=[optimizer]", "modules.vision.optimizer.kind=sgd"], IDLE),
        (["optimizer.offload=true"], NOTHING),
        (["optimizer.offload=true", "optimizer.kind=muon"], NOTHING),
        (["optimizer.offload=true", "optimizer.kind=sgd"], IDLE),
        (["optimizer.offload=true", "modules.vision.optimizer.kind=sgd"], NOTHING),
        (
            ["optimizer.offload=true", f"modules.{FROZEN}", "modules.language.optimizer.kind=sgd"],
            IDLE,
        ),
    ],
)
def test_moments_move_where_a_rule_keeps_some(overrides: list[str], expected: list[str]) -> None:
    assert codes(*overrides) == expected


@pytest.mark.parametrize(
    ("settings", "paths", "helps"),
    [
        (["frozen=true", "offload=[activations]"], [("offload",)], ["delete `offload`"]),
        (
            ["frozen=true", "offload=[activations, optimizer]"],
            [("offload",)] * 2,
            ["delete `offload`"] * 2,
        ),
        (
            ["frozen=except_projector", "offload=[activations, optimizer]"],
            [("offload", 0)],
            ["write `offload: [optimizer]`"],
        ),
        (
            ["optimizer.kind=sgd", "offload=[activations, optimizer]"],
            [("offload", 1)],
            ["write `offload: [activations]`"],
        ),
    ],
)
def test_the_part_that_does_something_is_kept(
    settings: list[str], paths: list[tuple[object, ...]], helps: list[str]
) -> None:
    spec = load_text(VALID, overrides=[f"modules.vision.{each}" for each in settings]).spec
    assert spec is not None
    found = check(spec)
    assert [each.path[2:] for each in found] == paths
    assert [each.help for each in found] == helps


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ["activations", "optimizer"]),
        (["frozen=except_projector"], ["optimizer"]),
        (["frozen=true"], []),
        (["optimizer.kind=sgd"], ["activations"]),
    ],
)
def test_tune_offers_no_part_that_does_nothing(settings: list[str], expected: list[str]) -> None:
    spec = load_text(VALID, overrides=[f"modules.vision.{each}" for each in settings]).spec
    assert spec is not None
    assert may_offload(spec, "vision") == expected
