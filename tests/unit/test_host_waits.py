"""What steps wait for the host, which starts kernels one after another."""

from dataclasses import replace
from typing import Any

import pytest
from tests.docs.files_page import ROOT
from tests.support.specs import box, hybrid, spec

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.host_waits import Starts, host_waits
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_spec
from mimo_launch.spec.spec import Spec

SHORT = Starts(times=4, running=(1.0, 2.0), starting=(3.0, 6.0))
LONG = Starts(times=2, running=(20.0, 40.0), starting=(2.0, 4.0))
MEDIUM = Starts(times=4, running=(5.0, 10.0), starting=(3.0, 6.0))


def test_kernels_that_run_shorter_than_they_take_to_start_wait() -> None:
    assert host_waits({("v", 0): SHORT}, [(("v", 0),)]) == {("v", 0): (2.0, 4.0)}


def test_long_kernels_of_the_same_rank_hide_the_starts_of_others() -> None:
    stages = {("v", 0): SHORT, ("l", 0): LONG}
    assert set(host_waits(stages, [tuple(stages)]).values()) == {(0.0, 0.0)}


def test_what_they_do_not_hide_is_shared_out() -> None:
    """Medium kernels have 24 s to spare in a step; twice as many short ones lack 48 s."""
    stages = {("v", 0): replace(SHORT, times=8), ("l", 0): MEDIUM}
    waits = host_waits(stages, [tuple(stages)])
    assert waits["l", 0] == (0.0, 0.0)
    assert 8 * sum(waits["v", 0]) == pytest.approx(8 * 6 - 4 * 6)


def test_a_backward_after_language_hides_no_start_of_language() -> None:
    """The device runs out of kernels before the host has started those of language."""
    tower = Starts(times=1, running=(10.0, 20.0), starting=(1.0, 1.0))
    language = Starts(times=4, running=(1.0, 1.0), starting=(4.0, 4.0))
    stages = {("vision", 0): tower, ("language", 0): language}
    waits = host_waits(stages, [tuple(stages)])
    assert waits["vision", 0] == (0.0, 0.0)
    # 1 s until language begins and 32 s to start it, where the device has work for 18 s.
    assert 4 * sum(waits["language", 0]) == pytest.approx(33 - 18)
    generator = {("language", 0): language, ("speech", 0): tower}
    # Kernels of the generator run while the host starts the backwards of language.
    assert 4 * sum(host_waits(generator, [tuple(generator)])["language", 0]) == pytest.approx(12)


def test_of_ranks_that_hold_a_stage_the_one_that_waits_longest_counts() -> None:
    stages = {("v", 0): SHORT, ("l", 0): LONG}
    waits = host_waits(stages, [(), tuple(stages), (("v", 0),)])
    assert waits == {("v", 0): (2.0, 4.0), ("l", 0): (0.0, 0.0)}


def test_the_longest_wait_is_that_of_both_directions() -> None:
    """One role waits 2 s in forwards; the other, whose host also reads for 7 s, 3 s in both."""
    stages = {
        ("v", 0): Starts(times=1, running=(1.0, 4.0), starting=(3.0, 4.0)),
        ("l", 0): Starts(times=1, running=(3.0, 3.0), starting=(0.0, 0.0)),
    }
    alone, both = (("v", 0),), tuple(stages)
    waits = host_waits(stages, [alone, both], {both: 7.0})
    assert waits["v", 0] == pytest.approx((3 * 5 / 9, 3 * 4 / 9))


def test_a_step_of_small_layers_takes_as_long_as_the_host_takes() -> None:
    """A forward and a backward are two passes, and recomputing is a forward more."""
    made = spec({"language": box(0, model={"layers": 6}, recompute="full")}, microbatches=4)
    free = replace(Calibration(), action_overhead=0.0, layer_overhead=0.0)

    def seconds(constants: Calibration) -> float:
        return Estimator.of(Plan.of(made), constants).estimates().schedule_seconds

    assert seconds(free) < 1e-3
    slow = seconds(replace(free, layer_overhead=1000.0, forward_share=0.6))
    assert slow == pytest.approx(4 * 6 * (2 + 1.2) * 1e-3, rel=1e-3)


def test_attention_and_mlp_of_a_hybrid_take_the_host_as_long_as_a_block() -> None:
    free = replace(Calibration(), action_overhead=0.0, layer_overhead=1000.0)
    models: list[dict[str, Any]] = [{"layers": 4}, {"kind": "hybrid", "pattern": "*-*-*-*-"}]
    block, parts = (
        Estimator.of(
            Plan.of(spec({"language": box(0, model=each)}, microbatches=4)), free
        ).estimates()
        for each in models
    )
    assert parts.schedule_seconds == pytest.approx(block.schedule_seconds, rel=1e-3)


