"""A layer with experts computes the same compiled as operation by operation."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from mimo_launch.kinds.mlp_shapes import MoeShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.router import AuxLoss, RoutingContext
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.models.mlp import MoeMlp
from mimo_launch.spec.layers import Moe

MOE = Moe(experts=6, top_k=3, width=4, aux_loss=0.5)
WIDTH, SEQ = 8, 10


def gradients(moe: Moe, context: ParallelContext) -> dict[str, Tensor]:
    """Return answers of two samples, the balance loss, and all gradients, in float64."""
    context = replace(context, dtype=torch.float64, compute_dtype=torch.float64)
    shape = MoeShape(moe=moe, width=WIDTH, gate="silu", shared=None, out_scale=1.0)
    layer = MoeMlp(context, shape)
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2 * SEQ, WIDTH, dtype=torch.float64, requires_grad=True)
    # The second sample ends in padding.
    shares = torch.full((2, SEQ), 1 / SEQ, dtype=torch.float64)
    shares[1] = torch.tensor([1 / 7] * 7 + [0.0] * 3)
    loss = AuxLoss(torch.device("cpu"), 2)
    routing = RoutingContext(shares, loss)
    attending = sequence_context(
        2, torch.arange(SEQ), None, torch.float64, documents=None, routing=routing
    )
    out = layer(x, attending, None, x)
    out.backward(torch.randn_like(out))
    found = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return found | {"answers": out.detach(), "balance": loss.total, "x": x.grad}


CASES = [{}, {"learned_scale": True, "score": "sigmoid"}, {"scale_inputs": True}]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize(
    "backend",
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.sweep)],  # C++ takes a minute.
)
def test_compiled_experts_compute_the_same(
    changes: dict[str, object], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moe = MOE.model_copy(update=changes)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    context = ParallelContext(compiled=True, owner=f"experts by {backend}")
    compiled, plain = gradients(moe, context), gradients(moe, ParallelContext())
    assert compiled.keys() == plain.keys()
    assert len(plain) > 4
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)
