"""The Hugging Face folders from which a run's weights came, and what an export keeps of them.

Decides: that the source of a module is what `init_from` names, through runs that started from runs;
which settings of a source's `config.json` an export keeps, such as token ids, and which would
contradict the weights; which other files it copies: tokenizer, image processor, generation config.
Relies on: paths in specs, relative to the current folder; `hugging_face.architectures` for the
configurations of models; names and keys of files as written by transformers 4 and 5.
Leaves: the choice of what to export to `export_plan`, copying and writing to `export`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch

from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
from mimo_launch.hugging_face.architectures import Architecture
from mimo_launch.hugging_face.families.llava import LLAVA
from mimo_launch.hugging_face.families.pixtral import PIXTRAL
from mimo_launch.hugging_face.folder import (
    Config,
    ConfigError,
    FilesError,
    TensorHeader,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.hugging_face.integers import AWQ, CT4, CT8, GPTQ
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.quantized import FP8, MXFP4, read_tensors
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.rotary import dynamic_as_in
from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    TOKENIZER,
    VIDEO_PREPROCESSOR,
    TokenizerError,
)
from mimo_launch.processors.recipes import processor_folder
from mimo_launch.processors.tokenizer import token_text
from mimo_launch.spec.files import read_json
from mimo_launch.spec.spec import Model, Spec, UserData

# The dtypes of exported tensors, by their dtypes in the source files.
TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    FP8: torch.bfloat16,
    **dict.fromkeys((MXFP4, GPTQ, AWQ, CT4, CT8), torch.bfloat16),
}
# Dtypes of tensors that are copied unchanged.
WHOLE_NUMBERS = {"I64": torch.int64}
# Tensors of any model that are left out by rule, because they can be derived from others.
_DERIVED = re.compile(r"(inv_freq|position_ids|^lm_head\.weight)$")
# Keys of older transformers versions that have a newer equivalent, per-layer settings, and formats
# of weights that are not kept.
_OUTDATED = {
    "architectures", "torch_dtype", "rope_theta", "rope_scaling", "layer_types",
    "transformers_version", "quantization_config",
}  # fmt: skip
# Without a source, the special tokens are unknown; transformers would use Llama's ids.
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Files that users of a model need unchanged; a model has some of them.
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
_OF_IMAGES = (PROCESSOR, PREPROCESSOR, VIDEO_PREPROCESSOR)
# The voices of a Qwen2.5-Omni, without which transformers does not load one.
_OF_SPEECH = ("spk_dict.pt",)
_LLAVA = "LlavaProcessor"


@dataclass(frozen=True)
class WeightSource:
    """The part of a Hugging Face folder that a module started from.

    `config` is the configuration of the whole folder; `tensors` maps the names of the part's family
    to the names in the files and the headers.
    """

    folder: Path
    config: Config
    part: Part
    tensors: Mapping[str, tuple[str, TensorHeader]]

    @classmethod
    def in_folder(cls, folder: Path, kind: str) -> "WeightSource | None":
        """Return the part of a folder for a kind of module, if it holds weights of that kind."""
        try:
            if not has_weights(folder):
                return None
            config = read_config(folder)
            part, headers = part_of(config, kind), read_tensors(folder)
        except (ConfigError, FilesError):
            return None
        known = TORCH | WHOLE_NUMBERS
        tensors = {
            inner: (name, header)
            for name, header in headers.items()
            if (inner := part.inner_name(name)) is not None and header.dtype in known
        }
        has_weights_of_ours = any(header.dtype in TORCH for _, header in tensors.values())
        return cls(folder, config, part, tensors) if has_weights_of_ours else None

    def dtype(self, inner: str | None) -> torch.dtype:
        """Return the dtype of a tensor in the source; the most frequent dtype for any other."""
        there = None if inner is None else self.tensors.get(inner)
        found = None if there is None else TORCH.get(there[1].dtype)
        return self._usual_dtype if found is None else found

    @cached_property
    def _usual_dtype(self) -> torch.dtype:
        known = (header.dtype for _, header in self.tensors.values() if header.dtype in TORCH)
        return TORCH[Counter(known).most_common(1)[0][0]]

    def unused(self, model: Model) -> Iterator[tuple[str, str, TensorHeader]]:
        """Yield the tensors that our model does not use: name in the family, in the files, header.

        The tower of a LLaVA has layers after the one that outputs the rows.
        """
        for inner, (name, header) in self.tensors.items():
            if self.part.is_ignored(name, model) and not _DERIVED.search(inner):
                yield inner, name, header


def source_of(spec: Spec, name: str) -> WeightSource | None:
    """Return the folder from which a module's weights came, if it still exists."""
    seen: set[Path] = set()
    while (start := spec.modules[name].init_from) is not None:
        folder = Path(start).resolve()
        if folder in seen:
            return None
        seen.add(folder)
        if is_hugging_face(folder):
            return WeightSource.in_folder(folder, spec.modules[name].model.kind)
        try:
            spec = open_checkpoint(folder, None).spec
        except NoCheckpoint:
            return None
        if name not in spec.modules:
            return None
    return None


