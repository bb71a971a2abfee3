"""What a block really keeps and needs, beside the tables of `kinds.saved_activations`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from tests.support.bf16_products import products_in_fp32
from tests.support.memory import INNER, TOKENS, WIDTH, memory_of, model, per_block
from tests.support.shapes import block_shape
from tests.support.specs import OF_PHI4, box, spec
from tests.support.works import nominal_work
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mimo_launch.kinds import saved_activations
from mimo_launch.kinds.block_shapes import DepthShape
from mimo_launch.kinds.layer import Ends, Rotary
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.saved_activations import HeldAtEnds, Passes
from mimo_launch.layers import score_attention
from mimo_launch.layers.dropout import Dropout, states
from mimo_launch.layers.image_contexts import (
    AttentionContext,
    image_context,
    turned_by_place,
    two_list_context,
    window_context,
)
from mimo_launch.layers.linear import GradAccumulator
from mimo_launch.layers.parallel_context import ParallelContext, _compiled, torch_type
from mimo_launch.layers.pointwise import soft_capped
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.sequence_contexts import sequence_context
from mimo_launch.layers.shaped_layer import built
from mimo_launch.layers.vocab_parallel import vocab_cross_entropy
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.transformer_block import Block, MtpDepth
from mimo_launch.spec.layers import Mla
from mimo_launch.spec.values import PRECISIONS

# Learned tokens of an image.
LEARNED = 8
# The import of inductor warns about its own use of torch.jit, and dynamo looks at `.grad`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def block_of(
    name: str,
    dtype: torch.dtype,
    *,
    compiled: bool,
    frozen: bool = False,
    made: type[Block] | type[MtpDepth] = Block,
    **shape: Any,
) -> Block | MtpDepth:
    """Return a block as runs have it: its products add up the gradients of their weights."""
    usual: dict[str, Any] = {"norm": "layer", "bias": True, "of_mlp": {"activation": "gelu"}}
    if name == "language":
        usual = {"kv_heads": 2}
    sizes = {"width": WIDTH, "heads": 8, "head_size": 32, "mlp": INNER}
    shaped = block_shape(**{**sizes, **usual, **shape})
    context = ParallelContext(compute_dtype=dtype, dtype=dtype, compiled=compiled, owner=name)
    block: Block | MtpDepth = (
        Block(context, shaped)
        if made is Block
        else MtpDepth(context, DepthShape(shaped), recompute="none")
    )
    for layer in block.modules():
        if hasattr(layer, "weight_gradients"):
            layer.weight_gradients = GradAccumulator(None)  # type: ignore[assignment]
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.requires_grad_(not frozen)
    return block


def images(dtype: torch.dtype) -> AttentionContext:
    del dtype
    return image_context([256, 256], range(TOKENS), torch.device("cpu"), alone=True)


def turned(dtype: torch.dtype) -> AttentionContext:
    return turned_by_place(images(dtype), torch.ones(TOKENS, 2), 32, dtype)


def beside_learned(dtype: torch.dtype) -> AttentionContext:
    """Two images of 16 x 16 patches, each with LEARNED tokens."""
    del dtype
    held, cpu = (TOKENS, 2 * LEARNED), torch.device("cpu")
    return two_list_context([256] * 2, [LEARNED] * 2, held, range(1), cpu, alone=True)


def turned_beside_learned(dtype: torch.dtype) -> AttentionContext:
    return turned_by_place(beside_learned(dtype), torch.ones(TOKENS + 2 * LEARNED, 2), 32, dtype)


def windows(dtype: torch.dtype) -> AttentionContext:
    """Two images of 16 x 16 patches, in windows of 8 x 8."""
    mask = window_context([(8, 8)] * 2, 4, 4, range(TOKENS), torch.device("cpu"), alone=True)
    return turned_by_place(mask, torch.ones(TOKENS, 2), 32, dtype)


def sequences(dtype: torch.dtype, rotated: int = 32) -> AttentionContext:
    return sequence_context(2, torch.arange(256), Rotary(rotated, 1e4), dtype, documents=None)


def partly_turned(dtype: torch.dtype) -> AttentionContext:
    return sequences(dtype, rotated=8)


CONTEXTS = {"language": sequences, "vision": images}


@pytest.fixture(autouse=True)
def compiles_without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What inductor is given to make kernels of stays as it is."""
    plain = partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(torch, "compile", plain)
    _compiled.cache_clear()
    with products_in_fp32():
        yield
    _compiled.cache_clear()


