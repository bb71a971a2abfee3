"""Where the weights of a run came from, and what an export takes over from there beside weights.

Decides: that the source of a module is what `init_from` names, through runs that started from runs;
what `config.json` keeps of a source, such as ids of tokens, and what would contradict the weights;
which files beside weights are taken over: tokenizer, image processor, settings of generation.
Relies on: paths as the specs say them, from where the command is started;
`hugging_face.architectures` for what the models say; names and keys of files as transformers 4 and
5 write them.
Leaves: what is exported to `export_plan`, copying and writing to `export`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
from mimo_launch.hugging_face import llava
from mimo_launch.hugging_face.architectures import Architecture
from mimo_launch.hugging_face.family import Part
from mimo_launch.hugging_face.folder import (
    Config,
    ConfigError,
    FilesError,
    TensorHeader,
    has_weights,
    is_hugging_face,
    read_config,
    read_headers,
)
from mimo_launch.hugging_face.image_processor import PREPROCESSOR, PROCESSOR, processor_folder
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.tokenizer import TOKENIZER, TokenizerError, token_text
from mimo_launch.spec.files import read_json
from mimo_launch.spec.model import Model, Spec, WebdatasetData

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
# What is left out by rule because it follows from the rest, whatever the model.
_DERIVED = re.compile(r"(inv_freq|position_ids|^lm_head\.weight)$")
# Names by which older versions of transformers say the same, and what is said layer by layer.
_OUTDATED = {
    "architectures", "torch_dtype", "rope_theta", "rope_scaling", "layer_types",
    "transformers_version",
}  # fmt: skip
# Without a source no token is known to begin or end a text; transformers would take ids of Llama.
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Where a whole model says what its parts are.
PARTS = {"decoder": "text_config", "vit": "vision_config"}
# Read as it is by whoever uses a model; which of them there are depends on the model.
_OF_TEXT = (
    TOKENIZER,
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_OF_IMAGES = (PROCESSOR, PREPROCESSOR, "video_preprocessor_config.json")
_LLAVA = "LlavaProcessor"


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The part of a Hugging Face folder that a module started from.

    `config` is that of the whole folder; `tensors` are by the names of the part's family, with the
    names in the files.
    """

    folder: Path
    config: Config
    part: Part[Any]
    tensors: Mapping[str, tuple[str, TensorHeader]]

    def dtype(self, inner: str | None) -> torch.dtype:
        """Return the type of a tensor there; of one that is not there, the most usual."""
        if inner is not None and inner in self.tensors:
            return TORCH[self.tensors[inner][1].dtype]
        usual = Counter(header.dtype for _, header in self.tensors.values()).most_common(1)
        return TORCH[usual[0][0]]

    def unused(self, model: Model) -> Iterator[tuple[str, str, TensorHeader]]:
        """Yield what a model of ours does not compute with: name in the family, in the files.

        The tower of a LLaVA has layers behind those whose states become rows.
        """
        for inner, (name, header) in self.tensors.items():
            if self.part.is_ignored(name, model) and not _DERIVED.search(inner):
                yield inner, name, header


def source_of(spec: Spec, name: str) -> WeightSource | None:
    """Return the folder that a module's weights come from, if it is still there."""
    seen: set[Path] = set()
    while (start := spec.modules[name].init_from) is not None:
        folder = Path(start).resolve()
        if folder in seen:
            return None
        seen.add(folder)
        if is_hugging_face(folder):
            return _opened(folder, spec.modules[name].model.kind)
        try:
            spec = open_checkpoint(folder, None).spec
        except NoCheckpoint:
            return None
        if name not in spec.modules:
            return None
    return None


def _opened(folder: Path, kind: str) -> WeightSource | None:
    try:
        if not has_weights(folder):
            return None
        config = read_config(folder)
        part, headers = part_of(config, kind), read_headers(folder)
    except (ConfigError, FilesError):
        return None
    tensors = {
        inner: (name, header)
        for name, header in headers.items()
        if (inner := part.inner_name(name)) is not None and header.dtype in TORCH
    }
    return WeightSource(folder, config, part, tensors) if tensors else None


