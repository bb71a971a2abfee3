"""What `init` writes is valid, and it never replaces a file unasked."""

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.exports import header_only, llava_folder
from tests.support.shards import PARTS, sample, tokenizer_folder, write_shard

from mimo_launch.checks.load_and_check import Checked, load_and_check
from mimo_launch.cli import init_draft
from mimo_launch.processors.tokenizer import token_id

Cli = Callable[[str], tuple[int, str, str]]

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    ends = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    layers = (f"model.layers.{layer}.input_layernorm.weight" for layer in range(32))
    header_only(folder / "model.safetensors", dict.fromkeys((*ends, *layers), (4096,)))
    return folder


def checked(file: Path) -> Checked:
    found = load_and_check(file)
    assert found.diagnostics == ()
    return found


def test_the_digits_without_any_folder(tmp_path: Path, run_cli: Cli) -> None:
    file = tmp_path / "first.yaml"
    assert run_cli(f"init {file} --gpus 6") == (
        0, f"wrote {file}\nnext:\n" + "".join(
            f"  mimo-launch {command} {file}\n" for command in ("validate", "plan", "train")
        ), "",
    )  # fmt: skip
    spec = checked(file).spec
    assert spec is not None
    assert (spec.name, spec.data.kind, list(spec.modules)) == (
        "first", "digits", ["vision", "language"],
    )  # fmt: skip
    assert [module.grid.dp for module in spec.modules.values()] == [6, 6]


def test_a_language_model_is_split_until_it_fits(llama: Path, tmp_path: Path, run_cli: Cli) -> None:
    tps = []
    # 24 GB suffice for whole layers: their activations and moments go to the host.
    for memory in ("141GB", "80GB", "24GB", "16GB"):
        file = tmp_path / f"{memory}.yaml"
        code, _, err = run_cli(f"init {file} --language {llama} --gpus 8 --gpu-memory {memory}")
        assert (code, err) == (0, "")
        spec = checked(file).spec
        assert spec is not None
        assert spec.language.init_from == str(llama)
        assert spec.train.precision == "bf16"
        tps.append(spec.language.grid.tp * spec.language.grid.pp)
    assert tps == sorted(tps)
    assert tps[0] < tps[-1]


