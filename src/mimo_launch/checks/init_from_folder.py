"""Checks of the Hugging Face folder that a module starts from.

Decides: before any process starts, that it has the module's model, in the same sizes, and that its
files list the model's tensors.
Relies on: `hugging_face` for the meaning of a configuration and of tensors' names.
Leaves: checkpoints to `init_from`; the shapes of tensors, and damaged files, to `checkpoint`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face import repeats
from mimo_launch.hugging_face.accounts import lacking, unknown
from mimo_launch.hugging_face.folder import (
    ADAPTER,
    CONFIG,
    ConfigError,
    FilesError,
    TensorHeader,
    has_adapter,
    has_weights,
    read_config,
    short,
)
from mimo_launch.hugging_face.not_read import NAMES
from mimo_launch.hugging_face.part import NoSuchPart, Part
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import model_types, part_of, parts_of
from mimo_launch.hugging_face.rotary import (
    DYNAMIC,
    LONGEST,
)
from mimo_launch.hugging_face.settings import agree, value_of
from mimo_launch.hugging_face.tensors import EMBEDDING, HEAD
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import num_last_placeholders, vocab_size
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ModuleSpec, Spec
from mimo_launch.spec.wording import text_of

_SHOWN = 4
# Types of numbers in files with bits that bf16 lacks.
_WIDE = {"F16": "float16", "F32": "float32", "F64": "float64"}


# Dropouts of language in folders, and the keys of a module that drop the same.
_DROPOUTS = {
    "attention_dropout": "attention_dropout",
    "residual_dropout": "dropout",
    "resid_pdrop": "dropout",
}


def _dropouts(spec: Spec, name: str) -> set[str]:
    """Return the settings of a folder that a module computes, as it asks for them."""
    if name != LANGUAGE:
        return set()
    return {f"{key}: {short(getattr(spec.modules[name], own))}" for key, own in _DROPOUTS.items()}


def folder_fits_config(spec: Spec, name: str, folder: Path, named_at: YamlPath) -> Findings:
    """The model in a Hugging Face folder, named at `named_at`, is the module's model."""
    model = spec.modules[name].model
    types, wholes = model_types(model.kind)
    if not types:
        why = f"no Hugging Face architecture is read as a `{model.kind}`"
        yield _cannot(name, folder, f"for a `{model.kind}`", why)
        return
    if not has_weights(folder):
        why = "weights are read from model.safetensors or model.safetensors.index.json"
        yield _cannot(name, folder, "without safetensors", why)
        return
    part: Part | None = None
    headers: dict[str, TensorHeader] = {}
    helps: list[str] = []
    try:
        part = part_of(read_config(folder), model.kind)
        headers = read_tensors(folder)
        part = repeats.as_stored(part, folder, headers)
        asked = _dropouts(spec, name)
        settings = tuple(each for each in part.not_computed() if each not in asked)
        wanted = {} if settings else part.keys()
        training = {} if settings else part.training()
    except NoSuchPart as error:
        settings = (error.setting,)
        helps = _kinds_that_fit(folder, model.kind)
    except (ConfigError, FilesError) as error:
        yield _cannot(name, folder, "as it is", str(error))
        return
    for setting in settings:
        why = f"a `{model.kind}` has no such setting; it reads the model types {', '.join(types)}"
        if wholes:
            why += f", and {len(wholes)} whole models: `mimo-launch inspect --families` lists all"
        key, _, rate = setting.partition(": ")
        if name == LANGUAGE and key in _DROPOUTS:
            why = "the module does not ask for it, and would train without"
            helps = [f"write `{_DROPOUTS[key]}: {rate}` in `{name}`"]
        yield _cannot(name, folder, f"with `{setting}`", why, *helps)
    if settings or part is None:
        return
    start = _Start(spec, name, folder, named_at, part, headers)
    yield from start.too_long()
    differ = False
    for key, value in wanted.items():
        for found in start.unlike_tied(value) if key == "tied" else start.unlike_value(key, value):
            differ = True
            yield found
    yield from start.adapter()
    yield from start.unlike_training(training)
    yield from start.unlike_videos()
    yield from start.unlike_depths()
    yield from start.rounded()
    yield from start.unlike_tensors(same=not differ)


