"""What `inspect` says of folders, and that the spec it prints is valid and fits them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import parakeet
from tests.support.exports import digits_run, header_only, llava_folder
from tests.support.folders import CONFIGS
from tests.support.headers import NO_TENSORS
from tests.support.hugging_face import save
from tests.support.seeing import tiny
from tests.support.specs import box, spec

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.inspect import _Saved
from mimo_launch.hugging_face.registry import WHOLES

Cli = Callable[[str], tuple[int, str, str]]

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
    "rope_theta": 1234567.0, "rms_norm_eps": 3.3e-6, "tie_word_embeddings": True,
}  # fmt: skip
TENSORS = {
    "model.embed_tokens.weight": (50, 64),
    "lm_head.weight": (50, 64),
    "model.norm.weight": (64,),
}
REST = """version: 1
name: t
batch: {global: 2, seq: 64}
data: {kind: synthetic, text_only: 1}
train: {steps: 1}
"""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "my llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    header_only(folder / "model.safetensors", TENSORS)
    return folder


def test_a_folder_and_the_spec_that_starts_from_it(llama: Path, run_cli: Cli) -> None:
    code, out, err = run_cli(f"inspect '{llama}'")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{llama}: llama, 6,464 parameters, bf16, 1 file",
        # The output layer is the embedding: it is not counted, and a tied folder may lack it.
        "  language: decoder (llama), 3,264 parameters in 2 tensors",
        "  left out: lm_head.weight: the output layer is the embedding",
        "",
        "modules:",
        "  language:",
        "    model: {kind: decoder, layers: 1, hidden: 64, heads: 4, kv_heads: 2, mlp: 96, "
        "vocab: 50, tied: true, norm_eps: 3.3e-06, rope_theta: 1234567.0}",
        "    ranks: 0",
        f"    init_from: {llama}",
    ]
    assert check_text(REST + out[out.index("modules:") :]).diagnostics == ()


def test_every_tensor_of_a_folder_is_accounted_for(llama: Path, run_cli: Cli) -> None:
    """Taken, left out for a reason, or unknown: then `validate` says so before `train` would."""
    strange = {"strange.weight": (2,), "model.layers.0.self_attn.strange.weight": (2,)}
    layer = {"model.layers.0.input_layernorm.weight": (64,)}
    header_only(llama / "model.safetensors", TENSORS | layer | strange)
    code, out, _ = run_cli(f"inspect '{llama}' --json")
    found = json.loads(out)
    [module] = found["modules"]
    assert (code, module["tensors"]) == (0, 3)
    assert found["left_out"] == {"lm_head.weight": "the output layer is the embedding"}
    assert found["unknown"] == sorted(strange)
    _, out, _ = run_cli(f"inspect '{llama}'")
    assert "  unknown: model.layers.0.self_attn.strange.weight and 1 more: no module" in out
    text = REST + out[out.index("modules:") :]
    [refused] = check_text(text).diagnostics
    assert refused.code == "init-from-not-supported"
    assert "have strange.weight, model.layers.0.self_attn.strange.weight, which" in refused.why
    assert "`init_partial: true` in `language`" in refused.help
    partial = ["modules.language.init_partial=true"]
    assert check_text(text, overrides=partial).diagnostics == ()


def test_the_same_as_json(llama: Path, run_cli: Cli) -> None:
    code, out, _ = run_cli(f"inspect '{llama}' --json")
    found = json.loads(out)
    assert (code, found["version"], found["kind"]) == (0, 1, "hugging_face")
    assert (found["parameters"], found["dtypes"]) == (6464, {"BF16": 6464})
    [module] = found["modules"]
    assert module["model"]["rope_theta"] == 1234567.0
    assert check_text(REST + found["yaml"]).diagnostics == ()


def test_every_module_of_a_whole_model(tmp_path: Path, run_cli: Cli) -> None:
    folder = llava_folder(tmp_path / "llava")
    code, out, err = run_cli(f"inspect {folder}")
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        f"{folder}: llava, 25,504 parameters, bf16, 1 file",
        "  vision: vit (clip_vision_model), 6,272 parameters in 2 tensors",
        "  language: decoder (llama), 19,104 parameters in 3 tensors",
    ]
    # The third layer stands behind the states that a LLaVA takes.
    assert "{kind: vit, layers: 2, " in out
    assert "    placeholder: 98\n" in out
    text = REST.replace("text_only: 1", "image: [4, 4]")
    assert check_text(text + out[out.index("modules:") :]).diagnostics == ()


def test_what_is_not_computed_is_named(llama: Path, run_cli: Cli) -> None:
    config = LLAMA | {"rope_scaling": {"rope_type": "dynamic"}, "attention_bias": True}
    (llama / "config.json").write_text(json.dumps(config))
    code, out, _ = run_cli(f"inspect '{llama}'")
    assert code == 1
    assert "    not computed here: attention_bias: true\n" in out
    assert "    not computed here: rope_type: dynamic without max_position_embeddings\n" in out
    # A spec of what is computed instead would look like this model and not be it.
    assert "modules:" not in out


def test_a_model_of_another_type(run_cli: Cli) -> None:
    code, out, err = run_cli("inspect hugging_face/gpt2")
    assert (code, err) == (1, "")
    first, second = out.splitlines()
    assert first == "hugging_face/gpt2: gpt2, 0 parameters, no weights, 0 files"
    assert second == (
        "  not read: model_type: gpt2; none like it is read; "
        "`mimo-launch inspect --families` lists all types"
    )


def test_a_whole_of_another_type_with_parts_that_are_read(tmp_path: Path, run_cli: Cli) -> None:
    config = {
        "model_type": "qwen9_omni_moe",
        "thinker_config": {
            "text_config": {"model_type": "qwen3_moe"},
            "vision_config": {"model_type": "strange"},
        },
        "tower_config": {"model_type": "siglip_vision_model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run_cli(f"inspect {tmp_path} --json")
    assert code == 1
    [said] = json.loads(out)["not_read"]
    assert said.startswith("model_type: qwen9_omni_moe; the types most like it that are read are ")
    assert "; of its parts, thinker_config.text_config (qwen3_moe) and tower_config " in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("internvl_chat", "as in OpenGVLab/InternVL3-1B-hf, the model is read with `model_type: "
         "internvl`"),
        ("llava_qwen", "as in llava-hf/llava-onevision-qwen2-7b-ov-hf, the model is read with "
         "`model_type: llava_onevision`"),
        ("kimi_vl", "its language alone is read with `model_type: deepseek_v3`"),
    ],
)  # fmt: skip
def test_a_type_with_its_own_code_names_the_type_that_is_read(
    name: str, says: str, tmp_path: Path, run_cli: Cli
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    code, out, _ = run_cli(f"inspect {tmp_path}")
    assert code == 1
    said = f"  not read: model_type: {name}; its code is in the folder; {says}; `mimo-launch "
    assert said in out


def test_names_on_the_hub_find_their_type(run_cli: Cli) -> None:
    """Also where a newer name has an older type."""
    out = run_cli("inspect --families")[1]
    for name, kind in (("Qwen/Qwen3.6-27B", "qwen3_5"), ("Qwen/Qwen3.8-27B", "qwen3_5"),
                       ("Qwen/Qwen3.6-35B-A3B", "qwen3_5_moe")):  # fmt: skip
        before = out[: out.index(name)].splitlines()
        assert [x for x in before if re.match(r"  \w+: ", x)][-1].startswith(f"  {kind}: ")


def test_a_part_of_another_type(tmp_path: Path, run_cli: Cli) -> None:
    """The rest is read; of this part, why not and what would be."""
    folder = llava_folder(tmp_path / "llava")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["model_type"] = "phi3"
    (folder / "config.json").write_text(json.dumps(config))
    code, out, _ = run_cli(f"inspect {folder}")
    assert code == 3
    assert "  vision: vit (clip_vision_model)" in out
    assert out.splitlines()[-1] == "incomplete: language is missing"
    said = (
        "  not read: text_config.model_type: phi3; in a llava it may be llama, qwen2, qwen3 or "
        "mistral; read is vision; `mimo-launch inspect --families` lists all types\n"
    )
    assert said in out


@pytest.mark.parametrize(
    ("section", "change", "name"),
    [
        ("text_config", {"mlp_bias": True}, "language"),
        ("vision_config", {"hidden_act": "relu"}, "vision"),
    ],
)
def test_a_part_that_is_not_computed_is_missing(
    section: str, change: dict[str, Any], name: str, tmp_path: Path, run_cli: Cli
) -> None:
    folder = llava_folder(tmp_path / "llava")
    config = json.loads((folder / "config.json").read_text())
    config[section] |= change
    (folder / "config.json").write_text(json.dumps(config))
    code, out, _ = run_cli(f"inspect {folder}")
    assert (code, out.splitlines()[-1]) == (3, f"incomplete: {name} is missing")
    code, out, _ = run_cli(f"inspect {folder} --json")
    assert (code, json.loads(out)["incomplete"]) == (3, [name])


def test_a_part_that_no_such_model_is_read_with_is_not_missing(
    tmp_path: Path, run_cli: Cli
) -> None:
    config = CONFIGS["Nemotron-3-Nano-Omni-30B-A3B"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run_cli(f"inspect {tmp_path}")
    assert code == 0
    assert "  not read: audio_config.model_type: parakeet; " in out
    assert "incomplete" not in out


def test_the_coefficient_of_the_balance_is_that_of_the_folder(tmp_path: Path, run_cli: Cli) -> None:
    """Or of transformers, where the folder says none; ours, 0.01, is ten times that."""
    mixtral = LLAMA | {"model_type": "mixtral", "num_local_experts": 2, "rope_theta": 1e6}
    for said, coefficient in (({}, 0.001), ({"router_aux_loss_coef": 0.02}, 0.02)):
        (tmp_path / "config.json").write_text(json.dumps(mixtral | said))
        code, out, _ = run_cli(f"inspect {tmp_path}")
        assert code == 0
        assert f"aux_loss: {coefficient}" in out
        text = REST + out[out.index("modules:") :]
        assert check_text(text).spec.language.model.moe.aux_loss == coefficient


def test_a_run_and_a_checkpoint_of_it(tmp_path: Path, run_cli: Cli) -> None:
    run = digits_run(tmp_path, adapter={"rank": 2, "targets": ["q"]})
    # A killed save and a damaged checkpoint are none to start from.
    for name in ("step-00000003.partial", "step-00000004.damaged"):
        (run / "checkpoints" / name).mkdir()
    code, out, _ = run_cli(f"inspect {run}")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith(f"{run}/checkpoints/step-00000002: step 2 of 2 of `saved`, 1 rank")
    assert lines[1] == "  other checkpoints: 1"
    assert lines[2].startswith("  vision: vit, ")
    start = f"init_from: {run}/checkpoints/step-00000002"
    assert out.count(start) == 2
    assert "adapter: {rank: 2, targets: [q]}" in out
    text = REST.replace("synthetic, text_only: 1", "digits")
    assert check_text(text + out[out.index("modules:") :]).diagnostics == ()
    code, out, _ = run_cli(f"inspect {run}/checkpoints/step-00000001 --json")
    found = json.loads(out)
    assert (code, found["step"], found["steps"], found["ranks"]) == (0, 1, [], 1)
    assert [module["name"] for module in found["modules"]] == ["vision", "language"]


def test_an_adapter_of_a_checkpoint_is_not_taken_from_where_its_run_took_it() -> None:
    adapter = {"rank": 2, "targets": ["q"], "init_from": "peft/folder"}
    made: Any = SimpleNamespace(spec=spec({"language": box(0, adapter=adapter)}), path="saved")
    assert "adapter: {rank: 2, targets: [q]}" in _Saved(made, Path("saved")).fragment()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", b"[]", "config.json is not a JSON object"),
        ("config.json", b'{"model_type": "llama"}', "does not say `"),
        ("model.safetensors", b"\xff" * 16, "model.safetensors is not a safetensors file"),
        ("model.safetensors", b"\x02" + bytes(7) + b"{]", "model.safetensors cannot be read"),
        ("model.safetensors", b"\x02" + bytes(7) + b"[]", "model.safetensors cannot be read"),
        ("model.safetensors", b"", "model.safetensors cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_read(
    name: str, content: bytes, says: str, llama: Path, run_cli: Cli
) -> None:
    (llama / name).write_bytes(content)
    code, out, err = run_cli(f"inspect '{llama}'")
    assert (code, out) == (2, "")
    assert says in err


def test_a_missing_folder_or_config_is_told_without_a_number_of_the_system(
    tmp_path: Path, run_cli: Cli
) -> None:
    for folder, says in (
        (tmp_path, "config.json cannot be read: No such file or directory"),
        (tmp_path / "gone", "there is no such folder"),
    ):
        code, _, err = run_cli(f"init {tmp_path}/new.yaml --model {folder}")
        assert (code, err.splitlines()[0]) == (2, f"error: {folder}: {says}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_fifos_devices_and_lost_links_are_named(name: str, llama: Path, run_cli: Cli) -> None:
    path = llama / name
    for make, says in (
        (os.mkfifo, "not a regular file"),
        (Path.mkdir, "config.json cannot be read" if name == "config.json" else "not a regular"),
        (lambda each: each.symlink_to("/dev/zero"), "not a regular file"),
        (lambda each: each.symlink_to("gone"), "No such file" if "json" in name else "is missing"),
    ):
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        code, out, err = run_cli(f"inspect '{llama}'")
        assert (code, out) == (2, "")
        assert name in err
        assert says in err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 0}, "in config.json, `heads` is `0`; it must be"),
        ({"num_hidden_layers": 1.5}, "`layers` is `1.5`, a number with a fraction"),
        ({"rope_parameters": [1]}, "rope_parameters: [1]"),
        ({"rope_scaling": [1]}, "rope_scaling: [1]"),
        ({"rope_scaling": [1], "rope_parameters": {"rope_type": "default"}}, "rope_scaling: [1]"),
        ({"model_type": "clip_vision_model", "hidden_act": ["gelu"]}, "is malformed: TypeError"),
        (
            {"model_type": "clip_vision_model", "image_size": 8},
            "`image[0]` is `0`; it must be a whole number",
        ),
        ({"model_type": "qwen2_vl", "text_config": "x"}, "`text_config` in config.json is x, not"),
        ({"model_type": "llava", "vision_config": [1]}, "`vision_config` in config.json is [1],"),
        ({"model_type": "siglip", "vision_config": 3}, "`vision_config` in config.json is 3, not"),
    ],
)
def test_a_configuration_of_no_model_is_refused(
    changes: dict, says: str, llama: Path, run_cli: Cli
) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(config | changes))
    code, out, err = run_cli(f"inspect '{llama}'")
    assert says in (out if "rope" in says else err)
    assert code == (1 if "rope" in says else 2)


@pytest.mark.parametrize("more", ["models/new", "--draft"])
def test_a_list_of_all_families_reads_no_folder(more: str, run_cli: Cli) -> None:
    code, out, err = run_cli(f"inspect --families {more}")
    assert (code, out) == (2, "")
    assert "--families lists all types; it reads no folder" in err
    assert "mimo-launch inspect DIR" in err


def test_all_families_are_listed_with_what_is_refused(run_cli: Cli) -> None:
    code, out, err = run_cli("inspect --families")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("  internvl: vision: internvl_vision; language: qwen2, llama, qwen3, mistral, "
                     "mixtral, qwen3_moe")  # fmt: skip
    assert lines[at + 1] == "    such as OpenGVLab/InternVL3-1B-hf"
    assert lines[at + 2] == "    written as InternVLForConditionalGeneration"
    assert "downsample_ratio that is no 1 / N" in lines[at + 3]
    found = json.loads(run_cli("inspect --families --json")[1])
    assert [each["model_type"] for each in found["wholes"]] == sorted(WHOLES)
    assert run_cli("inspect")[0] == 2


def test_nothing_there(tmp_path: Path, run_cli: Cli) -> None:
    assert run_cli(f"inspect {tmp_path}")[::2] == (
        2,
        f"error: {tmp_path} has no complete checkpoint\n"
        "   = help: name a folder with config.json, a run folder or a checkpoint\n",
    )


def test_torch_is_not_imported(llama: Path) -> None:
    program = (
        "import sys; from mimo_launch.cli.app import run; run(['inspect', sys.argv[1]]); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(llama)], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Voxtral, bare", "stack: 4"),
        ("Qwen2-Audio, bare", "pooling: mean, stack: 2, unpadded: true, projector: linear"),
        ("llava-onevision-qwen2-7b", "tiles: {grids: [[1, 1], [1, 2], "),
        ("llava-onevision-qwen2-7b", "most: 9, side: 384}"),
        ("InternVL3.5-8B", "placeholder"),
        ("InternVL with a tower of 6 B", "placeholder"),
        ("SmolVLM2-2.2B", "placeholder"),
        ("Idefics3", "placeholder"),
        ("Mistral-Small-3.1-24B", "placeholder"),
    ],
)
def test_what_it_writes_of_a_model_that_sees_or_hears_is_a_valid_spec(
    name: str, said: str, tmp_path: Path, run_cli: Cli
) -> None:
    """With the token of its rows."""
    config = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    code, out, err = run_cli(f"inspect '{tmp_path}'")
    assert (code, err) == (0, "")
    [token] = [each for key, each in config.items() if re.search("token_(id|index)$", key)][:1]
    assert f"placeholder: {token}" in out
    assert said in out
    rest = "version: 1\nname: t\nbatch: {global: 2, seq: 8192}\ntrain: {steps: 1}\n"
    patches = ", max_patches: 1024" if "patch:" in out and "tiles" not in out else ""
    data = f"data: {{kind: synthetic{patches}}}\n"
    found = check_text(rest + data + out[out.index("modules:") :]).diagnostics
    codes = [each.code for each in found if each.is_error]
    assert [each for each in codes if each != "memory-exceeded"] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 8}},
            "    an image of shards becomes 5 to 17 of 8 x 8 pixels: tiles, then all of it",
        ),
        (
            {"do_resize": False},
            "    images of shards are not read: a setting of its SmolVLMImageProcessor is not "
            "supported: do_resize: false",
        ),
    ],
)
def test_inspect_says_what_becomes_of_an_image(
    settings: dict[str, Any],
    said: str,
    tmp_path: Path,
    run_cli: Callable[[str], tuple[int, str, str]],
) -> None:
    save(tiny("smolvlm"), tmp_path)
    config = {"image_processor_type": "SmolVLMImageProcessor", **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    _, out, _ = run_cli(f"inspect '{tmp_path}'")
    assert said in out.splitlines()
    module, other = json.loads(run_cli(f"inspect '{tmp_path}' --json")[1])["modules"]
    assert (module["images"], other["images"]) == (said.strip(), None)


def test_inspect_says_which_setting_makes_other_frames(
    tmp_path: Path, run_cli: Callable[[str], tuple[int, str, str]]
) -> None:
    save(parakeet.tiny(), tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"feature_extractor_type": "ParakeetFeatureExtractor", "hop_length": 160}')
    assert "clips are not read" not in run_cli(f"inspect '{tmp_path}'")[1]
    file.write_text('{"feature_extractor_type": "ParakeetFeatureExtractor", "hop_length": 200}')
    said = (
        "    clips are not read: preprocessor_config.json says `hop_length: 200`: samples from one "
        "frame to the next, here 160"
    )
    assert said in run_cli(f"inspect '{tmp_path}'")[1].splitlines()
    [module] = json.loads(run_cli(f"inspect '{tmp_path}' --json")[1])["modules"]
    assert module["clips"] == said.strip()
