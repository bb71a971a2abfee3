"""Checks of the weights a module starts from: checkpoints, and Hugging Face folders.

Decides: before any process starts, that a path leads to weights of the same model in the same
sizes.
Relies on: `spec.load` for the spec of a checkpoint, `hugging_face` for the meaning of a
configuration.
Leaves: the shapes of tensors, and damaged files, to `checkpoint`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.hugging_face.accounts import unknown
from mimo_launch.hugging_face.family import NoSuchPart, Part, value_of
from mimo_launch.hugging_face.folder import (
    CONFIG,
    ConfigError,
    FilesError,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.hugging_face.further_tokens import OURS
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import model_types, part_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import num_last_placeholders, vocab_size
from mimo_launch.spec.load import MARKER, model_from_data, saved_spec
from mimo_launch.spec.spec import Model, Spec
from mimo_launch.spec.wording import text_of

# Keys of custom models that are not compared: what they change is seen in the tensors.
OWN_KEYS = ("kind", "parameters", "options")
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")
_SHOWN = 4


def init_from_is_checkpoint(spec: Spec, name: str) -> Findings:
    """`init_from` is a complete checkpoint, or a run folder that holds one."""
    start = spec.modules[name].init_from
    if start is None:
        return
    folder = Path(start)
    if is_hugging_face(folder):
        return  # `init_from_fits_config` checks it.
    if (folder / MARKER).is_file() or any(folder.glob(f"checkpoints/*/{MARKER}")):
        return
    exists = folder.exists()
    yield Diagnostic(
        code="init-from-not-checkpoint",
        headline=f"`{start}` " + ("holds no checkpoint" if exists else "does not exist"),
        path=start_path(spec, name),
        why=f"`{name}` can take its weights from a checkpoint of mimo-launch (a folder with "
        f"`{MARKER}`, or a run folder with `checkpoints/`) or from a Hugging Face folder (with "
        "`config.json`)",
        help="write the path of such a folder, relative to where you run the command",
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
            why=f"its run had the modules {', '.join(f'`{each}`' for each in saved)}",
            help="write `init_from` in the modules that it has, instead of at the top"
            if path == ("init_from",)
            else f"delete `init_from` of `{name}`, or name another checkpoint",
        )
        return
    try:
        there = model_from_data(saved[name]["model"])
    except (ValueError, LookupError, TypeError):
        return  # It is of another release; `checkpoint` compares tensors.
    is_own = kind_of(there).is_custom and kind_of(module.model).is_custom
    for key in type(there).model_fields:
        if is_own and key in OWN_KEYS:
            continue
        here = value_of(module.model, key) if hasattr(module.model, key) else None
        if key == "video" and None in (here, value_of(there, key)):
            continue  # Weights of a run without videos may begin to see some.
        if here != value_of(there, key):
            yield Diagnostic(
                code="init-from-unlike-model",
                headline=f"`{key}` of `{name}` is {text_of(here)}, but in {module.init_from} "
                f"{text_of(value_of(there, key))}",
                path=("modules", name, "model", key),
                severity=Severity.WARNING if module.init_partial else Severity.ERROR,
                why="the weights there were trained with that value",
                help=f"write `{key}: {text_of(value_of(there, key))}` in `model`",
                related=(Related(path=path, label="weights are taken from here"),),
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


def init_from_fits_config(spec: Spec, name: str) -> Findings:
    """The model in a Hugging Face folder is the model of the module."""
    module = spec.modules[name]
    if module.init_from is None or not is_hugging_face(Path(module.init_from)):
        return
    folder, model = Path(module.init_from), module.model
    types = model_types(model.kind)
    if not types:
        why = f"no Hugging Face architecture is read as a `{model.kind}`"
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
        training = {} if settings else part.training()
    except NoSuchPart as error:
        settings, wanted, training = (error.setting,), {}, {}
    except ConfigError as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    for setting in settings:
        why = f"a `{model.kind}` has no such setting; it reads the model types {', '.join(types)}"
        yield _cannot(name, folder, f"with `{setting}`", why)
    differ = False
    for key, value in wanted.items():
        early = key == "layers" and part.may_end_early
        for found in _compare(spec, name, model, key, value, at_most=early):
            differ = True
            yield found
    yield from _training_is_written(spec, name, training)
    if not settings:
        yield from _videos_are_theirs(spec, name, part)
        yield from _depths_are_theirs(spec, name, part)
        yield from _tensors_are_there(spec, name, part, same=not differ)


def _tensors_are_there(spec: Spec, name: str, part: Part[Any], *, same: bool) -> Findings:
    """The headers of the files are intact, and list the ends of the model and its layers.

    In files of the `same` model there is nothing that the module does not know.
    """
    module = spec.modules[name]
    folder, model = Path(module.init_from or ""), module.model
    try:
        headers = read_tensors(folder)
    except FilesError as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    if same and not module.init_partial:
        yield from _tensors_are_known(name, folder, unknown(part, model, headers))
    there = {inner for header in headers if (inner := part.inner_name(header)) is not None}
    kind = kind_of(model)
    if not kind.reads_tokens or module.init_partial or not there:
        return
    lacking = []
    for segment in ("embedding.weight", "norm.weight", "head.weight"):
        place = None if segment == "head.weight" and kind.is_tied else part.place(segment, model)
        if place is not None and place.name not in there:
            lacking.append(place.name)
    family = part.family
    has_apart = family.depth_place is not None
    if has_apart and (held := part.depths_among(there, model)) < kind.depths:
        lacking.append(f"what predicts further tokens in depth {held + 1}")
    if has_apart:
        there = {inner for inner in there if not inner.startswith(OURS)}
    layers = {int(found[1]) for inner in there if (found := _LAYER.search(inner))}
    # Some families give layers another name.
    depths = kind.depths if family.has_depths and not has_apart else 0
    numbers = range(model.layers + depths)
    theirs = dict.fromkeys(n // family.layers_in_one for n in numbers)
    lacking += [f"layer {n}" for n in theirs if layers and n not in layers]
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        why = f"its files lack {', '.join(lacking[:_SHOWN])}{more}"
        yield _cannot(name, folder, "as it is", why)


def _tensors_are_known(name: str, folder: Path, strange: Sequence[str]) -> Findings:
    """Every tensor of the files is taken, or left out by rule."""
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        yield _cannot(
            name,
            folder,
            "as it is",
            f"its files have {', '.join(strange[:_SHOWN])}{more}, which the model does not have",
            f"write `init_partial: true` in `{name}` to leave them out, or name another folder",
        )


def _videos_are_theirs(spec: Spec, name: str, part: Part[Any]) -> Findings:
    """Videos are timed as in the folder's model; a spec need not read any."""
    images = kind_of(spec.modules[name].model).images
    if images is None or not images.reads_videos:
        return
    there = part.video()
    if there is not None:
        yield from _compare(spec, name, spec.modules[name].model, "video", there, at_most=False)
        return
    yield Diagnostic(
        code="videos-not-read",
        headline=f"`{name}` cannot read videos with weights of a `{part.family.model_type}`",
        path=("modules", name, "model", "video"),
        why="how that model is told the time of a video is not known here",
        help="delete `video`, and leave videos out of the shards",
        related=(Related(path=start_path(spec, name), label="weights are taken from here"),),
    )


