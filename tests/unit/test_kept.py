"""What a block really keeps and needs, beside the tables of `kinds.saved_activations`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.support.memory import INNER, TOKENS, WIDTH, model, per_block
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mimo_launch.kinds import saved_activations, transformer_encoder
from mimo_launch.layers.image_contexts import (
    AttentionContext,
    image_context,
    turned_by_place,
    window_context,
)
from mimo_launch.layers.linear import GradAccumulator
from mimo_launch.layers.parallel_context import ParallelContext, _compiled
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.models.transformer_block import Block, BlockShape
from mimo_launch.spec.attention import Mla
from mimo_launch.spec.encoders import Activation


def block_of(
    name: str,
    dtype: torch.dtype,
    *,
    compiled: bool,
    frozen: bool,
    activation: Activation = "gelu",
    gated: bool = False,
    post_norms: bool = False,
    **more: Any,
) -> Block:
    """Return a block as runs have it: its products add up the gradients of their weights.

    A `gated` block of vision has RMSNorm as well.
    """
    is_vit = name == "vision"
    shape = BlockShape(
        width=WIDTH,
        heads=8,
        kv_heads=8 if is_vit or "latent" in more else 2,
        head_size=32,
        mlp=INNER,
        layers=4,
        norm="layer" if is_vit and not gated else "rms",
        gated=gated or not is_vit,
        bias=is_vit,
        activation=activation,
        gate="gelu_tanh" if post_norms else "silu",
        post_norms=post_norms,
        norm_offset=float(post_norms),
        score_size=20.0 if post_norms else None,
        **more,
    )
    context = ParallelContext(compute_dtype=dtype, dtype=dtype, compiled=compiled, owner=name)
    block = Block(context, shape, recompute=False)
    for layer in block.modules():
        if hasattr(layer, "weight_gradients"):
            layer.weight_gradients = GradAccumulator(None)  # type: ignore[assignment]
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.requires_grad_(not frozen)
    return block


def mask_of(name: str, dtype: torch.dtype, *, turned: bool = False) -> AttentionContext:
    if name == "vision":
        mask = image_context([256, 256], range(TOKENS), torch.device("cpu"), alone=True)
        return turned_by_place(mask, torch.ones(TOKENS, 2), 32, dtype) if turned else mask
    return sequence_context(2, torch.arange(256), 32, 1e4, dtype, documents=None)


@pytest.fixture
def compiles_without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What inductor is given to make kernels of stays as it is."""
    plain = partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", plain)
    _compiled.cache_clear()
    yield
    _compiled.cache_clear()


def kept_by_autograd(
    name: str,
    *,
    compiled: bool,
    dtype: torch.dtype,
    frozen: bool,
    turned: bool = False,
    activation: Activation = "gelu",
) -> int:
    """Return the bytes of distinct tensors that a block keeps, parameters and masks left out."""
    block = block_of(name, dtype, compiled=compiled, frozen=frozen, activation=activation)
    return kept_by_block(block, mask_of(name, dtype, turned=turned), dtype)


def kept_by_block(block: Block, mask: AttentionContext, dtype: torch.dtype) -> int:
    known = [*block.parameters(), *(x for x in (mask.cos, mask.sin) if x is not None)]
    left_out = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # A number per token or channel is a statistic of a norm, which the estimate leaves out.
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * TOKENS:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x_nD = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = block(x_nD, mask)
    del out
    return sum(kept.values())


# The import of inductor warns about its own use of torch.jit, and dynamo looks at `.grad`.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize(
    ("name", "frozen"), [("language", False), ("language", True), ("vision", False)]
)
def test_a_block_with_compiled_passes_keeps_what_the_table_says(name: str, frozen: bool) -> None:
    got = kept_by_autograd(name, compiled=True, dtype=torch.bfloat16, frozen=frozen)
    assert per_block(model(frozen=frozen), name) == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("compiled", [True, False])
def test_patches_turned_by_their_places_are_kept(compiled: bool) -> None:
    got = kept_by_autograd(
        "vision", compiled=compiled, dtype=torch.bfloat16, frozen=False, turned=True
    )
    vision = {"positions": "rope2d"}
    assert per_block(model(compiled=compiled, vision=vision), "vision") == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_block_with_windows_keeps_what_the_table_says(compiled: bool) -> None:
    """Two images of 16 x 16 patches, in windows of 8 x 8: with RMSNorm and SwiGLU."""
    dtype = torch.bfloat16
    block = block_of("vision", dtype, compiled=compiled, frozen=False, gated=True)
    sizes, held = [(8, 8)] * 2, range(TOKENS)
    mask = window_context(sizes, 4, 4, held, torch.device("cpu"), alone=True)
    got = kept_by_block(block, turned_by_place(mask, torch.ones(TOKENS, 2), 32, dtype), dtype)
    vision = {"positions": "rope2d", "windows": {"side": 4}, "norm": "rms", "activation": "swiglu"}
    assert per_block(model(compiled=compiled, vision=vision), "vision") == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize(
    ("compiled", "dtype"),
    [(True, torch.bfloat16), (False, torch.bfloat16), (False, torch.float32)],
)
def test_a_block_with_norms_on_both_sides_keeps_what_the_table_says(
    compiled: bool, dtype: torch.dtype
) -> None:
    """As in Gemma 3: with an offset of norms, a gate of GELU and scores of another scale."""
    block = block_of("language", dtype, compiled=compiled, frozen=False, post_norms=True)
    got = kept_by_block(block, mask_of("language", dtype), dtype)
    keys = {"post_norms": True, "norm_offset": True, "activation": "gelu_tanh"}
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    made = model(compiled=compiled, precision=precision, decoder=keys)
    assert per_block(made, "language") == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("activation", ["gelu_tanh", "quick_gelu"])
