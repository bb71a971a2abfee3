"""What grows with ranks: hops of collectives, Python of hosts, start and checkpoints."""

from dataclasses import replace
from math import log2

import pytest
from tests.support.specs import box, spec

from mimo_launch.estimate.communication_times import LinkTimes
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import checkpoint_bytes
from mimo_launch.estimate.rows import Estimates
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec

GIVEN = Calibration()
DECODER = {"kind": "decoder", "layers": 4, "hidden": 2048, "heads": 16, "vocab": 32000}
RANKS = (8, 64, 512, 4096, 10_240, 65_536)


def made(ranks: int, **more: object) -> Spec:
    """A model on tp 8, with the same work for every rank."""
    return spec(
        {"language": box(0, model=DECODER, tp=8, dp=ranks // 8)},
        microbatches=2,
        mbs=2,
        seq=2048,
        train={"steps": 1, "precision": "bf16"},
        nodes={"gpus": 8},
        **more,
    )


def of(ranks: int, constants: Calibration = GIVEN) -> Estimates:
    return Estimator.of(Plan.of(made(ranks)), constants).estimates()


def test_a_ring_takes_a_hop_to_each_other_rank_some_of_them_between_hosts() -> None:
    links = LinkTimes(made(64), GIVEN)
    two_hosts, size = tuple(range(16)), 10**9
    hops = 14 * GIVEN.hop_latency + 1 * GIVEN.network_hop_latency
    # Eight adapters of a host move as much as NVLink does.
    moving = size * 15 / 16 / min(8 * GIVEN.network_bandwidth, GIVEN.collective_bandwidth) / 1e9
    wanted = (GIVEN.collective_latency + hops) * 1e-6 + moving
    assert links.collective(two_hosts, size) == pytest.approx(wanted)
    pairs = (0, 1, 8, 9)
    hops = 2 * GIVEN.hop_latency + 1 * GIVEN.network_hop_latency
    moving = size * 3 / 4 / (2 * GIVEN.network_bandwidth) / 1e9
    wanted = (GIVEN.collective_latency + hops) * 1e-6 + moving
    assert links.collective(pairs, size) == pytest.approx(wanted)
    every_eighth = tuple(range(0, 64, 8))
    hops = 7 * GIVEN.short_network_hop_latency
    wanted = (GIVEN.collective_latency + hops) * 1e-6
    assert links.collective(every_eighth, 8) == pytest.approx(wanted, rel=1e-3)
    assert links.collective((3,), size) == 0


def test_an_all_to_all_leaves_a_rank_by_its_own_adapter() -> None:
    links, size = LinkTimes(made(64), GIVEN), 10**9
    hops = 7 * GIVEN.short_hop_latency + 8 * GIVEN.short_network_hop_latency
    wanted = (GIVEN.collective_latency + hops) * 1e-6 + size / 2 / GIVEN.network_bandwidth / 1e9
    assert links.exchange(tuple(range(16)), size) == pytest.approx(wanted)
    one_host, given = tuple(range(8)), GIVEN.collective_latency + 7 * GIVEN.short_hop_latency
    wanted = given * 1e-6 + size * 7 / 8 / GIVEN.collective_bandwidth / 1e9
    assert links.exchange(one_host, size) == pytest.approx(wanted)
    assert links.exchange((3,), size) == 0


def test_a_message_takes_the_protocol_that_is_faster_for_its_size() -> None:
    links, ranks = LinkTimes(made(64), GIVEN), tuple(range(8))
    sizes = [2.0**n for n in range(31)]
    seconds = [links.collective(ranks, size) for size in sizes]
    assert seconds == sorted(seconds)
    # The bandwidth of short messages is a quarter, so that growth is steepest in the middle.
    steps = [
        (after - before) / size
        for size, before, after in zip(sizes, seconds, seconds[1:], strict=False)
    ]
    assert max(steps[:10]) == pytest.approx(4 * steps[-1])


def test_metrics_go_up_a_tree_of_hosts_and_down() -> None:
    seconds = {ranks: LinkTimes(made(64), GIVEN).sum_of_metrics(ranks) for ranks in (8, 16, 1024)}
    inside = 2 * 7 * GIVEN.short_hop_latency + GIVEN.collective_latency
    for ranks, found in seconds.items():
        wanted = inside + 2 * log2(ranks // 8) * GIVEN.network_hop_latency
        assert found == pytest.approx(wanted * 1e-6)


def test_more_ranks_with_the_same_work_each_are_never_faster() -> None:
    found = [of(ranks) for ranks in RANKS]
    rates = [each.tflops_per_gpu for each in found]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[-2] / 1.05 < rates[2] / 1.05**2
    # All of it is latency and Python: without these, large jobs are as fast as small ones.
    free = replace(
        GIVEN,
        record_overhead=0.0,
        agreement_latency=0.0,
        network_hop_latency=0.0,
        short_network_hop_latency=0.0,
    )
    few, many = (of(ranks, free).tflops_per_gpu for ranks in (512, 65_536))
    assert many == pytest.approx(few, rel=0.02)


def test_a_step_is_no_shorter_than_the_python_of_its_hosts() -> None:
    slow = replace(GIVEN, record_overhead=1e5, agreement_latency=0.0, layer_overhead=0.0)
    found = of(8, slow)
    assert found.step_seconds == pytest.approx(4 * 0.1)
    (row,) = found.ranks
    assert row.reading == pytest.approx(
        1 - of(8, replace(slow, record_overhead=0.0)).step_seconds / 0.4
    )
    assert row.reading <= row.waiting + 1e-9
    # Both threads of a rank run Python: one starts kernels, one describes samples.
    both = of(8, replace(slow, layer_overhead=1e5, exchange_starts=0.0))
    passes = 2 * 4 * 2
    assert both.step_seconds == pytest.approx(0.4 + passes * 0.1)
    agreeing = of(64, replace(slow, agreement_latency=1e5))
    assert agreeing.step_seconds == pytest.approx(0.1 * 32 + 2 * 63 * 0.1)


def test_start_and_checkpoints_by_their_formulas() -> None:
    plan = Plan.of(made(64, checkpoint={"every": 1}))
    found = Estimator.of(plan, GIVEN).host_costs
    # 8 groups of tp, 8 of dp; one of all ranks, one each for reading and saving.
    assert (found.groups, found.communicators) == (8 + 8 + 3, 3)
    meeting = 19 * 64 * GIVEN.group_time * 1e-6
    start = GIVEN.import_time + meeting + 3 * GIVEN.communicator_time
    assert found.start_seconds == pytest.approx(start)
    # Its blocks are of one kind.
    assert found.compiling_seconds == GIVEN.compiling
    for numbers, compiles, kinds in (("fp64", "auto", 0), ("fp64", True, 1), ("bf16", False, 0)):
        own = spec({"language": box(0, compile=compiles)}, train={"precision": numbers})
        costs = Estimator.of(Plan.of(own), GIVEN).host_costs
        assert costs.compiling_seconds == kinds * GIVEN.compiling
    size = checkpoint_bytes(plan.spec)
    assert found.checkpoint_bytes == size
    # A layer has 6 parameters, 3 are around them, each with two moments, cut over all 64 ranks.
    index = (4 * 6 + 3) * 3 * 64 * GIVEN.box_overhead * 1e-6
    read = size / 8 / GIVEN.storage_bandwidth / 1e9
    assert found.resume_seconds == pytest.approx(index + read)
    assert found.stall_seconds == pytest.approx(size / 64 / GIVEN.copy_bandwidth / 1e9)
    assert found.save_seconds == pytest.approx(found.stall_seconds + index + 2 * read)
    # Two hosts together are as fast as the storage lets them be.
    slow = replace(GIVEN, storage_limit=2 * GIVEN.storage_bandwidth)
    limited = Estimator.of(plan, slow).host_costs
    assert limited.resume_seconds == pytest.approx(index + 4 * read)
    # Four ranks of a pipeline: their own group, one of transfers each way, three of all.
    pipeline = Plan.of(spec({"language": box(0, pp=4)}, microbatches=4))
    assert Estimator.of(pipeline, GIVEN).host_costs.groups == 1 + 2 + 3
    # The rank that opens the most communicators is the last to start.
    uneven = spec({"vision": box(0), "language": box(1, tp=2, dp=2)})
    of_ranks = Estimator.of(Plan.of(uneven), GIVEN)
    opened = [of_ranks.communicators(rank) for rank in range(5)]
    assert of_ranks.host_costs.communicators == max(opened) > min(opened)
    unsaved = Estimator.of(Plan.of(made(64, checkpoint="none")), GIVEN).host_costs
    assert unsaved.checkpoint_bytes is unsaved.save_seconds is unsaved.resume_seconds is None