@pytest.mark.parametrize(
    ("hidden", "weights", "lr"),
    [
        (4096, True, 2e-5),
        (512, False, 2e-3),
        (1024, False, 6e-4),
        (4096, False, 3e-4),
        (8192, False, 1.5e-4),
        (16384, False, 8e-5),
    ],
)
def test_the_learning_rate_is_one_that_models_of_this_size_were_trained_with(
    hidden: int, weights: bool, lr: float, llama: Path, tmp_path: Path, run_cli: Cli
) -> None:
    (llama / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": hidden}))
    if not weights:
        (llama / "model.safetensors").unlink()
    file = tmp_path / "lr.yaml"
    assert run_cli(f"init {file} --language {llama} --gpus 1")[0] == 0
    spec = load_and_check(file).spec
    assert spec is not None
    assert spec.optimizer.lr == lr


def test_a_model_of_many_experts_is_placed_in_seconds(tmp_path: Path, run_cli: Cli) -> None:
    """671 B parameters in 61 layers, which no pp but 61 divides."""
    folder, file = tmp_path / "deepseek", tmp_path / "deepseek.yaml"
    folder.mkdir()
    config = {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
    began = time.process_time()
    options = "--gpus 512 --gpus-per-node 8 --gpu-memory 80GB"
    assert run_cli(f"init {file} --language {folder} {options}")[0] == 0
    assert time.process_time() - began < 20
    spec = checked(file).spec
    assert spec is not None
    assert spec.language.experts is not None
    assert spec.language.experts.ep >= 8
    assert "# A first spec, to be changed: the fastest that fits into 80GB, of " in file.read_text()


def test_a_named_gpu_gives_memory_and_rates(llama: Path, tmp_path: Path, run_cli: Cli) -> None:
    file = tmp_path / "named.yaml"
    assert run_cli(f"init {file} --language {llama} --gpus 16 --gpu a100-40gb")[0] == 0
    spec = checked(file).spec
    assert spec is not None
    assert spec.nodes is not None
    assert (spec.nodes.gpus, spec.nodes.gpu, spec.nodes.gpu_memory) == (8, "a100-40gb", None)
    assert "that fits into a100-40gb" in file.read_text()


def test_a_hybrid_model_is_split_by_its_pattern(tmp_path: Path, run_cli: Cli) -> None:
    folder, file = tmp_path / "nemotron", tmp_path / "hybrid.yaml"
    folder.mkdir()
    config = {
        "model_type": "nemotron_h", "hybrid_override_pattern": "*M-M", "hidden_size": 64,
        "num_attention_heads": 8, "head_dim": 8, "intermediate_size": 96, "mamba_num_heads": 16,
        "vocab_size": 300,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    ends = ("backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight")
    layers = (f"backbone.layers.{layer}.norm.weight" for layer in range(4))
    header_only(folder / "model.safetensors", dict.fromkeys((*ends, *layers), (64,)))
    assert run_cli(f"init {file} --language {folder} --gpus 2")[0] == 0
    model = checked(file).spec.language.model
    assert (model.kind, model.pattern, model.mamba.heads) == ("hybrid", "*M-M", 16)


def test_a_whole_model_on_gpus_that_all_modules_share(tmp_path: Path, run_cli: Cli) -> None:
    folder, file = llava_folder(tmp_path / "llava"), tmp_path / "llava.yaml"
    options = "--gpus 16 --gpus-per-node 8 --gpu-memory 80GB --global-batch 64 --seq 512"
    assert run_cli(f"init {file} --model {folder} {options}")[0] == 0
    spec = checked(file).spec
    assert spec is not None
    assert {name: module.ranks for name, module in spec.modules.items()} == {
        "vision": "0-15", "language": "0-15",
    }  # fmt: skip
    assert (spec.modules["vision"].placeholder, spec.modules["vision"].grid.dp) == (98, 16)
    assert (spec.batch.global_, spec.batch.seq) == (64, 512)
    assert spec.data.kind == "synthetic"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--language {llama} --gpu-memory 4GB --gpus 2",
            "no layout on 2 GPUs: rank 1 (`language` stage 1) needs",
        ),
        ("--vision {llama}", "holds no supported vision: its model type is llama"),
        ("--language {llama}/none", "there is no such folder"),
        ("--language {llama} --gpus 3 --global-batch 7", "no layout on 3 GPUs: "),
        ("--language {llama} --data {llama} --gpus 1", "no layout on 1 GPU: "),
        ("--gpu-memory much --gpus 4", "unit"),
        ("--gpu h100-80g --gpus 4", "did you mean `h100-80gb`"),
        ("--gpu mine --gpus 4", "no GPU has the name mine"),
        (
            "--language {llama} --data shards/000.tar --tokenizer {llama}",
            "cannot be used: it has no tokenizer.json",
        ),
        ("--data x.tar", "--data, --tokenizer and --template are for models"),
        ("--template caption", "--data, --tokenizer and --template are for models"),
        (
            "--language {llama} --template caption",
            "--tokenizer and --template read files of --data",
        ),
        (
            "--language {llama} --tokenizer {llama}",
            "--tokenizer and --template read files of --data",
        ),
    ],
)
def test_what_cannot_be_written(
    options: str,
    says: str,
    llama: Path,
    tmp_path: Path,
    run_cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mimo_launch.cli.init._DOUBLINGS", 1)  # More take seconds.
    code, out, err = run_cli(f"init {tmp_path}/no.yaml {options.format(llama=llama)}")
    assert (code, out) == (2, "")
    assert says in err
    assert "   = help: " in err
    assert not (tmp_path / "no.yaml").exists()


@pytest.mark.parametrize(("image_token", "vocab"), [(True, 128256), (False, 128257)])
def test_the_image_token_of_a_tokenizer(
    image_token: bool, vocab: int, llama: Path, tmp_path: Path, run_cli: Cli
) -> None:
    """It stands for rows; without one an encoder takes the last id, which no tokenizer knows."""
    tower, texts = tmp_path / "tower", tokenizer_folder(tmp_path / "texts")
    tower.mkdir()
    (tower / "config.json").write_text('{"model_type": "siglip_vision_model"}')
    header_only(tower / "model.safetensors", {"post_layernorm.bias": (768,)})
    if image_token:
        settings = json.loads((texts / "tokenizer.json").read_text())
        last = settings["added_tokens"][-1]
        settings["added_tokens"].append({**last, "id": 384, "content": "<image>"})
        (texts / "tokenizer.json").write_text(json.dumps(settings))
    write_shard(tmp_path / "a.tar", [("0", sample(1))])
    file = tmp_path / "vlm.yaml"
    options = f"--language {llama} --vision {tower} --tokenizer {texts} --data {tmp_path}/a.tar"
    assert run_cli(f"init {file} {options} --gpus 1")[0] == 0
    spec = checked(file).spec
    assert spec is not None
    assert spec.modules["vision"].placeholder == (384 if image_token else None)
    assert spec.language.model.vocab == vocab
    assert ("the tokenizer has no <image>" in file.read_text()) == (not image_token)


def test_the_middle_token_of_a_template_stands_for_rows(
    llama: Path, tmp_path: Path, run_cli: Cli
) -> None:
    """A comment says that this is a guess."""
    tower, texts = tmp_path / "tower", tokenizer_folder(tmp_path / "texts", PARTS)
    tower.mkdir()
    (tower / "config.json").write_text('{"model_type": "siglip_vision_model"}')
    header_only(tower / "model.safetensors", {"post_layernorm.bias": (768,)})
    write_shard(tmp_path / "a.tar", [("0", sample(1))])
    file = tmp_path / "vlm.yaml"
    options = f"--language {llama} --vision {tower} --tokenizer {texts} --data {tmp_path}/a.tar"
    code, _, err = run_cli(f"init {file} {options} --gpus 1")
    assert code == 0, err
    spec = checked(file).spec
    assert spec is not None
    assert spec.modules["vision"].placeholder == token_id(texts, "<|image_pad|>")
    assert spec.language.model.vocab == 128256
    words = " ".join(line.removeprefix("# ") for line in file.read_text().splitlines())
    assert "Rows of vision replace <|image_pad|>, a guess from the chat template." in words


def test_the_placeholder_of_a_model_stays(tmp_path: Path, run_cli: Cli) -> None:
    """Also where the template of another tokenizer marks images otherwise."""
    folder, file = llava_folder(tmp_path / "llava"), tmp_path / "llava.yaml"
    config = json.loads((folder / "config.json").read_text())
    texts = tokenizer_folder(tmp_path / "texts", PARTS)
    write_shard(tmp_path / "a.tar", [("0", sample(1))])
    options = f"--model {folder} --tokenizer {texts} --data {tmp_path}/a.tar --gpus 1"
    code, _, err = run_cli(f"init {file} {options}")
    assert code == 0, err
    assert f"placeholder: {config['image_token_index']}\n" in file.read_text()


@pytest.mark.parametrize("name", ["a.tar", "a.jsonl"])
@pytest.mark.parametrize("there", [True, False])
def test_shards_that_leave_much_padding_are_packed_and_absent_ones_are_guessed(
    there: bool, name: str, llama: Path, tmp_path: Path, run_cli: Cli
) -> None:
    texts, shard, file = (
        tokenizer_folder(tmp_path / "texts"),
        tmp_path / name,
        tmp_path / "a.yaml",
    )
    if there:
        said = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "So."}]
        if name == "a.tar":
            records = ((f"{n:03d}", {"json": {"messages": said}}) for n in range(30))
            write_shard(shard, records)
        else:
            shard.write_text("\n".join([json.dumps({"messages": said})] * 30))
    options = f"--language {llama} --tokenizer {texts} --data {shard} --gpus 1 --seq 128"
    code, _, err = run_cli(f"init {file} {options}")
    assert code == 0, err
    assert ("kind: files" in file.read_text()) == (name == "a.jsonl")
    assert ("packing: true" in file.read_text()) == there
    assert ("sequences are 14% full; packed" in file.read_text()) == there
    assert ("# Plans rest on a guess" in file.read_text()) != there


