"""Every line that a help offers, pasted, gives the spec that was meant."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.docs.test_codes import FIXTURES, arguments
from tests.support.pasting import offers, pasted

from mimo_launch.checks.load_and_check import check_text, load_and_check
from mimo_launch.spec.spec import Spec

VALID = (Path(__file__).parents[1] / "fixtures" / "valid.yaml").read_text(encoding="utf-8")
VALID += "optimizer: {kind: adamw, lr: 0.001, betas: [0.9, 0.95]}\n"
VALID += "nodes: {gpus: 8, gpu_memory: 80GB}\n"
BETAS = "optimizer: {kind: adamw, lr: 0.001, betas: [0.9, 0.95]}"
LANGUAGE_GRID = "ranks: 4-7\n    grid: {tp: 2, dp: 2}"


def spec_of(text: str) -> Spec:
    checked = check_text(text)
    assert checked.spec is not None, [item.headline for item in checked.diagnostics]
    return checked.spec


def mended(text: str, overrides: Sequence[str] = (), world: int | None = None) -> list[Spec]:
    """Return the valid specs that the offers of the first finding lead to, one after the other."""
    todo, found = [(text, 0)], list[Spec]()
    while todo:
        each, depth = todo.pop()
        checked = check_text(each, "spec", overrides, world)
        if checked.spec is not None:
            found.append(checked.spec)
        elif depth < 4:
            errors = [item for item in checked.diagnostics if item.is_error]
            todo += [(new, depth + 1) for item in errors[:1] for new in pasted(each, item)]
    return found


# What was written in place of a part of the valid spec, and what was meant, if not that part.
WRONG = {
    "a list of ranks": ("ranks: 4-7", "ranks: [4, 5, 6, 7]", None),
    "a list of ranks as text": ("ranks: 4-7", "ranks: '4,5,6,7'", None),
    "a range with dots": ("ranks: 4-7", "ranks: 4..7", None),
    "a range in Python": ("ranks: 4-7", "ranks: range(4, 8)", None),
    "a list with a range": ("ranks: 4-7", "ranks: ['4-7']", None),
    "ranks without a space": ("ranks: 4-7", "ranks:4-7", None),
    "sizes without a space": ("{tp: 2, dp: 2}", "{tp:2, dp:2}", None),
    "memory without a unit": ("80GB", "80", None),
    "memory in small letters": ("80GB", "80gb", None),
    "memory with G": ("80GB", "80G", None),
    "memory in bytes": ("80GB", "80000000000", None),
    "memory as nvidia-smi prints it": ("80GB", "81559", "81559MiB"),
    "an underscore in a number": ("steps: 100", "steps: 1_000", "steps: 1000"),
    "a comma in a number": ("steps: 100", "steps: '1,000'", "steps: 1000"),
    "thousands of tokens": ("seq: 64", "seq: 4k", "seq: 4096"),
    "thousands of steps": ("steps: 100", "steps: 10k", "steps: 10000"),
    "a number in hex": ("global: 32", "global: 0x20", None),
    "a power": ("seq: 64", "seq: 2**6", None),
    "a quoted number": ("heads: 4, vocab", "heads: '4', vocab", None),
    "a whole number with a point": ("steps: 100", "steps: 1e2", None),
    "a quoted learning rate": ("lr: 0.001", "lr: '1e-3'", None),
    "a percentage": ("0.95", "95%", None),
    "a microbatch beside accumulation": (
        "microbatches: 2}\nbatch: {global: 32, seq: 64}",
        "microbatches: 1}\nbatch: {seq: 64, micro_batch_size: 4, grad_accum_steps: 8}",
        "microbatches: 8}\nbatch: {seq: 64, global: 64}",
    ),
    "yes": ("{tp: 2, dp: 2}", "{tp: 2, dp: 2}\n    sequence_parallel: yes",
            "{tp: 2, dp: 2}\n    sequence_parallel: true"),
    "a word of torch": ("steps: 100", "steps: 100, precision: bfloat16",
                        "steps: 100, precision: bf16"),
    "float32": ("steps: 100", "steps: 100, precision: torch.float32",
                "steps: 100, precision: fp32"),
    "recompute as a boolean": ("{tp: 2, dp: 2}", "{tp: 2, dp: 2}\n    recompute: true",
                               "{tp: 2, dp: 2}\n    recompute: full"),
    "no clipping": ("lr: 0.001", "lr: 0.001, clip: none", "lr: 0.001, clip: null"),
    "an optimizer of Hugging Face": ("kind: adamw", "kind: adamw_torch", None),
    "an optimizer in capitals": ("kind: adamw", "kind: AdamW", None),
    "a language model called llm": ("  language:", "  llm:", None),
    "a language model called text": ("  language:", "  text_model:", None),
    "a language model called decoder": ("  language:", "  decoder:", None),
    "a tp that does not divide heads": (LANGUAGE_GRID, "ranks: 4-9\n    grid: {tp: 3, dp: 2}",
                                        "ranks: 4-9\n    grid: {tp: 2, dp: 3}"),
    "too many stages": ("{tp: 2, dp: 2}", "{pp: 4}", "{pp: 2, dp: 2}"),
    "a tp above the heads": ("{tp: 2, dp: 2}", "{tp: 4, dp: 2}", "{tp: 2, dp: 2}"),
    "a name with spaces": ("name: fixture", "name: my first run", "name: my-first-run"),
    "a misspelt section": ("schedule:", "shedule:", None),
    "a misspelt key": ("microbatches: 2", "micro_batches: 2", None),
    "a dash in a key": ("gpu_memory", "gpu-memory", None),
    "capitals of a key": ("hidden: 64, heads: 4, patch", "Hidden: 64, heads: 4, patch", None),
    **{
        f"type of {old}": (f"kind: {old}", f"type: {old}", None)
        for old in ("vit, layers", "decoder, layers", "1f1b", "digits", "adamw")
    },
    **{
        f"no kind of {old}": (f"kind: {old}, layers", "layers", None) for old in ("vit", "decoder")
    },
    **{
        f"precision: {word}": ("steps: 100", f"steps: 100, precision: {word}",
                               f"steps: 100, precision: {meant}")
        for meant, words in (
            ("bf16", "fp16 half float16 mixed 16 fp8 bfloat16 torch.float16 16-mixed BF16"),
            ("fp32", "float32 tf32 32 float FP32"),
        )
        for word in words.split()
    },
    **{
        f"betas as {text}": (BETAS, f"optimizer:\n  lr: 0.001\n  betas: {text}",
                             "optimizer: {lr: 0.001, betas: [0.8, 0.99]}")
        for text in ("0.8, 0.99", "(0.8, 0.99)", "0.8 0.99", "'[0.8, 0.99]'", "0.8,0.99")
    },
    **{
        f"image: {text}": ("patch: 4}", f"patch: 4, image: {text}}}",
                           "patch: 4, image: [28, 28]}")
        for text in ("28", "28x28", "'28, 28'", "(28 28)", "'28'", "[28]")
    },
    **{
        f"ranks: {text}": ("ranks: 4-7", f"ranks: {text}", None)
        for text in ("4:8", "4:7", "'4,5-7'", "4-5,6-7", "7-4", "{start: 4, end: 7}",
                     "{start: 4, stop: 8}", "{first: 4, last: 7}", "[4, 5-7]", "4 to 7")
    },
    **{
        f"{key}: {text}": (old, f"{key}: {text}", f"{key}: {meant}")
        for old, key, text, meant in (
            ("steps: 100", "steps", "4*8", "32"),
            ("steps: 100", "steps", "1000 steps", "1000"),
            ("steps: 100", "steps", "10^3", "1000"),
            ("steps: 100", "steps", "[40]", "40"),
            ("steps: 100", "steps", "100, timeout: 30m", "100, timeout: 1800"),
            ("lr: 0.001", "lr", "'1,5e-4'", "0.00015"),
            ("lr: 0.001", "lr", "10^-4", "0.0001"),
            ("lr: 0.001", "lr", "1.5*10^-4", "0.00015"),
            ("lr: 0.001", "lr", "10**-4", "0.0001"),
            ("name: fixture", "name", "123", "'123'"),
            ("grid: {tp: 2, dp: 2}", "grid", "auto", "{dp: 4}"),
            ("gpus: 8", "gpus", "8, network: 400", "8, network: ib-400g"),
            ("gpus: 8", "gpus", "8, gpu: h200", "8, gpu: h200-141gb"),
        )
    },
    **{
        f"{key}: {text}": ("betas: [0.9, 0.95]", f"{key}: {text}", f"{key}: {meant}")
        for key, text, meant in (
            ("schedule", "{warmup: 0.03}", "{warmup: 3%}"),
            ("schedule", "{warmup: 0.001}", "{warmup: 0.1%}"),
            ("schedule", "{kind: wsd, decay: 0.2}", "{kind: wsd, decay: 20%}"),
            ("schedule", "{kind: linear_with_warmup, warmup: 10}", "{kind: linear, warmup: 10}"),
            ("schedule", "{kind: constant_with_warmup, warmup: 9}", "{warmup: 9}"),
            ("schedule", "{type: linear, warmup: 10}", "{kind: linear, warmup: 10}"),
            ("schedule", "{warmup_ratio: 0.1, name: linear}", "{kind: linear, warmup: 10%}"),
            ("schedule", "{warmup_steps: 10, kind: inverse_square_root}",
             "{kind: inverse_sqrt, warmup: 10}"),
            ("schedule", "{kind: WSD, decay: 9}", "{kind: wsd, decay: 9}"),
            ("clip", "0", "null"),
            ("schedule", "{kind: cosine, min_lr: 10%}", "{kind: cosine, min_lr: 0.0001}"),
        )
    },
    **{
        f"{key}: {text} of language": ("ranks: 4-7", f"ranks: 4-7\n    {key}: {text}",
                                       f"ranks: 4-7\n    {key}: {meant}")
        for key, text, meant in (
            ("reads", "vision", "[vision]"),
            ("sharding", "zero3", "full"),
            ("sharding", "fsdp", "full"),
            ("sharding", "2", "optimizer"),
            ("sharding", "none", "optimizer"),
            ("sharding", "true", "full"),
            ("recompute", "selective", "[attention]"),
            ("recompute", "mlp", "[mlp]"),
            ("recompute", "'attention, layernorm'", "[attention, norms]"),
            ("recompute", "[core_attn, ffn]", "[attention, mlp]"),
            ("recompute", "{mode: selective}", "[attention]"),
            ("recompute", "{attention: true, mlp: false, norms: true}", "[attention, norms]"),
            ("recompute", "true", "full"),
            ("frozen", "[0, 1]", "{layers: 0-1}"),
            ("frozen", "1", "{layers: 1}"),
            ("frozen", "'yes'", "true"),
            ("frozen", "{layers: [0, 1]}", "{layers: 0-1}"),
            ("order", "'tp, cp, dp, pp'", "[tp, cp, dp, pp]"),
        )
    },
    "an evaluation that is off": ("nodes:", "eval: false\nnodes:", "nodes:"),
    "a schedule by its kind": ("betas: [0.9, 0.95]", "schedule: cosine",
                               "schedule: {kind: cosine}"),
    "a project by its name": ("nodes:", "log: {wandb: mine}\nnodes:",
                              "log: {wandb: {project: mine}}\nnodes:"),
    "a family of decoders": ("kind: decoder", "kind: llama", None),
    "a family of encoders": ("kind: vit", "kind: siglip_vision_model", None),
    "an optimizer of bitsandbytes": ("kind: adamw", "kind: adamw_bnb_8bit", None),
    "a save every part of the run": ("nodes:", "checkpoint: {every: 0.1}\nnodes:",
                                     "checkpoint: {every: 10}\nnodes:"),
    "an evaluation every epoch": ("nodes:", "eval: {every: epoch}\nnodes:",
                                  "eval: {every: 625}\nnodes:"),
    "a norm by its class": ("kind: vit,", "kind: vit, norm: RMSNorm,", "kind: vit, norm: rms,"),
    **{
        f"recompute: {word}": ("ranks: 4-7", f"ranks: 4-7\n    recompute: {word}",
                               f"ranks: 4-7\n    recompute: {meant}")
        for meant, words in (("full", "yes on true"), ("none", "no off false"))
        for word in words.split()
    },
    "a rank too many": ("ranks: 4-7", "ranks: 4-8", None),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_line_offered_for_a_wrong_spec_gives_the_spec_that_was_meant(name: str) -> None:
    old, wrong, right = WRONG[name]
    assert old in VALID
    batch = ("global: 32", "global: 24") if "tp that" in name else ("", "")
    text = VALID.replace(old, wrong, 1).replace(*batch)
    assert check_text(text).spec is None
    meant = spec_of(VALID.replace(old, right or old, 1).replace(*batch))
    assert mended(text)[-1:] == [meant] or meant in mended(text)


@pytest.mark.parametrize(
    ("old", "wrong", "said"),
    [
        ("ranks: 4-7", "ranks: 4-7\n    sharding: hsdp", "replicas over hosts (`hsdp`)"),
        ("ranks: 4-7", "ranks: 4-7\n    backend: megatron", "backend `megatron` is not here"),
        ("ranks: 4-7", "ranks: 4-7\n    frozen: lora", "freezing weights by name (`lora`)"),
        ("kind: adamw", "kind: lion", "the optimizer `lion` is not here"),
        ("kind: 1f1b", "kind: zero_bubble", "the schedule `zero_bubble` is not here"),
        ("betas: [0.9, 0.95]", "schedule: {kind: cyclic}", "`cyclic` is not here"),
        ("betas: [0.9, 0.95]", "lr_scheduler_type: polynomial", "`polynomial` is not here"),
        ("kind: vit,", "kind: vit, norm: batch,", "the norm `batch` is not here"),
        ("kind: vit,", "kind: vit, activation: relu,", "the activation `relu` is not here"),
        ("heads: 4, vocab", "activation: gelu, heads: 4, vocab", "activation `gelu` is not here"),
        ("nodes:", "hidden_rate: 0.1\nnodes:", "none of the keys here is sure to mean it"),
        ("steps: 100", "steps: 100, steps_per_epoch: 9", "none of the keys here is sure"),
        ("nodes:", "streaming: true\nnodes:", "none of the keys here is sure"),
        ("nodes:", "shuffle: true\nnodes:", "none of the keys here is sure"),
        ("ranks: 4-7", "ranks: 4-7\n    expert_parallel: 2", "none of the keys here is sure"),
        ("kind: adamw", "kind: sgd_momentum", "the optimizer `sgd_momentum` is not here"),
        ("betas: [0.9, 0.95]", "schedule: {warmup: -1}", "write a whole number from 0 to"),
        ("steps: 100", "steps: 0", "write a whole number from 1 to"),
        ("nodes:", "checkpoint: {every: 30m}\nnodes:", "write a whole number from 1 to"),
        ("steps: 100", "steps: 100, val_every: 9", "none of the keys here is sure"),
        ("betas: [0.9, 0.95]", "decoupled_weight_decay: true", "none of the keys here is sure"),
        ("nodes:", "lr_scheduler: {kind: cosine}\nnodes:", "it is `schedule` under `optimizer`"),
        ("global: 32, seq", "size: 32, seq", "add `global`, perhaps with the value of an unknown"),
        ("betas: [0.9, 0.95]", "schedule: {kind: polynomial}", "no other has its rates"),
        ("data: {kind: digits}", "data: {dataset: [a, b]}", "sources: [PATH]"),
    ],
)
def test_help_says_that_something_is_not_here_and_offers_nothing_else(
    old: str, wrong: str, said: str
) -> None:
    (found, *_) = check_text(VALID.replace(old, wrong, 1)).diagnostics
    assert said in found.help
    assert not offers(found.help)


@pytest.mark.parametrize(
    ("grid", "dp"),
    [("{tp: 2, dp: auto}", 2), ("{dp: -1}", 4), ("{tp: 2, pp: 2, dp: auto}", 1)],
)
def test_an_open_dp_is_what_the_other_sizes_leave_of_the_ranks(grid: str, dp: int) -> None:
    assert spec_of(VALID.replace("{tp: 2, dp: 2}", grid)).language.grid.dp == dp


def test_an_open_dp_that_leaves_ranks_over_gets_a_grid_on_the_same_ranks() -> None:
    (found, *_) = check_text(VALID.replace("{tp: 2, dp: 2}", "{tp: 3, dp: auto}")).diagnostics
    assert (found.code, found.help) == (
        "heads-over-tp",
        "write `grid: {tp: 2, dp: 2}`",
    )


@pytest.mark.parametrize(
    ("setting", "help_"),
    [
        ("train.steps=10k", "write `--set train.steps=10000`, or `--set train.steps=10240`"),
        ("train.precision=bf61", "write `--set train.precision=bf16`"),
        ("modlues.vision.ranks=0-3", "write `--set modules.vision.ranks=0-3`"),
        ("modules.language.ranks=[4,5,6,7]", "write `--set modules.language.ranks=4-7`"),
        ("train.steps 50", "write `--set train.steps=50`"),
        ("train.steps", "write `--set train.steps=VALUE`"),
        ("train.steps={", "write a value in YAML: `--set train.steps=VALUE`"),
        ("name=${USER}", "write a value in YAML: `--set name=VALUE`"),
        ("name=$USER", "write a value in YAML: `--set name=VALUE`"),
        ("name={{ user }}", "write a value in YAML: `--set name=VALUE`"),
        *(
            (f"{wrong}={value}", f"write `--set {right}={value}`")
            for wrong, right, value in (
                ("modules/language/ranks", "modules.language.ranks", "4-7"),
                ("vision.ranks", "modules.vision.ranks", "0-3"),
                ("language.ranks", "modules.language.ranks", "4-7"),
                ("language.grid.tp", "modules.language.grid.tp", "1"),
                ("modules[0].ranks", "modules.vision.ranks", "0-3"),
                ("modules.1.ranks", "modules.language.ranks", "0-3"),
                ("steps", "train.steps", "10"),
                ("max_steps", "train.steps", "10"),
                ("gpus", "nodes.gpus", "8"),
                ("lr", "optimizer.lr", "0.1"),
                ("learning_rate", "optimizer.lr", "0.1"),
                ("optimizer.learning_rate", "optimizer.lr", "0.1"),
                ("train.learning_rate", "optimizer.lr", "0.1"),
                ("train..steps", "train.steps", "3"),
            )
        ),
        # The file has this key; the closest one that it lacks is `encoder_microbatches`.
        ("schedule.microbatchs=8", "write `--set schedule.microbatches=8`"),
        ("schedule.encoder_microbatchs=1", "write `--set schedule.encoder_microbatches=1`"),
        ("bf16=true", "write `--set train.precision=bf16`"),
        (
            "fp16=true",
            "write `--set train.precision=bf16` (fp16 needs loss scaling, "
            "which is not here; bf16 takes as much memory and needs none)",
        ),
        ("warmup_ratio=0.03", "write `--set optimizer.schedule.warmup=3%`"),
        ("micro_batch_size=4", "write `--set schedule.microbatches=4`"),
        ("modules.language.fsdp=true", "write `--set modules.language.sharding=full`"),
        (
            "model.hidden=32",
            "write `--set modules.vision.model.hidden=32` or `--set "
            "modules.language.model.hidden=32`",
        ),
        (
            "train.precision=half",
            "write `--set train.precision=bf16` (fp16 needs loss scaling, "
            "which is not here; bf16 takes as much memory and needs none)",
        ),
    ],
)
def test_a_bad_set_is_shown_as_one_with_the_set_to_write(setting: str, help_: str) -> None:
    checked = check_text(VALID, overrides=[setting])
    (found,) = checked.diagnostics
    assert found.help == help_
    assert checked.source.place_of(found).override == setting


def test_a_default_is_offered_as_yaml_writes_it() -> None:
    text = VALID.replace("betas: [0.9, 0.95]", "betas: some")
    (found,) = check_text(text).diagnostics
    assert found.help.endswith("such as `betas: [0.9, 0.95]`")


def test_a_kind_is_offered_only_where_it_can_stand() -> None:
    (found, *_) = check_text(VALID.replace("kind: decoder, ", "")).diagnostics
    assert found.help == "add `kind: decoder`"
    (found, *_) = check_text(VALID.replace("kind: decoder, layers: 2", "a: 2")).diagnostics
    assert "vit" not in found.help


def test_words_of_no_kind_of_data_choose_none() -> None:
    (found,) = check_text(VALID.replace("data: {kind: digits}", "data: {split: train}")).diagnostics
    assert found.help.startswith("add `kind: digits`, `kind: synthetic`, `kind: webdataset`, or")


def test_a_wsd_without_decay_is_not_to_be_deleted_but_completed() -> None:
    text = VALID.replace("betas: [0.9, 0.95]", "schedule: {kind: wsd}")
    (found,) = check_text(text).diagnostics
    assert found.help.startswith("add `decay`")


def test_a_finding_about_a_size_of_a_set_offers_another_set() -> None:
    found = check_text(VALID, overrides=["modules.language.grid.tp=3"]).diagnostics
    helps = {item.code: item.help for item in found}
    assert helps["heads-over-tp"] == "write `--set 'modules.language.grid={tp: 2, dp: 2}'`"
    assert "`--set modules.language.grid.tp=2`" in helps["grid-size-mismatch"]


TOML = 'version = 1\nname = "x"\n[batch]\nglobal = 8\n'


def test_toml_is_named_with_the_command_that_converts_it() -> None:
    (found,) = check_text(TOML, "spec.toml").diagnostics
    assert found.headline == "this is TOML, not YAML"
    assert "< spec.toml > spec.yaml`" in found.help


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16le", "utf-16be", "utf-32"])
def test_wide_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_bytes(VALID.encode(encoding))
    (found,) = load_and_check(file).diagnostics
    assert (found.code, found.headline) == ("not-utf8", f"the file is {encoding.upper()} text")
    assert f"iconv -f {encoding} -t utf-8 " in found.help


@pytest.mark.parametrize(
    ("old", "new"), [("name: fixture", "name: ${RUN}"), ("global: 32", "global: ${GLOBAL}")]
)
def test_a_variable_is_named_at_its_place(old: str, new: str) -> None:
    (found,) = check_text(VALID.replace(old, new)).diagnostics
    variable = new.partition(": ")[2]
    assert found.headline == f"`{variable}` is a variable, and a spec has none"
    assert found.help.startswith(f"write the value in place of `{variable}`")
    assert found.line == 1 + VALID[: VALID.index(old)].count("\n")


# The valid spec with optional keys of each section, and the mistaken forms of each of its numbers.
FULL = (
    VALID.replace("heads: 4, vocab", "heads: 4, kv_heads: 2, mlp: 128, head_dim: 16, vocab")
    .replace("vocab: digits", "vocab: digits, vocab_multiple: 64")
    .replace("steps: 100", "steps: 100, seed: 7, log_every: 5, timeout: 90, max_skipped: 4")
) + "checkpoint: {every: 50, keep: 3}\neval: {every: 20, samples: 64}\n"
MISTAKES = {
    "quotes": lambda key, value: f"{key}: '{value}'",
    "hex": lambda key, value: f"{key}: {int(value):#x}",
    "a point": lambda key, value: f"{key}: {value}.0",
    "brackets": lambda key, value: f"{key}: [{value}]",
    "no space": lambda key, value: f"{key}:{value}",
    "capitals": lambda key, value: f"{key.upper()}: {value}",
    "a zero before": lambda key, value: f"{key}: 0b{int(value):b}",
    "a letter twice": lambda key, value: f"{key[0]}{key}: {value}",
    "a letter lost": lambda key, value: f"{key[:-1]}: {value}",
    "a word": lambda key, value: f"{key}: some",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_line_offered_for_a_mutated_spec_changes_its_meaning(mistake: str) -> None:
    meant, tried = spec_of(FULL), 0
    for match in re.finditer(r"(\w+): (\d+)(?=[,}])", FULL):
        wrong = MISTAKES[mistake](match[1], match[2])
        if wrong == "gpu: 8":
            continue  # A key of its own, for which no number is a value.
        text, tried = FULL[: match.start()] + wrong + FULL[match.end() :], tried + 1
        found = check_text(text)
        assert found.spec is None
        offered = offers(found.diagnostics[0].help)
        specs = mended(text)
        assert not offered or meant in specs, (text, found.diagnostics[0].help)
        assert len(offered) > 1 or all(spec == meant for spec in specs), text
    assert tried > 20


# Fixtures whose help offers no line, and why.
PROSE = {
    "bad-override": "the `--set` is named, not a line of the file",
    "adapter-start-unlike": "only the user knows the folder",
    "bad-override.index": "any item of the list may be meant",
    "bad-override.no-value": "only the user knows the value",
    "class-not-found": "the package is missing, not a line",
    "conformer-cannot.adapter": "there is a line to delete",
    "duplicate-key": "either value may be meant",
    "empty-file": "there is nothing to mend",
    "expert-grid-over-stage": "all sizes that fit are listed",
    "init-from-lacks-module": "only the user knows which modules start there",
    "init-from-not-checkpoint": "only the user knows the folder",
    "init-from-not-supported": "only the user knows another folder",
    "key-not-text": "only the user knows the name",
    "missing-key.longrope": "only the user knows the length",
    "missing-package": "a package is missing, not a line",
    "not-supported-yet": "another kind of model has other keys",
    "not-utf8": "a command converts the file",
    "nothing-to-train": "only the user knows which module should learn",
    "placeholder-not-in-tokenizer": "the tokenizer lacks a token",
    "processor-not-supported": "only the user knows the folder",
    "ranks-beyond-world": "the number of processes is wrong, not a line",
    "rope-factors-unlike-pairs": "only the user knows the factors",
    "several-documents": "only the user knows which one is the spec",
    "shards-compressed": "files are to be unpacked",
    "shards-not-found": "only the user knows the files",
    "shards-not-tar": "files are to be made again",
    "source-not-read": "only the user knows the files",
    "tokenizer-not-usable": "only the user knows the folder",
    "top-level-not-mapping": "there is no spec to mend",
    "unknown-kind.class-path": "the class of the example does not exist",
    "unreadable-file": "there is no file",
    "unrelated-dp-sizes": "a warning: both grids may change",
    "warmup-beyond-run": "only the user knows which number is meant",
    "yaml-syntax": "brackets and quotes can be closed in several places",
    "yaml-syntax.colon": "the quotes can stand in several places",
    "yaml-syntax.tab": "tabs are replaced, not a line",
    "yaml-syntax.tag": "only the user knows the value",
}
OFFERING = [path for path in FIXTURES if path.stem not in PROSE]


@pytest.mark.parametrize("path", OFFERING, ids=lambda path: path.stem)
def test_each_line_offered_for_a_fixture_leads_to_a_valid_spec(path: Path) -> None:
    raw = path.read_bytes()
    args = arguments(raw)
    (found,) = load_and_check(path, args.set, args.nproc).diagnostics
    texts = pasted(raw.decode(), found)
    assert texts, found.help
    for text in texts:
        after = check_text(text, str(path), args.set, args.nproc)
        assert found.headline not in [item.headline for item in after.diagnostics], found.help
        assert mended(text, args.set, args.nproc), (found.help, after.diagnostics)


def test_a_dash_stands_for_the_standard_input() -> None:
    command = [sys.executable, "-m", "mimo_launch", "validate", "-", "--set", "train.steps=1"]
    done = subprocess.run(command, input=VALID, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "-: valid, 2 modules on 8 ranks\n"), done.stderr