def kept_by_block(
    block: torch.nn.Module,
    mask: AttentionContext,
    dtype: torch.dtype,
    streams: int = 1,
    tokens: int = TOKENS,
) -> int:
    known = [*block.parameters(), *(x for x in (mask.cos, mask.sin) if x is not None)]
    left_out = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # A number per token or channel is a statistic of a norm, which the estimate leaves out.
        if storage.data_ptr() not in left_out and tensor.numel() > 2 * tokens:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    read = [torch.randn(tokens, WIDTH, dtype=dtype, requires_grad=True) for _ in range(streams)]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = block(*read, mask)
    del out
    return sum(kept.values())


@dataclass(frozen=True)
class Row:
    """A block of a module: keys of the model in a spec, and the shape that says the same."""

    name: str
    keys: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    context: Callable[[torch.dtype], AttentionContext] | None = None
    learned: int = 0


WINDOWS = {"positions": "rope2d", "windows": {"side": 4}, "norm": "rms", "activation": "swiglu"}
GEMMA = {"post_norms": True, "norm_offset": True, "activation": "gelu_tanh"}
NORMED = {
    "post_norms": True,
    "norm_offset": 1.0,
    "score_size": 20.0,
    "of_mlp": {"gate": "gelu_tanh"},
}
NORMED_HEADS = {"qk_norm": True}
GATES = {"gated_attention": True, "qk_norm": True, "rotary_factor": 0.25}


def latent(q_rank: int | None) -> Row:
    """Values are as large as keys: else attention on processors keeps all scores."""
    shape = Mla(kv_rank=16, q_rank=q_rank, rope_head_dim=8, v_head_dim=32)
    keys = {"mla": shape.model_dump(), "head_dim": 32, "kv_heads": 8}
    return Row("language", keys, {"latent": shape, "kv_heads": 8}, partly_turned)