def test_other_activations_keep_what_the_table_says(activation: Activation, compiled: bool) -> None:
    got = kept_by_autograd(
        "vision", compiled=compiled, dtype=torch.bfloat16, frozen=False, activation=activation
    )
    made = model(compiled=compiled, vision={"activation": activation})
    assert per_block(made, "vision") == got


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["language", "vision"])
def test_a_block_that_is_not_compiled_keeps_more(name: str, precision: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    made = model(compiled=False, precision=precision)
    got = kept_by_autograd(name, compiled=False, dtype=dtype, frozen=False)
    assert per_block(made, name) == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("q_rank", [24, None])
def test_latent_attention_keeps_what_the_table_says(q_rank: int | None) -> None:
    """Values are as large as keys: else attention on processors keeps all scores."""
    dtype = torch.bfloat16
    latent = Mla(kv_rank=16, q_rank=q_rank, rope_head_dim=8, v_head_dim=32)
    block = block_of("language", dtype, compiled=True, frozen=False, latent=latent)
    mask = sequence_context(2, torch.arange(256), 8, 1e4, dtype, documents=None)
    got = kept_by_block(block, mask, dtype)
    keys = {"mla": latent.model_dump(), "head_dim": 32, "kv_heads": 8}
    assert per_block(model(decoder=keys), "language") == got


class MemoryPeak(TorchDispatchMode):
    """Follows the bytes of all tensors that are alive, from those given on."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__()
        self.alive = WeakIdKeyDictionary(dict.fromkeys(tensors))
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.alive[tensor] = None
        storages = [tensor.untyped_storage() for tensor in self.alive]
        found = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.largest = max(self.largest, sum(found.values()))
        return out


@pytest.mark.parametrize("name", ["language", "vision"])
def test_a_forward_that_keeps_nothing_needs_a_block_at_a_time(name: str) -> None:
    dtype = torch.bfloat16
    block, mask = block_of(name, dtype, compiled=False, frozen=True), mask_of(name, dtype)
    x_nD = torch.randn(TOKENS, WIDTH, dtype=dtype)
    with torch.no_grad(), MemoryPeak(x_nD) as peak:
        block(x_nD, mask)
    tables = {"language": saved_activations.GATED_FORWARD, "vision": transformer_encoder.FORWARD}
    widths = sum(each.stream * WIDTH + each.inner * INNER for each in tables[name])
    # Only where nothing is compiled the SiLU of gate is a tensor.
    widths += INNER if name == "language" else 0
    assert peak.largest == pytest.approx(TOKENS * widths * 2, rel=0.01)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("keys", [{"layer_scale": 0.1}, {"qk_norm": True}], ids=["scale", "norm"])
@pytest.mark.parametrize(
    ("compiled", "dtype"),
    [(True, torch.bfloat16), (False, torch.bfloat16), (False, torch.float32)],
)
def test_a_block_with_weights_per_channel_keeps_what_the_table_says(
    keys: dict[str, Any], compiled: bool, dtype: torch.dtype
) -> None:
    """Layer scale, or the norm of all heads together, as in InternVL."""
    shape = {**keys, "wide_norm": True}
    block = block_of("vision", dtype, compiled=compiled, frozen=False, **shape)
    got = kept_by_block(block, mask_of("vision", dtype), dtype)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    made = model(compiled=compiled, precision=precision, vision=keys)
    assert per_block(made, "vision") == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize(
    ("compiled", "dtype"),
    [(True, torch.bfloat16), (False, torch.bfloat16), (False, torch.float32)],
)
def test_a_block_with_gates_keeps_what_the_table_says(compiled: bool, dtype: torch.dtype) -> None:
    """Gated attention of normed heads, of which a part rotates, as in Qwen3.5."""
    shape = {"gated_attention": True, "qk_norm": True}
    block = block_of("language", dtype, compiled=compiled, frozen=False, **shape)
    mask = sequence_context(2, torch.arange(256), 8, 1e4, dtype, documents=None)
    got = kept_by_block(block, mask, dtype)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    keys = shape | {"rotary_factor": 0.25}
    made = model(compiled=compiled, precision=precision, decoder=keys)
    assert per_block(made, "language") == got
