"""What configurations of Nemotron-H mean, and what of them is refused."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.hugging_face.architectures import Modules, alone, obstacles
from mimo_launch.hugging_face.families.nemotron_h import NEMOTRON_H
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.part import NoSuchPart
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

# As NVIDIA's folders have it.
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "hidden_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "mamba_num_heads": 12, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 3,
    "conv_kernel": 4, "chunk_size": 256, "vocab_size": 300, "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2", "use_bias": False, "use_conv_bias": True, "num_hidden_layers": 4,
}  # fmt: skip


def test_a_folder_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers_block_type"):
        NEMOTRON_H.keys({"model_type": "nemotron_h"})
    with pytest.raises(NoSuchPart):
        part_of(CONFIG, "decoder")


# As NVIDIA's folder of Nemotron 3 Nano has it.
NANO = {
    "hybrid_override_pattern": "MEM*E", "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
    "moe_shared_expert_intermediate_size": 80, "routed_scaling_factor": 2.5, "n_group": 1,
    "topk_group": 1, "moe_latent_size": None,
}  # fmt: skip


def experts(**change: Any) -> dict[str, Any]:
    """Return keys of our model that say the same as `NANO`."""
    moe = {
        "experts": 8, "top_k": 3, "width": 40, "shared": 80, "scale": 2.5, "score": "sigmoid",
        "aux_loss": 1e-4, "bias_update_rate": 1e-3,
    }  # fmt: skip
    return {"pattern": NANO["hybrid_override_pattern"], "moe": moe | change}


def test_experts_have_their_places() -> None:
    model = model_from_data(ours(**experts()))
    found = {
        name: NEMOTRON_H.tensors.place(f"layers.4.moe.{name}", model)
        for name in (
            "router.weight",
            "router.expert_bias",
            "experts.7.up.weight",
            "shared.down.weight",
        )
    }
    mixer = "model.layers.4.mixer"
    assert {name: at.name for name, at in found.items()} == {
        "router.weight": f"{mixer}.gate.weight",
        "router.expert_bias": f"{mixer}.gate.e_score_correction_bias",
        "experts.7.up.weight": f"{mixer}.experts.7.up_proj.weight",
        "shared.down.weight": f"{mixer}.shared_experts.down_proj.weight",
    }
    assert [name for name, at in found.items() if at.at_least_fp32] == ["router.expert_bias"]


def test_segments_fill_the_fused_tensors_without_a_gap() -> None:
    model = spec({"language": box(0, model=ours())}).language.model
    ends: dict[str, int] = {}
    for name in ("z", "x", "B", "C", "dt"):
        at = NEMOTRON_H.tensors.place(f"layers.0.mamba.{name}.weight", model)
        assert at.first_row == ends.get(at.name, 0)
        ends[at.name] = at.first_row + at.num_rows
    assert ends == {"model.layers.0.mixer.in_proj.weight": 2 * 96 + 2 * 48 + 12}
    last = NEMOTRON_H.tensors.place("layers.0.mamba.conv.C.weight", model)
    assert (last.first_row + last.num_rows, last.shape) == (192, (192, 1, 4))
    with pytest.raises(KeyError):
        NEMOTRON_H.tensors.place("layers.0.mamba.conv.z.weight", model)


def ours(**change: Any) -> dict[str, Any]:
    sizes = {"heads": 12, "head_dim": 8, "state": 16, "groups": 3, "chunk": 256, "min_step": 1e-3}
    sizes |= change.pop("mamba", {})
    return {
        "kind": "hybrid", "pattern": "M-M*", "hidden": 64, "heads": 8, "kv_heads": 2,
        "head_dim": 16, "mlp": 96, "vocab": 300, "mamba": sizes, **change,
    }  # fmt: skip


def test_what_is_no_nemotron_h_is_said() -> None:
    """Attention there knows no positions, and experts have biases and are not alone."""
    for change, said in (
        ({"rope_theta": 100.0}, "rope_theta: 100"),
        (
            experts(score="softmax", bias_update_rate=None),
            "moe: {score: softmax, bias_update_rate: null}",
        ),
        (experts(shared=0), "moe: {shared: 0}"),
    ):
        assert f"no nemotron_h with `{said}`" in obstacles(model_from_data(ours(**change)))
    for model in (ours(), ours(**experts())):
        models = {"language": model_from_data(model)}
        assert alone(Modules(models=models, tokens={}, widths={}), "language")
