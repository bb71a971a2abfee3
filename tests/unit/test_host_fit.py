"""Ranks that compute on the processors of a host share its memory."""

from pathlib import Path

from tests.support.reports import build_report
from tests.support.specs import box, spec

from mimo_launch.checks.memory import memory_lacking
from mimo_launch.launcher.host_resources import host_memory
from mimo_launch.plan.plan import Plan

MB = 10**6


def test_a_vocabulary_larger_than_the_memory_of_the_host_is_refused() -> None:
    language = box(dp=2, model={"vocab": 10_000_000})
    estimates = build_report(Plan.of(spec({"language": language}))).estimates
    headline, why, remedy = memory_lacking(estimates, range(2), 100 * MB)
    assert headline.startswith("error: the 2 ranks of this host need about ")
    assert headline.endswith(" but it has 100 MB")
    assert "weights" in why
    assert "`vocab`" in remedy
    assert memory_lacking(estimates, range(2), 10**15) == []


def test_only_the_ranks_of_the_host_count() -> None:
    language = box(dp=4, model={"vocab": 1_000_000})
    estimates = build_report(Plan.of(spec({"language": language}))).estimates
    needed = next(
        size
        for size in range(10 * MB, 2000 * MB, 10 * MB)
        if not memory_lacking(estimates, range(4), size)
    )
    # Half of the ranks need half as much.
    assert memory_lacking(estimates, range(2), needed // 2 + 10 * MB) == []
    assert memory_lacking(estimates, range(2), needed // 3)


def test_what_modules_offload_needs_memory_of_the_host_with_gpus_and_without() -> None:
    language = box(dp=2, model={"vocab": 100_000}, offload=["activations", "optimizer"])
    estimates = build_report(Plan.of(spec({"language": language}))).estimates
    away = sum(row.memory.host * len(row.ranks) for row in estimates.ranks)
    assert memory_lacking(estimates, range(2), away, have_gpus=True) == []
    # Moments lie there, too, beside what the forwards of a step have sent.
    (moments,) = (
        row.memory.optimizer
        for row in build_report(
            Plan.of(spec({"language": box(dp=2, model={"vocab": 100_000})}))
        ).estimates.ranks
    )
    assert away > 2 * moments
    headline, why, remedy = memory_lacking(estimates, range(2), away // 2, have_gpus=True)
    assert headline.startswith("error: the 2 ranks of this host need about ")
    assert why.endswith(" offloaded")
    assert "`offload: []`" in remedy
    # Without GPUs, all the rest is there, too.
    assert "offloaded" in memory_lacking(estimates, range(2), away)[1]


def test_the_memory_of_a_host_is_at_most_that_of_its_machine() -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal"))
    assert 0 < host_memory() <= total
