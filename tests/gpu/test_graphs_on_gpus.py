"""Graphs of modules on GPUs compute what the one-rank run computes on a processor in float64."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.distributed.test_graphs import FULL, IMAGES, SP, made_of
from tests.gpu.test_layouts_on_gpus import prove, uncompiled
from tests.support.gpu_ranks import NUM_DEVICES
from tests.support.graphs import connector, flow, talker
from tests.support.specs import box

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.verify.shrink import shrink

pytestmark = pytest.mark.gpu

QUERIES = connector("vision", queries=3)
GRAPHS: dict[str, dict[str, Any]] = {
    "all on one": {
        "vision": box(0),
        "merger": box(0, **QUERIES),
        "language": box(0),
        "drawer": box(0, **flow()),
    },
    "a chain in front of language": {
        "vision": box(0),
        "merger": box(1, **QUERIES),
        "language": box(0),
    },
    "two readers of one encoder, dp 2": {
        "vision": box(0, dp=2),
        "merger": box(0, **QUERIES),
        "language": box(0, tp=2, reads=["vision", "merger"]),
    },
    "a generator behind language": {"language": box(0), "drawer": box(1, **flow())},
    "a generator beside language, tp and dp": {
        "vision": box(0, dp=2),
        "language": box(0, tp=2, **SP),
        "drawer": box(0, dp=2, **flow()),
    },
    "a generator cut over cp behind pp": {
        "language": box(0, pp=2),
        "drawer": box(0, cp=2, **flow()),
    },
    "fully sharded, two generators": {
        "language": box(0, dp=2, **FULL),
        "drawer": box(0, dp=2, **FULL, **flow()),
        "painter": box(1, **flow(loss_weight=0.3)),
    },
    "a talker behind language in stages": {
        "language": box(0, pp=2),
        "speech": box(0, tp=2, **SP, **talker(reads_text=True)),
    },
    "a talker over cp, fully sharded": {
        "language": box(0, dp=2, **FULL),
        "speech": box(0, cp=2, **FULL, **talker(reads_text=True)),
    },
}


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_computes_the_one_rank_gradients(
    name: str,
    precision: str,
    ranks_of: Callable[[int], Ranks],
    one_rank: Ranks,
    say: Callable[[str], None],
) -> None:
    """fp64 to 1e-10; fp32, whose kernels are others, to 1e-3."""
    made = shrink(made_of(GRAPHS[name], {}, **IMAGES), precision)
    if world_size(made) > NUM_DEVICES:
        pytest.skip(f"it needs {world_size(made)} GPUs")
    assert not prove(uncompiled(made), f"{name} {precision}", ranks_of, one_rank, say)
