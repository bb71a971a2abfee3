"""The tensors of a file to write, and the segments of a checkpoint from which they are made.

Decides: shapes in the files, that padding rows of the vocabulary are left out, and that every
segment of a module has its place and every row of a file its segment. Layers and norms after the
layer that outputs the rows are copied from the source, so that an import and an export return the
same folder; without a source, an identity norm is written.
Relies on: a family's `place`; shapes as saved; `architectures.says` to check that the whole is
still our model.
Leaves: reading and writing to `export`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mimo_launch.checkpoint.boxes import Box
from mimo_launch.export.original_folders import TORCH, WHOLE_NUMBERS, WeightSource
from mimo_launch.hugging_face.architectures import Architecture, says
from mimo_launch.hugging_face.folder import TensorHeader
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.packed import PackedRows
from mimo_launch.spec.encoders import TransformerEncoder
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.spec import Model

# Segments of a decoder with a row per token.
VOCABULARY = ("embedding.weight", "head.weight", "per_layer.table.weight")
# The settings of the copied layers: in the configurations of the tower and the model around it.
_IN_TOWER = (
    "vision_use_head", "num_hidden_layers", "use_mean_pooling", "use_mask_token", "mlp_ratio",
    "num_cls_tokens", "num_registers", "summary_idxs", "video_temporal_patch_size",
    "feature_layer",
)  # fmt: skip
_AROUND = {
    "vision_feature_layer", "vision_feature_select_strategy", "video_temporal_patch_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavedUpdate:
    """The low-rank update of a saved weight, `scale * up down`: names and shapes of both."""

    down: tuple[str, tuple[int, ...]]
    up: tuple[str, tuple[int, ...]]
    scale: float


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The part of a file's tensor at a `place`: the first rows of a saved tensor of shape `saved`.

    `shape` is the shape of the part as saved, without rows that are left out. `update` is added.
    `base` says how the run quantized its values, which then differ from those of `init_from`.
    """

    name: str
    saved: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    update: SavedUpdate | None = None
    base: QuantizedBase | None = None

    def boxes(self, tensor: Tensor) -> list[Box]:
        """Return boxes of the part as saved: a view of the file's tensor, or new tensors.

        Rows in runs or by channels, and a weight with an update, are read into new tensors; see
        `put`.
        """
        at = self.place
        apart = at.runs is not None or at.channels > 0 or self.update is not None
        wide = torch.promote_types(tensor.dtype, torch.float32)
        dtype = tensor.dtype if self.update is None else wide
        into: Any = torch.empty(self.shape, dtype=dtype) if apart else self._view(tensor)
        if self.base is not None:
            into = PackedRows.empty(self.base, *self.shape)
        found = [Box(self.name, self.saved, (0,) * len(self.saved), into, counted=False)]
        if self.update is not None:
            for name, shape in (self.update.down, self.update.up):
                values = torch.empty(shape, dtype=wide)
                found.append(Box(name, shape, (0,) * len(shape), values, counted=False))
        return found

    def put(self, read: Mapping[str, Any], tensor: Tensor) -> None:
        """Copy the part, `read` by the names of its boxes, into the file's tensor."""
        values, at = read[self.name], self.place
        if self.base is not None:
            values = values.values()
        if (update := self.update) is not None:
            values = values + update.scale * (read[update.up[0]] @ read[update.down[0]])
        if at.channels:
            values = at.alternating(values)
        if at.runs is None:
            self._view(tensor).copy_(values)
            return
        for rows, there in at.runs.pieces(at.first_row, range(self.shape[0])):
            tensor[there] = values[rows.start : rows.stop]

    def _view(self, tensor: Tensor) -> Tensor:
        at = self.place
        if at.stacked is not None:
            found: Tensor = at.stacked.read(tensor, at.first_row, [range(x) for x in self.shape])
            return found
        if at.transposed:
            return tensor.mT.narrow(0, at.first_row, self.shape[0])
        if tensor.dim() == 0:
            return tensor.view(self.shape)
        num_rows = math.prod(self.shape) * tensor.shape[0] // tensor.numel()
        return tensor.narrow(0, at.first_row, num_rows).view(self.shape)


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a file: made of parts, or `copied` from a folder, by its name there.

    Without either, all elements have the value `filled`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[TensorPart, ...] = ()
    copied: tuple[Path, str, TensorHeader] | None = None
    filled: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def boxes(self, tensor: Tensor) -> list[Box]:
        """Return boxes of each part; most are views of `tensor`, which has this shape and dtype."""
        return [box for part in self.parts for box in part.boxes(tensor)]

    def fill(self, tensor: Tensor, values: Mapping[str, Tensor]) -> None:
        """Copy each part as saved, by its name, into `tensor`, which has this shape and dtype."""
        for part in self.parts:
            part.put(values, tensor)


