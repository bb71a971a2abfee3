"""A first declaration of a type that is not read: the nearest family, and what differs from it.

Decides: which family is nearest: the one that leaves the fewest tensors and settings of the folder
unexplained; which settings say nothing about a model.
Relies on: `registry` for families; a family reads a setting if another value of it changes the
model; `accounts` for tensors.
Leaves: the file to `draft_text`; the meaning of a new setting, and the proof, to the developer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face import accounts
from mimo_launch.hugging_face.families import own
from mimo_launch.hugging_face.family import Family
from mimo_launch.hugging_face.folder import (
    Config,
    ConfigError,
    TensorHeader,
    has_weights,
    reading_config,
)
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import FAMILIES, WHOLES
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.load import model_from_data

# Settings that no family reads, because they do not say what a model computes.
_SAYS_NOTHING = re.compile(
    r"^_|^(architectures|auto_map|model_type|torch_dtype|dtype|transformers_version|use_cache|"
    r"initializer_.*|.*_token_(id|index)|.*_token_ids|output_.*|return_dict|chunk_size_feed_forward|"
    r"id2label|label2id|problem_type|is_encoder_decoder|pruned_heads|tie_encoder_decoder|"
    r"max_position_embeddings|quantization_config|pretraining_tp|cross_attention_.*|"
    r"is_decoder|add_cross_attention|name_or_path|attn_implementation|gradient_checkpointing)$"
)
# A configuration as keys of our model, and what is refused of it.
_Meaning = tuple[dict[str, Any], tuple[str, ...]]
# How many families, those that leave the fewest settings unread, are compared by their tensors.
_MOST_COMPARED = 40
_NUMBER = re.compile(r"\.\d+\.")


@frozen(kw_only=True)
class Draft:
    """One part of a folder, and the family that is nearest to it.

    `section` is the place of its configuration, such as `text_config`; `architecture` the class
    that it names, if any; `prefix` comes before the names of its tensors. `new_settings` are read
    by no table of the family; `refused` are what the family refuses. `new_tensors` are names, with
    `*` for numbers, that it does not know, `absent` those that it needs and the folder lacks,
    `reshaped` those of another shape. `taken` counts the tensors that it knows,
    `alike` counts those of all layers once; `as_near` are the types of equally near families.
    """

    section: str
    model_type: str
    architecture: str
    family: Family
    prefix: str
    taken: int
    alike: int
    new_settings: Mapping[str, Any]
    refused: tuple[str, ...]
    new_tensors: tuple[str, ...]
    absent: tuple[str, ...]
    reshaped: tuple[str, ...]
    as_near: tuple[str, ...] = ()

    @property
    def unexplained(self) -> int:
        """How much the family does not explain."""
        tensors = 2 * (len(self.new_tensors) + len(self.absent) + len(self.reshaped))
        return tensors + len(self.new_settings) + len(self.refused)

    @property
    def is_far(self) -> bool:
        """Whether fewer tensors are as the family has them than not; those of layers count once."""
        return self.alike < len(self.new_tensors) + len(self.absent) + len(self.reshaped)


def drafts_of(folder: Path, config: Config) -> list[Draft]:
    """Return a draft for each part of a folder that no family reads. Raises: FilesError."""
    headers = read_tensors(folder) if has_weights(folder) else {}
    found = []
    for section, inner in _sections(config):
        if inner.get("model_type") in FAMILIES.keys() | WHOLES.keys():
            continue
        if (best := _nearest(section, inner, headers)) is not None:
            found.append(best)
    return found


def _sections(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yield the configurations that describe a model: with a width, or with layers."""
    inner = {key: each for key, each in config.items() if isinstance(each, dict)}
    parts = [(key, each) for key, each in inner.items() if key.endswith("_config")]
    if {"hidden_size", "num_hidden_layers", "d_model", "embed_dim"} & config.keys():
        yield path, config
    for key, each in parts:
        if key not in ("quantization_config", "generation_config"):
            yield from _sections(each, f"{path}.{key}" if path else key)


def _nearest(section: str, config: Config, headers: Mapping[str, TensorHeader]) -> Draft | None:
    """Return the draft from the nearest family; None if no family can read the configuration."""
    # A folder of one part is like a family that has folders of its own.
    candidates = (each for each in FAMILIES.values() if section or each.stands_alone)
    read = [each for family in candidates if (each := _Reading.of(family, config))]
    read.sort(key=lambda each: (each.unread, each.family.rank))
    found = [each.draft(section, config, headers) for each in read[:_MOST_COMPARED]]
    # Of equally near ones, the family that says least is the plainest.
    found.sort(
        key=lambda each: (
            each.unexplained,
            len(each.family.settings.table) + len(each.family.settings.rest),
        )
    )
    if not found:
        return None
    as_near = (each for each in found[1:] if each.unexplained == found[0].unexplained)
    return replace(found[0], as_near=tuple(each.family.model_type for each in as_near))


