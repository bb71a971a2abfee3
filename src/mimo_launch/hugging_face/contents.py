"""The contents of a Hugging Face folder in our terms: modules, their sizes, tensors and types.

Decides: what is reported of a folder, and which keys of a model need not be written.
Relies on: `config.json` and the headers of the files; only `repeats` reads samples of tensors.
Leaves: showing it to `cli.inspect`.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.hugging_face import accounts, repeats
from mimo_launch.hugging_face.families.own import READS
from mimo_launch.hugging_face.folder import (
    ADAPTER,
    CONFIG,
    Config,
    ConfigError,
    TensorHeader,
    has_adapter,
    has_weights,
    read_config,
    section,
    weight_files,
)
from mimo_launch.hugging_face.not_read import NAMES, lost, not_read
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import parts_of
from mimo_launch.hugging_face.settings import value_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.images import read_processor, read_recipe
from mimo_launch.processors.sounds import other_frames
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.load import model_from_data
from mimo_launch.spec.spec import Model

# Keys for the placeholder token of a row, by the name of the tower, and sections of whole models
# that have them, if not the top level or the tower's own.
_TOKENS = {
    "vision": ("image_token_index", "image_token_id", "img_context_token_id"),
    "audio": ("audio_token_id", "audio_token_index"),
}
_INNER = ("thinker_config", "vlm_config")
_NO_ADAPTER = f"{ADAPTER}: an adapter, which `transformers` adds to the weights; merge it first"


@frozen(kw_only=True)
class Module:
    """One module of a folder: its name and kind in a spec, keys of `model`, and its tensors.

    `not_computed` are settings, as `key: value`, that our model does not have; if there are any,
    `keys` and tensors are left out. `placeholder` is the token for its rows, if the folder names
    one; `reads` are the modules that it takes rows from; `video` is the optional key of `model`
    that lets it read videos. `depths` counts the depths of multi-token prediction that the optional
    key `mtp` reads. `images` describes what its processor makes of an image of shards, if that is
    several images or not supported; `clips` says why its frames of clips are not ours. `untied` is
    as in `Part`; `missing` are ends and layers that the files lack.
    """

    name: str
    model_type: str
    kind: str
    keys: Mapping[str, Any]
    not_computed: tuple[str, ...]
    tensors: int
    parameters: int
    placeholder: int | None = None
    reads: tuple[str, ...] = ()
    video: Mapping[str, Any] | None = None
    depths: int = 0
    images: str | None = None
    clips: str | None = None
    untied: bool = False
    missing: tuple[str, ...] = ()


@frozen
class Contents:
    """A folder: its `model_type`, modules, files, and elements by type (`BF16`).

    `unread` describes what belongs to none of our modules; `incomplete` names modules that folders
    of this type have, and that are refused in this one. `left_out` are tensors that every module
    leaves out on purpose, with the reason; `unknown` are tensors that no module knows, which
    prevent a start.
    """

    folder: Path
    model_type: str
    modules: tuple[Module, ...]
    files: tuple[str, ...]
    dtypes: Mapping[str, int]
    unread: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def left_out_by_reason(self) -> dict[str, list[str]]:
        """Names of tensors that are left out, by the reason."""
        found: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            found.setdefault(why, []).append(name)
        return found

    @property
    def parameters(self) -> int:
        """Number of elements in all files."""
        return sum(self.dtypes.values())


@frozen
class _Folder:
    """Data that the parts of a folder share: settings, tensors, and what becomes of images."""

    folder: Path
    config: Config
    headers: Mapping[str, TensorHeader]
    images: str | None

    def module(self, part: Part, model: Model | None, own: Collection[str]) -> Module:
        """Return a part as a module, with its `own` tensors. Raises: ConfigError."""
        mine = {name: header for name, header in self.headers.items() if name in own}
        family, not_computed, keys = part.family, part.not_computed(), _keys_of(part)
        reads: list[str] = []
        depths = 0
        if model is not None:
            depths = part.depths_among(
                {name for each in self.headers if (name := part.inner_name(each))}, model
            )
            if (kind := kind_of(model)).reading.takes_rows:
                # The weights that read rows are named after the modules that make these rows.
                named = [name.removeprefix(READS) for name in mine if name.startswith(READS)]
                reads = [LANGUAGE] if kind.computes_loss else [x.partition(".")[0] for x in named]
        needed = _needed(family.kind, keys)
        if keys and (training := part.training()):
            needed["moe"] = {**needed["moe"], **training}
        name = NAMES.get(family.kind, family.kind)
        inner = (section(self.config, each) for each in _INNER)
        around = (*inner, self.config, family.whole(part.config))
        tokens = (each.get(key) for each in around for key in _TOKENS.get(name, ()))
        return Module(
            name=name,
            model_type=family.model_type,
            kind=family.kind,
            keys=needed,
            not_computed=not_computed,
            tensors=len(mine),
            parameters=sum(header.numel for header in mine.values()),
            placeholder=next((each for each in tokens if isinstance(each, int)), None),
            reads=tuple(dict.fromkeys(reads)),
            video=None if not_computed else part.video(),
            depths=depths,
            images=self.images if keys and family.is_vision else None,
            clips=None if model is None else _clips(self.folder, model),
            untied=part.untied,
            missing=() if model is None else tuple(accounts.lacking(part, model, self.headers)),
        )


def read_contents(folder: Path) -> Contents:
    """Return the contents of a folder. Raises: ConfigError; FilesError."""
    config = read_config(folder)
    files = tuple(weight_files(folder)) if has_weights(folder) else ()
    headers = read_tensors(folder) if files else {}
    dtypes = Counter[str]()
    for header in headers.values():
        dtypes[header.dtype] += header.numel
    model_type = str(config.get("model_type"))
    around = _Folder(folder, config, headers, _images(folder))
    parts = [repeats.as_stored(part, folder, headers) for part in parts_of(config)]
    pairs = [(part, _model_of(part)) for part in parts]
    mine = [
        set[str]() if model is None else accounts.taken(part, model, headers)
        for part, model in pairs
    ]
    rest = sorted(headers.keys() - set[str]().union(*mine))
    why, unknown = accounts.left_out(pairs, rest)
    return Contents(
        folder,
        model_type,
        tuple(
            around.module(part, model, own) for (part, model), own in zip(pairs, mine, strict=True)
        ),
        files,
        dict(dtypes),
        (*not_read(config), *((_NO_ADAPTER,) if has_adapter(folder) else ())),
        why,
        tuple(unknown),
        tuple(lost(config)),
    )


def _images(folder: Path) -> str | None:
    """Return what the image processor of a folder makes of an image, if that is worth reporting."""
    try:
        has_one = bool(read_processor(folder))
    except ProcessorError:
        return None
    try:
        cut = read_recipe(folder).cut if has_one else None
    except ProcessorError as error:
        return f"images of shards are not read: {error}"
    if cut is None:
        return None
    height, width = cut.tile
    sides = f"{'about ' * cut.whole_first}{width} x {height} pixels"
    if cut.most == 1:
        return f"an image of shards becomes one of {sides}"
    order = "all of it, then tiles" if cut.whole_first else "tiles, then all of it"
    return f"an image of shards becomes {cut.fewest} to {cut.most} of {sides}: {order}"


def _clips(folder: Path, model: Model) -> str | None:
    """Return why the folder's frames of clips are not those of a model that reads ours."""
    if (clips := kind_of(model).clips) is None:
        return None
    try:
        found = other_frames(folder, clips)
    except ProcessorError as error:
        return f"clips are not read: {error}"
    return None if found is None else f"clips are not read: {found}"


