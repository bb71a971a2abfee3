"""Checks of a Hugging Face folder in `init_from`, by its `config.json` alone.

Decides: that every number of the folder's model is that of the spec before any process starts.
Relies on: `layout.hugging_face` for what a configuration means.
Leaves: the tensors to `train.checkpoint`, which accounts for each.
"""

from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.layout.checks.rule import Findings
from mimo_launch.layout.hugging_face.architectures import text_of, value_of
from mimo_launch.layout.hugging_face.folder import (
    CONFIG,
    ConfigError,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.layout.hugging_face.part import NoSuchPart
from mimo_launch.layout.hugging_face.registry import model_types, part_of
from mimo_launch.layout.tokens import num_last_placeholders, vocab_size
from mimo_launch.spec.model import Model, Spec


def init_from_fits_config(spec: Spec, name: str) -> Findings:
    """The model in a Hugging Face folder is the model of the module."""
    module = spec.modules[name]
    if module.init_from is None or not is_hugging_face(Path(module.init_from)):
        return
    folder, model = Path(module.init_from), module.model
    types = model_types(model.kind)
    if not types:
        why = "nothing of it is known to be in such folders"
        yield _cannot(name, folder, f"for a `{model.kind}`", why)
        return
    if not has_weights(folder):
        why = "weights are read from model.safetensors or model.safetensors.index.json"
        yield _cannot(name, folder, "without safetensors", why)
        return
    try:
        part = part_of(read_config(folder), model.kind)
        settings = part.not_computed()
        wanted = {} if settings else part.keys()
    except NoSuchPart as error:
        settings, wanted = (error.setting,), {}
    except ConfigError as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    for setting in settings:
        why = f"a `{model.kind}` has no such setting; of model types it takes {', '.join(types)}"
        yield _cannot(name, folder, f"with `{setting}`", why)
    for key, value in wanted.items():
        early = key == "layers" and part.may_end_early
        yield from _compare(spec, name, model, key, value, at_most=early)


def _compare(
    spec: Spec, name: str, model: Model, key: str, there: Any, *, at_most: bool
) -> Findings:
    """Compare one value; a vocabulary may be larger than that of the folder."""
    here = vocab_size(spec) if key == "vocab" else value_of(model, key)
    if here == there or (key == "vocab" and here > there) or (at_most and here < there):
        return
    module = spec.modules[name]
    bound = "at most " if at_most else "at least " if key == "vocab" else ""
    room = num_last_placeholders(spec) if key == "vocab" else 0
    yield Diagnostic(
        code="init-from-unlike-model",
        headline=f"`{key}` of `{name}` is {text_of(here)}, "
        f"and in {module.init_from}/{CONFIG} {bound}{text_of(there)}",
        path=("modules", name, "model", key),
        severity=Severity.WARNING if module.init_partial else Severity.ERROR,
        why="the weights there were trained with that value"
        + ("; the last ids stand for encoder rows, one per encoder" if room else ""),
        help=f"write `{key}: {text_of(there + room if room else there)}` in `model`",
        related=(Related(path=("modules", name, "init_from"), label=f"{key} {text_of(there)}"),),
    )


def _cannot(name: str, folder: Path, what: str, why: str) -> Diagnostic:
    return Diagnostic(
        code="init-from-not-supported",
        headline=f"`{name}` cannot start from {folder} {what}",
        path=("modules", name, "init_from"),
        why=why,
        help="name another folder, or delete `init_from`",
    )
