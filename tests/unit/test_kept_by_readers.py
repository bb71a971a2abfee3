"""What stages of connectors and generators really keep, rows that arrived left out."""

from typing import Any

import pytest
import torch
from tests.support.memory import memory_of
from tests.support.row_readers import nominal_input
from tests.support.specs import box, spec

from mimo_launch.layers.linear import GradAccumulator
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network

BLOCKS = {"layers": 2, "hidden": 128, "heads": 4, "mlp": 512}
# A code predictor.
FRAMES = {
    "codebooks": 4, "qk_norm": True,
    "predictor": {"layers": 3, "heads": 4, "mlp": 256, "vocab": 100, "kv_heads": 2},
}  # fmt: skip
# Rows as in Qwen3-Omni.
APART = {"reads_text": "instead", "reads_layer": 1}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("merger", {}),
        ("merger", {"queries": 64}),
        ("drawer", {}),
        ("speech", {}),
        ("speech", FRAMES),
        ("speech", APART),
    ],
)
def test_a_stage_keeps_what_the_estimate_says(
    name: str, more: dict[str, Any], precision: str
) -> None:
    merger = {"kind": "connector", **BLOCKS, **(more if name == "merger" else {})}
    drawer = {"kind": "flow", **BLOCKS, "patch": 4, "channels": 3}
    speech = {"kind": "talker", **BLOCKS, "layers": 6, "kv_heads": 2, "codebooks": 2, "vocab": 200}
    speech |= more if name == "speech" else {}
    made = spec(
        {
            "vision": box(0),
            "merger": box(1, model=merger, reads=["vision"], compile=False),
            "language": box(2, model={"hidden": 160, "layers": 2}),
            "drawer": box(3, model=drawer, reads=["language"], compile=False),
            "speech": box(4, model=speech, reads=["language"], compile=False),
        },
        mbs=2,
        seq=512,
        data={"kind": "synthetic", "image": [16, 16], "text_only": 0.0},
        train={"steps": 1, "precision": precision},
    )
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    (stage,) = build_layout(made)[name].stages
    network = build_network(made, stage, ParallelContext(compute_dtype=dtype, dtype=dtype))
    for layer in network.modules():
        if hasattr(layer, "weight_gradients"):
            layer.weight_gradients = GradAccumulator(None)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    given = nominal_input(made, name, dtype)
    # Rows that arrived are in the buffers of the bridge.
    left_out = {each.untyped_storage().data_ptr() for each in network.parameters()}
    left_out |= {each.untyped_storage().data_ptr() for each in given.rows.values()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # A number per token is a statistic of a norm, which the estimate leaves out. Masks are for
        # CPUs only.
        if tensor.dim() > 2 and tensor.shape[1] == 1:
            return tensor
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * len(given.own):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = network(None, given)
    if name == "merger":  # A bridge holds the rows.
        note(out)
    assert memory_of(made, name).kept == pytest.approx(sum(kept.values()), rel=0.03)
