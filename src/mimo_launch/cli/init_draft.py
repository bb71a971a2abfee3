"""Turns answers into the spec that `init` writes.

Decides: models, data, batch and steps, where `init` does not ask for them; that sequences are
packed if the shards are here and this makes them much fuller; which token of a chat template marks
an image or a clip.
Relies on: `hugging_face.contents` for models, `search.first_spec` for ranks, grids and schedule.
Leaves: files and questions to `init`, other values and the text to `init_text`.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.init_text import MARKERS, spec_text
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted, percent
from mimo_launch.hugging_face.contents import Module, read_contents
from mimo_launch.hugging_face.families.siglip_clip import ALONE
from mimo_launch.hugging_face.folder import ConfigError, FilesError, has_weights
from mimo_launch.hugging_face.not_read import NAMES
from mimo_launch.processors.files import TokenizerError
from mimo_launch.processors.tokenizer import num_tokens, token_id
from mimo_launch.search.first_spec import NothingFits, first_spec, on_all_ranks, placed
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import Grid, UserData
from mimo_launch.spec.value_guesses import run_name
from mimo_launch.spec.values import GPUS

DIGITS: dict[str, dict[str, Any]] = {
    "vision": {"kind": "vit", "layers": 2, "hidden": 96, "heads": 4, "patch": 4},
    "language": {
        "kind": "decoder", "layers": 3, "hidden": 96, "heads": 4, "kv_heads": 2, "vocab": "digits",
    },
}  # fmt: skip
GPUS_PER_NODE = 8
BATCH = 32
SEQ = 2048
TEXT_ROOM = 256


class CannotDraft(Exception):
    """No spec can be written; the message says why, `help` is the remedy."""

    def __init__(self, message: str, help_: str) -> None:
        super().__init__(message)
        self.help = help_


@frozen(kw_only=True)
class Answers:
    """The user's answers; `folders` are by module, None leaves the choice to `draft`."""

    name: str
    model: Path | None = None
    folders: Mapping[str, Path | None] = field(default_factory=dict)
    gpus: int = GPUS_PER_NODE
    gpus_per_node: int | None = None
    gpu: str | None = None
    gpu_memory: str | None = None
    data: str | None = None
    tokenizer: Path | None = None
    template: str | None = None
    seq: int | None = None
    global_batch: int | None = None
    steps: int | None = None

    @property
    def are_defaults(self) -> bool:
        """Whether all values but the name are still defaults."""
        folders = dict.fromkeys(self.folders)
        return self == Answers(name=self.name, folders=folders)


def draft(answers: Answers) -> str:
    """Return the text of a spec that validates. Raises: CannotDraft."""
    if answers.gpu is not None and answers.gpu not in GPUS:
        likely = did_you_mean(answers.gpu, GPUS) or f"the names are {', '.join(GPUS)}"
        raise CannotDraft(f"no GPU has the name {answers.gpu}", likely)
    data, of_data = undecided(answers)
    try:
        first = first_spec(data, answers.gpus)
    except NothingFits as error:
        raise CannotDraft(
            f"no layout on {counted(answers.gpus, 'GPU')}: {error}", error.help
        ) from error
    except ValueError as error:
        raise CannotDraft(str(error), "mimo-launch init --help") from error
    text = spec_text(first, answers.gpu_memory or answers.gpu, of_data)
    wrong = [found for found in check_text(text, only_plans=True).diagnostics if found.is_error]
    if wrong:
        said = "; ".join(f"{found.headline}: {found.why}" for found in wrong)
        raise CannotDraft(said, wrong[0].help)
    return text


def undecided(answers: Answers) -> tuple[dict[str, Any], str]:
    """Return the data of a spec without a layout, and a comment on its data.

    Raises: CannotDraft.
    """
    data = _undecided(answers, _parts(answers))
    of_markers = _place_markers(data)
    packs, of_data = _packing(data)
    if packs:
        data["data"]["packing"] = True
    return data, " ".join(filter(None, (of_data, of_markers)))


def _parts(answers: Answers) -> dict[str, tuple[Module, Path]]:
    """Return the modules of the named folders, encoders first. Raises: CannotDraft."""
    found = {}
    for wanted, folder in {"": answers.model, **answers.folders}.items():
        if folder is None:
            continue
        try:
            contents = read_contents(folder)
        except (ConfigError, FilesError) as error:
            raise CannotDraft(f"{folder}: {error}", "name a Hugging Face folder") from error
        here = {part.name: part for part in contents.modules if wanted in ("", part.name)}
        if not here:
            raise CannotDraft(
                f"{folder} holds no supported {wanted or 'model'}: its model type is "
                f"{contents.model_type}",
                f"mimo-launch inspect {folder}",
            )
        for name, part in here.items():
            if part.kind == "talker" and not wanted:
                continue  # It needs codes of sound as data, which a first spec does not have.
            if part.not_computed:
                raise CannotDraft(
                    f"{folder} asks for {', '.join(part.not_computed)}, which is not computed here",
                    f"mimo-launch inspect {folder}",
                )
            # As in LLaVA, the format of `export`; in a whole model, its own config decides.
            said = {"final_norm": False} if contents.model_type in ALONE else {}
            found[name] = (replace(part, keys={**part.keys, **said}), folder)
    if not found and (answers.data or answers.tokenizer or answers.template):
        message = "--data, --tokenizer and --template are for models"
        raise CannotDraft(message, "give --language or --model")
    if answers.data is None and (answers.tokenizer or answers.template):
        raise CannotDraft("--tokenizer and --template read files of --data", "give --data, too")
    if found and "language" not in found:
        raise CannotDraft("there is no language model", "give --language or --model")
    return {name: found[name] for name in dict.fromkeys(NAMES.values()) if name in found}


