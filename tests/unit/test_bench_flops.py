"""Operations of a step: against a count by hand of the reference workload, and per sample."""

from pathlib import Path

import pytest
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.order.sample_order import make_step_data
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.workload import peak_tflops, step_flops
from mimo_launch.layout.layout import build_layout
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.values import PRECISIONS

R1 = Path(__file__).parents[2] / "topologies" / "bench" / "r1_dp2_pp2.yaml"


def test_the_reference_workload() -> None:
    """Llama-3-8B shape, 16 layers, sequence 4,096; ViT-H on 4,096 patches. Counted by hand."""
    made = load_spec(R1).spec
    assert made is not None
    flops = step_flops(made, build_layout(made), nominal_step_data(made))
    width, inner, seq, words = 4096, 14336, 4096, 131072
    weights = 16 * (2 * width * width + 2 * width * width // 4 + 3 * width * inner) + words * width
    scores = 16 * 2 * seq * width  # Half of 4 S D per token: causal.
    language = 3 * seq * (2 * weights + scores)
    vit = 32 * (4 * 1280**2 + 2 * 1280 * 5120)
    ends = 4096 * (3 * 16 * 16) * 1280 + 1024 * (4 * 1280) * 4096
    vision = 3 * (4096 * (2 * vit + 32 * 4 * 4096 * 1280) + 2 * ends)
    assert flops["language"] == pytest.approx(made.batch.global_ * language)
    assert flops["vision"] == pytest.approx(made.batch.global_ * vision)
    assert language / 1e12 == pytest.approx(106, rel=0.01)


def test_a_step_of_a_graph_costs_what_the_plan_says() -> None:
    made = spec(
        {
            "vision": box(0, dp=2),
            "merger": box(0, tp=2, model={"kind": "connector", "queries": 3}, reads=["vision"]),
            "language": box(2, pp=2),
            "drawer": box(0, dp=2, model={"kind": "flow"}, reads=["language"]),
        },
        microbatches=2,
        mbs=2,
    )
    flops = step_flops(made, build_layout(made), expected_steps(made).sampled[0])
    planned = Estimator.of(Plan.of(made)).estimates().tflop * 1e12
    assert min(flops.values()) > 0
    assert sum(flops.values()) == pytest.approx(planned)


def test_samples_cost_what_their_own_images_cost() -> None:
    made = spec({"vision": box(0), "language": box(0)}, mbs=2, max_patches=12, text_only=0.3)
    layout, dataset = build_layout(made), build_dataset(made)
    alone = [step_flops(made, layout, make_step_data(dataset, "train", (i,), 0)) for i in range(8)]
    together = step_flops(made, layout, make_step_data(dataset, "train", tuple(range(8)), 0))
    assert together["vision"] == pytest.approx(sum(each["vision"] for each in alone))
    assert len({each["vision"] for each in alone}) > 1
    assert {each["language"] for each in alone} == {together["language"] / 8}


def test_records_of_a_pack_attend_to_themselves() -> None:
    """What is saved is as the pairs of tokens that are in different records."""
    made = spec({"language": box(0)}, mbs=1, seq=64, packing=True)
    layout, dataset = build_layout(made), build_dataset(made)

    def language(sample: int | tuple[int, ...]) -> float:
        return step_flops(made, layout, make_step_data(dataset, "train", (sample,), 0))["language"]

    ids = sorted(range(40), key=lambda index: dataset.length("train", index))
    rates = []
    for first in (ids[0], ids[4]):
        length = dataset.length("train", first)
        apart = 64**2 - length**2 - (64 - length) ** 2
        rates.append((language(ids[0]) - language((first, ids[1]))) / apart)
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0] > 0


def test_the_peak_of_a_device_is_that_of_the_numbers_that_it_computes_with() -> None:
    known, rated = "NVIDIA H100 PCIe", Calibration()
    for name, peak, share in (("bf16", 756.0, 1.0), ("fp32", None, rated.fp32_speed)):
        assert peak_tflops(known, PRECISIONS[name]) == peak
        assert peak_tflops(rated.device, PRECISIONS[name]) == pytest.approx(989 * share)
        assert peak_tflops("cpu", PRECISIONS[name]) is None
