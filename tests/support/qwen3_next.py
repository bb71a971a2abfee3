"""A tiny Qwen3-Next of `transformers` with random weights, and specs that start from it."""

from pathlib import Path
from typing import Any

import torch
from tests.support.random_models import shaken, theirs
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

VOCAB = 37
# Two heads of keys, each with two of values. The first layer has an MLP.
CONFIG: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 6,
    "linear_key_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 8, "norm_topk_prob": False,
    "mlp_only_layers": [0],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
MODEL: dict[str, Any] = {
    "kind": "hybrid", "pattern": "G-*EGE", "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 12,
    "mlp": 48, "vocab": VOCAB, "vocab_multiple": 16, "norm_eps": 1e-3, "rope_theta": 50.0,
    "rotary_factor": 0.5, "qk_norm": True, "norm_offset": True, "gated_attention": True,
    "activation": "silu",
    "deltanet": {"heads": 4, "key_heads": 2, "head_dim": 6, "key_dim": 8, "chunk": 16},
    "moe": {
        "experts": 4, "top_k": 2, "width": 16, "shared": 8, "shared_gate": True,
        "normalize": False, "aux_loss": 0.0,
    },
}  # fmt: skip
EP2: dict[str, Any] = {"experts": {"ep": 2}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp2": {"tp": 2, **EP2, "sequence_parallel": True},
    "tp4, heads of keys shared": {"tp": 4},
    "cp2": {"cp": 2, **EP2},
    "pp2": {"pp": 2},
    "tp2 pp2": {"tp": 2, "pp": 2, **EP2},
}


def tiny(dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """Return a model in which no weight is a constant."""
    made = theirs().Qwen3NextForCausalLM(theirs().Qwen3NextConfig(**CONFIG | settings))
    # To the other norms 1 is added.
    return shaken(made, dtype, lambda name: float(name.endswith("linear_attn.norm.weight")))


def made(layout: str, folder: Path, precision: str = "fp32", **model: Any) -> Spec:
    """Return a spec whose language module starts from a folder."""
    language = box(0, **LAYOUTS[layout], init_from=str(folder), model={**MODEL, **model})
    train = {"steps": 1, "precision": precision}
    found = spec({"language": language}, microbatches=2, mbs=2, seq=32, text_only=1.0, train=train)
    assert not [item for item in check(found) if item.is_error]
    return found
