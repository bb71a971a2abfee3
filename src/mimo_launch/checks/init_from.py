"""Checks of the checkpoint that a module starts from.

Decides: before any process starts, that a path leads to weights of the same model in the same
sizes.
Relies on: `spec.load` for the spec of a checkpoint.
Leaves: Hugging Face folders to `init_from_folder`; the shapes of tensors, and damaged files, to
`checkpoint`.
"""

from pathlib import Path

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.hugging_face.folder import is_hugging_face
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.load import MARKER, model_from_data, saved_spec
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.wording import text_of

# Keys of custom models that are not compared: the tensors show what they change.
OWN_KEYS = ("kind", "parameters", "options")


def init_from_is_checkpoint(spec: Spec, name: str) -> Findings:
    """`init_from` is a complete checkpoint, or a run folder that holds one."""
    start = spec.modules[name].init_from
    if start is None:
        return
    folder = Path(start)
    if is_hugging_face(folder):
        return  # `init_from_folder` checks it.
    if (folder / MARKER).is_file() or any(folder.glob(f"checkpoints/*/{MARKER}")):
        return
    exists = folder.exists()
    yield Diagnostic(
        code="init-from-not-checkpoint",
        headline=f"`{start}` " + ("holds no checkpoint" if exists else "does not exist"),
        path=start_path(spec, name),
        is_absence=not exists,
        why=f"`{name}` can take its weights from a checkpoint of mimo-launch (a folder with "
        f"`{MARKER}`, or a run folder with `checkpoints/`) or from a Hugging Face folder (with "
        "`config.json`)",
        help="write the path of such a folder, relative to where you run the command",
    )


def init_from_is_same_model(spec: Spec, name: str) -> Findings:
    """The checkpoint in `init_from` has the module, with the same model."""
    module = spec.modules[name]
    found = None if module.init_from is None else saved_spec(Path(module.init_from))
    saved = None if found is None else found.get("modules")
    if not isinstance(saved, dict):
        return
    # Imported here, because few specs start from a run, and a family imports many others.
    from mimo_launch.hugging_face.settings import value_of

    path = start_path(spec, name)
    if name not in saved:
        yield Diagnostic(
            code="init-from-lacks-module",
            headline=f"`{module.init_from}` has no weights of `{name}`",
            path=path,
            why=f"its run had the modules {', '.join(f'`{each}`' for each in saved)}",
            help="write `init_from` in the modules that it has, instead of at the top"
            if path == ("init_from",)
            else f"delete `init_from` of `{name}`, or name another checkpoint",
        )
        return
    try:
        there = model_from_data(saved[name]["model"])
    except (ValueError, LookupError, TypeError):
        return  # The checkpoint is from another release; `checkpoint` compares tensors.
    is_own = kind_of(there).is_custom and kind_of(module.model).is_custom
    for key in type(there).model_fields:
        if is_own and key in OWN_KEYS:
            continue
        here = value_of(module.model, key) if hasattr(module.model, key) else None
        if key == "video" and None in (here, value_of(there, key)):
            continue  # Weights of a run without videos may start a run with videos.
        if here != value_of(there, key):
            yield Diagnostic(
                code="init-from-unlike-model",
                headline=f"`{key}` of `{name}` is {text_of(here)}, but in {module.init_from} "
                f"{text_of(value_of(there, key))}",
                path=("modules", name, "model", key),
                severity=Severity.WARNING if module.init_partial else Severity.ERROR,
                why="the weights there were trained with that value",
                help=f"write `{key}: {text_of(value_of(there, key))}` in `model`",
                related=(Related(path, "weights are taken from here"),),
            )


def init_from_fits_config(spec: Spec, name: str) -> Findings:
    """The model in a Hugging Face folder is the model of the module."""
    start = spec.modules[name].init_from
    if start is not None and is_hugging_face(Path(start)):
        # The families of models take longer to import than most specs take to check.
        from mimo_launch.checks.init_from_folder import folder_fits_config

        yield from folder_fits_config(spec, name, Path(start), start_path(spec, name))


def init_partial_used(spec: Spec, name: str) -> Findings:
    """`init_partial` needs `init_from` (a warning)."""
    module = spec.modules[name]
    if module.init_partial and module.init_from is None:
        yield no_effect(
            ("modules", name, "init_partial"),
            f"`init_partial` of `{name}` does nothing without `init_from`",
            "all weights are drawn from `train.seed`",
            "add `init_from`, or delete `init_partial`",
        )


def start_path(spec: Spec, name: str) -> YamlPath:
    """Return the path of a module's `init_from`: in the module, or at the top of the spec."""
    at_top = spec.modules[name].init_from == spec.init_from
    return ("init_from",) if at_top else ("modules", name, "init_from")
