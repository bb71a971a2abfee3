"""Checks of the Hugging Face folder that a module starts from.

Decides: before any process starts, that its model is that of the module, in the same sizes, and
that its files list the tensors of it.
Relies on: `hugging_face` for the meaning of a configuration and of tensors' names.
Leaves: checkpoints to `init_from`; the shapes of tensors, and damaged files, to `checkpoint`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    read_config,
)
from mimo_launch.hugging_face.further_tokens import OURS
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import model_types, part_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import num_last_placeholders, vocab_size
from mimo_launch.spec.spec import ModuleSpec, Spec
from mimo_launch.spec.wording import text_of

_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")
_SHOWN = 4


def folder_fits_config(spec: Spec, name: str, folder: Path, named_at: YamlPath) -> Findings:
    """The model in a Hugging Face folder, which the spec names at a path, is that of the module."""
    model = spec.modules[name].model
    types = model_types(model.kind)
    if not types:
        why = f"no Hugging Face architecture is read as a `{model.kind}`"
        yield _cannot(name, folder, f"for a `{model.kind}`", why)
        return
    if not has_weights(folder):
        why = "weights are read from model.safetensors or model.safetensors.index.json"
        yield _cannot(name, folder, "without safetensors", why)
        return
    part: Part[Any] | None = None
    try:
        part = part_of(read_config(folder), model.kind)
        settings = part.not_computed()
        wanted = {} if settings else part.keys()
        training = {} if settings else part.training()
    except NoSuchPart as error:
        settings = (error.setting,)
    except ConfigError as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    for setting in settings:
        why = f"a `{model.kind}` has no such setting; it reads the model types {', '.join(types)}"
        yield _cannot(name, folder, f"with `{setting}`", why)
    if settings or part is None:
        return
    start = _Start(spec, name, folder, named_at, part)
    differ = False
    for key, value in wanted.items():
        early = key == "layers" and part.may_end_early
        for found in start.unlike_value(key, value, at_most=early):
            differ = True
            yield found
    yield from start.unlike_training(training)
    yield from start.unlike_videos()
    yield from start.unlike_depths()
    yield from start.unlike_tensors(same=not differ)


@dataclass(frozen=True, slots=True)
class _Start:
    """A module that starts from a Hugging Face folder, and the part of it that is read."""

    spec: Spec
    name: str
    folder: Path
    named_at: YamlPath
    part: Part[Any]

    @property
    def module(self) -> ModuleSpec:
        """The module."""
        return self.spec.modules[self.name]

    def unlike_value(self, key: str, there: Any, *, at_most: bool = False) -> Findings:
        """Compare one value; a vocabulary may be larger than that of the folder."""
        module, name = self.module, self.name
        of_text = key == "vocab" and kind_of(module.model).reads_tokens
        here = vocab_size(self.spec) if of_text else value_of(module.model, key)
        if here == there or (of_text and here > there) or (at_most and here < there):
            return
        bound = "at most " if at_most else "at least " if of_text else ""
        room = num_last_placeholders(self.spec) if of_text else 0
        label = f"{key} {text_of(there)}"
        yield Diagnostic(
            code="init-from-unlike-model",
            headline=f"`{key}` of `{name}` is {text_of(here)}, "
            f"but in {module.init_from}/{CONFIG} {bound}{text_of(there)}",
            path=("modules", name, "model", key),
            severity=Severity.WARNING if module.init_partial else Severity.ERROR,
            why="the weights there were trained with that value"
            + ("; the last ids stand for encoder rows, one per encoder" if room else ""),
            help=f"write `{key}: {text_of(there + room if room else there)}` in `model`",
            related=(Related(path=("modules", name, "init_from"), label=label),),
        )

    def unlike_training(self, training: Mapping[str, Any]) -> Findings:
        """Warn where our default replaces a setting that the folder's model was trained with.

        The spec says everything about a run, so no such setting is taken from the folder.
        """
        moe = kind_of(self.module.model).moe
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
                headline=f"`{key}` of `{self.name}` is not set and so {text_of(here)}, "
                f"but in {self.module.init_from}/{CONFIG} {text_of(there)}",
                path=("modules", self.name, "model", "moe"),
                at_key=True,
                why="how strongly the load of experts is balanced is not part of the model: "
                "the spec decides it, and the folder only says how it was trained so far",
                help=f"write `{theirs}` in `moe`, or `{ours}` to keep it",
                related=(Related(path=("modules", self.name, "init_from"), label=theirs),),
            )

    def unlike_videos(self) -> Findings:
        """Videos are timed as in the folder's model; a spec need not read any."""
        images = kind_of(self.module.model).images
        if images is None or not images.reads_videos:
            return
        there = self.part.video()
        if there is not None:
            yield from self.unlike_value("video", there)
            return
        theirs = self.part.family.model_type
        yield Diagnostic(
            code="videos-not-read",
            headline=f"`{self.name}` cannot read videos with weights of a `{theirs}`",
            path=("modules", self.name, "model", "video"),
            why="how that model is told the time of a video is not known here",
            help="delete `video`, and leave videos out of the shards",
            related=(self._taken_from(),),
        )

    def unlike_depths(self) -> Findings:
        """Files of the family may hold multi-token prediction, if the module has it."""
        if not kind_of(self.module.model).depths or self.part.family.has_depths:
            return
        theirs = self.part.family.model_type
        yield Diagnostic(
            code="init-from-unlike-model",
            headline=f"`{self.name}` has `mtp`, but files of a `{theirs}` hold no weights for it",
            path=("modules", self.name, "model", "mtp"),
            at_key=True,
            severity=Severity.WARNING if self.module.init_partial else Severity.ERROR,
            why="what predicts further tokens then starts with drawn weights",
            help=f"write `init_partial: true` in `{self.name}`, or delete `mtp`",
            related=(self._taken_from(),),
        )

    def _taken_from(self) -> Related:
        return Related(path=self.named_at, label="weights are taken from here")

    def unlike_tensors(self, *, same: bool) -> Findings:
        """The headers of the files are intact, and list the ends of the model and its layers.

        In files of the `same` model every tensor is taken, or left out by rule.
        """
        module, part = self.module, self.part
        try:
            headers = read_tensors(self.folder)
        except FilesError as error:
            yield _cannot(self.name, self.folder, "as it is", str(error))
            return
        strange = unknown(part, module.model, headers) if same and not module.init_partial else ()
        if strange:
            yield _cannot(
                self.name,
                self.folder,
                "as it is",
                f"its files have {_first_of(strange)}, which the model does not have",
                f"write `init_partial: true` in `{self.name}` to leave them out, or name another "
                "folder",
            )
        there = {inner for header in headers if (inner := part.inner_name(header)) is not None}
        if not kind_of(module.model).reads_tokens or module.init_partial or not there:
            return
        if lacking := self._lacking(there):
            why = f"its files lack {_first_of(lacking)}"
            yield _cannot(self.name, self.folder, "as it is", why)

    def _lacking(self, there: set[str]) -> list[str]:
        """Return what of the ends and layers of a language model is not among tensors."""
        model, part, family = self.module.model, self.part, self.part.family
        kind = kind_of(model)
        lacking = []
        for segment in ("embedding.weight", "norm.weight", "head.weight"):
            is_apart = segment != "head.weight" or not kind.is_tied
            place = part.place(segment, model) if is_apart else None
            if place is not None and place.name not in there:
                lacking.append(place.name)
        has_apart = family.depth_place is not None
        if has_apart and (held := part.depths_among(there, model)) < kind.depths:
            lacking.append(f"what predicts further tokens in depth {held + 1}")
        if has_apart:
            there = {inner for inner in there if not inner.startswith(OURS)}
        layers = {int(found[1]) for inner in there if (found := _LAYER.search(inner))}
        # Some families give layers another name.
        depths = kind.depths if family.has_depths and not has_apart else 0
        theirs = dict.fromkeys(n // family.layers_in_one for n in range(model.layers + depths))
        return lacking + [f"layer {n}" for n in theirs if layers and n not in layers]


def _first_of(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