def _undecided(answers: Answers, parts: Mapping[str, tuple[Module, Path]]) -> dict[str, Any]:
    """Return the data of a spec before ranks, grids and schedule. Raises: CannotDraft."""
    modules: dict[str, Any] = {name: {"model": dict(model)} for name, model in DIGITS.items()}
    samples: dict[str, Any] = {"kind": "digits"}
    if parts:
        modules = {}
        for name, (part, folder) in parts.items():
            model = {"kind": part.kind, **part.keys}
            modules[name] = {"model": model}
            if has_weights(folder):
                modules[name]["init_from"] = str(folder)
            if part.placeholder is not None:
                modules[name]["placeholder"] = part.placeholder
        tokenizer = None
        samples = {"kind": "synthetic"}
        if answers.data is not None:
            tokenizer = answers.tokenizer or parts["language"][1]
            is_tar = answers.data.endswith(".tar")
            where = {"kind": "webdataset", "shards": answers.data}
            samples = {
                **(where if is_tar else {"kind": "files", "sources": [answers.data]}),
                "tokenizer": str(tokenizer),
                "template": answers.template or "chat",
            }
        elif "vision" in parts and (image := parts["vision"][0].keys.get("image")) is not None:
            # Whole rows, also where the table is no multiple of them.
            row = parts["vision"][0].keys.get("shuffle", 1)
            samples["image"] = [max(1, side // row) * row for side in image]
        _fit_vocab(modules, tokenizer)
    # The first multiple of the GPUs that is at least the usual batch.
    batch = -(-BATCH // answers.gpus) * answers.gpus
    data: dict[str, Any] = {
        "version": 1,
        # Of a file or folder, which may have a name that no run has.
        "name": run_name(answers.name)[:100] or "run",
        "modules": modules,
        "batch": {"global": answers.global_batch or batch, "seq": answers.seq or 1},
        "data": samples,
        "train": {"steps": answers.steps or 500, "precision": "bf16" if parts else "fp32"},
        "checkpoint": {"every": 100, "keep": 2},
    }
    device = {key: getattr(answers, key) for key in ("gpu", "gpu_memory") if getattr(answers, key)}
    if device or answers.gpus_per_node is not None:
        per_node = answers.gpus_per_node or min(answers.gpus, GPUS_PER_NODE)
        data["nodes"] = {"gpus": per_node, **device}
    if answers.seq is None:
        try:
            least = longest_sample(spec_from_data(placed(data, on_all_ranks(modules, Grid()))))
        except ValueError as error:
            raise CannotDraft(str(error), "mimo-launch init --help") from error
        room = -(-(least + TEXT_ROOM) // SEQ) * SEQ
        data["batch"]["seq"] = room if parts else -(-least // 8) * 8
    return data


def _place_markers(data: Mapping[str, Any]) -> str:
    """Choose the token for rows where a chat template writes several, and return a comment on it.

    The check of the spec reports other faults of the template.
    """
    if data["data"].get("template") != "chat":
        return ""
    # Imported here because other specs need no tokenizer.
    from mimo_launch.data.samples.media_rows import ShardInputs
    from mimo_launch.data.samples.media_text import MarkerUnclear
    from mimo_launch.data.samples.sample_encoder import SampleEncoders

    modules, words = data["modules"], list[str]()
    for _ in modules:
        try:
            made = spec_from_data(placed(data, on_all_ranks(modules, Grid())))
            if isinstance(made.data, UserData):
                SampleEncoders(made, made.data, ShardInputs(made, made.data))
        except MarkerUnclear as error:
            if "placeholder" in modules[error.module]:
                break
            token, text = error.likely
            modules[error.module]["placeholder"] = token
            modules["language"]["model"]["vocab"] -= 1  # It needs no id of its own.
            words.append(f"Rows of {error.module} replace {text}, a guess from the chat template.")
        except ValueError:
            break
    return " ".join(words)


def _packing(data: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether records should share sequences, and a comment on what plans know of shards."""
    if data["data"]["kind"] not in ("webdataset", "files"):
        return False, ""
    # Imported here because other specs need no look at data.
    from mimo_launch.data.expected_steps import WORTH_PACKING, expected_steps

    # A faulty spec is refused later, with all of its faults.
    with suppress(ValueError):
        steps = expected_steps(spec_from_data(placed(data, on_all_ranks(data["modules"], Grid()))))
        if not steps.looked_at:
            return False, f"Plans rest on {steps.basis}."
        alone, packed = (1 - steps.padding_with(packing=each) for each in (False, True))
        words = f"With one sample in each, sequences are {percent(alone)} full"
        packs = packed >= WORTH_PACKING * alone
        if packs:
            words += f"; packed, {percent(packed)}"
        return packs, f"{words} ({steps.basis})."
    return False, ""


def _fit_vocab(modules: Mapping[str, dict[str, Any]], tokenizer: Path | None) -> None:
    """Use the tokenizer's tokens for images and clips; make room for missing ones.

    The check of the spec reports faults of the tokenizer.
    """
    num_words = 0
    if tokenizer is not None:
        with suppress(TokenizerError):
            num_words = num_tokens(tokenizer)
            for name, module in modules.items():
                token = token_id(tokenizer, MARKERS[name]) if name in MARKERS else None
                if token is not None:
                    module.setdefault("placeholder", token)
    last = sum("placeholder" not in module for module in modules.values()) - 1
    model = modules["language"]["model"]
    model["vocab"] = max(model["vocab"], num_words) + last