def _depths_are_theirs(spec: Spec, name: str, part: Part[Any]) -> Findings:
    """Files of the family may hold multi-token prediction, if the module has it."""
    module = spec.modules[name]
    if not kind_of(module.model).depths or part.family.has_depths:
        return
    yield Diagnostic(
        code="init-from-unlike-model",
        headline=f"`{name}` has `mtp`, but files of a `{part.family.model_type}` hold no weights "
        "for it",
        path=("modules", name, "model", "mtp"),
        at_key=True,
        severity=Severity.WARNING if module.init_partial else Severity.ERROR,
        why="what predicts further tokens then starts with drawn weights",
        help=f"write `init_partial: true` in `{name}`, or delete `mtp`",
        related=(Related(path=start_path(spec, name), label="weights are taken from here"),),
    )


def _training_is_written(spec: Spec, name: str, training: Mapping[str, Any]) -> Findings:
    """Warn where our default replaces a setting that the folder's model was trained with.

    The spec says everything about a run, so no such setting is taken from the folder.
    """
    module, moe = spec.modules[name], kind_of(spec.modules[name].model).moe
    if moe is None:
        return
    for key, there in training.items():
        here = getattr(moe, key)
        if key in moe.model_fields_set or here == there:
            continue
        ours, theirs = f"{key}: {text_of(here)}", f"{key}: {text_of(there)}"
        yield Diagnostic(
            code="init-from-unlike-model",
            severity=Severity.WARNING,
            headline=f"`{key}` of `{name}` is not set and so {text_of(here)}, "
            f"but in {module.init_from}/{CONFIG} {text_of(there)}",
            path=("modules", name, "model", "moe"),
            at_key=True,
            why="how strongly the load of experts is balanced is not part of the model: "
            "the spec decides it, and the folder only says how it was trained so far",
            help=f"write `{theirs}` in `moe`, or `{ours}` to keep it",
            related=(Related(path=("modules", name, "init_from"), label=theirs),),
        )


def _compare(
    spec: Spec, name: str, model: Model, key: str, there: Any, *, at_most: bool
) -> Findings:
    """Compare one value; a vocabulary may be larger than that of the folder."""
    of_text = key == "vocab" and kind_of(model).reads_tokens
    here = vocab_size(spec) if of_text else value_of(model, key)
    if here == there or (of_text and here > there) or (at_most and here < there):
        return
    module = spec.modules[name]
    bound = "at most " if at_most else "at least " if of_text else ""
    room = num_last_placeholders(spec) if of_text else 0
    yield Diagnostic(
        code="init-from-unlike-model",
        headline=f"`{key}` of `{name}` is {text_of(here)}, "
        f"but in {module.init_from}/{CONFIG} {bound}{text_of(there)}",
        path=("modules", name, "model", key),
        severity=Severity.WARNING if module.init_partial else Severity.ERROR,
        why="the weights there were trained with that value"
        + ("; the last ids stand for encoder rows, one per encoder" if room else ""),
        help=f"write `{key}: {text_of(there + room if room else there)}` in `model`",
        related=(Related(path=("modules", name, "init_from"), label=f"{key} {text_of(there)}"),),
    )


def _cannot(
    name: str,
    folder: Path,
    what: str,
    why: str,
    help_: str = "name another folder, or delete `init_from`",
) -> Diagnostic:
    return Diagnostic(
        code="init-from-not-supported",
        headline=f"`{name}` cannot start from {folder} {what}",
        path=("modules", name, "init_from"),
        why=why,
        help=help_,
    )


def start_path(spec: Spec, name: str) -> YamlPath:
    """Return the path of a module's `init_from`: in the module, or at the top of the spec."""
    at_top = spec.modules[name].init_from == spec.init_from
    return ("init_from",) if at_top else ("modules", name, "init_from")
