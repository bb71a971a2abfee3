"""How much a layer starts on the host: its compiled passes, and its operations besides."""

from collections import Counter
from typing import Any

import pytest
import torch
from tests.support.shapes import block_shape
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mimo_launch.kinds.layer import Rotary
from mimo_launch.kinds.weights import Adapter
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.models.transformer_block import Block

TOKENS, WIDTH = 16, 32
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm_"}
COPIES = {"cat", "stack", "clone", "_to_copy", "copy_", "zeros_like", "new_zeros", "fill_"}


class Started(TorchDispatchMode):
    """Counts the operations that run in it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def those(self, names: set[str]) -> int:
        return sum(self.counts[name] for name in names)


@pytest.fixture(name="passes")
def passes_of_a_block(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the passes that are asked for."""
    asked: list[str] = []
    plain = ParallelContext.fused

    def note(self: ParallelContext, function: Any, *args: Any) -> Any:
        asked.append(function.__name__)
        return plain(self, function, *args)

    monkeypatch.setattr(ParallelContext, "fused", note)
    return asked


def started(adapter: Adapter | None) -> tuple[Started, Started]:
    """Return what a block starts, forward and backward."""
    shape = block_shape(width=WIDTH, heads=4, kv_heads=2, head_size=8, mlp=64, qk_norm=True)
    block = Block(ParallelContext(adapter=adapter), shape)
    for name, parameter in block.named_parameters():
        torch.nn.init.normal_(parameter)
        parameter.requires_grad_(adapter is None or "adapter" in name)
    sequences = sequence_context(
        1, torch.arange(TOKENS), Rotary(8, 1e4), torch.float32, documents=None
    )
    x = torch.randn(TOKENS, WIDTH, requires_grad=True)
    with Started() as forward:
        y: Tensor = block(x, sequences)
    with Started() as backward:
        y.backward(torch.ones_like(y))
    return forward, backward


def test_a_decoder_block_has_four_passes_and_copies_once(passes: list[str]) -> None:
    """Attention's products have one gradient together, which joins those of q, k and v."""
    forward, backward = started(None)
    assert passes == ["rms_norm", "placed_heads", "add_rms_norm", "swiglu"]
    assert (forward.those(PRODUCTS), backward.those(PRODUCTS)) == (4, 8)
    # Two concatenations are of the rotation, two of its gradient and one of SwiGLU's.
    assert (forward.those(COPIES), backward.those(COPIES)) == (2, 5)


def test_an_adapter_adds_products_alone(passes: list[str]) -> None:
    """Four A, seven B; their gradients, and a gradient of each input to which A adds."""
    _, plain = started(None)
    before = forward, backward = started(Adapter(4, 2.0, frozenset({"attention", "mlp"}), 0.0))
    assert passes[4:] == ["rms_norm", "placed_heads", "add_rms_norm", "swiglu"]
    assert [each.those(PRODUCTS) for each in before] == [4 + 4 + 7, 4 + 2 * 7 + 4 + 4]
    others = backward.counts["mul"] + backward.counts["add"]
    assert others <= plain.counts["mul"] + plain.counts["add"]
    assert forward.those(COPIES) == 2
    assert backward.those(COPIES - {"zeros_like"}) == plain.those(COPIES - {"zeros_like"})
