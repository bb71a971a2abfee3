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
        "taken. Relative paths start where the command is started.",
        "init_from: runs/pretraining/metrics.jsonl",
        "init_from: runs/pretraining",
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