def test_a_layer_with_experts_takes_the_host_longer() -> None:
    free = replace(Calibration(), action_overhead=0.0, layer_overhead=0.0)
    experts = {"experts": 4, "top_k": 2, "width": 16}
    dense, sparse = (
        spec({"language": box(0, model={"layers": 6} | more)}, microbatches=4)
        for more in ({}, {"moe": experts})
    )

    def seconds(made: Spec) -> float:
        slow = replace(free, layer_overhead=1000.0)
        return Estimator.of(Plan.of(made), slow).estimates().schedule_seconds

    assert seconds(sparse) == pytest.approx(Calibration().experts_starts * seconds(dense), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "factors", "expected"),
    [
        ({"backend": "transformer_engine"}, {"engine_starts": 3.0}, 3),
        (
            {"backend": "transformer_engine", "fp8": {}},
            {"engine_starts": 3.0, "fp8_starts": 2.0},
            6,
        ),
        ({"adapter": {"rank": 2, "targets": ["q", "o"]}}, {"adapter_starts": 0.5}, 2),
        ({"model": {"layers": 6, "head_dim": 16, "qk_norm": True}}, {"norm_starts": 0.5}, 2),
    ],
    ids=["bf16", "fp8", "updates", "norms"],
)
def test_blocks_of_another_backend_or_with_updates_take_the_host_longer(
    settings: dict[str, Any], factors: dict[str, float], expected: float
) -> None:
    slow = replace(Calibration(), action_overhead=0.0, layer_overhead=1000.0, **factors)

    def seconds(**more: Any) -> float:
        language = box(0, **{"model": {"layers": 6, "head_dim": 16}, **more})
        made = spec({"language": language}, microbatches=4, train={"precision": "bf16"})
        return Estimator.of(Plan.of(made), slow).estimates().schedule_seconds

    assert seconds(**settings) == pytest.approx(expected * seconds(), rel=1e-2)


def passes(settings: dict[str, Any], **constants: float) -> tuple[float, float]:
    """Return the passes of a forward and of a backward of six plain blocks with these settings."""
    language = box(0, **{"model": {"layers": 6}, "tp": 2} | settings)
    made = spec({"language": language}, microbatches=4)
    given = replace(Calibration(), **{"layer_overhead": 1e6, "forward_share": 0.5, **constants})
    return Estimator.of(Plan.of(made), given).model.stages["language", 0].starting


def test_a_forward_takes_the_host_longer_than_a_backward_and_is_run_again_as_one() -> None:
    alone = {"tp": 1, "dp": 2}
    host = {"forward_share": 0.75, "exchange_starts": 0.0}
    assert passes(alone, **host) == pytest.approx((9.0, 3.0))
    assert passes(alone | {"recompute": "full"}, **host) == pytest.approx((9.0, 12.0))


@pytest.mark.parametrize("recompute", ["full", ["attention"]])
def test_a_delta_rule_that_its_backward_repeats_is_not_repeated_with_its_layer(
    recompute: object,
) -> None:
    """Of a layer, half starts once more: its norm, its products and its gate."""
    layers = {"tp": 1, "model": hybrid({}, "GGGG")}
    host = {"forward_share": 0.5, "deltanet_starts": 3.0, "norm_starts": 0.0}
    assert passes(layers, **host) == pytest.approx((12.0, 12.0))
    share = 1.0 if recompute == "full" else 0.5
    again = passes(layers | {"recompute": recompute}, **host)
    assert again == pytest.approx((12.0, 12.0 + 4 * share * 1.5))


def test_exchanges_over_tp_take_the_host_time_in_both_directions() -> None:
    """A block has two regions with an exchange at both ends, one of which is in each direction."""
    assert passes({}, exchange_starts=0.5) == pytest.approx((6 + 6 * 4 * 0.5, 6 + 6 * 4 * 0.5))
    assert passes({"tp": 1, "dp": 2}, exchange_starts=0.5) == pytest.approx((6.0, 6.0))