def test_where_nothing_fits_help_names_the_fewest_gpus_that_do(
    llama: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "more.yaml"
    given = f"init {file} --language {llama} --gpu-memory 24GB --gpus"
    code, _, err = run_cli(f"{given} 1")
    found = re.search(r"= help: --gpus (\d+), for which a layout fits\n", err)
    assert (code, " there)" in err) == (2, False)
    assert found is not None
    more = int(found[1])
    assert more > 2
    with monkeypatch.context() as patched:
        # Half as many would lead help to the same number in another search.
        patched.setattr("mimo_launch.cli.init._DOUBLINGS", 0)
        assert run_cli(f"{given} {more // 2}")[0] == 2
    assert run_cli(f"{given} {more}")[0] == 0
    checked(file)


def test_where_no_number_of_gpus_suffices_help_says_so(
    llama: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mimo_launch.cli.init._DOUBLINGS", 2)
    line = f"init {tmp_path}/no.yaml --language {llama} --gpus 1 --gpu-memory 800MB"
    code, _, err = run_cli(line)
    assert code == 2
    assert "= help: no layout fits on up to 4 GPUs either" in err


def test_a_config_may_be_named_in_place_of_its_folder(
    llama: Path, tmp_path: Path, run_cli: Cli
) -> None:
    texts = []
    for path in (llama, llama / "config.json"):
        assert run_cli(f"init {tmp_path}/same.yaml --force --model {path}")[0] == 0
        texts.append((tmp_path / "same.yaml").read_text())
    assert texts[0] == texts[1]
    code, _, err = run_cli(f"init {tmp_path}/no.yaml --language {llama}/model.safetensors")
    assert code == 2
    assert "is no folder\n   = help: name a folder with config.json" in err


def test_a_file_is_kept_unless_forced(tmp_path: Path, run_cli: Cli) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("precious")
    code, out, err = run_cli(f"init {file}")
    assert (code, out, err) == (
        2, "", f"error: {file} exists\n   = help: --force replaces it; or name another file\n",
    )  # fmt: skip
    assert file.read_text() == "precious"
    assert run_cli(f"init {file} --force")[0] == 0
    checked(file)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked(
    llama: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [str(llama), "4", "80GB", "", "", ""]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join([*answers, ""])))
    file = tmp_path / "asked.yaml"
    code, out, _ = run_cli(f"init {file}")
    assert (code, out.strip().splitlines()[0]) == (0, f"wrote {file}")
    spec = checked(file).spec
    assert spec is not None
    assert spec.nodes is not None
    assert (spec.nodes.gpus, spec.nodes.gpu_memory) == (4, "80GB")
    assert spec.language.init_from == str(llama)
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert run_cli(f"init {tmp_path}/unasked.yaml --yes")[0] == 0
    assert run_cli(f"init {tmp_path}/left.yaml")[0] == 130


@pytest.mark.parametrize(("longest", "seq"), [(1700, 2048), (1800, 4096), (2048, 4096)])
def test_a_sequence_has_room_for_256_tokens_of_text_beside_the_longest_media(
    longest: int, seq: int, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_draft, "longest_sample", lambda spec: longest)
    data, _ = init_draft.undecided(init_draft.Answers(name="x", folders={"language": llama}))
    assert data["batch"]["seq"] == seq


def test_a_model_folder_is_no_spec(llama: Path, run_cli: Cli) -> None:
    """Whoever names one means the model of the spec."""
    code, out, err = run_cli(f"init {llama} --force")
    assert (code, out) == (2, "")
    assert err == (
        f"error: {llama} is a model folder, not a spec to write\n"
        f"   = help: mimo-launch init spec.yaml --model {llama}\n"
    )


@pytest.mark.parametrize(("file", "name"), [("my spec.yaml", "my-spec"), ("\u00e9.yaml", "run")])
def test_a_file_may_have_a_name_that_no_run_has(
    file: str, name: str, tmp_path: Path, run_cli: Cli
) -> None:
    path = tmp_path / file
    code, _, err = run_cli(f"init '{path}' --yes")
    assert code == 0, err
    spec = checked(path).spec
    assert spec is not None
    assert spec.name == name