def whole_config(
    found: Architecture, sources: Mapping[str, WeightSource | None], dtype: str, seq: int
) -> Config:
    """Return the configuration to write for an architecture; `dtype` is the main tensor dtype."""
    config = dict(found.config)
    for name, part in found.parts.items():
        source, path = sources[name], found.where.get(name, ())
        defaults = {}
        if part.family.kind in ("decoder", "hybrid"):
            defaults = {"max_position_embeddings": seq, **_NO_TOKENS}
        ours = reduce(getitem, path, config)
        base = None if source is None else source.part.config
        if source is not None and found.where and not path:
            # Settings of the text are those of the whole.
            base = source.config
        if base is not None and base.get("model_type") == ours["model_type"]:
            # Its dropouts are those of the folder, which may leave them to its class.
            theirs = part.family.random_by_default
            ours = {key: each for key, each in ours.items() if key not in theirs}
        made = defaults | merged(ours, base)
        config = _with(config, path, {**made, "dtype": dtype} if path else made)
    if found.where and (source := sources["language"]) is not None:
        # Old versions repeat keys of the parts at the top level.
        parts = (reduce(getitem, path, config) for path in found.where.values())
        of_parts = {key for part in parts for key in part} - {"model_type"}
        rest = {key: value for key, value in source.config.items() if key not in of_parts}
        config = merged(config, rest)
    return {"architectures": [found.name], **_without_other_words(config, found), "dtype": dtype}


def _without_other_words(config: Config, found: Architecture) -> Config:
    """Return a configuration without settings of sources that would change one of its parts.

    These are other words for settings that we write, such as `block_ff_dim` of a published LFM2.
    """
    if _says_the_same(config, found):
        return config
    for path in dict.fromkeys(((), *found.where.values())):
        ours, there = reduce(getitem, path, found.config), reduce(getitem, path, config)
        kept = {
            key: value
            for key, value in there.items()
            if key in ours or _says_the_same(_with(found.config, path, {**ours, key: value}), found)
        }
        config = _with(config, path, kept)
    return config


def _says_the_same(config: Config, found: Architecture) -> bool:
    """Return whether the parts of a configuration are those of an architecture."""
    try:
        pairs = [(part_of(config, part.family.kind), part) for part in found.parts.values()]
        return all(
            one.keys() == other.keys() and one.not_computed() == other.not_computed()
            for one, other in pairs
        )
    except ConfigError:
        return False


def _with(config: Config, path: tuple[str, ...], inner: Config) -> Config:
    """Return a configuration with `inner` at a path of keys."""
    if not path:
        return inner
    return {**config, path[0]: _with(config[path[0]], path[1:], inner)}


def merged(config: Config, base: Config | None) -> Config:
    """Return a configuration with the other keys of `base`, if `base` has the same type.

    Nested configurations are merged in the same way.
    """
    if base is None or base.get("model_type") != config["model_type"]:
        return config
    inside = {
        key: merged(value, base[key])
        for key, value in config.items()
        if isinstance(value, dict) and "model_type" in value and isinstance(base.get(key), dict)
    }
    kept = {key: value for key, value in base.items() if key not in _OUTDATED}
    return kept | config | inside | dynamic_as_in(base, config)


@dataclass(frozen=True, slots=True)
class Companions:
    """Files to copy and files to write, by name; `notes` are for the user."""

    copied: Mapping[str, Path]
    written: Mapping[str, Config] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def companions_of(
    spec: Spec, names: Iterable[str], sources: Mapping[str, WeightSource | None], config: Config
) -> Companions:
    """Return the files to put next to the weights of modules; `config` is their `config.json`.

    Folders that the spec's data names take precedence over the sources of the weights.
    """
    found: dict[str, Path] = {}
    for name in names:
        source, data = sources[name], spec.data
        folders = [] if source is None else [source.folder]
        if name != "language":
            own = processor_folder(spec, name)
        else:
            own = Path(data.tokenizer) if isinstance(data, UserData) else None
        folders = folders if own is None else [own, *folders]
        for each in _OF_TEXT if name == "language" else (*_OF_IMAGES, *_OF_SPEECH):
            known = (folder / each for folder in folders if (folder / each).is_file())
            if (path := next(known, None)) is not None:
                found[each] = path
    # A Pixtral tower has its own processor, not LLaVA's.
    of_llava = config["model_type"] == LLAVA.model_type and (
        config["vision_config"].get("model_type") != PIXTRAL.model_type
    )
    if not of_llava or TOKENIZER not in found:
        return Companions(found)
    return _of_llava(found, config)


def _of_llava(found: dict[str, Path], config: Config) -> Companions:
    """Return the files of a LLaVA; its processor must know the rows of an image.

    The folder of a single tower lacks such a processor: it has no text part, or SigLIP's or CLIP's.
    """
    theirs: Any = {}
    if PROCESSOR in found:
        with suppress(OSError, ValueError):
            theirs = read_json(found[PROCESSOR])
    if not isinstance(theirs, dict):
        theirs = {}
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
        # `default` removes the class token again.
        "num_additional_image_tokens": int(strategy == "default"),
        "vision_feature_select_strategy": strategy,
    }
    if isinstance(images := theirs.get("image_processor"), dict):
        ours["image_processor"] = images
    copied = {name: path for name, path in found.items() if name != PROCESSOR}
    return Companions(copied, {PROCESSOR: ours})