KEPT = {
    "of language": Row("language"),
    "of language that is frozen": Row("language", shape={"frozen": True}),
    "of vision": Row("vision"),
    "of patches turned by their places": Row("vision", {"positions": "rope2d"}, {}, turned),
    "of neighbours turned by their places": Row(
        "vision",
        {"positions": "rope2d", "rope_frequencies": "alternating"},
        {"interleaved": True},
        turned,
    ),
    "of a DINOv3": Row(
        "vision",
        {"kind": "dinov3", "class_token": True, "registers": LEARNED - 1, "activation": "swiglu"},
        {"key_bias": False, "layer_scale": 0.1, "of_mlp": {"activation": "gelu", "gate": "silu"}},
        turned_beside_learned,
        learned=LEARNED,
    ),
    # With few keys: statistics of norms of keys and values are left out.
    "of a tower of Gemma 4": Row(
        "vision",
        {"kind": "gemma4_vision", "kv_heads": 2},
        {
            "norm": "rms",
            "bias": False,
            "qk_norm": True,
            "value_norm": True,
            "kv_heads": 2,
            "score_size": 1.0,
            "by_halves": True,
            "post_norms": True,
            "of_mlp": {"gate": "gelu_tanh"},
        },
        turned,
    ),
    "with class token and registers": Row(
        "vision",
        {"class_token": True, "registers": LEARNED - 1},
        {},
        beside_learned,
        learned=LEARNED,
    ),
    "with windows, RMSNorm and SwiGLU": Row(
        "vision",
        WINDOWS,
        {"norm": "rms", "of_mlp": {"activation": "gelu", "gate": "silu"}},
        windows,
    ),
    "with norms on both sides, as in Gemma 3": Row("language", GEMMA, NORMED),
    "with norms of all heads and after layers, as in OLMo 2": Row(
        "language",
        {"pre_norms": False, "post_norms": True, "qk_norm": True, "wide_qk_norm": True},
        {"pre_norms": False, "post_norms": True, "qk_norm": True, "wide_norm": True},
    ),
    "with factors on what layers add": Row(
        "language", {"residual_scale": 0.22}, {"residual_scale": 0.22}
    ),
    "with GELU and no gate, as in StarCoder2": Row(
        "language",
        {"activation": "gelu_tanh_without_gate", "mlp_bias": True},
        {"of_mlp": {"gate": None, "activation": "gelu_tanh"}},
    ),
    "with norms of rotated heads, as in Hunyuan": Row(
        "language",
        {"qk_norm": True, "rotated_qk_norm": True},
        {"qk_norm": True, "norm_last": True},
    ),
    **{
        f"with clipped queries, keys and values{after}": Row(
            "language", {"clip_qkv": 8.0, **keys}, {"clip": 8.0, **shape}
        )
        for after, keys, shape in (
            ("", {}, {}),
            (" before norms of heads", {"qk_norm": True}, {"qk_norm": True}),
            (
                " after a norm of all heads, as in OLMoE",
                {"qk_norm": True, "wide_qk_norm": True},
                {"qk_norm": True, "wide_norm": True},
            ),
            (
                " and norms of rotated heads",
                {"qk_norm": True, "rotated_qk_norm": True},
                {"qk_norm": True, "norm_last": True},
            ),
        )
    },
    **{
        f"with norms of values{after}": Row(
            "language", {"value_norm": True, **keys}, {"value_norm": True, **shape}
        )
        for after, keys, shape in (
            ("", {}, {}),
            (
                " from keys, as in Gemma 4",
                {"qk_norm": True, "values_from_keys": True},
                {"qk_norm": True, "own_values": False},
            ),
        )
    },
    "with values from keys and numbers of layers": Row(
        "language",
        {"values_from_keys": True, "layer_scalar": 0.5},
        {"own_values": False, "scalar": 0.5},
    ),
    "with squared ReLU, as in Arcee": Row(
        "language",
        {"activation": "squared_relu"},
        {"of_mlp": {"gate": None, "activation": "squared_relu"}},
    ),
    "with xIELU, as in Apertus": Row(
        "language",
        {"activation": "xielu"},
        {"of_mlp": {"gate": None, "activation": "xielu"}},
    ),
    "with LayerNorms": Row("language", {"norm": "layer"}, {"norm": "layer"}),
    "with layers in parallel, as in Command R": Row(
        "language",
        {"norm": "layer_without_bias", "parallel": True},
        {"norm": "layer_without_bias", "parallel": True},
    ),
    "with layers in parallel after RMSNorms": Row(
        "language", {"parallel": True, "post_norms": True}, {"parallel": True, "post_norms": True}
    ),
    "with norms of heads without weights, as in Llama 4": Row(
        "language", {"l2_qk_norm": True}, {"l2_norm": True}
    ),
    "without a gate": Row(
        "language",
        {"activation": "squared_relu"},
        {"of_mlp": {"gate": None, "activation": "squared_relu"}},
    ),
    "with capped scores": Row("language", {"attention_softcap": 50.0}, {"score_cap": 50.0}),
    "with the GELU of tanh": Row(
        "vision", {"activation": "gelu_tanh"}, {"of_mlp": {"activation": "gelu_tanh"}}
    ),
    "with the quick GELU": Row(
        "vision", {"activation": "quick_gelu"}, {"of_mlp": {"activation": "quick_gelu"}}
    ),
    "with layer scale": Row("vision", {"layer_scale": 0.1}, {"layer_scale": 0.1}),
    "with a norm of all heads together, as in InternVL": Row(
        "vision", {"qk_norm": True}, {"qk_norm": True, "wide_norm": True}
    ),
    "with a norm of each head, as in GLM-OCR": Row(
        "vision",
        {"qk_norm": True, "head_qk_norm": True, "positions": "rope2d", "kv_heads": 2},
        {"qk_norm": True, "kv_heads": 2},
        turned,
    ),
    "with gates and normed heads of which a part turns, as in Qwen3.5": Row(
        "language", GATES, {"gated": True, "qk_norm": True}, partly_turned
    ),
    "with latent attention": latent(24),
    "with latent attention of whole queries": latent(None),
}
PASSES = {
    "compiled": (True, "bf16"), "not compiled": (False, "bf16"), "in fp32": (False, "fp32"),
}  # fmt: skip


