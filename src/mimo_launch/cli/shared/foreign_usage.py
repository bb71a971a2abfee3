"""Lists commands and options of other launchers, with their equivalents here.

Decides: the command or the options that replace each; which need an explanation instead.
Relies on: nothing.
Leaves: the translated command line, and settings of the spec, to `wrong_usage`.
"""

from collections.abc import Mapping

# Our commands, and other names of each.
COMMANDS: Mapping[str, str] = {
    "train": "run launch start fit sft pt pretrain finetune fine-tune continue",
    "plan": "dry-run dryrun simulate estimate estimate-memory memory show visualize layout",
    "validate": "check lint test",
    "verify": "prove",
    "bench": "benchmark profile perf measure",
    "sample": "generate infer inference predict",
    "data": "dataset datasets",
    "watch": "monitor tail follow status",
    "runs": "ls list ps",
    "logs": "log",
    "report": "plot dashboard curves",
    "export": "convert save merge",
    "inspect": "info describe",
    "explain": "error docs",
    "doctor": "env diagnose check-env collect-env",
    "init": "new create generate-config",
}
# Words for things that no command does, and what to do instead.
NO_COMMAND: Mapping[str, str] = {
    "eval evaluate evaluation": "a run evaluates while it trains and at its end, as `eval` of its "
    "spec says; `mimo-launch sample RUN --to DIR` writes what a checkpoint makes of held-out "
    "samples",
    "serve deploy chat app api": "there is no inference here: `mimo-launch export RUN --to DIR` "
    "writes a folder of transformers for programs that do it",
    "web webui ui board tensorboard": "`mimo-launch watch RUN` shows a run and `mimo-launch report "
    "RUN` draws it; `--set log.tensorboard=true` of `train` writes files for TensorBoard",
    "resume": "`mimo-launch train FILE` resumes by itself: it continues the run of that `name`",
    "merge-lora merge_lora": "`mimo-launch export RUN --to DIR` adds the updates of adapters "
    "to their weights; with `--adapter` it writes them alone, for peft",
    "rlhf dpo grpo reward": "neither preference nor reinforcement learning is here: `mimo-launch "
    "train FILE` trains a module, or its adapter, on the answers of its data",
    "torchrun accelerate deepspeed": "start it by itself, without `mimo-launch`: `torchrun "
    "--nproc-per-node N -m mimo_launch train FILE`; or write `mimo-launch train FILE`, which "
    "starts the workers of a host",
    "preprocess tokenize prepare": "nothing is prepared in advance: `train` reads and tokenizes "
    "shards; `mimo-launch data FILE` shows what it makes of them",
}
_RESUME = (
    "the same command resumes, from the newest checkpoint of the run that has the `name` of the "
    "spec, in `--runs`; to start from the weights of {} alone add `--set init_from={}`"
)
_METRICS = "each step is a line of JSON in `metrics.jsonl` of the run folder"
_MODEL = (
    "a spec describes the model: `mimo-launch init spec.yaml --model {}` writes one for a folder; "
    "`--set init_from={}` takes its weights"
)
# Formats of drawings.
FORMATS = ("html", "png", "svg", "pdf")
# Options, and templates for each; the first one that the command accepts replaces the option. `{}`
# is the value of the option; without `{}` the option takes no value. `@` names another command, `<`
# an option in front of the command, `RUN` the argument of commands that read a run; `#` drops the
# option. Any other text is an explanation.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "config config_file config_path cfg spec yaml file conf recipe c f": ("{}",),
    "config_name": ("name the file: `mimo-launch train FOLDER/{}.yaml`",),
    "dry_run dryrun check check_only validate_only no_run simulate": (
        "@plan",
        "`mimo-launch plan FILE` shows what a run would do, and starts nothing",
    ),
    "override overrides opts option options o s": ("--set {}", "--output {}", "--to {}"),
    "output_dir out out_dir output save save_dir work_dir run_dir runs_dir log_dir logdir "
    "logging_dir default_root_dir checkpoint_dir ckpt_dir exp_dir": (
        "--runs {}",
        "--to {}",
        "--html {}",
        "--output {}",
        "RUN {}",
    ),
    "nproc_per_node nprocs ngpus gpus num_gpus n_gpus devices np n gpus_per_node": (
        "--nproc {}",
        "--gpus {}",
    ),
    "num_processes world_size": (
        "`--nproc` counts the workers of one host: {} divided by the number of hosts",
    ),
    "num_samples n_samples": ("--samples {}", "--records {}"),
    "run run_folder": ("RUN {}",),
    "tail lines": ("`mimo-launch logs RUN | tail -n {}` prints the last lines",),
    "format": ("the suffix of the file that is written sets its format",),
    "tensorboard_dir tb_dir": (
        "`--set log.tensorboard=true` writes to `tensorboard/` of the run folder",
    ),
    "num_nodes num_machines nodes": ("--nnodes {}",),
    "machine_rank node_id": ("--node-rank {}",),
    "rdzv_backend local_rank": ("# {}",),
    "standalone yes y do_train": ("#",),
    "cpu use_cpu no_cuda": ("--device cpu",),
    "cuda gpu use_cuda": ("--device cuda",),
    "fresh overwrite from_scratch restart no_load overwrite_output_dir": ("--no-resume",),
    "continue auto_resume": ("--resume",),
    "retries max_retries": ("--max-restarts {}",),
    "job_id rdzv_name": ("--rdzv-id {}",),
    "verbose debug v": ("< -v",),
    "no_color no_colour": ("< --color never",),
    "color colour": ("< --color {}",),
    "version": ("< --version",),
    "quiet silent q": ("`> /dev/null` at the end of the line silences the answers",),
    "log_level loglevel": ("`mimo-launch -v COMMAND` prints more",),
    "json": (_METRICS + "; `mimo-launch runs --json` prints all runs, `plan --json` the plan",),
    " ".join(FORMATS): (
        "--timeline {}",
        "--output {}",
        "`mimo-launch report RUN -o FILE.html` draws a run, `mimo-launch plan FILE --html "
        "FILE.html` a plan",
    ),
    "tensorboard use_tensorboard": ("--set log.tensorboard=true",),
    "wandb use_wandb enable_wandb": ("add `--set log.wandb.project=NAME`",),
    "report_to logger": (
        "add `--set log.tensorboard=true`, `--set log.wandb.project=NAME` or `--set "
        "log.mlflow.experiment=NAME`",
    ),
    "load resume_from resume_from_checkpoint ckpt ckpt_path checkpoint checkpoint_path restore "
    "load_checkpoint": ("RUN {}", _RESUME),
    "model model_name_or_path model_path base_model hf_model pretrained": (
        "--model {}",
        "RUN {}",
        _MODEL,
    ),
    "data dataset data_path train_file train_data": (
        "--data {}",
        "`data` of the spec says what to train on: tar files are `--set data.shards={}` beside "
        "`kind: webdataset`",
    ),
    "eval evaluate eval_only do_eval test": (NO_COMMAND["eval evaluate evaluation"],),
    "strategy": ("`grid` and `sharding` of each module in the spec say how it is divided",),
    "watch follow": ("`mimo-launch watch RUN` follows a run",),
    "deepspeed ds_config deepspeed_config fsdp_config": (
        "modules say how they are sharded: `sharding: full` where the file says ZeRO-3 or FSDP; "
        "`sharding: optimizer`, the default, is ZeRO-1",
    ),
    "master_port main_process_port rdzv_port": (
        "the port follows the host: `--rdzv-endpoint HOST:{}`",
    ),
    "master_addr main_process_ip": ("the host of rank 0 and a port: `--rdzv-endpoint {}:29500`",),
}
# Values of our options, as other launchers write them; None: the default means the same.
VALUES: Mapping[str, Mapping[str, str | None]] = {
    "--device": {"gpu": "cuda", "cuda:0": "cuda", "cuda:all": "cuda"},
    "--nproc": {"auto": None, "gpu": None},
}
