"""Checks of what a spec wants to read from earlier runs.

Decides: that a path to weights must lead to a checkpoint before any process starts.
Relies on: the file that completes a checkpoint.
Leaves: whether its tensors fit to `train.checkpoint`, which knows their shapes.
"""

from pathlib import Path

from mimo_launch.diag.diagnostic import Diagnostic, Severity
from mimo_launch.layout.checks.rule import Findings
from mimo_launch.layout.hugging_face.folder import is_hugging_face
from mimo_launch.spec.model import Spec

MARKER = "checkpoint.json"


def init_from_is_checkpoint(spec: Spec, name: str) -> Findings:
    """`init_from` is a complete checkpoint, or a run folder that holds one."""
    start = spec.modules[name].init_from
    if start is None:
        return
    folder = Path(start)
    if is_hugging_face(folder):
        return  # `checks.hugging_face` looks at it.
    if (folder / MARKER).is_file() or any(folder.glob(f"checkpoints/*/{MARKER}")):
        return
    exists = folder.exists()
    yield Diagnostic(
        code="init-from-not-checkpoint",
        headline=f"`{start}` " + ("holds no checkpoint" if exists else "does not exist"),
        path=("modules", name, "init_from"),
        why=f"`{name}` starts from the weights of a checkpoint of mimo-launch: a folder with "
        f"`{MARKER}` in it, or a run folder with `checkpoints/`; or of a Hugging Face folder, "
        "with `config.json` in it",
        help="write the path of such a folder, from where you start the command",
    )


def init_partial_used(spec: Spec, name: str) -> Findings:
    """`init_partial` needs `init_from` (a warning)."""
    module = spec.modules[name]
    if module.init_partial and module.init_from is None:
        yield Diagnostic(
            code="setting-without-effect",
            headline=f"`init_partial` of `{name}` does nothing without `init_from`",
            path=("modules", name, "init_partial"),
            severity=Severity.WARNING,
            why="all weights are drawn from `train.seed`",
            help="add `init_from`, or delete `init_partial`",
        )
