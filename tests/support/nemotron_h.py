"""Tiny Nemotron-H models of `transformers` with random weights, and specs that start from them."""

import warnings
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from tests.support.hugging_face import widen
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

VOCAB = 37
MODEL = {
    "kind": "hybrid", "pattern": "M-*M-", "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8,
    "mlp": 48, "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-3,
    "mamba": {
        "heads": 8, "head_dim": 4, "state": 6, "groups": 4, "conv": 3, "chunk": 8, "min_step": 0.1,
    },
}  # fmt: skip
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "layer_norm_epsilon": 1e-3, "mamba_num_heads": 8,
    "mamba_head_dim": 4, "ssm_state_size": 6, "n_groups": 4, "conv_kernel": 3, "chunk_size": 8,
    "time_step_min": 0.1, "time_step_max": 0.2,
    "layers_block_type": [
        "linear_attention", "mlp", "full_attention", "linear_attention", "mlp",
    ],
}  # fmt: skip


# The same with experts in two of six layers, for `MODEL` and `CONFIG`.
MOE_MODEL: dict[str, Any] = {
    "pattern": "ME*-ME",
    "moe": {
        "experts": 6, "top_k": 3, "width": 20, "score": "sigmoid", "scale": 2.5, "shared": 28,
        "aux_loss": 0.0, "bias_update_rate": 0.01,
    },
}  # fmt: skip
MOE_CONFIG: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28, "routed_scaling_factor": 2.5,
    "layers_block_type": [
        "linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe",
    ],
}  # fmt: skip


def tiny(dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """Return a model in which no weight is a constant; `min_step` is in force for some heads."""
    made = theirs().NemotronHForCausalLM(theirs().NemotronHConfig(**CONFIG | config))
    return shaken(made, dtype, start, lambda name: 0.5 if "mixer" in name else 0.2)


def start(name: str) -> float:
    """Return values of time steps near the least one, and of decays that differ as if trained."""
    if "dt_bias" in name:
        return -2.0
    return float(
        ("norm" in name and name.endswith("weight")) or "lambda" in name or "A_log" in name
    )


def loaded(folder: Path) -> Any:
    """Return the model of a folder, every tensor of which must be used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import NemotronHForCausalLM

        model, info = NemotronHForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def widened(model: Any) -> None:
    """Compute everything in float64: `transformers` norms and scans in float32, whatever the type.

    Its scan says so by `float()` and its router by `type()`, which callers must make `double()`.
    """
    widen(model)

    def gated(self: Any, x: Tensor, gate: Tensor) -> Tensor:
        product = x * torch.nn.functional.silu(gate)
        groups = product.unflatten(-1, (-1, self.group_size))
        scale = (groups.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return self.weight * (groups * scale).flatten(-2)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNormGated"):
            module.forward = MethodType(gated, module)


LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "cp2": {"cp": 2},
    "cp2 colocated": {"cp": 2, "vision": 0},
    "tp2 apart": {"tp": 2, "vision": 2},
}
MOE_LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp2": {"tp": 2},
    "tp2, split experts": {"tp": 2, "experts": {"tp": 2}, "sequence_parallel": True},
    "ep2": {"dp": 2, "experts": {"ep": 2}},
    "pp2, ep3": {"pp": 2, "dp": 3, "experts": {"ep": 3}},
}


def made(layout: str, folder: Path | None, precision: str = "fp32", **model: Any) -> Spec:
    """Return a spec whose language module starts from a folder; `vision` begins at a rank."""
    grid = dict((LAYOUTS | MOE_LAYOUTS)[layout])
    first = grid.pop("vision", None)
    words = VOCAB + (first is not None)
    language = box(0, **grid, **({} if folder is None else {"init_from": str(folder)}))
    modules = {"language": language | {"model": {**MODEL, "vocab": words, **model}}}
    if first is not None:
        modules["vision"] = box(first, dp=2 if first == 0 else 1)
    train = {"steps": 1, "precision": precision}
    found = spec(modules, microbatches=2, mbs=2, seq=16, text_only=1.0, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found
