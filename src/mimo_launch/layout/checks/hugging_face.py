"""Checks of a Hugging Face folder in `init_from`, by its `config.json` alone.

Decides: that every number of the folder's model is that of the spec before any process starts.
Relies on: `layout.hugging_face` for what a configuration means.
Leaves: the tensors to `train.checkpoint`, which accounts for each.
"""

from pathlib import Path
from typing import Any

from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.layout.checks.rule import Findings
from mimo_launch.layout.hugging_face.folder import (
    CONFIG,
    ConfigError,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.layout.hugging_face.registry import family_of, model_types
from mimo_launch.layout.tokens import vocab_size
from mimo_launch.spec.model import DecoderModel, Spec


def init_from_fits_config(spec: Spec, name: str) -> Findings:
    """The model in a Hugging Face folder is the model of the module."""
    module = spec.modules[name]
    if module.init_from is None or not is_hugging_face(Path(module.init_from)):
        return
    folder, model = Path(module.init_from), module.model
    if not isinstance(model, DecoderModel):
        yield _cannot(name, folder, f"for a `{model.kind}`", "only decoders are read from it")
        return
    if not has_weights(folder):
        why = "weights are read from model.safetensors or model.safetensors.index.json"
        yield _cannot(name, folder, "without safetensors", why)
        return
    try:
        config = read_config(folder)
        family = family_of(config)
        settings = (
            (f"model_type: {config.get('model_type')}",)
            if family is None
            else tuple(family.not_computed(config))
        )
        wanted = {} if family is None or settings else family.keys(config)
    except ConfigError as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    for setting in settings:
        types = ", ".join(model_types("decoder"))
        why = f"a decoder has no such setting; of model types it takes {types}"
        yield _cannot(name, folder, f"with `{setting}`", why)
    for key, value in wanted.items():
        yield from _compare(spec, name, model, key, value)


def _compare(spec: Spec, name: str, model: DecoderModel, key: str, there: Any) -> Findings:
    """Compare one value; a vocabulary may be larger than that of the folder."""
    derived = {
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "mlp": model.mlp_width,
    }
    here = vocab_size(spec) if key == "vocab" else derived.get(key, getattr(model, key))
    if here == there or (key == "vocab" and here > there):
        return
    module = spec.modules[name]
    least = "at least " if key == "vocab" else ""
    room = len(spec.encoders) if key == "vocab" else 0
    yield Diagnostic(
        code="init-from-unlike-model",
        headline=f"`{key}` of `{name}` is {_text(here)}, "
        f"and in {module.init_from}/{CONFIG} {least}{_text(there)}",
        path=("modules", name, "model", key),
        severity=Severity.WARNING if module.init_partial else Severity.ERROR,
        why="the weights there were trained with that value"
        + ("; the last ids stand for encoder rows, one per encoder" if room else ""),
        help=f"write `{key}: {_text(there + room if room else there)}` in `model`",
        related=(Related(path=("modules", name, "init_from"), label=f"{key} {_text(there)}"),),
    )


def _text(value: Any) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cannot(name: str, folder: Path, what: str, why: str) -> Diagnostic:
    return Diagnostic(
        code="init-from-not-supported",
        headline=f"`{name}` cannot start from {folder} {what}",
        path=("modules", name, "init_from"),
        why=why,
        help="name another folder, or delete `init_from`",
    )
