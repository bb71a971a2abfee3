"""The plan of an export: its folders, their configurations and tensors, before any byte is written.

Decides: the folders, the dtypes of tensors, and every reason why a module cannot be written.
Relies on: `hugging_face` for architectures and names, `original_folders` for the origin of weights.
Leaves: reading, writing and renaming to `export`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch

from mimo_launch.checkpoint.index import Checkpoint, prefix_of
from mimo_launch.export.original_folders import (
    Companions,
    WeightSource,
    companions_of,
    source_of,
    whole_config,
)
from mimo_launch.export.tensors import (
    FileTensor,
    SavedUpdate,
    file_tensors,
    of_other_parts,
    with_unused,
)
from mimo_launch.hugging_face.architectures import Architecture, Modules, alone, obstacles, together
from mimo_launch.hugging_face.family import OURS_OF_MTP
from mimo_launch.hugging_face.folder import Config
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.kinds.adapters import DOWN, UP
from mimo_launch.kinds.language import is_of_loss
from mimo_launch.kinds.module_weights import packed_weights
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import placeholder_id, vocab_size
from mimo_launch.layers.parallel_context import torch_type
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Model, Spec

DType = Literal["auto", "source", "bf16", "fp16", "fp32", "fp64"]
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


class CannotExport(Exception):
    """The run cannot be exported as requested: all reasons, one line each, and what can be."""

    def __init__(self, reasons: Sequence[str], instead: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons, self.instead = tuple(reasons), instead


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """A folder to write: `where` below the target, `""` for the target itself.

    `projector` has the tensors of a separate file; `projector_config` says what they compute.
    """

    where: str
    modules: tuple[str, ...]
    config: Config
    tensors: tuple[FileTensor, ...]
    projector: tuple[FileTensor, ...] = ()
    projector_config: dict[str, Any] = field(default_factory=dict)
    beside: Companions = field(default_factory=lambda: Companions({}))

    @property
    def num_bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(each.num_bytes for each in (*self.tensors, *self.projector))


@dataclass(frozen=True)
class Exporter:
    """Plans the folders of one checkpoint; with `in_memory`, names are those of loaded models."""

    checkpoint: Checkpoint
    dtype: DType = "auto"
    in_memory: bool = False

    @property
    def spec(self) -> Spec:
        """The spec of the run."""
        return self.checkpoint.spec

    @cached_property
    def sources(self) -> dict[str, WeightSource | None]:
        """The origin of each module's weights, if it is known and still exists."""
        return {name: source_of(self.spec, name) for name in self.spec.modules}

    @cached_property
    def modules(self) -> Modules:
        """The modules, with a vocabulary without padding."""
        spec = self.spec
        models = {name: module.model for name, module in spec.modules.items()}
        models["language"] = models["language"].model_copy(update={"vocab": vocab_size(spec)})
        tokens = {name: placeholder_id(spec, name) for name in spec.sources_of(LANGUAGE)}
        widths = {name: spec.row_width(name) for name in spec.encoders}
        widths |= dict.fromkeys(spec.generators, spec.row_width(LANGUAGE))
        sources = [each for each in self.sources.values() if each is not None]
        like = {each.part.family.model_type for each in sources}
        like |= {str(each.config.get("model_type")) for each in sources}
        language = self.sources[LANGUAGE]
        return Modules(
            models=models,
            tokens=tokens,
            widths=widths,
            like=frozenset(like),
            of_language="" if language is None else str(language.config.get("model_type")),
        )

    def folders(self, wanted: Sequence[str]) -> list[FolderPlan]:
        """Return the folders to write: one per module in `wanted`, or per module if it is empty.

        If `wanted` is empty and transformers has a model of all modules together, return one
        folder.
        Raises: CannotExport with every reason.
        """
        known = self.spec.modules
        names = [name for name in dict.fromkeys(wanted or known) if name in known]
        unknown = [name for name in dict.fromkeys(wanted) if name not in known]
        reasons = [
            f"there is no module `{name}`; the modules are {', '.join(known)}" for name in unknown
        ]
        whole = None if wanted else together(self.modules)
        found = {} if whole else self._alone(names)
        if reasons := reasons + self._reasons(names, found):
            raise CannotExport(reasons, self._instead(() if unknown else names, found))
        if whole:
            return [self._folder(whole, "")]
        return [self._folder(each, name) for name, each in found.items() if each]

    def _alone(self, names: Iterable[str]) -> dict[str, Architecture | None]:
        return {name: alone(self.modules, name) for name in names}

    def _reasons(
        self, names: Iterable[str], of_each: Mapping[str, Architecture | None]
    ) -> list[str]:
        """Return every reason why modules cannot be exported.

        `of_each` has the model of transformers that a module by itself is, or None; modules that
        are parts of a whole are not in it.
        """
        found = list[str]()
        for name in names:
            if self.dtype == "source" and self.sources[name] is None:
                where = "its `init_from` leads to no folder here"
                found.append(f"the source of `{name}` is not known: {where}")
            if self.spec.modules[name].quantize_base and name not in self.checkpoint.bases:
                found.append(f"the base of `{name}` was drawn from the seed: it had no `init_from`")
            if name in of_each and of_each[name] is None:
                kept = obstacles(self.modules.models[name]) or [_UNKNOWN]
                found += [f"`{name}` is {reason}" for reason in kept]
        return found

    def _instead(self, names: Sequence[str], of_each: Mapping[str, Architecture | None]) -> str:
        """Return what to write for an export that works.

        `names` are the modules to export, none if some are not known; `of_each` as in `_reasons`.
        """
        any_type, every = replace(self, dtype="auto"), self._alone(self.spec.modules)
        if names and not any_type._reasons(names, of_each):
            return "--dtype auto takes the type of training where no folder is known"
        if of_each and names and (whole := together(self.modules)) and not self._reasons(every, {}):
            return f"leave out --module: the whole run is a {whole.name}"
        for each, more in ((self, ""), (any_type, " --dtype auto")):
            if can := [name for name in every if not each._reasons([name], every)]:
                return f"{' '.join(f'--module {name}' for name in can)}{more} exports what can be"
        return "docs/families.md lists the models that can be exported"

    def _folder(self, found: Architecture, where: str) -> FolderPlan:
        """Return the folder of an architecture. Raises: ValueError if a tensor has no place."""
        tensors, projector = list[FileTensor](), list[FileTensor]()
        settings: dict[str, Any] = {}
        if found.where:
            tensors += of_other_parts(found, self.sources[LANGUAGE])
        for name in found.parts:
            model, source = self.modules.models[name], self.sources[name]
            found, unused = with_unused(found, name, model, source, partial(self._dtype, name))
            tensors += unused
            mine, ends = self._tensors(found, name)
            tensors += mine
            if ends:
                projector += ends
                matrices = [each.shape for each in ends if len(each.shape) > 1]
                keys = model.model_dump()  # Only encoders have a projector.
                settings = {
                    "projector": keys["projector"],
                    "activation": keys.get("projector_activation", "gelu"),
                    "patches_per_row": kind_of(model).tokens.per_row,
                    "in_features": matrices[0][1],
                    "out_features": matrices[-1][0],
                }
        num_bytes = Counter[torch.dtype]()
        for each in tensors:
            num_bytes[each.dtype] += each.num_bytes
        main = str(num_bytes.most_common(1)[0][0]).removeprefix("torch.")
        config = whole_config(found, self.sources, main, self.spec.batch.seq)
        beside = companions_of(self.spec, found.parts, self.sources, config)
        left_out = (
            f"`mtp` of `{name}` is left out: files of a {found.name} do not have "
            f"{'it' if depth == 0 else f'more than {depth}'}"
            for name, part in found.parts.items()
            if (depth := self._first_left_out(part, self.modules.models[name])) is not None
        )
        return FolderPlan(
            where,
            tuple(found.parts),
            config,
            tuple(tensors),
            tuple(projector),
            settings,
            replace(beside, notes=(*beside.notes, *left_out, *self._in_few_bits(found))),
        )

    def _in_few_bits(self, found: Architecture) -> Iterator[str]:
        """Yield a note on each module with a quantized base."""
        for name in found.parts:
            if base := self.spec.modules[name].quantize_base:
                yield f"`{name}` has the {base.kind} values of its base, plus its updates"

    def _first_left_out(self, part: Part, model: Model) -> int | None:
        """Return the first depth of multi-token prediction that files cannot hold, if any."""
        depths = range(kind_of(model).depths)
        return next(
            (n for n in depths if part.place(f"{OURS_OF_MTP}{n}.norm.weight", model) is None), None
        )

    def _tensors(self, found: Architecture, name: str) -> tuple[list[FileTensor], list[FileTensor]]:
        """Return the tensors of a module, and the tensors of a projector that has its own file."""
        model, part = self.modules.models[name], found.parts[name]
        segments = {
            key: shape
            for key, shape in self.checkpoint.segments(name).items()
            if not is_of_loss(f"{name}.{key}")  # No model of transformers has it.
        }
        updates = self._updates(name, segments)
        places = {key: part.place(key, model) for key in segments}
        # Leave out multi-token prediction that files cannot hold.
        places = {key: at for key, at in places.items() if at or not key.startswith(OURS_OF_MTP)}
        segments = {key: segments[key] for key in places}
        ends = {key: shape for key, shape in segments.items() if places[key] is None}

        def place(key: str) -> Place:
            at = places[key]
            if at is not None and self.in_memory:
                return part.loaded(key, at, model)
            return Place(key) if at is None else replace(at, name=part.file_name(at.name))

        dtype_of = self._dtypes(name, places)
        made = [
            file_tensors(
                {key: shape for key, shape in segments.items() if (key in ends) == is_end},
                place,
                dtype_of,
                prefix=prefix_of(name),
                vocab=vocab_size(self.spec) if kind_of(model).reads_tokens else None,
                updates=updates,
                bases=packed_weights(self.spec.modules[name]),
            )
            for is_end in (False, True)
        ]
        by_name = {each.name: each for each in made[0]}
        for theirs, ours in part.copies(model).items():
            copied = by_name[place(ours).name]
            dtype = self._dtype(name, theirs)
            made[0].append(replace(copied, name=part.file_name(theirs), dtype=dtype))
        return made[0], made[1]

    def _updates(self, name: str, segments: dict[str, tuple[int, ...]]) -> dict[str, SavedUpdate]:
        """Take an adapter's weights out of a module's segments; return updates by segment."""
        adapter, prefix = self.spec.modules[name].adapter, prefix_of(name)
        found: dict[str, SavedUpdate] = {}
        if adapter is None:
            return found
        for start in [each.removesuffix(DOWN) for each in segments if each.endswith(DOWN)]:
            down, up = ((prefix + n, segments.pop(n)) for n in (start + DOWN, start + UP))
            found[f"{start}weight"] = SavedUpdate(down, up, adapter.scale)
        return found

    def _dtypes(
        self, name: str, places: Mapping[str, Place | None]
    ) -> Callable[[str], torch.dtype]:
        """Return a function from segments to dtypes; `places` are places in the files to write."""
        model, source = self.modules.models[name], self.sources[name]

        def of_segment(key: str) -> torch.dtype:
            try:
                at = None if source is None else source.part.place(key, model)
            except KeyError:  # The source lacks the segment, which `init_partial` allows.
                at = None
            found = self._dtype(name, None if at is None else at.name)
            there = places[key]
            keeps = there is not None and there.at_least_fp32
            return torch.promote_types(found, torch.float32) if keeps else found

        return of_segment

    def _dtype(self, name: str, inner: str | None) -> torch.dtype:
        """Return the dtype of a module's tensor, by its name in the family of its source."""
        if self.dtype in TORCH:
            return TORCH[self.dtype]
        source = self.sources[name]
        return (
            torch_type(self.spec.train.numbers.computed) if source is None else source.dtype(inner)
        )


_UNKNOWN = "of a kind that transformers does not have"