@frozen
class _Reading:
    """A configuration as a family reads it."""

    family: Family
    model: Any
    new: Mapping[str, Any]
    refused: tuple[str, ...]

    @classmethod
    def of(cls, family: Family, config: Config) -> "_Reading | None":
        """Return what a family reads; None if it cannot read the configuration."""
        if family in own.FAMILIES:
            return None
        try:
            keys, refused = _meaning(family, config)
            plain = {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()}
            model = model_from_data({"kind": family.kind, **plain})
            tuple(kind_of(model).layer(0).weights("layers.0"))
        except (ValueError, ZeroDivisionError):  # Beside a small width, a usual number of heads.
            return None
        asked = _asked(family, config)
        new = {
            key: value
            for key, value in config.items()
            if not _SAYS_NOTHING.match(key)
            and key not in asked
            and not _is_read(family, config, key, (keys, refused))
        }
        return cls(family, model, new, refused)

    @property
    def unread(self) -> int:
        """How many settings are not computed."""
        return len(self.new) + len(self.refused)

    def draft(self, section: str, config: Config, headers: Mapping[str, TensorHeader]) -> Draft:
        """Return the draft from this family."""
        needed = {place.name: shape for place, shape in self._needed()}
        prefix = _prefix(needed, headers)
        part = Part(family=self.family, config=config, prefixes=(prefix,))
        own_names = [each for each in headers if each.startswith(prefix[0])]
        there = {part.file_name(name): shape for name, shape in needed.items()}
        # `accounts` knows a bias of every layer; a layer of this model may have none.
        inside = {_starred(name) for name in there}
        taken = [
            name
            for name in accounts.taken(part, self.model, own_names)
            if _starred(name) == name or _starred(name) in inside
        ]
        unknown = [
            name
            for name in set(own_names).difference(taken)
            if not part.is_ignored(name, self.model)
        ]
        reshaped = (
            f"{name}: {list(headers[name].shape)}, not {list(shape)}"
            for name, shape in there.items()
            if name in headers and shape is not None and tuple(headers[name].shape) != shape
        )
        return Draft(
            section=section,
            model_type=str(config.get("model_type", section)),
            architecture=str(next(iter(config.get("architectures") or []), "")),
            family=self.family,
            prefix=prefix[0],
            taken=len(taken),
            alike=len({*map(_starred, taken)}),
            new_settings=self.new,
            refused=self.refused,
            new_tensors=_alike(unknown),
            absent=_alike(there.keys() - headers.keys()) if headers else (),
            reshaped=_alike(reshaped),
        )

    def _needed(self) -> Iterator[tuple[Place, tuple[int, ...] | None]]:
        """Yield the places of what layers hold, and their shapes in files; of one expert."""
        kind = kind_of(self.model)
        for number in range(self.model.layers):
            for weight in chain.from_iterable(kind.layer(number).weights(f"layers.{number}")):
                try:
                    name = weight.name.replace("{expert}", "0")
                    place = self.family.tensors.place(name, self.model)
                except LookupError:
                    continue
                is_whole = place.num_rows is None and place.stacked is None
                yield place, place.shape or (weight.shape if is_whole else None)


def _meaning(family: Family, config: Config) -> _Meaning:
    """Return our keys, and what is refused. Raises: ConfigError."""
    with reading_config():
        return family.keys(config), tuple(family.refusals(config))


def _other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, list):
        return [_other(each) for each in value] or [1]
    if isinstance(value, str):
        return f"{value}?"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return not value
    return value + 1


class _Noting(dict[str, Any]):
    """A configuration that notes the settings that are asked for."""

    asked: set[str]

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, and note it."""
        self.asked.add(key)
        return super().get(key, default)


def _asked(family: Family, config: Config) -> set[str]:
    """Return settings that a family asks for; not all, because it may make a copy first."""
    noting = _Noting({**family.defaults, **config})
    noting.asked = set()
    with reading_config():
        prepared = family.prepared(noting)
        if prepared is noting:
            family.settings.keys(noting)
    return noting.asked


def _is_read(family: Family, config: Config, key: str, meaning: _Meaning) -> bool:
    """Return whether another value of a setting means something else in a family."""
    value = config[key]
    # Sections are compared by themselves, and null says nothing.
    if isinstance(value, dict) or value is None:
        return True
    try:
        return _meaning(family, {**config, key: _other(value)}) != meaning
    except ConfigError:
        return True


def _prefix(needed: Iterable[str], headers: Iterable[str]) -> tuple[str, str]:
    """Return what comes before the names of a part in files, and what the family has there."""
    names, found = list(headers), Counter[tuple[str, str]]()
    for name in needed:
        for stands_for in ("", "model."):
            if not name.startswith(stands_for):
                continue
            rest = name.removeprefix(stands_for)
            ends = (each for each in names if each.endswith(f".{rest}") or each == rest)
            found.update({(each.removesuffix(rest), stands_for): 1 for each in ends})
    # Of equal ones the shorter, which leaves the family's own names as they are.
    return max(found, key=lambda pair: (found[pair], -len(pair[1])), default=("", ""))


def _alike(names: Iterable[str]) -> tuple[str, ...]:
    """Return names with `*` for their numbers, each once."""
    return tuple(dict.fromkeys(map(_starred, sorted(names))))


def _starred(name: str) -> str:
    return _NUMBER.sub(".*.", name)
