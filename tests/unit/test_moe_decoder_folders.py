"""What configurations of Mixtral and Qwen3-MoE mean, and what of them is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS
from tests.support.hugging_face import MOE_KINDS
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.diag.diagnostic import Diagnostic
from mimo_launch.hugging_face.architectures import obstacles
from mimo_launch.hugging_face.registry import FAMILIES, part_of
from mimo_launch.spec.load import model_from_data

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "head_dim": None, "intermediate_size": 96, "rms_norm_eps": 1e-6,
}  # fmt: skip
# As the published folders have them.
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": SIZES | {
        "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
        "rope_theta": 1e6, "sliding_window": None, "router_aux_loss_coef": 0.02,
    },
    "qwen3_moe": SIZES | {
        "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "head_dim": 32,
        "moe_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 2,
        "mlp_only_layers": [0, 1], "use_sliding_window": False, "sliding_window": 4096,
    },
}  # fmt: skip
BLOCK = {
    "kind": "decoder", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 300,
    "head_dim": None, "norm_eps": 1e-6,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": BLOCK | {"rope_theta": 1e6, "moe": {"experts": 8, "top_k": 2, "width": 96}},
    "qwen3_moe": BLOCK | {
        "head_dim": 32, "mlp": 96, "qk_norm": True, "rope_theta": 10000.0,
        "moe": {"experts": 16, "top_k": 4, "width": 40, "every": 2, "first_dense": 2},
    },
}  # fmt: skip


def ours(name: str, **moe: Any) -> dict[str, Any]:
    return MODELS[name] | {"moe": MODELS[name]["moe"] | moe}


def found(
    name: str, tmp_path: Path, config: dict[str, Any] | None = None, **moe: Any
) -> list[Diagnostic]:
    """Return what is said of a spec that starts from a folder."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name] | (config or {})))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    made = spec({"language": box(0, model=ours(name, **moe), init_from=str(tmp_path))})
    return [item for item in check(made) if item.code.startswith("init-from")]


@pytest.mark.parametrize(
    ("said", "there"), [({"router_aux_loss_coef": 0.02}, "0.02"), ({}, "0.001")]
)
def test_a_coefficient_of_the_balance_that_is_not_written_is_said(
    said: dict[str, Any], there: str, tmp_path: Path
) -> None:
    """It is no part of the model: whichever is written holds, that of the folder or another."""
    [item] = found("qwen3_moe", tmp_path, said)
    assert (item.code, item.is_error) == ("init-from-unlike-model", False)
    assert f"is not set and so 0.01, but in {tmp_path}/config.json {there}" in item.headline
    assert item.help == f"write `aux_loss: {there}` in `moe`, or `aux_loss: 0.01` to keep it"
    assert found("qwen3_moe", tmp_path, said, aux_loss=0.01) == []
    assert found("qwen3_moe", tmp_path, {"router_aux_loss_coef": 0.01}) == []


def test_what_is_neither_is_said() -> None:
    """A decoder with experts is not compared with those without."""
    assert obstacles(model_from_data(ours("mixtral", score="sigmoid", every=2))) == [
        "no glm4_moe with `moe: {bias_update_rate: null, every: 2}`",
        "no mixtral with `moe: {score: sigmoid, every: 2}`",
        "no qwen2_moe with `moe: {score: sigmoid, shared_gate: false}`",
        "no granitemoe with `moe: {score: sigmoid, every: 2}`",
        "no solar_open with `moe: {bias_update_rate: null, every: 2}`",
        "no granitemoeshared with `moe: {score: sigmoid, every: 2}`",
    ]


@pytest.mark.parametrize(("shared", "refused"), [(24, []), (0, ["`moe: {shared: 0}`"])])
def test_experts_of_gemma_4_are_beside_a_shared_one(shared: int, refused: list[str]) -> None:
    ours, _ = MOE_KINDS["gemma4_text, experts"]
    sizes = {"kind": "decoder", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "vocab": 300}
    model = model_from_data(sizes | ours | {"moe": ours["moe"] | {"shared": shared}})
    assert list(FAMILIES["gemma4_text"].differences(model)) == refused


@pytest.mark.parametrize(
    ("name", "gate", "up"),
    [
        ("mixtral", "block_sparse_moe.gate.weight", "block_sparse_moe.experts.7.w3.weight"),
        ("qwen3_moe", "mlp.gate.weight", "mlp.experts.7.up_proj.weight"),
    ],
)
def test_experts_have_their_places(name: str, gate: str, up: str) -> None:
    part, model = part_of(CONFIGS[name], "decoder"), model_from_data(ours(name))
    places = [part.place(f"layers.3.mlp.{x}.weight", model) for x in ("router", "experts.7.up")]
    assert [at.name for at in places if at] == [f"model.layers.3.{gate}", f"model.layers.3.{up}"]
    # Of a layer without experts.
    dense = part.place("layers.0.mlp.gate.weight", model)
    assert dense is not None
    assert dense.name == "model.layers.0.mlp.gate_proj.weight"
