"""Every layout on GPUs computes what the one-rank run computes on a processor in float64.

The bodies of tests/distributed, on NCCL: named topologies, reduced to as many ranks as there are
GPUs, and random layouts. One line per spec: largest relative error, and where.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.support.fitted import fitted
from tests.support.gpu_ranks import NUM_DEVICES, SIZES, TIMEOUT_SECONDS
from tests.support.proof import failures
from tests.support.specs import brief, layout_specs

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.launcher.run_on_ranks import RankError, Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_on
from mimo_launch.verify.shrink import shrink

pytestmark = pytest.mark.gpu

TOPOLOGIES = {path.stem: path for path in sorted(Path("topologies").glob("*.yaml"))}
MOST = max(SIZES, default=1)
# One of each kind that is left on two ranks, and on one.
ON_TWO = [
    "bubble_filling", "colocated_fan_in", "cp2_fan_out", "disjoint_one_to_one",
    "frozen_except_projector", "packed_documents", "quickstart",
]  # fmt: skip
ON_ONE = ["colocated_fan_out", "colocated_pp2"]
IN_FP32 = [
    "quickstart", "bubble_filling", "colocated_pp2", "cp2_fan_out_sequence_parallel",
    "disjoint_pp2", "full_sharding", "interleaved", "mixed_placement", "packed_documents",
    "sequence_parallel",
]  # fmt: skip
# Compiling a block takes longer than the rest of a proof; the others run as they are written.
COMPILED = "quickstart"
NUM_RANDOM = 12

CASES = [
    *((name, MOST, "fp64") for name in TOPOLOGIES),
    *((name, 2, "fp64") for name in ON_TWO if MOST > 2),
    *((name, 1, "fp64") for name in ON_ONE if MOST > 1),
    *((name, MOST, "fp32") for name in IN_FP32),
]


def prove(
    made: Spec,
    name: str,
    ranks_of: Callable[[int], Ranks],
    one_rank: Ranks,
    say: Callable[[str], None],
) -> list[str]:
    """Return what is wrong with a shrunk spec; say how it went in one line."""
    size, begin = world_size(made), time.perf_counter()
    ranks = ranks_of(size)
    try:
        found = verify_on(ranks, one_rank, made, timeout_s=2 * TIMEOUT_SECONDS)
    except RankError as error:
        say(f"  {name}: {str(error).partition(chr(10))[0]}")
        return [str(error)]
    seconds = time.perf_counter() - begin
    failed, worst = failures(found), max(found, key=lambda verdict: verdict.worst)
    say(
        f"  {name} on {size}: {'FAILS' if failed else 'equal'}, {worst.worst:.1e} "
        f"({worst.what}: {worst.worst_name}), {seconds:.1f} s"
    )
    return failed


def uncompiled(made: Spec) -> Spec:
    """Return a spec whose blocks are not compiled, whatever the precision."""
    modules = {n: m.model_copy(update={"compile": False}) for n, m in made.modules.items()}
    return made.model_copy(update={"modules": modules})


@pytest.mark.parametrize(
    ("name", "size", "precision"),
    [pytest.param(*case, id="-".join(map(str, case))) for case in CASES],
)
def test_a_topology_computes_the_one_rank_gradients(
    name: str,
    size: int,
    precision: str,
    ranks_of: Callable[[int], Ranks],
    one_rank: Ranks,
    say: Callable[[str], None],
) -> None:
    """fp64 to 1e-10; fp32, whose kernels are others, to 1e-3."""
    spec = load_and_check(TOPOLOGIES[name], []).spec
    assert spec is not None
    made = fitted(spec, size, precision)
    if made is None:
        pytest.skip(f"its layout does not fit on {size}")
    if name != COMPILED:
        made = uncompiled(made)
    failed = prove(made, f"{name} {precision}", ranks_of, one_rank, say)
    assert not failed, f"{brief(made)}\n" + "\n".join(failed[:10])


@seed(20260102)
@settings(
    max_examples=NUM_RANDOM,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(made=layout_specs(min(4, max(1, NUM_DEVICES)), supported_only=False))
def test_random_layouts_compute_the_one_rank_gradients(
    ranks_of: Callable[[int], Ranks], one_rank: Ranks, say: Callable[[str], None], made: Spec
) -> None:
    """Loss, norms, every gradient and the update, in float64."""
    failed = prove(shrink(made), f"random {made.schedule.kind}", ranks_of, one_rank, say)
    assert not failed, f"{brief(made)}\n" + "\n".join(failed[:10])
