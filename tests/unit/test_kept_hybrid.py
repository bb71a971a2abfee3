"""What layers of a hybrid model really keep, beside the tables of `kinds.saved_activations`."""

from typing import Any

import pytest
import torch
from tests.support.specs import box, spec
from tests.support.works import nominal_work
from tests.unit.test_kept import compiles_without_kernels, pytestmark  # noqa: F401 - a fixture

from mimo_launch.estimate.memory import stage_memory
from mimo_launch.kinds.hybrid import HybridKind
from mimo_launch.layers import mamba, recurrent
from mimo_launch.layers.linear import GradAccumulator
from mimo_launch.layers.parallel_context import ParallelContext, torch_type
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.transformer_block import HybridLayer
from mimo_launch.spec.spec import HybridModel, Spec
from mimo_launch.spec.values import PRECISIONS

TOKENS, WIDTH = 512, 256
MODEL = {
    "kind": "hybrid", "hidden": WIDTH, "heads": 8, "kv_heads": 2, "head_dim": 32, "mlp": 1024,
    "vocab": 512, "mamba": {"heads": 16, "head_dim": 32, "state": 64, "groups": 2},
    "deltanet": {"heads": 16, "head_dim": 32, "key_dim": 64, "key_heads": 2, "chunk": 32},
}  # fmt: skip


class Scan(torch.autograd.Function):
    """Keeps what `mamba_chunk_scan_combined` of mamba-ssm 2.3 keeps, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        out = torch.empty_like(x)
        ctx.save_for_backward(out, x, dt, torch.empty_like(dt), a, b, c, d)
        return out


class Convolution(torch.autograd.Function):
    """Keeps what `causal_conv1d_fn` keeps: its inputs."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)


def like_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba, "ssd", lambda given, **_: (Scan.apply(*given), None))
    monkeypatch.setattr(recurrent, "causal_conv", lambda *args, **options: Convolution.apply(*args))


def made(letter: str, count: int, *, compiled: bool, frozen: bool, precision: str) -> Spec:
    language = box(0, model=MODEL | {"pattern": letter * count}, compile=compiled, frozen=frozen)
    return spec(
        {"vision": box(1), "language": language},
        mbs=2,
        seq=256,
        text_only=0.0,
        train={"steps": 1, "precision": precision},
    )


def estimated(letter: str, **settings: Any) -> int:
    """Return what a layer keeps, as the difference that one more makes."""
    sizes = []
    for count in (1, 2):
        asked = made(letter, count, **settings)
        layout = build_layout(asked)
        work = nominal_work(layout, layout.language, asked)
        stage = layout.language.stages[0]
        sizes.append(stage_memory(asked, layout, layout.language, stage, work, 0).kept)
    return sizes[1] - sizes[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_depth_keeps_what_that_of_a_decoder_does(compiled: bool, precision: str) -> None:
    """Their blocks are the same."""
    common = {"activation": "silu", "qk_norm": True, "gated_attention": True, "rope_theta": 1e4}
    plain = {key: MODEL[key] for key in MODEL.keys() - {"mamba", "deltanet"}}
    kept = {}
    for kind, model in (
        ("hybrid", {**MODEL, "pattern": "*-"}),
        ("decoder", {**plain, "kind": "decoder", "layers": 1}),
    ):
        for depth in (1, 2):
            keys = {**model, **common, "mtp": {"depth": depth}}
            language = box(0, model=keys, compile=compiled)
            asked = spec({"language": language}, mbs=2, seq=256, train={"precision": precision})
            layout = build_layout(asked)
            work = nominal_work(layout, layout.language, asked)
            [stage] = layout.language.stages
            memory = stage_memory(asked, layout, layout.language, stage, work, 0)
            kept[kind, depth] = memory.kept
    assert kept["hybrid", 2] > kept["hybrid", 1]
    assert kept["hybrid", 2] - kept["hybrid", 1] == kept["decoder", 2] - kept["decoder", 1]


def kept_by_autograd(letter: str, *, compiled: bool, frozen: bool, precision: str) -> int:
    """Return the bytes of distinct tensors that a layer keeps, parameters left out."""
    settings = {"compiled": compiled, "frozen": frozen, "precision": precision}
    model = made(letter, 1, **settings).language.model
    assert isinstance(model, HybridModel)
    dtype = torch_type(PRECISIONS[precision].computed)
    context = ParallelContext(
        compute_dtype=dtype, dtype=dtype, compiled=compiled, owner=f"hybrid {letter}"
    )
    layer = HybridLayer(context, HybridKind(model).mixed(0))
    for each in layer.modules():
        if hasattr(each, "weight_gradients"):
            each.weight_gradients = GradAccumulator(None)  # type: ignore[assignment]
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.requires_grad_(not frozen)
    left_out = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    mask = sequence_context(2, torch.arange(256), None, dtype, documents=None)
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # Statistics of norms, one or two numbers per token, which the estimate leaves out.
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * TOKENS:
            kept[storage.data_ptr()] = storage
        return tensor

    x_nD = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = layer(x_nD, mask)
    del out
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize(
    ("compiled", "frozen", "precision"),
    [(True, False, "bf16"), (True, True, "bf16"), (False, False, "bf16"), (False, False, "fp32")],
)
@pytest.mark.parametrize("letter", ["M", "*", "-", "G", "C"])
def test_a_layer_keeps_what_the_table_says(
    letter: str, compiled: bool, frozen: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the type of time steps as they are projected, of which there are few."""
    if letter == "M":
        like_kernels(monkeypatch)
    settings = {"compiled": compiled, "frozen": frozen, "precision": precision}
    want = kept_by_autograd(letter, **settings)
    assert estimated(letter, **settings) / want == pytest.approx(1, abs=0.01)
