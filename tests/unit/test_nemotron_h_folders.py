"""What configurations of Nemotron-H mean, and what of them is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.layout.checks.entry import check
from mimo_launch.layout.hugging_face import nemotron_h
from mimo_launch.layout.hugging_face.architectures import Modules, alone, obstacles
from mimo_launch.layout.hugging_face.folder import ConfigError
from mimo_launch.layout.hugging_face.part import NoSuchPart
from mimo_launch.layout.hugging_face.registry import part_of
from mimo_launch.spec.load import model_from_data

# As NVIDIA's folders have it.
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "hidden_size": 64,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "mamba_num_heads": 12, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 3,
    "conv_kernel": 4, "chunk_size": 256, "vocab_size": 300, "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2", "use_bias": False, "use_conv_bias": True, "num_hidden_layers": 4,
}  # fmt: skip


def test_old_and_new_names_of_layers_are_the_same_pattern() -> None:
    layers = ["mamba", "mlp", "linear_attention", "attention"]
    named = {key: CONFIG[key] for key in CONFIG if key != "hybrid_override_pattern"}
    part = part_of(named | {"layers_block_type": layers}, "hybrid")
    assert part.keys() == part_of(CONFIG, "hybrid").keys()
    assert part.keys()["pattern"] == "M-M*"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hybrid_override_pattern": "MEM*"}, "hybrid_override_pattern: moe"),
        ({"layers_block_type": ["moe", "mlp", "moe"]}, "layers_block_type: moe"),
        ({"layers_block_type": ["mlp", "conv"]}, "layers_block_type: conv"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act: silu"),
        ({"use_bias": True}, "use_bias: true"),
        ({"use_conv_bias": False}, "use_conv_bias: false"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], said: str) -> None:
    assert part_of(CONFIG | change, "hybrid").not_computed() == (said,)


def test_a_folder_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="layers_block_type"):
        nemotron_h.keys({"model_type": "nemotron_h"})
    with pytest.raises(NoSuchPart):
        part_of(CONFIG, "decoder")


def test_segments_fill_the_fused_tensors_without_a_gap() -> None:
    model = spec({"language": box(0, model=ours())}).language.model
    ends: dict[str, int] = {}
    for name in ("z", "x", "B", "C", "dt"):
        at = nemotron_h.place(f"layers.0.mamba.{name}.weight", model)
        assert at.first_row == ends.get(at.name, 0)
        ends[at.name] = at.first_row + at.num_rows
    assert ends == {"model.layers.0.mixer.in_proj.weight": 2 * 96 + 2 * 48 + 12}
    last = nemotron_h.place("layers.0.mamba.conv.C.weight", model)
    assert (last.first_row + last.num_rows, last.shape) == (192, (192, 1, 4))
    with pytest.raises(KeyError):
        nemotron_h.place("layers.0.mamba.conv.z.weight", model)


def ours(**change: Any) -> dict[str, Any]:
    sizes = {"heads": 12, "head_dim": 8, "state": 16, "groups": 3, "chunk": 256, "min_step": 1e-3}
    sizes |= change.pop("mamba", {})
    return {
        "kind": "hybrid", "pattern": "M-M*", "hidden": 64, "heads": 8, "kv_heads": 2,
        "head_dim": 16, "mlp": 96, "vocab": 300, "mamba": sizes, **change,
    }  # fmt: skip


def test_what_is_no_nemotron_h_is_said() -> None:
    """Experts are not written yet, and attention there knows no positions."""
    for change, said in (({"pattern": "MEM*"}, "MEM*"), ({"rope_theta": 100.0}, "100")):
        model = model_from_data(ours(**change))
        [key] = change
        assert obstacles(model) == [f"no nemotron_h with `{key}: {said}`"]
    assert alone(
        Modules(models={"language": model_from_data(ours())}, tokens={}, width=64), "language"
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({}, None),
        ({"mamba": {"state": 8}}, "mamba"),
        ({"pattern": "M-MM"}, "pattern"),
        ({"rope_theta": 1e4}, "rope_theta"),
    ],
)
def test_a_folder_must_say_what_the_spec_says(
    change: dict[str, Any], key: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").touch()
    made = spec({"language": box(0, model=ours(**change), init_from=str(tmp_path))})
    found = [item for item in check(made) if item.is_error]
    assert [item.path[-1] for item in found] == ([] if key is None else [key])
    if key == "mamba":
        assert "state: 8" in found[0].headline
        assert "state: 16" in found[0].help