# What they keep when compiled is also kept by others, or by a step of `test_kept_by_steps.py`.
COMPILED_SELDOM = {
    "of patches turned by their places", "of neighbours turned by their places",
    "with class token and registers",
    "with latent attention", "with latent attention of whole queries",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(*each, marks=pytest.mark.sweep if seldom else (), id="-".join(each))
        for each in product(KEPT, PASSES)
        for seldom in [each[1] == "compiled" and each[0] in COMPILED_SELDOM]
    ],
)
def test_a_block_keeps_what_the_table_says(name: str, how: str) -> None:
    row, (compiled, precision) = KEPT[name], PASSES[how]
    dtype = torch_type(PRECISIONS[precision].computed)
    block = block_of(row.name, dtype, compiled=compiled, **row.shape)
    mask, tokens = (row.context or CONTEXTS[row.name])(dtype), TOKENS + 2 * row.learned
    got = kept_by_block(block, mask, dtype, tokens=tokens)
    keys = {"vision" if row.name == "vision" else "decoder": row.keys}
    frozen = row.shape.get("frozen", False)
    made = model(compiled=compiled, precision=precision, frozen=frozen, **keys)
    assert per_block(made, row.name) == got


@pytest.mark.parametrize("how", PASSES)
def test_a_depth_of_further_tokens_keeps_what_the_table_says(how: str) -> None:
    """The output layer keeps as much as for the next tokens."""
    compiled, precision = PASSES[how]
    dtype = torch_type(PRECISIONS[precision].computed)
    depth = block_of("language", dtype, compiled=compiled, made=MtpDepth)
    got = kept_by_block(depth, sequences(dtype), dtype, streams=2)
    settings = {"compiled": compiled, "precision": precision}
    plain, further = (
        memory_of(model(**settings, decoder={"mtp": mtp}), "language").kept
        for mtp in (None, {"depth": 1})
    )
    of_head = TOKENS * (WIDTH + 512) * dtype.itemsize
    assert further - plain - of_head == got


