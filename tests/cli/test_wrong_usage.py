"""A wrong command line gets the one that was meant, or words that say what does it here."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mimo_launch.cli.app import build_app
from mimo_launch.cli.shared.foreign_usage import COMMANDS, NO_COMMAND, OPTIONS
from mimo_launch.cli.shared.wrong_usage import help_for

Cli = Callable[[str], tuple[int, str, str]]
SPEC = str(Path(__file__).parents[1] / "fixtures" / "valid.yaml")
GROUP: Any = get_command(build_app())
SET = "train S --set"


def help_of(line: str) -> str:
    """Return the help for a line in which S stands for a spec, and in which it does again."""
    args = [SPEC if word == "S" else word for word in shlex.split(line)]
    return help_for(args, GROUP.commands).replace(SPEC, "S")


def write(line: str) -> str:
    return f"write `mimo-launch {line}`"


# A wrong line for each row of the table of options, by its first word, and the help.
ROWS = {
    "config": ("train --config S", write("train S")),
    "config_name": ("train --config_name q", "`mimo-launch train FOLDER/q.yaml`"),
    "dry_run": ("train S --dry_run --device cpu --nproc 8", write("plan S --nproc 8")),
    "override": ("train S --override train.steps=3", write(f"{SET} train.steps=3")),
    "output_dir": ("train S --output_dir x", write("train S --runs x")),
    "nproc_per_node": ("train S --nproc_per_node 8", write("train S --nproc 8")),
    "num_processes": ("train S --num_processes 8", "`--nproc` counts the workers of one host: 8"),
    "num_samples": ("sample r --to d --num_samples 3", write("sample r --to d --samples 3")),
    "run": ("watch --run r", write("watch r")),
    "tail": ("logs r --tail 9", "mimo-launch logs RUN | tail -n 9"),
    "format": ("report r --format png", "the suffix of the file"),
    "tensorboard_dir": ("train S --tensorboard_dir t", "--set log.tensorboard=true"),
    "num_nodes": ("train S --num_nodes 2", write("train S --nnodes 2")),
    "machine_rank": ("train S --machine_rank 1", write("train S --node-rank 1")),
    "rdzv_backend": ("train S --rdzv_backend c10d", write("train S")),
    "standalone": ("train S --standalone", write("train S")),
    "cpu": ("train S --cpu", write("train S --device cpu")),
    "cuda": ("train S --cuda", write("train S --device cuda")),
    "fresh": ("train S --fresh", write("train S --no-resume")),
    "continue": ("train S --continue", write("train S --resume")),
    "retries": ("train S --retries 3", write("train S --max-restarts 3")),
    "job_id": ("train S --job_id a", write("train S --rdzv-id a")),
    "verbose": ("train S --verbose", write("-v train S")),
    "no_color": ("train S --no_color", write("--color never train S")),
    "color": ("train S --color always", write("--color always train S")),
    "version": ("train --version", write("--version train")),
    "quiet": ("train S --quiet", "/dev/null"),
    "log_level": ("train S --log_level debug", "mimo-launch -v COMMAND"),
    "json": ("train S --json", "metrics.jsonl"),
    "html": ("report r --html x.html", write("report r --output x.html")),
    "tensorboard": ("train S --tensorboard", write(f"{SET} log.tensorboard=true")),
    "wandb": ("train S --wandb", "--set log.wandb.project=NAME"),
    "report_to": ("train S --report_to wandb", "--set log.wandb.project=NAME"),
    "load": ("train S --load r", "the same command resumes"),
    "model": ("train S --model d", "mimo-launch init spec.yaml --model d"),
    "data": ("train S --data d", "--set data.shards=d"),
    "eval": ("train S --eval", "a run evaluates while it trains"),
    "strategy": ("train S --strategy fsdp", "`grid` and `sharding` of each module"),
    "watch": ("runs --watch", "mimo-launch watch RUN"),
    "deepspeed": ("train S --deepspeed z.json", "`sharding: full`"),
    "master_port": ("train S --master_port 1", "--rdzv-endpoint HOST:1"),
    "master_addr": ("train S --master_addr h", "--rdzv-endpoint h:29500"),
}


@pytest.mark.parametrize("words", OPTIONS)
def test_each_option_of_other_launchers_is_known(words: str) -> None:
    first, *others = words.split()
    line, said = ROWS[first]
    help_ = help_of(line)
    assert help_ == said if said.startswith("write") else said in help_
    known = {name.lstrip("-") for each in GROUP.commands[line.split()[0]].params
             for name in each.opts}  # fmt: skip
    for other in others:
        for stroke in ("_", "-"):
            name = other.replace("_", stroke)
            if name not in known and not (other in ("o", "s") and first == "output_dir"):
                dashes = "-" if len(name) == 1 else "--"
                assert help_of(line.replace(f"--{first}", f"{dashes}{name}")) == help_, name


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_other_launchers_is_known(command: str) -> None:
    for word in COMMANDS[command].split():
        rest = " --to d" if command in ("sample", "export") else ""
        file = "" if command == "doctor" else " S"
        assert help_of(f"{word}{file}{rest}").startswith("write `mimo-launch " + command), word
        assert word not in GROUP.commands


@pytest.mark.parametrize("words", NO_COMMAND)
def test_each_command_that_is_not_here_is_told(words: str) -> None:
    for word in words.split():
        assert help_of(f"{word} S") == NO_COMMAND[words]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train S --seed 3", write(f"{SET} train.seed=3")),
        ("train S --lr 1e-3", write(f"{SET} optimizer.lr=1e-3")),
        ("train S --learning-rate=1e-3", write(f"{SET} optimizer.lr=1e-3")),
        ("train S --train-iters 50 --log-interval 1",
         write(f"{SET} train.steps=50 --set train.log_every=1")),
        ("train S --name a", write(f"{SET} name=a")),
        ("train S --run_name a", write(f"{SET} name=a")),
        ("train S --bf16", write(f"{SET} train.precision=bf16")),
        ("train --bf16 S", write("train --set train.precision=bf16 S")),
        ("train S train.steps=3", write(f"{SET} train.steps=3")),
        ("train S ++optimizer.lr=3 steps=4", write(f"{SET} optimizer.lr=3 --set train.steps=4")),
        ("train S -o train.steps=3", write(f"{SET} train.steps=3")),
        ("train S --train.steps=3", write(f"{SET} train.steps=3")),
        ("train S --training.steps 3", write(f"{SET} train.steps=3")),
        ("train S --warmup_ratio 0.03", write(f"{SET} optimizer.schedule.warmup=3%")),
        ("train S --micro-batch-size 4", write(f"{SET} schedule.microbatches=4")),
        ("train S --num-epochs 2", write(f"{SET} train.epochs=2")),
        ("train S --micro-batch-size 4 --global-batch-size 64",
         write(f"{SET} schedule.microbatches=8 --set batch.global=64")),
        ("train S --epochs 2 --global-batch-size 64 --warmup-ratio 0.1",
         write(f"{SET} train.epochs=2 --set batch.global=64 --set optimizer.schedule.warmup=10%")),
        ("train S --warmup-ratio 0.03 --steps 1000",
         write("train S --set optimizer.schedule.warmup=3% --steps 1000")),
        ("train S --per-device-train-batch-size 2 --gradient-accumulation-steps 8",
         write(f"{SET} batch.global=32 --set schedule.microbatches=8")),
        ("train S --beta1 0.5 --beta2 0.6", write(f"{SET} 'optimizer.betas=[0.5, 0.6]'")),
        ("train S --seq-length 4096 --what 4", "`seq_length=4096` is `--set batch.seq=4096`; "
         "nothing here is sure to mean `what`"),
        ("train S --save_strategy no --eval_steps 50", "or is `null`; `eval_steps=50` is `--set "
         "eval.every=50`"),
        ("plan S --gpu h100", "`--set nodes.gpu=h100-80gb` is meant, and another key: add"),
        ("plan S --dry-run", write("plan S")),
        ("train S --seed 3 --freeze_vit false", write(f"{SET} train.seed=3") + " (without"),
        ("train S --max_steps 3 --train_iters 2", "`max_steps=3` means `train.steps=3` and "
         "`train_iters=2` means `train.steps=2`: write one of them"),
        ("train S --load r --no_load_optim", "`--set init_from=r`; nothing here is sure to mean "
         "`no_load_optim`"),
        ("train S --fp16 true", write(f"{SET} train.precision=bf16") + " (fp16 needs loss"),
        ("train S --tensor-model-parallel-size 2", "each module has its own: write `--set "
         "modules.vision.grid.tp=2` or `--set modules.language.grid.tp=2`"),
        ("train S --lora_rank 8", "or `--set modules.language.adapter.rank=8`"),
        ("train S --lora_dropout 0.1", "or `--set modules.language.adapter.dropout=0.1`"),
        ("train S --device gpu", write("train S --device cuda")),
        ("train S --nproc auto", write("train S")),
        ("train S --steps 1k", write("train S --steps 1000")),
        ("train S --node_rank 1 --max_restarts 2",
         write("train S --node-rank 1 --max-restarts 2")),
        ("train S --resume runs/x", "the same command resumes"),
        ("--nproc_per_node 8 train S", write("train --nproc 8 S")),
        ("report --html r", write("report --output report.html r")),
        ("report r --png", write("report r --output report.png")),
        ("plan S --out x.html", write("plan S --html x.html")),
        ("export r --output_dir d", write("export r --to d")),
        ("train S --weight-decay 0.1", write(f"{SET} optimizer.weight_decay=0.1")),
        ("train S --lr_scheduler linear",
         write(f"{SET} optimizer.schedule.kind=linear")),
        ("train S --recompute-granularity selective", "each module has its own: write `recompute`"),
        ("train S --sequence-parallel", "each module has its own"),
        ("train S --distributed-timeout-minutes 3", write(f"{SET} train.timeout=180")),
        ("export --ckpt r --to d", write("export r --to d")),
        ("init spec.yaml --model d --num_gpus 8", write("init spec.yaml --model d --gpus 8")),
        ("run S --seed 3", write(f"{SET} train.seed=3")),
        ("S", "`mimo-launch train S` trains, `plan` shows"),
        ("--config S", "`mimo-launch train S` trains, `plan` shows"),
        ("help train", write("train --help")),
        ("version", write("--version")),
        ("train S --nprok 4", ""),
        ("train S other.yaml", ""),
        ("trian S", ""),
        ("train S --what 4", ""),
        ("train S --what -- 4", ""),
        ("train S --seed 3 --help", write(f"{SET} train.seed=3 --help")),
        ("train none.yaml --lr 3", write("train none.yaml --set optimizer.lr=3")),
        ("watch r --what", ""),
    ],
)  # fmt: skip
def test_the_line_that_was_meant_is_written(line: str, said: str) -> None:
    assert help_of(line) == said if said in ("", write("train S")) else said in help_of(line)


def test_what_was_meant_is_printed_in_place_of_names_that_are_spelt_alike(run_cli: Cli) -> None:
    assert run_cli("train valid.yaml --seed 3") == (2, "", "\n".join([
        "error[usage]: no such option: --seed",
        "   = help: write `mimo-launch train valid.yaml --set train.seed=3`\n",
    ]))  # fmt: skip
    _, _, err = run_cli("run valid.yaml")
    assert err.startswith("error[usage]: there is no command `run`\n")


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("train S --profile", "--profile"),
        ("plan S --apply 1 -o", "-o"),
        ("train S --lr 3 --device --steps 3", "--device"),
        ("train S --output-dir", "--output-dir"),
        ("train S --load --lr 3", "--load"),
        ("train S --master-port", "--master-port"),
    ],
)
def test_an_option_without_its_value_is_named(line: str, option: str) -> None:
    """Neither an empty text nor the next option stands in for the value."""
    said = help_of(line)
    assert said.startswith(f"`{option}` takes a value")
    assert "''" not in said
