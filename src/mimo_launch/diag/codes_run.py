"""Codes about what a run reads and writes besides its data.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: codes about the model and its layout to the other files.
"""

from mimo_launch.diag.code import Code

RUN_CODES = (
    Code(
        "init-from-not-checkpoint",
        "`init_from` leads to no checkpoint.",
        "A module can start from the weights of an earlier run: the path of a checkpoint folder "
        "(it holds `checkpoint.json`), or of a run folder, whose newest complete checkpoint is "
        "taken. A decoder can also start from a local Hugging Face folder, which holds "
        "`config.json`. Relative paths start where the command is started.",
        "init_from: runs/pretraining/metrics.jsonl",
        "init_from: runs/pretraining",
    ),
    Code(
        "init-from-lacks-module",
        "The checkpoint in `init_from` has no module of this name.",
        "A module takes the weights that were saved under its own name. `init_from` at the top of "
        "a spec is that of every module without one of its own, so the checkpoint must have all of "
        "these. A module that is new in a second stage starts from initial values when the others "
        "name the checkpoint one by one.",
        "init_from: runs/stage1        # a run of vision and language\nmodules:\n  audio: ...",
        "modules:\n  vision: {init_from: runs/stage1, ...}\n"
        "  language: {init_from: runs/stage1, ...}\n  audio: ...",
    ),
    Code(
        "init-from-not-supported",
        "The Hugging Face folder in `init_from` cannot be read into this module.",
        "Decoders of the model types llama, qwen2, qwen3, mixtral and qwen3_moe and hybrids of "
        "nemotron_h are read, from safetensors, besides encoders. What their `config.json` asks "
        "for must be what is computed here: no scaled rotary embedding but that of Llama 3.1 "
        "(`rope_type: llama3`), no sliding windows, no biases but those of queries, keys and "
        "values in Qwen2, no quantized weights. See docs/hugging-face.md and docs/hybrid.md.",
        "init_from: models/gpt2                # model_type: gpt2",
        "init_from: models/llama               # model_type: llama",
    ),
    Code(
        "init-from-unlike-model",
        "A value of the spec is not that of the model in `init_from`.",
        "Weights are of use only in the model that they were trained in. Every size and setting in "
        "`config.json`, or in the spec that a checkpoint was saved with, is compared with the spec "
        "before any process starts. The vocabulary may be larger than in `config.json`: encoders "
        "own the last ids. With `init_partial` this is a warning. So is `moe.aux_loss` if the spec "
        "leaves it out and `config.json` has another value (`router_aux_loss_coef`) than our "
        "default: what is written holds.",
        "model: {kind: decoder, hidden: 64, ...}   # config.json: hidden_size 32",
        "model: {kind: decoder, hidden: 32, ...}",
    ),
    Code(
        "missing-package",
        "A setting needs a package that is not installed.",
        "TensorBoard, Weights & Biases and Transformer Engine are packages of their own, so that "
        "an installation without them stays small. A run that could not log as its spec says is "
        "not started. Where nothing is to be trained (`plan` on a laptop), leave the setting out "
        "with `--set`. For a backend only `train` asks, on the host that starts the workers: "
        "`plan` and `validate` do without it.",
        "log: {tensorboard: true}       # no package `tensorboard`",
        "log: {tensorboard: true}       # after: pip install tensorboard",
    ),
)