def whole_config(
    found: Architecture, sources: Mapping[str, WeightSource | None], dtype: str, seq: int
) -> Config:
    """Return what is written for an architecture whose tensors have mainly one type."""
    config = dict(found.config)
    inner = {name: PARTS.get(part.family.kind, "") for name, part in found.parts.items()}
    nested = {name: key for name, key in inner.items() if key in config}
    for name, part in found.parts.items():
        source, key = sources[name], nested.get(name)
        ours = config if key is None else config[key]
        defaults = {}
        if part.family.kind in ("decoder", "hybrid"):
            defaults = {"max_position_embeddings": seq, **_NO_TOKENS}
        made = defaults | merged(ours, None if source is None else source.part.config)
        config = made if key is None else {**config, key: {**made, "dtype": dtype}}
    if nested and (source := sources["language"]) is not None:
        said = {key: value for key, value in source.config.items() if key not in _all(config)}
        config = merged(config, said)
    return {"architectures": [found.name], **config, "dtype": dtype}


def merged(config: Config, base: Config | None) -> Config:
    """Return a configuration with what else one of the same type says."""
    if base is None or base.get("model_type") != config["model_type"]:
        return config
    return {key: value for key, value in base.items() if key not in _OUTDATED} | config


def _all(config: Config) -> set[str]:
    """Return the keys of the parts: beside them, old versions said the same."""
    return {key for part in PARTS.values() for key in config.get(part, {})} - {"model_type"}


@dataclass(frozen=True, slots=True)
class Companions:
    """Files to copy and files to write, by name; `notes` are what a user should know of them."""

    copied: Mapping[str, Path]
    written: Mapping[str, Config] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def companions_of(
    spec: Spec, names: Iterable[str], sources: Mapping[str, WeightSource | None], config: Config
) -> Companions:
    """Return what stands beside the weights of modules, whose `config.json` is `config`.

    The folders that the data name come before those that the weights came from.
    """
    found: dict[str, Path] = {}
    for name in names:
        source, data = sources[name], spec.data
        folders = [] if source is None else [source.folder]
        if name != "language":
            own = processor_folder(spec, name)
        else:
            own = Path(data.tokenizer) if isinstance(data, WebdatasetData) else None
        folders = folders if own is None else [own, *folders]
        for each in _OF_TEXT if name == "language" else _OF_IMAGES:
            known = (folder / each for folder in folders if (folder / each).is_file())
            if (path := next(known, None)) is not None:
                found[each] = path
    if config["model_type"] != llava.MODEL_TYPE or TOKENIZER not in found:
        return Companions(found)
    return _of_llava(found, config)


def _of_llava(found: dict[str, Path], config: Config) -> Companions:
    """Return the files of a LLaVA, whose processor must know the rows of an image.

    A folder of a tower by itself does not say them: it has no text, or that of SigLIP or CLIP.
    """
    theirs = _read(found[PROCESSOR]) if PROCESSOR in found else {}
    if theirs.get("processor_class") == _LLAVA:
        return Companions(found)
    token, folder = config["image_token_index"], found[TOKENIZER].parent
    try:
        text = token_text(folder, token)
    except TokenizerError:
        text = None
    if text is None:
        note = (
            f"token {token} stands for images, and the tokenizer in {folder} has no such token: "
            "transformers makes no inputs with images until it has (docs/worked-example.md)"
        )
        return Companions(found, notes=(note,))
    strategy = config["vision_feature_select_strategy"]
    ours = {
        "processor_class": _LLAVA,
        "image_token": text,
        "patch_size": config["vision_config"]["patch_size"],
        # `default` takes the class token away again.
        "num_additional_image_tokens": int(strategy == "default"),
        "vision_feature_select_strategy": strategy,
    }
    if isinstance(images := theirs.get("image_processor"), dict):
        ours["image_processor"] = images
    copied = {name: path for name, path in found.items() if name != PROCESSOR}
    return Companions(copied, {PROCESSOR: ours})


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
