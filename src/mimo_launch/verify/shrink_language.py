"""Makes language models small, keeping what can go wrong about how a grid cuts them.

Decides: their sizes in proofs.
Relies on: nothing but the spec.
Leaves: all else to `shrink`.
"""

from math import lcm
from typing import TypeVar

from mimo_launch.spec.model import (
    DecoderModel,
    ExpertGrid,
    Grid,
    HybridModel,
    LanguageModel,
    ModuleSpec,
    Moe,
)

HEAD_SIZE = 8
# Time steps start between 0.001 and 0.1, times e to the power of what the token adds. Of any head
# some are shorter than this and some longer: a head all of whose steps are cut has no gradient by
# them, and would prove nothing.
MAX_MIN_STEP = 0.005

Language = TypeVar("Language", DecoderModel, HybridModel)


def shrink_decoder(model: DecoderModel, tp: int, layers: int) -> DecoderModel:
    """Return a decoder with so many layers."""
    update = {"layers": layers, "mrope": model.mrope and _shrink_mrope(model)}
    return _shrink_language(model, tp).model_copy(update=update)


def _shrink_language(model: Language, tp: int) -> Language:
    """Keep whether key/value heads are shared, among query heads and among tp ranks.

    Two heads of either kind stay on a rank that has several.
    """
    kv_heads = model.num_kv_heads
    if kv_heads >= tp:
        kv_heads = tp * min(2, kv_heads // tp)
    heads = lcm(tp, kv_heads) * min(2, max(1, model.heads // lcm(tp, model.num_kv_heads)))
    if model.heads == model.num_kv_heads:
        heads = kv_heads
    vocab = model.vocab if model.vocab == "digits" else min(model.vocab, 61)
    return model.model_copy(
        update={
            "heads": heads,
            "kv_heads": kv_heads,
            "hidden": HEAD_SIZE * heads,
            "head_dim": _head_dim(model),
            "mlp": 2 * tp * HEAD_SIZE,
            "vocab": vocab,
            "vocab_multiple": 16,
        }
    )


def _head_dim(model: LanguageModel) -> int | None:
    return None if model.head_dim is None else HEAD_SIZE + 2


def _shrink_mrope(model: DecoderModel) -> tuple[int, int, int]:
    """One pair turns with time, so that height and width have fast ones, in which bugs show."""
    pairs = (_head_dim(model) or HEAD_SIZE) // 2
    height = (pairs - 1) // 2
    return 1, height, pairs - 1 - height


def shrink_hybrid(model: HybridModel, grid: Grid, layers: int) -> HybridModel:
    """Keep which layers there are, and whether ranks share groups; every layer kind stays."""
    kinds = list(dict.fromkeys(model.pattern))
    layers = max(layers, min(len(kinds), model.layers))
    pattern = model.pattern[:layers]
    missing = [kind for kind in kinds if kind not in pattern]
    if missing:
        pattern = "".join([*kinds, *pattern[: layers - len(kinds)]])
    small = _shrink_language(model, grid.tp).model_copy(update={"pattern": pattern})
    if model.mamba is None:
        return small
    ranks = grid.tp * grid.cp
    groups = min(model.mamba.groups, ranks * min(2, max(1, model.mamba.groups // ranks)))
    unit = lcm(ranks, groups)
    sizes = {
        "heads": unit * min(2, model.mamba.heads // unit),
        "groups": groups,
        # Not fewer: a norm over a group of one number leaves its sign, and rounding grows with it.
        "head_dim": 4,
        "state": min(6, model.mamba.state),
        "conv": min(4, model.mamba.conv),
        "min_step": min(MAX_MIN_STEP, model.mamba.min_step),
        # Several chunks a sequence.
        "chunk": min(8, model.mamba.chunk),
    }
    return small.model_copy(update={"mamba": model.mamba.model_copy(update=sizes)})


def _shrink_moe(moe: Moe, sizes: ExpertGrid, tp: int) -> Moe:
    """Keep several experts on a rank, a choice among them, and layers with and without experts."""
    experts = sizes.ep * min(max(2, 4 // sizes.ep), moe.experts // sizes.ep)
    return moe.model_copy(
        update={
            "experts": experts,
            "top_k": min(moe.top_k, 3, experts),
            "width": 2 * sizes.tp * HEAD_SIZE,
            "shared": tp * min(moe.shared // tp, 2 * HEAD_SIZE),
            # Large enough that a wrong balance loss is seen beside the main one.
            "aux_loss": 0.1 if moe.aux_loss else 0.0,
            # Large enough that a wrong bias is seen in the choices of the next step.
            "bias_update_rate": 0.1 if moe.bias_update_rate else moe.bias_update_rate,
            "every": min(moe.every, 2),
            "first_dense": min(moe.first_dense, 1),
        }
    )


def with_experts(model: Language, module: ModuleSpec) -> Language:
    """Return a small model whose experts are small, too, with at least one layer of them."""
    if model.moe is None:
        return model
    small = _shrink_moe(model.moe, module.experts or ExpertGrid(), module.grid.tp)
    if not any(model.model_copy(update={"moe": small}).has_experts(i) for i in range(model.layers)):
        small = small.model_copy(update={"every": 1, "first_dense": 0})
    return model.model_copy(update={"moe": small})
