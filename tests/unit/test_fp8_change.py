"""FP8 is advised where the estimates say that it pays by far, and bf16 where FP8 is slower."""

import re
from pathlib import Path

import pytest
from tests.support.reports import build_report

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.plan.plan import Plan
from mimo_launch.search.answer import LostTime
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

BENCH = Path("topologies/bench")
ENGINE, FP8 = "modules.language.backend=transformer_engine", "modules.language.fp8.scaling=current"


def spec_of(name: str, *overrides: str) -> Spec:
    spec = load_spec(BENCH / f"{name}.yaml", overrides).spec
    assert spec is not None
    return spec


def loss_of(spec: Spec) -> LostTime | None:
    """Return what is advised about FP8."""
    losses = build_report(Plan.of(spec), advice=True).answer.losses
    return next((each for each in losses if each.kind == "precision"), None)


def step_seconds(spec: Spec) -> float:
    return build_report(Plan.of(spec)).answer.step_seconds


def test_fp8_that_gains_a_quarter_is_offered() -> None:
    """The same spec was measured: 3.909 s in bf16, 3.122 s in FP8 (docs/performance.md)."""
    bf16 = spec_of("r1_colocated_dp4", "nodes.gpu=h200-141gb")
    losses = build_report(Plan.of(bf16), advice=True).answer.losses
    changes = [each.change for each in losses if each.change is not None]
    assert changes
    offered = changes[-1]
    assert offered.settings == {
        "modules.language.backend": "transformer_engine",
        "modules.language.fp8": {},
    }
    assert offered.text == "compute language in FP8 with Transformer Engine"
    fp8 = spec_of("r1_colocated_dp4", "nodes.gpu=h200-141gb", ENGINE, "modules.language.fp8={}")
    assert 1 + offered.gain == pytest.approx(step_seconds(bf16) / step_seconds(fp8))
    assert 1.15 < 1 + offered.gain < 1.35


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("r1_colocated_dp4", ["nodes={gpus: 4, gpu: a100-80gb}"]),
        ("r1_colocated_dp4", ["nodes=null"]),
        ("qwen3_vl_4b", ["nodes.gpu=h200-141gb"]),
    ],
    ids=["a GPU without FP8", "no GPU", "small microbatches wait for the host"],
)
def test_fp8_is_not_offered_elsewhere(name: str, overrides: list[str]) -> None:
    assert loss_of(spec_of(name, *overrides)) is None


def test_fp8_that_the_host_makes_slower_than_bf16_is_told() -> None:
    """It was measured on one H200, with delayed scaling even slower: 2.02 s, and 1.56 s in bf16."""
    loss = loss_of(spec_of("qwen3_vl_4b", "nodes.gpu=h200-141gb", ENGINE, FP8))
    assert loss is not None
    assert re.match(
        "language computes in FP8, whose kernels its host starts more slowly; with bf16 a step "
        r"takes [12]\d% less",
        loss.what,
    )
    assert loss.change is not None
    assert loss.change.settings == {
        "modules.language.backend": "torch",
        "modules.language.fp8": None,
    }
    assert loss.change.text == "compute language in bf16 with torch's layers"


@pytest.mark.parametrize(
    ("name", "codes"), [("qwen3_vl_4b", ["fp8-slower"]), ("r1_colocated_dp4", [])]
)
def test_validate_warns_of_fp8_only_where_bf16_is_faster(name: str, codes: list[str]) -> None:
    """As measured: 2.02 and 1.56 s on one H200; 3.12 and 3.91 s on four."""
    sets = ["nodes.gpu=h200-141gb", ENGINE, FP8]
    found = load_and_check(BENCH / f"{name}.yaml", sets).diagnostics
    assert [each.code for each in found] == codes
    assert all("the host starts its kernels more slowly" in each.why for each in found)


@pytest.mark.parametrize("gpus", [["nodes.gpu=h200-141gb"], []], ids=["named", "not named"])
@pytest.mark.parametrize("language", [[], ["modules.language.fp8=null"]], ids=["fp8", "bf16"])
def test_validate_warns_of_fp8_in_vision_where_it_gains_nothing(
    language: list[str], gpus: list[str]
) -> None:
    """As measured: 3.40 s a step with vision in FP8, 3.12 s without it, on one H200."""
    vision = ["modules.vision.backend=transformer_engine", "modules.vision.fp8.scaling=delayed"]
    found = load_and_check(BENCH / "r1_colocated_dp2_fp8.yaml", [*gpus, *vision, *language])
    (finding,) = found.diagnostics
    assert finding.code == "fp8-slower"
    assert finding.path == ("modules", "vision", "fp8")
    seconds = "3.8" if language else "3.1"
    assert finding.headline.startswith(f"`vision` gains nothing from FP8: about {seconds}")
