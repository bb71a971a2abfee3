"""One order of all actions for any graph of modules (`graph_order`)."""

from dataclasses import replace

import pytest
from tests.support.graphs import flow
from tests.support.specs import box, spec

from mimo_launch.layout.layout import build_layout
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.generate import generate, generate_forward, program_of
from mimo_launch.schedule.graph_order import graph_orders


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("encoder", [0, 1, 3])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_on_a_chain_it_is_the_order_of_the_pipeline(kind, depth, encoder, microbatches):
    modules = {"vision": box(0, pp=encoder)} if encoder else {}
    modules["language"] = box(encoder, pp=depth)
    made = build_layout(spec(modules, microbatches=microbatches))
    layout = replace(made, schedule=kind)
    for backward, programs in ((True, generate(layout)), (False, generate_forward(layout))):
        orders = graph_orders(layout, backward=backward)
        for role, program in zip(layout.roles, programs, strict=True):
            assert program_of(layout, role, orders[role]) == program


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("depth", [2, 3])
def test_stages_without_a_backward_receive_no_gradient(depth: int, together: bool) -> None:
    """On a channel of virtual stages, other gradients would wait for those that nobody sends."""
    language = box(0, pp=depth, model={"layers": 2 * depth}, frozen={"layers": "0"})
    modules = {"language": language, "drawer": box(0 if together else depth, **flow())}
    Plan.of(spec(modules, kind="interleaved", virtual_stages=2, microbatches=5)).prove()
