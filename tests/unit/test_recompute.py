"""How often layers compute what they recompute, alone and inside a recomputed layer."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.support.specs import box, hybrid, spec
from torch import Tensor

from mimo_launch.layers import deltanet
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network


@pytest.mark.parametrize(("nested", "expected"), [(False, 2), (True, 3)])
def test_a_layer_inside_a_recomputed_one_is_recomputed_with_it(nested: bool, expected: int) -> None:
    calls = 0

    def inner(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x.sin().cos()

    def outer(x: Tensor) -> Tensor:
        out: Tensor = recomputed(inner, x.exp(), nested=nested)
        return out.tanh() * 3

    given = torch.randn(5, dtype=torch.float64, requires_grad=True)
    outer_alone = given.exp().sin().cos().tanh() * 3
    (wanted,) = torch.autograd.grad(outer_alone.sum(), given)
    (found,) = torch.autograd.grad(recomputed(outer, given).sum(), given)
    assert torch.equal(found, wanted)
    assert calls == expected
    # Afterwards a layer is recomputed by itself again.
    alone = recomputed(inner, given)
    assert calls == expected + 1
    torch.autograd.grad(alone.sum(), given)
    assert calls == expected + 2


def test_a_failure_inside_does_not_change_how_later_layers_are_recomputed() -> None:
    calls = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x.sin()

    def fails(x: Tensor) -> Tensor:
        raise ValueError(f"{len(x)} numbers")

    given = torch.randn(5, requires_grad=True)
    with pytest.raises(ValueError, match="5 numbers"):
        recomputed(fails, given)
    torch.autograd.grad(recomputed(counted, given).sum(), given)
    assert calls == 2


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_layer_that_stands_apart_makes_its_graph_in_the_backward_alone(
    needs_gradient: bool,
) -> None:
    """Without a gradient of its input it makes one before, or its weights would get none."""
    weight = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    graphs: list[bool] = []

    def layer(x: Tensor, factor: float) -> Tensor:
        graphs.append(torch.is_grad_enabled())
        return (x @ weight).sin() * factor

    given = torch.randn(3, 5, dtype=torch.float64, requires_grad=needs_gradient)
    wanted_from = [weight, given] if needs_gradient else [weight]
    wanted = torch.autograd.grad(layer(given, 2.0).cos().sum(), wanted_from)
    graphs.clear()
    recomputed(layer, given, 2.0, apart=True).cos().sum().backward()
    assert graphs == [not needs_gradient, True]
    assert all(
        torch.equal(each.grad, gradient)
        for each, gradient in zip(wanted_from, wanted, strict=True)
        if each.grad is not None
    )
    assert all(each.grad is not None for each in wanted_from)


@pytest.mark.parametrize("recompute", ["none", ["attention"], "full"])
def test_a_delta_rule_runs_once_more_in_the_backward_however_its_layer_is_recomputed(
    recompute: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def noted(rule: Any, *args: Any, **named: Any) -> Any:
        calls.append(None)
        return rule(*args, **named)

    monkeypatch.setattr(deltanet, "delta_rule", partial(noted, deltanet.delta_rule))
    made = spec({"language": box(0, model=hybrid({}, "G-"), recompute=recompute)})
    (stage,) = build_layout(made)["language"].stages
    network: Any = build_network(made, stage, ParallelContext())
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    layer = network.layers["0"]
    width = made.language.model.hidden
    given = torch.randn(8, width, requires_grad=True)
    context = sequence_context(1, torch.arange(8), None, torch.float32, documents=None)
    layer(given, context).sum().backward()
    assert len(calls) == 2