def _keys_of(part: Part) -> dict[str, Any]:
    """Return the keys of a part, none if it is not computed. Raises: ConfigError."""
    keys = {} if part.not_computed() else part.keys()
    if keys and not part.family.norms_patches:
        keys["final_norm"] = False
    return keys


def _model_of(part: Part) -> Model | None:
    """Return a part as our model, None if it is not computed. Raises: ConfigError."""
    if not (keys := _keys_of(part)):
        return None
    try:
        # With lists, because error messages show values as a spec writes them.
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()}
        return model_from_data({"kind": part.family.kind, **plain})
    except ValueError as error:
        raise ConfigError(f"in {CONFIG}, {error}") from error


def _needed(kind: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys without those that have their default value, in sections as well."""
    kept = dict(keys)

    def is_default(rest: Mapping[str, Any], key: str) -> bool:
        try:
            return bool(value_of(model_from_data({"kind": kind, **rest}), key) == keys[key])
        except ValueError:  # The key has no default.
            return False

    for key, value in keys.items():
        if is_default(rest := {name: each for name, each in kept.items() if name != key}, key):
            kept = rest
            continue
        for inner in value if isinstance(value, dict) else ():
            section = {name: each for name, each in kept[key].items() if name != inner}
            if is_default({**kept, key: section}, key):
                kept[key] = section
    return kept
