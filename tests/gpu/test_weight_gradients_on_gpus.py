"""Weight gradients in bf16 on GPUs, whose products add to fp32 sums in cuBLAS.

One case has microbatches without a row: products and passes over nothing, compiled.
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests.distributed.test_weight_gradients import CASES, gradients_of, judge, runs_of
from tests.support.gpu_ranks import DEVICE

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec

pytestmark = pytest.mark.gpu

COMPILED = "some without rows"


def with_compile(made: Spec, wanted: bool) -> Spec:
    modules = {n: m.model_copy(update={"compile": wanted}) for n, m in made.modules.items()}
    return made.model_copy(update={"modules": modules})


@pytest.mark.parametrize("name", CASES)
def test_sums_in_products_are_no_worse_than_sums_by_fsdp(
    name: str, run_on: Callable[..., list[Any]]
) -> None:
    results = []
    for spec, in_products in runs_of(CASES[name]):
        compiled = in_products and name == COMPILED
        made = with_compile(spec, compiled)
        results.append(run_on(world_size(made), gradients_of, made, in_products, DEVICE))
    judge(*results)