def test_a_depth_of_further_tokens_has_no_updates_that_the_host_starts() -> None:
    adapter = {"adapter": {"rank": 2, "targets": ["q", "o"]}}
    for model in ({"layers": 6}, {"layers": 6, "mtp": {"depth": 1}}):
        plain = passes({"tp": 1, "model": model})
        updated = passes({"tp": 1, "model": model} | adapter, adapter_starts=0.5)
        assert updated == pytest.approx([each + 6 * 2 * 0.5 for each in plain])


def test_each_fully_sharded_unit_takes_the_host_time_to_gather() -> None:
    """The units are six blocks and the rest of the stage."""
    settings = {"tp": 1, "dp": 2, "sharding": "full"}
    assert passes(settings, gather_starts=2.0) == pytest.approx((6 + 7 * 2.0, 6 + 7 * 2.0))


def test_a_thread_that_reads_makes_the_host_as_much_slower() -> None:
    """A role that is limited by its host waits for all of it; one with long kernels hides it."""
    slow = {("v", 0): SHORT}
    role = (("v", 0),)
    lacking, more = (
        SHORT.times * sum(host_waits(slow, [role], {role: busy})["v", 0]) for busy in (0.0, 3.0)
    )
    assert more - lacking == pytest.approx(3.0)
    hidden = {("v", 0): replace(SHORT, running=(1e3, 1e3))}
    assert host_waits(hidden, [role], {role: 3.0})["v", 0] == (0.0, 0.0)


def test_ranks_count_the_python_of_what_they_read_themselves() -> None:
    """Each of four replicas reads a quarter of the texts and photographs, and describes all."""
    sets = ["nodes.gpus=4", "batch.global=32"]
    for name in ("vision", "language"):
        sets += [f"modules.{name}.ranks=0-3", f"modules.{name}.grid.dp=4"]
    read = load_spec(ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml", sets).spec
    assert read is not None
    rates = Calibration(
        record_overhead=1.0,
        packing_overhead=0.0,
        text_overhead=10.0,
        token_overhead=1.0,
        array_overhead=100.0,
    )
    model = Estimator.of(Plan.of(read), rates).model
    step, vision = model.step, model.layout["vision"]
    photographs = [
        sum(work.spans.total() for work in step.forwards(vision, replica)) for replica in range(4)
    ]
    slowest = sum(work.spans.total() for work in step.slowest(vision))
    records = step.data.num_records
    assert slowest in photographs
    spans = (
        span for sample in step.data.samples for each in sample.spans.values() for span in each
    )
    tokens = step.data.num_tokens - sum(span.num_positions for span in spans)
    assert 1e6 * model.python == pytest.approx(
        records + (10 * records + tokens) / 4 + 100 * slowest
    )
    in_memory = Estimator.of(Plan.of(read), rates.without_reading).model
    assert 1e6 * in_memory.python == pytest.approx(records)


def test_the_rank_that_reads_the_most_counts_and_a_last_stage_reads_texts_for_its_labels() -> None:
    rates = replace(
        Calibration().without_reading,
        record_overhead=0.0,
        packing_overhead=0.0,
        text_overhead=10.0,
        array_overhead=100.0,
    )

    def python(*sets: str) -> tuple[float, int, int]:
        path = ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml"
        read = load_spec(path, ["batch.global=32", "schedule.microbatches=4", *sets]).spec
        assert read is not None
        model = Estimator.of(Plan.of(read), rates).model
        works = model.step.slowest(model.layout["vision"])
        arrays = sum(work.spans.total() for work in works)
        return 1e6 * model.python, model.step.data.num_records, arrays

    stages = ("modules.language.ranks=0-1", "modules.language.grid.pp=2")
    for rank, beside in ((1, 10), (2, 0)):
        vision = f"modules.vision.ranks={rank}"
        seconds, records, arrays = python(*stages, vision, f"nodes.gpus={rank + 1}")
        assert seconds == pytest.approx(beside * records + 100 * arrays)


def test_ranks_count_the_packing_of_all_records_of_a_step() -> None:
    """Every rank packs the records of the whole step, not only those of its own samples."""
    rates = replace(Calibration().without_reading, record_overhead=1.0, packing_overhead=10.0)
    path, sets = ROOT / "docs/measured/photographs_qwen3_vl_4b.yaml", ["batch.global=32"]
    found = {}
    for packing in ("false", "true"):
        read = load_spec(path, [*sets, f"data.packing={packing}"]).spec
        assert read is not None
        model = Estimator.of(Plan.of(read), rates).model
        found[packing] = 1e6 * model.python / model.step.data.num_records
    assert found == {"false": pytest.approx(1), "true": pytest.approx(11)}
