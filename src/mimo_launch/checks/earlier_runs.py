"""Checks of what a spec wants to read from earlier runs.

Decides: that a path to weights must lead to a checkpoint of the same model before any process
starts.
Relies on: `earlier_runs` for the spec of the run that a checkpoint is of.
Leaves: tensors, and files that are damaged, to `checkpoint`.
"""

from pathlib import Path

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.hugging_face.architectures import text_of, value_of
from mimo_launch.hugging_face.folder import is_hugging_face
from mimo_launch.spec.earlier_runs import MARKER, saved_spec
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.model import CustomModel, Spec

# Of a class of a user's own: what they do to its tensors, the tensors show.
OWN_KEYS = ("kind", "parameters", "options")


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
        path=start_path(spec, name),
        why=f"`{name}` starts from the weights of a checkpoint of mimo-launch: a folder with "
        f"`{MARKER}` in it, or a run folder with `checkpoints/`; or of a Hugging Face folder, "
        "with `config.json` in it",
        help="write the path of such a folder, from where you start the command",
    )


def init_from_is_same_model(spec: Spec, name: str) -> Findings:
    """The checkpoint in `init_from` has the module, and the same model in it."""
    module = spec.modules[name]
    found = None if module.init_from is None else saved_spec(Path(module.init_from))
    saved = None if found is None else found.get("modules")
    if not isinstance(saved, dict):
        return
    path = start_path(spec, name)
    if name not in saved:
        yield Diagnostic(
            code="init-from-lacks-module",
            headline=f"`{module.init_from}` has no weights of `{name}`",
            path=path,
            why=f"it is of a run with {', '.join(f'`{each}`' for each in saved)}",
            help="write `init_from` in the modules that it has, instead of at the top"
            if path == ("init_from",)
            else f"delete `init_from` of `{name}`, or name another checkpoint",
        )
        return
    try:
        there = model_from_data(saved[name]["model"])
    except (ValueError, LookupError, TypeError):
        return  # Of another release; `checkpoint` compares tensors.
    is_own = isinstance(there, CustomModel) and isinstance(module.model, CustomModel)
    for key in type(there).model_fields:
        if is_own and key in OWN_KEYS:
            continue
        here = value_of(module.model, key) if hasattr(module.model, key) else None
        if here != value_of(there, key):
            yield Diagnostic(
                code="init-from-unlike-model",
                headline=f"`{key}` of `{name}` is {text_of(here)}, and in {module.init_from} "
                f"{text_of(value_of(there, key))}",
                path=("modules", name, "model", key),
                severity=Severity.WARNING if module.init_partial else Severity.ERROR,
                why="the weights there were trained with that value",
                help=f"write `{key}: {text_of(value_of(there, key))}` in `model`",
                related=(Related(path=path, label="weights are taken from here"),),
            )


def start_path(spec: Spec, name: str) -> YamlPath:
    """Return where a spec says `init_from` of a module: there, or at its top."""
    at_top = spec.modules[name].init_from == spec.init_from
    return ("init_from",) if at_top else ("modules", name, "init_from")


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
