"""Which canonical tensors the fused parameters of Transformer Engine's layers hold.

The tree of parameters below has the paths and shapes of its layers; nothing of it computes.
"""

import sys
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.support.shapes import block_shape  # noqa: E402
from torch import nn  # noqa: E402

from mimo_launch.comm.process_groups import Group  # noqa: E402
from mimo_launch.layers.parallel_context import ParallelContext  # noqa: E402
from mimo_launch.layers.te_layers import BackendError, load_transformer_engine, te_layers  # noqa: E402
from mimo_launch.models.te_block import adopted_segments  # noqa: E402

DECODER = partial(block_shape, width=32, heads=8, kv_heads=4, head_size=8, mlp=48, qk_norm=True)
VIT = block_shape(width=32, heads=4, head_size=8, mlp=64, norm="layer", bias=True)


def context(tp: int, index: int, **more: bool) -> ParallelContext:
    return ParallelContext(tp=Group(tuple(range(tp)), index, None), **more)


def tree(shapes: dict[str, tuple[int, ...]]) -> nn.Module:
    """Return modules in modules with parameters at these paths."""
    root = nn.Module()
    for path, shape in shapes.items():
        *parents, name = path.split(".")
        module = root
        for parent in parents:
            if not hasattr(module, parent):
                module.add_module(parent, nn.Module())
            module = module.get_submodule(parent)
        module.register_parameter(name, nn.Parameter(torch.empty(shape, device="meta")))
    return root


def decoder_tree(tp: int, kv_heads: int) -> dict[str, tuple[int, ...]]:
    rows = (8 // tp + 2 * max(1, kv_heads // tp)) * 8
    return {
        "attention.inputs.layer_norm_weight": (32,),
        "attention.inputs.weight": (rows, 32),
        "attention.q_norm.weight": (8,),
        "attention.k_norm.weight": (8,),
        "attention.output.weight": (32, 64 // tp),
        "mlp.layer_norm_weight": (32,),
        "mlp.fc1_weight": (2 * 48 // tp, 32),
        "mlp.fc2_weight": (32, 48 // tp),
    }


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (1, 4), (2, 4), (4, 4), (4, 1), (8, 2)])
def test_a_decoder_block_holds_every_tensor_once(tp: int, kv_heads: int) -> None:
    shape = DECODER(kv_heads=kv_heads)
    for index in range(tp):
        adopted = adopted_segments(tree(decoder_tree(tp, kv_heads)), context(tp, index), shape)
        assert [s.name for s in adopted["attention.inputs.weight"]] == [
            "attention.q.weight",
            "attention.k.weight",
            "attention.v.weight",
        ]
        # silu(first half) * second half
        assert [s.name for s in adopted["mlp.fc1_weight"]] == ["mlp.gate.weight", "mlp.up.weight"]
        shared = "partial" if kv_heads < tp else "sharded"
        assert adopted["attention.inputs.weight"][1].tp_grad == shared


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 4), (2, 4), (4, 1)])
def test_biases_of_queries_keys_and_values_are_one_parameter(tp: int, kv_heads: int) -> None:
    """Also where tp ranks share a key/value head, whose bias torch's block holds by itself."""
    shapes = decoder_tree(tp, kv_heads)
    shapes["attention.inputs.bias"] = shapes["attention.inputs.weight"][:1]
    shape = DECODER(kv_heads=kv_heads, qkv_bias=True)
    for index in range(tp):
        adopted = adopted_segments(tree(shapes), context(tp, index), shape)
        held = adopted["attention.inputs.bias"]
        assert [s.name for s in held] == [f"attention.{x}.bias" for x in "qkv"]
        assert not any(s.weight.decay for s in held)
        assert held[1].tp_grad == ("partial" if kv_heads < tp else "sharded")


def test_a_block_with_biases_holds_every_tensor_once() -> None:
    shapes = {
        "attention.inputs.layer_norm_weight": (32,),
        "attention.inputs.layer_norm_bias": (32,),
        "attention.inputs.weight": (48, 32),
        "attention.inputs.bias": (48,),
        "attention.output.weight": (32, 16),
        "attention.output.bias": (32,),
        "mlp.inputs.layer_norm_weight": (32,),
        "mlp.inputs.layer_norm_bias": (32,),
        "mlp.inputs.weight": (32, 32),
        "mlp.inputs.bias": (32,),
        "mlp.output.weight": (32, 32),
        "mlp.output.bias": (32,),
    }
    place = context(2, 1, sequence_parallel=True)
    adopted = adopted_segments(tree(shapes), place, VIT)
    # What acts on the tokens of one rank has a term of the gradient.
    for path in ("attention.inputs.layer_norm_bias", "attention.output.bias", "mlp.output.bias"):
        assert adopted[path][0].tp_grad == "partial"
    del shapes["mlp.output.bias"]
    with pytest.raises(ValueError, match=r"no parameter for the segments \['mlp.down.bias'\]"):
        adopted_segments(tree(shapes), place, VIT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mlp.fc1_weight": (48, 32)}, "mlp.fc1_weight has shape"),
        ({"mlp.fc3_weight": (48, 32)}, "no segments for the parameter mlp.fc3_weight"),
        ({"mlp.inputs.weight": (48, 32)}, "no segments for the parameter mlp.inputs.weight"),
    ],
)
def test_other_parameters_than_known_are_refused(
    change: dict[str, tuple[int, ...]], words: str
) -> None:
    """As another version of the package may have them."""
    with pytest.raises(ValueError, match=words):
        adopted_segments(tree(decoder_tree(1, 4) | change), context(1, 0), DECODER())


def test_a_package_that_does_not_work_is_reported_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises RuntimeError, not ImportError, where only a part of it is installed."""
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('Found empty package')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    with pytest.raises(BackendError, match="RuntimeError: Found empty package"):
        load_transformer_engine()


def test_processors_and_wide_types_are_refused() -> None:
    with pytest.raises(BackendError, match="computes on cpu"):
        te_layers(ParallelContext(compute_dtype=torch.bfloat16))
    on_gpu = ParallelContext(device=torch.device("cuda"))
    with pytest.raises(BackendError, match=r"16 bits, not in torch\.float32"):
        te_layers(on_gpu)
