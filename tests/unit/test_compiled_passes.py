"""Passes are compiled for the widths that they see: only numbers of tokens are left open."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from mimo_launch.kinds.shapes import NormShape
from mimo_launch.layers import norms, parallel_context
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import add_rms_norm, gelu, rms_norm, swiglu
from mimo_launch.layers.shaped_layer import built

LANGUAGE, VISION = (ParallelContext(compiled=True, owner=each) for each in ("language", "vision"))


@pytest.fixture(name="sizes")
def compiled_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Yield the sizes of the inputs of each graph that is compiled; open ones begin with `s`."""
    seen: list[list[str]] = []

    def note(graph: Any, inputs: Any) -> Any:
        found = [
            node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"
        ]
        seen.append(
            [str(size) for each in found if isinstance(each, Tensor) for size in each.shape]
        )
        return graph.forward

    parallel_context._compiled.cache_clear()
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=note))
    yield seen
    parallel_context._compiled.cache_clear()
    torch._dynamo.reset()


def test_a_module_keeps_its_widths_where_another_has_others(sizes: list[list[str]]) -> None:
    for context, tokens, width in ((VISION, 5, 12), (LANGUAGE, 6, 16), (LANGUAGE, 7, 16)):
        context.fused(swiglu, torch.ones(tokens, width))
    (any_number, of_vision), of_first, (any_other, of_language) = sizes
    assert (of_vision, of_first, of_language) == ("12", ["6", "16"], "16")
    assert any_number.startswith("s")
    assert any_other.startswith("s")


def test_an_encoder_is_compiled_once_for_all_numbers_of_tokens(sizes: list[list[str]]) -> None:
    for tokens in (5, 7, 9):
        VISION.fused(swiglu, torch.ones(tokens, 12))
    assert len(sizes) == 1


def test_a_pass_is_compiled_once_in_each_way_that_layers_call_it(sizes: list[list[str]]) -> None:
    """In more ways than torch compiles one code: frozen layers, two epsilons, recomputed layers."""
    ways = list(product((True, False), (True, False), (True, False), (1e-5, 1e-6)))
    for tokens in (5, 7):
        for has_gradient, trains, makes_graph, eps in ways:
            x, weight = torch.randn(tokens, 12), torch.ones(12)
            x.requires_grad_(has_gradient)
            weight.requires_grad_(trains)
            with torch.set_grad_enabled(makes_graph):
                VISION.fused(rms_norm, x, weight, eps, 0.0)
    assert len(sizes) == len(ways)


def test_heads_of_queries_and_of_keys_are_widths_too(sizes: list[list[str]]) -> None:
    weight = torch.ones(8)
    for heads in (4, 2, 4, 2):
        LANGUAGE.fused(rms_norm, torch.ones(5, heads, 8), weight)
    assert sizes == [["5", "4", "8", "8"], ["5", "2", "8", "8"]]


def test_where_torch_has_a_kernel_a_norm_is_not_compiled_unless_its_sum_is_large(
    sizes: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = built(LANGUAGE, NormShape(16, "rms"))
    torch.nn.init.normal_(norm.weight)
    x, change = torch.randn(5, 16), torch.randn(5, 16)
    expected = add_rms_norm(x, change, norm.weight)
    assert not norm._has_kernel(x), "it is for GPUs"
    monkeypatch.setattr(norms.Norm, "_has_kernel", lambda layer, x: True)
    torch.testing.assert_close(norm.after(x, change), expected)
    torch.testing.assert_close(norm(expected[0]), expected[1])
    LANGUAGE.fused(gelu, x)
    assert sizes == []
    monkeypatch.setattr(norms, "MOST_TO_ADD_ALONE", 5 * 16 - 1)
    torch.testing.assert_close(norm.after(x, change), expected)
    assert len(sizes) == 1