@pytest.mark.parametrize("compiled", [True, False])
def test_a_block_with_capped_scores_keeps_none_of_100_queries_at_a_time(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where they exist all at once."""
    monkeypatch.setattr(score_attention, "MOST_SCORES", 2 * 256 * 100)
    test_a_block_keeps_what_the_table_says(
        "with capped scores", "compiled" if compiled else "not compiled"
    )


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.sweep), False])
def test_queries_that_grow_keep_no_more(compiled: bool) -> None:
    dtype = torch.bfloat16
    block = block_of("language", dtype, compiled=compiled)
    grown = replace(sequences(dtype), factors=torch.rand(256))
    got = kept_by_block(block, grown, dtype)
    assert got == kept_by_block(block, sequences(dtype), dtype)
    made = model(compiled=compiled, decoder={"query_scaling": {"beta": 0.1, "length": 16}})
    assert per_block(made, "language") == got


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("keys", [{}, {"query_scaling": {"beta": 0.1, "length": 16}}, NORMED_HEADS])
def test_a_layer_without_rotary_positions_keeps_what_the_table_says(
    keys: dict[str, Any], compiled: bool
) -> None:
    """Queries and keys are parts of a tensor that is kept; larger queries are another one."""
    dtype, shape = torch.bfloat16, {"qk_norm": True} if keys is NORMED_HEADS else {}
    block = block_of("language", dtype, compiled=compiled, **shape)
    context = sequence_context(2, torch.arange(256), None, dtype, documents=None)
    if "query_scaling" in keys:
        context = replace(context, factors=torch.rand(256))
    layers = range(model().language.model.layers)
    made = model(compiled=compiled, decoder={"nope": {"layers": list(layers)}, **keys})
    assert per_block(made, "language") == kept_by_block(block, context, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("drops", [False, True])
def test_scores_exist_as_often_as_the_table_says(dtype: torch.dtype, drops: bool) -> None:
    heads, seq = 8, 512
    q, k, v = (torch.randn(1, heads, seq, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    seen = torch.ones(seq, seq, dtype=torch.bool).tril()

    tokens, layer = states(0, 0, torch.arange(seq))[None], Dropout(0.2, torch.compile)

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        drop = partial(layer.scores, queries_BS=tokens, keys_BM=tokens, first=0)
        scoring = score_attention.Scoring(cap=None if drops else 3.0)
        return score_attention.attend_by_scores(*tensors, seen, scoring, drop if drops else None)

    with MemoryPeak(q, k, v) as forward:
        out = recomputed(attend, q, k, v)
    grad = torch.randn_like(out)
    with MemoryPeak(q, k, v, out, grad) as backward:
        out.backward(grad)
    tables = saved_activations.CAPPED_FORWARD, saved_activations.CAPPED_BACKWARD
    if drops:
        tables = saved_activations.DROPPED_FORWARD, saved_activations.DROPPED_BACKWARD
    for table, peak in zip(tables, (forward, backward), strict=True):
        assert peak.largest == pytest.approx(table.scores * heads * seq * seq * 4, rel=0.1)


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
        tp=1, tokens=tokens, patches=tokens, positions=tokens, stream_tokens=tokens,
        sequence_parts=1, words=words, through_layers=False, through_embedding=False,
        layers=(), first_layer=0,
        passes=Passes(are_compiled=True, bytes=4, cp=1, weights_train=False),
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
    block, mask = block_of(name, dtype, compiled=False, frozen=True), CONTEXTS[name](dtype)
    x_nD = torch.randn(TOKENS, WIDTH, dtype=dtype)
    with torch.no_grad(), MemoryPeak(x_nD) as peak:
        block(x_nD, mask)
    tables = {
        "language": saved_activations.GATED_TEMPORARY,
        "vision": saved_activations.PLAIN_TEMPORARY,
    }
    widths = sum(each.stream * WIDTH + each.inner * INNER for each in tables[name].forward)
    # Only where nothing is compiled the SiLU of gate is a tensor.
    widths += INNER if name == "language" else 0
    assert peak.largest == pytest.approx(TOKENS * widths * 2, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [("gated", "gelu"), ("mlp", "squared_relu"), ("mlp", "gelu"), ("swiglu", "gelu")],
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
        tp=1, tokens=patches, patches=patches, positions=patches, stream_tokens=patches,
        sequence_parts=1, words=0, through_layers=True, through_embedding=False,
        layers=(0,), first_layer=0,
        passes=Passes(are_compiled=False, bytes=4, cp=1, weights_train=True),
    )  # fmt: skip
    ends = Ends(is_first=False, is_last=True, vocab=0, row_width=out)
    # The table counts the rows as well, which a bridge keeps.
    assert kind_of(made).saved_at_ends(ends, held) == sum(kept.values()) + rows.numel()


@pytest.mark.parametrize("more", [{}, OF_PHI4])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_block_of_a_conformer_keeps_what_the_estimates_say(
    precision: str, recompute: str, more: dict[str, Any]
) -> None:
    """Of two clips of 256 tokens, whose scores and convolutions are computed again."""
    keys = {"kind": "conformer", "layers": 4, "hidden": WIDTH, "heads": 8, "mlp": INNER, **more}
    made = spec(
        {
            "audio": box(0, model={**keys, "frames": 2048}, recompute=recompute, compile=False),
            "language": box(1),
        },
        mbs=2,
        seq=300,
        data={"kind": "synthetic", "max_frames": 2048, "text_only": 0.0},
        train={"steps": 1, "precision": precision},
    )
    dtype = torch_type(PRECISIONS[precision].computed)
    shape = kind_of(made.modules["audio"].model).layer(0)
    block = built(ParallelContext(compute_dtype=dtype, dtype=dtype, owner="audio"), shape)
    block.recompute = recompute
    for parameter in (*block.parameters(), *block.buffers()):
        torch.nn.init.constant_(parameter, 0.02)
    heard = replace(images(dtype), distances=torch.zeros(4, 8, dtype=dtype))
    # Clips of synthetic data have several lengths: per token.
    layout = build_layout(made)
    tokens = nominal_work(layout, layout["audio"], made).held
    assert per_block(made, "audio") / tokens == pytest.approx(
        kept_by_block(block, heard, dtype) / TOKENS, rel=0.02
    )
