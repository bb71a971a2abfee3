"""What a block really keeps and needs, beside the tables of `kinds.saved_activations`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.support.memory import INNER, TOKENS, WIDTH, memory_of, model, per_block
from tests.support.shapes import block_shape
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mimo_launch.kinds import saved_activations, transformer_encoder
from mimo_launch.kinds.block_shapes import DepthShape
from mimo_launch.kinds.layer import Ends, Rotary
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.saved_activations import HeldAtEnds
from mimo_launch.layers import score_attention
from mimo_launch.layers.image_contexts import (
    AttentionContext,
    image_context,
    turned_by_place,
    window_context,
)
from mimo_launch.layers.linear import GradAccumulator
from mimo_launch.layers.parallel_context import ParallelContext, _compiled
from mimo_launch.layers.pointwise import soft_capped
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.layers.shaped_layer import built
from mimo_launch.layers.vocab_parallel import vocab_cross_entropy
from mimo_launch.models.transformer_block import Block, MtpDepth
from mimo_launch.spec.encoders import Activation
from mimo_launch.spec.layers import Mla


def block_of(
    name: str,
    dtype: torch.dtype,
    *,
    compiled: bool,
    frozen: bool,
    activation: Activation = "gelu",
    gated: bool = False,
    post_norms: bool = False,
    is_capped: bool = False,
    gates: bool = False,
    made: type[Block] | type[MtpDepth] = Block,
    **more: Any,
) -> Block | MtpDepth:
    """Return a block as runs have it: its products add up the gradients of their weights.

    A `gated` block of vision has RMSNorm as well.
    """
    is_vit = name == "vision"
    gate = ("gelu_tanh" if post_norms else "silu") if gated or not is_vit else None
    shape = block_shape(
        width=WIDTH,
        heads=8,
        kv_heads=8 if is_vit or "latent" in more else 2,
        head_size=32,
        mlp=INNER,
        norm="layer" if is_vit and not gated else "rms",
        bias=is_vit,
        of_mlp={"activation": activation, "gate": gate},
        post_norms=post_norms,
        norm_offset=float(post_norms),
        score_size=20.0 if post_norms else None,
        score_cap=50.0 if is_capped else None,
        gated=gates,
        **more,
    )
    context = ParallelContext(compute_dtype=dtype, dtype=dtype, compiled=compiled, owner=name)
    block: Block | MtpDepth = (
        Block(context, shape)
        if made is Block
        else MtpDepth(context, DepthShape(shape), recompute=False)
    )
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
    return sequence_context(2, torch.arange(256), Rotary(32, 1e4), dtype, documents=None)


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


def kept_by_block(
    block: torch.nn.Module, mask: AttentionContext, dtype: torch.dtype, streams: int = 1
) -> int:
    known = [*block.parameters(), *(x for x in (mask.cos, mask.sin) if x is not None)]
    left_out = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # A number per token or channel is a statistic of a norm, which the estimate leaves out.
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * TOKENS:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    read = [torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(streams)]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = block(*read, mask)
    del out
    return sum(kept.values())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize(
    ("compiled", "dtype"),
    [(True, torch.bfloat16), (False, torch.bfloat16), (False, torch.float32)],
)
def test_a_depth_of_further_tokens_keeps_what_the_table_says(
    compiled: bool, dtype: torch.dtype
) -> None:
    """The output layer keeps as much as for the next tokens."""
    depth = block_of("language", dtype, compiled=compiled, frozen=False, made=MtpDepth)
    got = kept_by_block(depth, mask_of("language", dtype), dtype, streams=2)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    kept = [
        memory_of(
            model(compiled=compiled, precision=precision, decoder={"mtp": mtp}), "language"
        ).kept
        for mtp in (None, {"depth": 1})
    ]
    of_head = TOKENS * (WIDTH + 512) * dtype.itemsize
    assert kept[1] - kept[0] - of_head == got


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
@pytest.mark.parametrize("most", [saved_activations.MOST_SCORES, 2 * 256 * 100])
def test_a_block_with_capped_scores_keeps_none(
    most: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they exist all at once or those of 100 queries at a time."""
    monkeypatch.setattr(score_attention, "MOST_SCORES", most)
    dtype = torch.bfloat16
    block = block_of("language", dtype, compiled=compiled, frozen=False, is_capped=True)
    got = kept_by_block(block, mask_of("language", dtype), dtype)
    made = model(compiled=compiled, decoder={"attention_softcap": 50.0})
    assert per_block(made, "language") == got


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("compiles_without_kernels")
@pytest.mark.parametrize("compiled", [True, False])
def test_queries_that_grow_keep_no_more(compiled: bool) -> None:
    dtype = torch.bfloat16
    block = block_of("language", dtype, compiled=compiled, frozen=False)
    mask = mask_of("language", dtype)
    grown = replace(mask, factors=torch.rand(256))
    got = kept_by_block(block, grown, dtype)
    assert got == kept_by_block(block, mask, dtype)
    made = model(compiled=compiled, decoder={"query_scaling": {"beta": 0.1, "length": 16}})
    assert per_block(made, "language") == got


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_capped_scores_exist_as_often_as_the_table_says(dtype: torch.dtype) -> None:
    heads, seq = 8, 512
    q, k, v = (torch.randn(1, heads, seq, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    seen = torch.ones(seq, seq, dtype=torch.bool).tril()

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return score_attention.attend_by_scores(*tensors, seen, scale=None, cap=3.0, sinks_h=None)

    with MemoryPeak(q, k, v) as forward:
        out = recomputed(attend, q, k, v)
    grad = torch.randn_like(out)
    with MemoryPeak(q, k, v, out, grad) as backward:
        out.backward(grad)
    tables = saved_activations.CAPPED_FORWARD, saved_activations.CAPPED_BACKWARD
    for table, peak in zip(tables, (forward, backward), strict=True):
        assert peak.largest == pytest.approx(table.scores * heads * seq * seq * 4, rel=0.1)


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
    mask = sequence_context(2, torch.arange(256), Rotary(8, 1e4), dtype, documents=None)
    got = kept_by_block(block, mask, dtype)
    keys = {"mla": latent.model_dump(), "head_dim": 32, "kv_heads": 8}
    assert per_block(model(decoder=keys), "language") == got


def test_capped_logits_are_kept_beside_their_gradient() -> None:
    tokens, words = 64, 40
    logits = torch.randn(tokens, words, requires_grad=True)
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    labels = torch.zeros(tokens, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        vocab_cross_entropy(soft_capped(logits, 3.0), labels, range(words), ParallelContext()).sum()
    held = HeldAtEnds(
        tp=1, tokens=tokens, patches=tokens, stream_tokens=tokens, sequence_parts=1, words=words,
        through_layers=True, weights_train=False,
    )  # fmt: skip
    ends = Ends(is_first=False, is_last=True, vocab=words, row_width=0)
    kind = kind_of(model(decoder={"logit_softcap": 3.0}).language.model)
    assert kind.saved_at_ends(ends, held) == sum(each.numel() for each in kept.values())


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
    tables = {
        "language": saved_activations.GATED_TEMPORARY,
        "vision": transformer_encoder.TEMPORARY,
    }
    widths = sum(each.stream * WIDTH + each.inner * INNER for each in tables[name].forward)
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
    block = block_of("language", dtype, compiled=compiled, frozen=False, gates=True, qk_norm=True)
    mask = sequence_context(2, torch.arange(256), Rotary(8, 1e4), dtype, documents=None)
    got = kept_by_block(block, mask, dtype)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    keys = {"gated_attention": True, "qk_norm": True, "rotary_factor": 0.25}
    made = model(compiled=compiled, precision=precision, decoder=keys)
    assert per_block(made, "language") == got


@pytest.mark.parametrize(
    ("kind", "activation"), [("gated", "gelu"), ("mlp", "squared_relu"), ("mlp", "gelu")]
)
def test_a_projector_with_a_width_keeps_what_the_table_says(kind: Any, activation: Any) -> None:
    """Of rows of four patches, not compiled."""
    width, inner, out, patches = 32, 48, 40, 64
    keys = {"hidden": width, "shuffle": 2, "projector": kind, "projector_mlp": inner}
    made = model(vision=keys | {"projector_activation": activation}).encoders["vision"].model
    layer = built(ParallelContext(), kind_of(made).projector(out))
    for each in layer.modules():
        if hasattr(each, "weight_gradients"):
            each.weight_gradients = GradAccumulator(None)  # type: ignore[assignment]
    weights = {weight.data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights and tensor.numel() > 2 * patches:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        rows = layer(torch.randn(patches // 4, 4 * width, requires_grad=True))
    held = HeldAtEnds(
        tp=1, tokens=patches, patches=patches, stream_tokens=patches, sequence_parts=1, words=0,
        through_layers=True, weights_train=True,
    )  # fmt: skip
    ends = Ends(is_first=False, is_last=True, vocab=0, row_width=out)
    # The table counts the rows as well, which a bridge keeps.
    assert kind_of(made).saved_at_ends(ends, held) == sum(kept.values()) + rows.numel()