def file_tensors(
    segments: Mapping[str, tuple[int, ...]],
    place: Callable[[str], Place],
    dtype_of: Callable[[str], torch.dtype],
    *,
    prefix: str,
    vocab: int | None = None,
    updates: Mapping[str, SavedUpdate] | None = None,
    bases: Mapping[str, QuantizedBase] | None = None,
) -> list[FileTensor]:
    """Return the tensors that hold all segments of a module, in the order of the segments.

    `segments` maps names to shapes; the names lack `prefix`, the module's prefix in the checkpoint.
    `vocab` is the number of tokens without padding; `updates` has the low-rank updates of segments,
    `bases` how segments were quantized.
    Raises: KeyError for a segment without a place;
    ValueError if the segments of a tensor do not fill it.
    """
    made: dict[str, FileTensor] = {}
    for name, saved in segments.items():
        at = place(name)
        words = vocab if name in VOCABULARY else None
        shape = saved if words is None else (words, *saved[1:])
        update, base = (updates or {}).get(name), (bases or {}).get(name)
        part = TensorPart(prefix + name, saved, shape, at, update, base)
        num_rows = shape[0] if at.num_rows is None else at.num_rows
        last = at.first_row + num_rows if at.runs is None else at.runs.whole(num_rows)
        whole = (last, *shape[1:])[:: -1 if at.transposed else 1]
        whole = whole if at.shape is None else at.shape
        known = made.get(at.name, FileTensor(at.name, whole, dtype_of(name)))
        if at.shape is None and not at.transposed:
            whole = (max(last, known.shape[0]), *shape[1:])
        made[at.name] = replace(known, shape=whole, parts=(*known.parts, part))
    for tensor in made.values():
        if sum(math.prod(part.shape) for part in tensor.parts) != math.prod(tensor.shape):
            raise ValueError(f"{tensor.name} {tensor.shape} is not filled by {tensor.parts}")
    return list(made.values())


def with_unused(
    found: Architecture,
    name: str,
    model: Model,
    source: WeightSource | None,
    dtype_of: Callable[[str | None], torch.dtype],
) -> tuple[Architecture, list[FileTensor]]:
    """Return an architecture, and its tensors that our encoder does not have.

    `dtype_of` maps their names in the source's family to dtypes, and None to the usual dtype.
    """
    part = found.parts[name]
    if source is not None and (
        source.part.family != part.family
        or source.config.get("model_type") != found.config["model_type"]
    ):
        source = None

    def unused(part: Part, source: WeightSource) -> list[FileTensor]:
        return [
            FileTensor(
                part.file_name(inner),
                header.shape,
                WHOLE_NUMBERS.get(header.dtype) or dtype_of(inner),
                copied=(source.folder, at, header),
            )
            for inner, at, header in source.unused(model)
        ]

    if not part.family.is_vision or len(found.where.get(name, ())) > 1:
        if source is None or not isinstance(model, TransformerEncoder):
            return found, []
        return found, unused(part, source)
    if source is not None:
        whole = _as_in_source(found, source)
        new = whole.parts[name]
        if says(new, model):
            return whole, unused(new, source)
    decided = "final_norm" in part.family.keys(part.config)
    if decided or kind_of(model).has_final_norm:
        return found, []
    places = {1.0: part.place("norm.weight", model), 0.0: part.place("norm.bias", model)}
    return found, [
        FileTensor(part.file_name(at.name), (model.hidden,), dtype_of(None), filled=value)
        for value, at in places.items()
        if at is not None
    ]


def of_other_parts(found: Architecture, source: WeightSource | None) -> Iterator[FileTensor]:
    """Yield the tensors of a source of the same architecture that belong to none of our modules."""
    if source is None or source.config.get("model_type") != found.config["model_type"]:
        return
    for name, header in read_tensors(source.folder).items():
        is_known = any(part.inner_name(name) is not None for part in found.parts.values())
        if not is_known and (dtype := (TORCH | WHOLE_NUMBERS).get(header.dtype)):
            place = (source.folder, name, header)
            yield FileTensor(name, header.shape, dtype, copied=place)


def _as_in_source(found: Architecture, source: WeightSource) -> Architecture:
    """Return an architecture with the layers of its tower's source."""
    config, key = dict(found.config), "vision_config"
    ours = config.get(key, config)
    theirs = {each: source.part.config[each] for each in _IN_TOWER if each in source.part.config}
    tower = {each: value for each, value in ours.items() if each not in _IN_TOWER} | theirs
    config = {**config, key: tower} if key in config else tower
    around = config.keys() & source.config.keys() & _AROUND
    config |= {each: source.config[each] for each in around}
    parts = {each: part_of(config, part.family.kind) for each, part in found.parts.items()}
    return replace(found, config=config, parts=parts)
