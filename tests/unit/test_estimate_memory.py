"""Bytes of the estimates: sums that follow from sizes."""

from dataclasses import replace

import pytest
from tests.support.memory import DECODER, INNER, TOKENS, VIT, WIDTH, memory_of, model, per_block
from tests.support.reports import build_report
from tests.support.specs import box, spec

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import StageMemory, checkpoint_bytes, weight_memory
from mimo_launch.estimate.rows import MemoryRow
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.layout import build_layout
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec


def test_recomputing_keeps_the_input_alone() -> None:
    made = model(recompute="full")
    assert per_block(made, "language") == TOKENS * WIDTH * 2
    assert memory_of(made, "language").backward_extra > memory_of(model(), "language").kept / 4


def test_head_keeps_one_tensor_of_logits_and_needs_a_second() -> None:
    large, small = memory_of(model(vocab=1024), "language"), memory_of(model(), "language")
    assert large.kept - small.kept == TOKENS * 512 * 2
    assert large.forward_extra == TOKENS * 1024 * 2


def row(made: Spec, rank: int, **constants: float) -> MemoryRow:
    estimator = Estimator.of(Plan.of(made), replace(Calibration(), **constants))
    (alike,) = [each for each in estimator.classes if rank in each.ranks]
    return estimator.memory(alike)


def language(microbatches: int = 4, mbs: int = 2, **more: object) -> Spec:
    grid = {axis: more.pop(axis) for axis in ("tp", "cp", "dp", "pp") if axis in more}
    return spec(
        {"language": box(0, model={**DECODER, "hidden": 512}, **grid, **more)},
        microbatches=microbatches,
        mbs=mbs,
        seq=256,
        train={"steps": 1, "precision": "bf16"},
    )


@pytest.mark.parametrize("more", [{}, {"sharding": "full"}, {"frozen": True}])
def test_weights_are_cut_over_cp_as_over_replicas(more: dict[str, object]) -> None:
    def of_weights(**grid: int) -> StageMemory:
        made = language(mbs=8, **grid, **more)
        module = build_layout(made).language
        return weight_memory(made, module, module.stages[0], 0, several=True)

    assert of_weights(cp=4) == of_weights(cp=2, dp=2) == of_weights(dp=4) != of_weights()


def test_state_is_sharded_over_dp_and_cp() -> None:
    made = language(dp=2, cp=2)
    numel = build_report(Plan.of(made)).estimates.ranks[0].parameters
    got = row(made, 0)
    # fp32 shards and a bf16 copy; two fp32 moments; whole fp32 gradients, and in a backward bf16
    # ones of what is no matrix product, the embedding above all.
    assert got.weights == pytest.approx(numel * (4 / 4 + 2), rel=1e-3)
    assert got.optimizer == pytest.approx(numel * 8 / 4, rel=1e-3)
    words = 2 * 512 * padded_vocab_size(made)
    assert got.gradients == pytest.approx(numel * 4 + words, rel=1e-2)
    full = row(language(dp=2, cp=2, sharding="full"), 0)
    assert full.weights < got.weights
    assert full.gradients < got.gradients / 2
    assert full.optimizer == got.optimizer


def test_one_microbatch_accumulates_nothing() -> None:
    assert row(language(1), 0).gradients < row(language(2), 0).gradients
    assert row(language(2), 0).gradients == row(language(8), 0).gradients


def test_activations_are_those_of_live_microbatches() -> None:
    made = language(8, mbs=64, pp=4)
    report = build_report(Plan.of(made))
    peaks = [stage.peak_live for stage in report.stages]
    assert peaks == [4, 3, 2, 1]
    for rank, peak in enumerate(peaks):
        stage = memory_of(made, "language", rank)
        extra = row(made, rank).activations - peak * stage.kept
        assert extra == max(stage.forward_extra, stage.backward_extra)


def test_input_gradients_wait_in_their_send_buffers() -> None:
    few, many = (row(language(m, pp=2), 1).transfers for m in (4, 8))
    assert many - few == 4 * 2 * 256 * 512 * 2


def test_rows_wait_at_their_sender_and_their_gradients_at_the_receiver() -> None:
    def transfers(microbatches: int, hidden: int = WIDTH, width: int = WIDTH) -> list[int]:
        small = {**VIT, "hidden": width, "layers": 1, "mlp": width, "projector": "linear"}
        made = spec(
            {
                "vision": box(0, model=VIT if width == WIDTH else small),
                "language": box(1, model={**DECODER, "hidden": hidden}),
            },
            microbatches=microbatches,
            mbs=2,
            seq=256,
            data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
            train={"steps": 1, "precision": "bf16"},
        )
        return [row(made, rank).transfers for rank in (0, 1)]

    # The rows of two images, in bf16; language holds its last ones beside their gradients.
    each = 2 * 64 * WIDTH * 2
    assert transfers(4) == [4 * each, 5 * each]
    assert transfers(8) == [8 * each, 9 * each]
    # Where vision itself needs less, it has the most when the gradients of its rows arrive.
    assert transfers(4, hidden=16 * WIDTH, width=64)[0] == (4 + 1) * 16 * each


def test_the_two_largest_layers_are_on_their_way_to_the_host() -> None:
    def in_flight(dense: int) -> int:
        moe = {"experts": 4, "top_k": 2, "width": 256, "first_dense": dense}
        return memory_of(model(decoder={"moe": moe}, offload=["activations"]), "language").in_flight

    # Of four layers; a dense one keeps more here.
    sparse, one, two, dense = map(in_flight, (0, 1, 2, 4))
    assert dense > sparse > 0
    assert one == (sparse + dense) / 2
    assert two == dense


