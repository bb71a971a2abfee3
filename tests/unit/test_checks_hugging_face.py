"""What `validate` says of a Hugging Face folder, by its config.json and without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.headers import NO_TENSORS, tensors_of_one

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.diag.diagnostic import Diagnostic, Severity
from mimo_launch.hugging_face.folder import ConfigError
from mimo_launch.hugging_face.registry import FAMILIES, part_of
from mimo_launch.spec.load import model_from_data

TEXT = """version: 1
name: t
modules:
  language:
    model: {kind: decoder, layers: 2, hidden: 64, heads: 4, kv_heads: 2, mlp: 96, vocab: 50}
    ranks: 0
    init_from: FOLDER
batch: {global: 2, seq: 64}
data: {kind: synthetic}
train: {steps: 1}
"""
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "rms_norm_eps": 1e-5,
}  # fmt: skip
QWEN = ["modules.language.model.norm_eps=1e-6", "modules.language.model.kv_heads=4"]


def found(
    folder: Path, config: dict[str, Any] | str, *settings: str, weights: bool = True
) -> tuple[Diagnostic, ...]:
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    if weights:
        (folder / "model.safetensors").write_bytes(NO_TENSORS)
    return check_text(TEXT.replace("FOLDER", str(folder)), overrides=settings).diagnostics


@pytest.mark.parametrize(
    "more",
    [
        {"rope_theta": 10000.0, "rope_scaling": None, "head_dim": None, "torch_dtype": "bfloat16"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}, "head_dim": 16},
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
        {"vocab_size": 40, "tie_word_embeddings": False},
    ],
    ids=["transformers 4", "transformers 5", "said as it is", "smaller vocabulary"],
)
def test_a_folder_of_the_same_model_passes(more: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path / "model", CONFIG | more) == ()


@pytest.mark.parametrize(
    ("more", "key", "values"),
    [
        ({"num_hidden_layers": 3}, "layers", ("2", "3")),
        ({"hidden_size": 128, "head_dim": 16}, "hidden", ("64", "128")),
        ({"num_attention_heads": 8, "head_dim": 16}, "heads", ("4", "8")),
        ({"num_key_value_heads": None}, "kv_heads", ("2", "4")),
        ({"head_dim": 32}, "head_dim", ("16", "32")),
        ({"intermediate_size": 100}, "mlp", ("96", "100")),
        ({"vocab_size": 51}, "vocab", ("50", "at least 51")),
        ({"tie_word_embeddings": True}, "tied", ("false", "true")),
        ({"rms_norm_eps": 1e-6}, "norm_eps", ("1e-05", "1e-06")),
        ({"rope_theta": 500000.0}, "rope_theta", ("10000", "500000")),
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_theta", ("10000", "500000")),
    ],
)
def test_a_value_that_differs_is_named_with_both(
    more: dict[str, Any], key: str, values: tuple[str, str], tmp_path: Path
) -> None:
    [item] = found(tmp_path / "model", CONFIG | more)
    assert item.code == "init-from-unlike-model"
    assert item.path == ("modules", "language", "model", key)
    assert f"`{key}` of `language` is {values[0]}, " in item.headline
    assert item.headline.endswith(f"config.json {values[1]}")
    assert item.is_error
    setting = item.help.split("`")[1].replace(": ", "=")
    if key in ("layers", "mlp", "vocab", "tied", "norm_eps", "rope_theta", "kv_heads"):
        corrected = f"modules.language.model.{setting}"
        assert found(tmp_path / "model", CONFIG | more, corrected) == ()
    [warning] = found(tmp_path / "model", CONFIG | more, "modules.language.init_partial=true")
    assert (warning.code, warning.severity) == ("init-from-unlike-model", Severity.WARNING)


def test_a_missing_norm_epsilon_is_that_of_transformers(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "rms_norm_eps"}
    assert [item.path[-1] for item in found(tmp_path / "model", config)] == ["norm_eps"]


@pytest.mark.parametrize(
    ("more", "differ"),
    [
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4}, {"qkv_bias"}),
        ({"model_type": "qwen3", "attention_bias": False, "head_dim": 16}, {"qk_norm"}),
        ({"model_type": "qwen3"}, {"qk_norm", "head_dim"}),
    ],
)
def test_other_kinds_have_their_own_parts(
    more: dict[str, Any], differ: set[str], tmp_path: Path
) -> None:
    items = found(tmp_path / "model", CONFIG | more)
    assert {item.path[-1] for item in items} == differ


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, "`model_type: gpt2`"),
        ({"model_type": None}, "`model_type: null`"),
        ({"model_type": ["llama"]}, '`model_type: ["llama"]`'),
        (CONFIG | {"attention_bias": True}, "`attention_bias: true`"),
        (CONFIG | {"mlp_bias": True}, "`mlp_bias: true`"),
        (CONFIG | {"hidden_act": "gelu"}, "`hidden_act: gelu`"),
        (CONFIG | {"layer_types": ["sliding_attention"]}, "`layer_types: sliding_attention`"),
        (CONFIG | {"rope_scaling": {"type": "dynamic"}}, "`rope_type: dynamic without "),
        (CONFIG | {"rope_parameters": "longrope"}, "`rope_parameters: longrope`"),
        (CONFIG | {"partial_rotary_factor": 0.5}, "`partial_rotary_factor: 0.5`"),
        (CONFIG | {"quantization_config": {"bits": 4}}, "`quantization_config: "),
        (
            CONFIG
            | {
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            '`rope_scaling: {"type": "linear", "factor": 2.0} with rope_parameters`',
        ),
        (CONFIG | {"is_causal": False}, "`is_causal: false`"),
        (CONFIG | {"is_causal": None}, "`is_causal: null`"),
        (CONFIG | {"per_layer_config": {"0": {"rms_norm_eps": 1.0}}}, "`per_layer_config: "),
    ],
)
def test_what_a_decoder_does_not_compute_is_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    [item] = found(tmp_path / "model", config)
    assert item.code == "init-from-not-supported"
    assert words in item.headline


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json cannot be read"),
        ("[]", "config.json is not a JSON object"),
        (CONFIG | {"hidden_size": "64"}, "`hidden_size` in config.json is 64, not a number"),
        (CONFIG | {"vocab_size": None}, "config.json does not say `vocab_size`"),
        (CONFIG | {"num_hidden_layers": True}, "is true, not a number"),
        (CONFIG | {"rope_scaling": {"rope_type": "llama3"}}, "config.json does not say `factor`"),
    ],
)
def test_a_config_that_says_nothing_useful_is_refused(
    config: dict[str, Any] | str, words: str, tmp_path: Path
) -> None:
    [item] = found(tmp_path / "model", config)
    assert item.code == "init-from-not-supported"
    assert words in item.why


@pytest.mark.parametrize("rope", ["rope_scaling", "rope_parameters"])
def test_dynamic_rotary_positions_are_usual_ones_up_to_a_length(rope: str, tmp_path: Path) -> None:
    config = CONFIG | {rope: {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 48}
    assert found(tmp_path / "model", config, "batch.seq=48") == ()
    [item] = found(tmp_path / "model", config)
    assert (item.code, item.path) == ("init-from-not-supported", ("batch", "seq"))
    assert "`seq: 64`" in item.headline
    assert "`max_position_embeddings: 48`" in item.why
    assert item.help == "write `seq: 48` in `batch`, or name another folder"


def test_longrope_is_read_up_to_its_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [9.0] * 8}
    config = CONFIG | {"rope_parameters": rope, "original_max_position_embeddings": 48}
    asked = "modules.language.model.rope_scaling="
    asked += f"{{rope_type: longrope, factor: 1.0, short_factor: {[1.5] * 8}, "
    asked += "original_max_position_embeddings: 48}"
    config |= {"max_position_embeddings": 48}
    assert found(tmp_path / "model", config, asked, "batch.seq=48") == ()
    [item] = found(tmp_path / "model", config, asked)
    assert (item.code, item.path) == ("seq-over-original-length", ("batch", "seq"))
    rope["short_factor"] = [1.5] * 7 + [-1.0]
    [item] = found(tmp_path / "model", config, asked, "batch.seq=48")
    assert "rope_type: longrope without positive factors" in item.headline


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    [item] = found(tmp_path / "model", CONFIG, weights=False)
    assert "without safetensors" in item.headline


def test_an_encoder_does_not_start_from_a_decoder(tmp_path: Path) -> None:
    assert found(tmp_path / "model", CONFIG) == ()
    item = of_vision(tmp_path)
    assert item.code == "init-from-not-supported"
    assert "with `model_type: llama`" in item.headline
    assert "siglip_vision_model" in item.why
    assert item.help == "name another folder, or delete `init_from`"


def test_the_kind_that_reads_a_folder_is_named(tmp_path: Path) -> None:
    """If it has the same role as the kind that does not."""
    found(tmp_path / "model", {"model_type": "dinov3_vit"})
    item = of_vision(tmp_path)
    assert item.code == "init-from-not-supported"
    assert "write `kind: dinov3`" in item.help


def of_vision(tmp_path: Path) -> Any:
    """Return what is found of a ViT that starts from a folder."""
    text = TEXT.replace("    init_from: FOLDER\n", "").replace(
        "  language:",
        "  vision:\n    model: {kind: vit, layers: 2, hidden: 64, heads: 4, patch: 4}\n"
        f"    ranks: 0\n    init_from: {tmp_path / 'model'}\n  language:",
    )
    [item] = check_text(text).diagnostics
    return item


def test_the_vocabulary_asked_for_has_room_for_placeholders(tmp_path: Path) -> None:
    found(tmp_path / "model", CONFIG | {"vocab_size": 60})
    text = TEXT.replace("FOLDER", str(tmp_path / "model")).replace(
        "  language:",
        "  vision:\n    model: {kind: vit, layers: 2, hidden: 64, heads: 4, patch: 4}\n"
        "    ranks: 0\n  language:",
    )
    [item] = check_text(text).diagnostics
    assert item.help == "write `vocab: 61` in `model`"


def test_validate_reads_the_config_without_torch(tmp_path: Path) -> None:
    found(tmp_path / "model", CONFIG)
    code = (
        "import sys\n"
        "from mimo_launch.checks.load_and_check import check_text\n"
        f"assert check_text({TEXT.replace('FOLDER', str(tmp_path / 'model'))!r}).spec is not None\n"
        "assert not {'torch', 'safetensors', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_size_is_a_number() -> None:
    with pytest.raises(ConfigError, match="hidden_size"):
        FAMILIES["llama"].keys({**CONFIG, "hidden_size": [64]})


def test_a_window_that_no_layer_has_is_none() -> None:
    """As transformers: layers behind `max_window_layers` slide, or those that `layer_types` say."""
    qwen = CONFIG | {"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": True}
    layers = CONFIG["num_hidden_layers"]
    for accepted in (
        {"max_window_layers": layers},
        {"max_window_layers": 0, "sliding_window": None},
        {"max_window_layers": 0, "layer_types": ["full_attention"] * layers},
        {"model_type": "llama", "max_window_layers": 0},
    ):
        part = part_of(qwen | accepted, "decoder")
        assert (part.not_computed(), part.keys()["sliding_window"]) == ((), None)


def test_windows_are_those_of_transformers() -> None:
    """Read from what a configuration says, and from what is written of it."""
    import transformers

    sizes = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}
    asked = {**sizes, "intermediate_size": 96, "vocab_size": 50, "rms_norm_eps": 1e-5}
    uses = {"use_sliding_window": True, "sliding_window": 7}
    for name, said, full in (
        ("Qwen2", {**uses, "max_window_layers": 3}, (0, 1, 2)),
        ("Qwen3", {**uses, "layer_types": [SLIDES, FULL] * 2}, (1, 3)),
        ("Mistral", {"sliding_window": 7}, ()),
        ("Mixtral", {"sliding_window": 7, "num_key_value_heads": 2}, ()),
        ("Qwen3Moe", {**uses, "num_key_value_heads": 2}, ()),
    ):
        theirs = getattr(transformers, f"{name}Config")(**asked, **said)
        written = {"model_type": theirs.model_type, **asked, **said}
        for config in (theirs.to_dict(), written):
            part = part_of(config, "decoder")
            assert part.not_computed() == ()
            keys = part.keys()
            window = {"size": 7, "full": full, "rope_theta": None, "chunked": False}
            # All layers have the same heads.
            assert keys["sliding_window"] == {**window, "head_dim": None, "kv_heads": None}
        model = model_from_data({"kind": "decoder", **plain(keys)})
        back = part.family.config(model)
        assert part_of(back, "decoder").keys() == keys
        read = getattr(transformers, f"{name}Config")(**back)
        types = getattr(read, "layer_types", None) or [SLIDES] * 4
        assert tuple(i for i, each in enumerate(types) if each == FULL) == full
        assert read.sliding_window == 7


FULL, SLIDES = "full_attention", "sliding_attention"


def plain(keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys as a spec has them, with lists."""
    found = {key: each for key, each in keys.items() if each is not None}
    window = found["sliding_window"]
    return {**found, "sliding_window": {**window, "full": list(window["full"])}}