@frozen
class _Start:
    """A module that starts from a Hugging Face folder, and the part of it that is read."""

    spec: Spec
    name: str
    folder: Path
    named_at: YamlPath
    part: Part
    headers: Mapping[str, TensorHeader]

    @property
    def module(self) -> ModuleSpec:
        """The module."""
        return self.spec.modules[self.name]

    def too_long(self) -> Findings:
        """Yield an error if sequences exceed the length up to which rotary positions equal ours."""
        longest, seq = self.part.longest(), self.spec.batch.seq
        if longest is None or seq <= longest:
            return
        found = _cannot(
            self.name,
            self.folder,
            f"with `rope_type: {DYNAMIC}` and `seq: {seq}`",
            f"it equals the default type up to `{LONGEST}: {longest}`; beyond, angles depend on "
            "the longest sequence of a batch, which is not supported",
            f"write `seq: {longest}` in `batch`, or name another folder",
        )
        yield replace(found, path=("batch", "seq"), related=(self._taken_from(),))

    def unlike_value(self, key: str, there: Any) -> Findings:
        """Compare one value; a vocabulary may be larger than the folder's."""
        module, name = self.module, self.name
        of_text = key == "vocab" and kind_of(module.model).reads_tokens
        at_most = key == "layers" and self.part.may_end_early
        here = vocab_size(self.spec) if of_text else value_of(module.model, key)
        if agree(key, here, there) or (of_text and here > there) or (at_most and here < there):
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
            related=(Related(("modules", name, "init_from"), label),),
        )

    def unlike_tied(self, there: bool) -> Findings:
        """Compare `tied`, which the spec decides if the files have no output layer."""
        part, headers = self.part, self.headers
        names = {inner for each in headers if (inner := part.inner_name(each)) is not None}
        if kind_of(self.module.model).text.tied and names and HEAD not in names:
            return
        for found in self.unlike_value("tied", there):
            if not part.untied:
                yield found
                continue
            one, other = map(part.file_name, (HEAD, EMBEDDING))
            yield replace(
                found,
                headline=f"`tied` of `{self.name}` is true, but the output layer in "
                f"{self.module.init_from} is not the embedding",
                why=f"{one} and {other} differ, though {CONFIG} has `tie_word_embeddings: true`; "
                "`transformers` keeps both in such a folder",
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
                related=(Related(("modules", self.name, "init_from"), theirs),),
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

    def adapter(self) -> Findings:
        """The folder has no adapter: its weights would be lost."""
        if has_adapter(self.folder):
            yield Diagnostic(
                code="init-from-not-supported",
                severity=Severity.WARNING if self.module.init_partial else Severity.ERROR,
                headline=f"`{self.name}` leaves out the adapter in {self.folder}",
                path=("modules", self.name, "init_from"),
                why=f"`transformers` adds what {ADAPTER} describes to the weights; here only "
                "whole weights are read",
                help="merge it and save the model again (`merge_and_unload` of peft), or write "
                f"`init_partial: true` in `{self.name}` to start without it",
            )

    def unlike_depths(self) -> Findings:
        """Files of the family may hold multi-token prediction, if the module has it."""
        if not kind_of(self.module.model).depths or self.part.family.depths:
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

    def rounded(self) -> Findings:
        """Warn where checkpoints would hold fewer bits of frozen weights than the folder."""
        module, saving = self.module, self.spec.saving
        numbers = self.spec.train.numbers
        saves = saving is not None and saving.frozen_weights
        trains = module.body_trains and not module.frozen_layers
        if trains or not saves or not numbers.is_mixed:
            return
        wide = {
            header.dtype
            for name, header in self.headers.items()
            if header.dtype in _WIDE and len(header.shape) > 1 and self.part.inner_name(name)
        }
        if not wide:
            return
        yield Diagnostic(
            code="init-from-unlike-model",
            severity=Severity.WARNING,
            headline=f"frozen weights of `{self.name}` are {_WIDE[min(wide)]} in {self.folder}, "
            f"and {numbers.computed.torch} in this run",
            path=("modules", self.name, "init_from"),
            why="frozen matrices are only multiplied, so they are held in the type of products; "
            "checkpoints, and folders that are exported from them, hold the rounded numbers",
            help="write `frozen_weights: false` in `checkpoint`: all bits are then read from "
            f"{self.folder} again",
        )

    def _taken_from(self) -> Related:
        return Related(self.named_at, "weights are taken from here")

    def unlike_tensors(self, *, same: bool) -> Findings:
        """The headers of the files are intact, and list the tensors of the model.

        In files of the `same` model every tensor is taken, or left out by rule.
        """
        name, part, model = self.name, self.part, self.module.model
        if self.module.init_partial:
            return
        partial = f"write `init_partial: true` in `{name}` to"
        if same and (strange := unknown(part, model, self.headers)):
            why = f"its files have {_first_of(strange)}, which the model does not have"
            help_ = f"{partial} leave them out, or name another folder"
            yield _cannot(name, self.folder, "as it is", why, help_)
        if missing := lacking(part, model, self.headers):
            help_ = f"{partial} draw what is missing, or name another folder"
            if HEAD in missing:
                help_ = f"write `tied: true` in `model` if the embedding is that layer; {help_}"
            why = f"its files lack {_first_of(missing)}"
            yield _cannot(name, self.folder, "as it is", why, help_)
        pairs = {one: other for one, other in repeats.repeats(part, model).items() if one != HEAD}
        for one, other in repeats.unlike(self.folder, part, self.headers, pairs):
            why = f"{one} is not {other}, which the model has in its place"
            yield _cannot(name, self.folder, "as it is", why, f"{partial} leave it out")


def _first_of(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _kinds_that_fit(folder: Path, kind: str) -> list[str]:
    """Return how a module of a kind would read the folder: by another kind with the same role."""
    with suppress(ConfigError):
        for part in parts_of(read_config(folder)):
            if kind in NAMES and NAMES.get(part.family.kind) == NAMES[kind]:
                there = f"the keys that `mimo-launch inspect {folder}` prints"
                return [f"write `kind: {part.family.kind}`, with {there}"]
    return []


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