def test_what_was_on_its_way_is_gone_after_the_last_backward_of_its_module() -> None:
    """On one rank vision is the last that goes backward, and needs the most there."""
    small = {**DECODER, "hidden": 64, "layers": 2, "mlp": 64, "head_dim": 8}
    wide = {**VIT, "layers": 1, "mlp": 16 * WIDTH}
    made = spec(
        {"vision": box(0, model=wide), "language": box(0, model=small, offload=["activations"])},
        mbs=2,
        seq=256,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
        train={"steps": 1, "precision": "bf16"},
    )
    vision = memory_of(made, "vision")
    assert memory_of(made, "language").in_flight > 0
    assert row(made, 0).activations == vision.kept + vision.backward_extra


def test_moments_lie_on_the_host_where_their_rule_can_put_them_there() -> None:
    """Muon keeps the moments of matrices on the GPU."""
    layer = 2 * 256 * 256 + 2 * 64 * 256 + 3 * 1024 * 256
    found = {}
    for parts in ((), ("optimizer",)):
        made = spec(
            {"language": box(0, model=DECODER, offload=parts)},
            optimizer={"kind": "muon"},
            train={"steps": 1, "precision": "bf16"},
        )
        found[parts] = row(made, 0)
    here, away = found.values()
    assert away.optimizer == 4 * layer * 4
    assert (here.host, away.host) == (0, here.optimizer - away.optimizer)


def test_a_map_in_few_bits_is_unpacked_through_its_codes_and_values() -> None:
    """Beside the bf16 values: four bytes for each of int8, one for each of nf4."""
    extra = {}
    for kind in ("int8", "nf4"):
        packs = {"adapter": {"rank": 4}, "quantize_base": {"kind": kind}}
        made = spec(
            {"language": box(0, model=DECODER, **packs)},
            train={"steps": 1, "precision": "bf16"},
        )
        extra[kind] = memory_of(made, "language").backward_extra
    # The largest map is the one of gate and values together.
    assert extra["int8"] - extra["nf4"] == (4 - 1) * WIDTH * 2 * INNER


def test_a_checkpoint_leaves_out_what_is_kept_in_few_bits() -> None:
    """The maps of four layers, which are frozen and in bf16 otherwise."""
    adapter = {"adapter": {"rank": 4}}
    plain, packed = (
        checkpoint_bytes(
            spec(
                {"language": box(0, model=DECODER, **adapter, **more)}, train={"precision": "bf16"}
            )
        )
        for more in ({}, {"quantize_base": {"kind": "nf4"}})
    )
    layer = 2 * WIDTH * WIDTH + 2 * 64 * WIDTH + 3 * INNER * WIDTH
    assert plain - packed == 4 * layer * 2


def test_a_checkpoint_leaves_out_frozen_weights_only_where_a_folder_has_them() -> None:
    def size(**more: object) -> int:
        modules = {"vision": box(0, model=VIT, frozen=True, **more), "language": box(1)}
        saves = {"every": 1, "frozen_weights": False}
        return checkpoint_bytes(spec(modules, checkpoint=saves))

    assert size() > size(init_from="folder")


def test_frozen_experts_that_no_rank_shares_are_not_gathered() -> None:
    """Whatever their size: copies of other weights lie on other ranks."""

    def gathered(width: int) -> int:
        moe = {"experts": 4, "top_k": 2, "width": width}
        grid = {"dp": 4, "shard_over": 2, "experts": {"ep": 4}}
        made = spec(
            {"vision": box(4), "language": box(0, model={"moe": moe}, frozen=True, **grid)},
            train={"steps": 1, "precision": "bf16"},
        )
        return memory_of(made, "language").gathered

    assert gathered(64) == gathered(4096) > 0


def test_communicators_and_context_are_outside_the_allocator() -> None:
    free = {"context_memory": 0.0, "communicator_memory": 0.0, "allocator_slack": 0.0}
    alone = row(language(), 0, **free)
    assert alone.device == alone.reserve == 0
    assert alone.total == alone.allocated
    assert row(language(), 0, **{**free, "allocator_slack": 0.5}).reserve == alone.allocated // 2
    assert row(language(), 0, **{**free, "communicator_memory": 1.0}).device == 0
    # World, tp; world, dp x cp; world, pp and a channel each way.
    for grid, number in (({"tp": 2}, 2), ({"dp": 2}, 2), ({"pp": 2}, 4)):
        got = row(language(**grid), 0, **{**free, "communicator_memory": 1.0})
        assert got.device == number * 10**9


def test_tokens_that_tp_ranks_copy_are_outside_the_allocator() -> None:
    copied, gathered = (row(language(tp=2, cp=2, sequence_parallel=e), 0) for e in (True, False))
    # The tokens of two samples on a cp rank, in bf16.
    assert copied.device - gathered.device == 2 * 256 // 2 * 512 * 2

    def device(rank: int, *, cuts: bool) -> int:
        modules = {
            "language": box(0, tp=2, model=DECODER, sequence_parallel=cuts),
            "vision": box(2, model=VIT),
        }
        return row(spec(modules, train={"steps": 1, "precision": "bf16"}), rank).device

    assert device(0, cuts=True) > device(0, cuts=False)
    assert device(2, cuts=True) == device(2, cuts=False)


def test_what_is_frozen_has_no_gradients_and_keeps_nothing() -> None:
    made = spec(
        {"vision": box(0, model=VIT, frozen=True), "language": box(1, model=DECODER)},
        microbatches=4,
        seq=512,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
    )
    got = row(made, 0)
    assert got.gradients == got.optimizer == 0
    assert got.weights > 0
    stage = memory_of(made, "vision")
    assert stage.kept == stage.backward_extra == 0
    assert got.activations == stage.forward_extra