def test_a_window_of_no_size_is_refused() -> None:
    """With layers that slide, transformers cannot compute it either."""
    qwen = CONFIG | {"model_type": "qwen2", "layer_types": [SLIDES, SLIDES]}
    for said in ({}, {"use_sliding_window": True, "sliding_window": None}):
        assert part_of(qwen | said, "decoder").not_computed() == (f"layer_types: {SLIDES}",)


WHOLE = (
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
    "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight",
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (tensors_of_one(*WHOLE)[:-1], "model.safetensors is cut off"),
        (b"", "model.safetensors cannot be read"),
        (tensors_of_one(*WHOLE[:2], *WHOLE[3:]), "its files lack lm_head.weight"),
        (tensors_of_one(*WHOLE[:-1]), "its files lack layer 1"),
    ],
)
def test_files_that_are_cut_off_or_lack_a_part_are_found(
    content: bytes, why: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    assert found(folder, CONFIG) == ()

    def again(content: bytes) -> tuple[Diagnostic, ...]:
        (folder / "model.safetensors").write_bytes(content)
        return check_text(TEXT.replace("FOLDER", str(folder))).diagnostics

    assert again(tensors_of_one(*WHOLE)) == ()
    (item,) = again(content)
    assert (item.code, item.is_error) == ("init-from-not-supported", True)
    assert why in item.why


def test_a_folder_with_dropout_starts_a_module_that_asks_for_it(tmp_path: Path) -> None:
    config = CONFIG | {"attention_dropout": 0.1}
    refused = [each for each in found(tmp_path, config) if "attention_dropout" in each.headline]
    assert [each.help for each in refused] == ["write `attention_dropout: 0.1` in `language`"]
    asked = found(tmp_path, config, "modules.language.attention_dropout=0.1")
    assert not [each for each in asked if "attention_dropout" in each.headline]
    assert found(tmp_path, config, "modules.language.attention_dropout=0.2")
