"""What an export writes: its folders, their configurations and tensors, decided before any byte.

Decides: which folders there are, types of tensors, and every reason why a module cannot be written.
Relies on: `layout.hugging_face` for architectures and names, `sources` for where weights came from.
Leaves: reading, writing and renaming to `export`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from mimo_launch.layout.hugging_face.architectures import (
    exported_model,
    family_that_is,
    obstacles,
    with_base,
)
from mimo_launch.layout.hugging_face.family import Family, Place
from mimo_launch.layout.hugging_face.folder import Config
from mimo_launch.layout.tokens import vocab_size
from mimo_launch.spec.model import Model, Spec
from mimo_launch.train.checkpoint.finding import Checkpoint, prefix_of
from mimo_launch.train.export.sources import Source, source_of
from mimo_launch.train.export.tensors import FileTensor, file_tensors

DType = Literal["auto", "source", "bf16", "fp16", "fp32", "fp64"]
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
PROJECTOR = "projector."
# Read as it is by whoever uses a model; which of them there are depends on the model.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
GENERATION = "generation_config.json"


class CannotExport(Exception):
    """The run cannot be written as asked; `reasons` are all of them, one line each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """A folder to be written: `where` below the target, `""` for the target itself.

    `projector` are tensors of a file of their own, `projector_config` says what they compute.
    `copied` are files that are taken over.
    """

    where: str
    modules: tuple[str, ...]
    config: Config
    tensors: tuple[FileTensor, ...]
    projector: tuple[FileTensor, ...] = ()
    projector_config: dict[str, Any] = field(default_factory=dict)
    copied: tuple[Path, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.num_bytes for each in (*self.tensors, *self.projector))


@dataclass(frozen=True)
class Exporter:
    """Plans the folders of one checkpoint."""

    checkpoint: Checkpoint
    dtype: DType = "auto"

    @property
    def spec(self) -> Spec:
        """The spec of the run."""
        return self.checkpoint.spec

    def folders(self, modules: Sequence[str]) -> list[FolderPlan]:
        """Return the folders to be written: those of `modules`, or of everything if there are none.

        Raises: CannotExport with every reason.
        """
        reasons = [
            f"there is no module `{name}`; there are {', '.join(self.spec.modules)}"
            for name in modules
            if name not in self.spec.modules
        ]
        if self.dtype == "source":
            reasons += [
                f"the source of `{name}` is not known: its `init_from` leads to no folder here"
                for name in modules or self.spec.modules
                if name in self.spec.modules and source_of(self.spec, name) is None
            ]
        if not reasons:
            names = tuple(modules) or tuple(self.spec.modules)
            models = {name: self._model(name) for name in names}
            reasons = [
                f"`{name}` is {reason}"
                for name, model in models.items()
                if family_that_is(model) is None
                for reason in obstacles(model) or ["of a kind that transformers does not have"]
            ]
        if reasons:
            raise CannotExport(reasons)
        if len(self.spec.modules) == 1 and not modules:
            return [self._folder("language", "")]
        return [self._folder(name, name) for name in names]

    def _folder(self, name: str, where: str) -> FolderPlan:
        """Return the folder of one module. Raises: ValueError if a tensor has no place."""
        model, source = self._model(name), source_of(self.spec, name)
        family = family_that_is(model)
        if family is None:
            raise ValueError(f"`{name}` is no architecture")
        segments = self.checkpoint.segments(name)
        ends = {key: shape for key, shape in segments.items() if key.startswith(PROJECTOR)}
        dtype_of = self._dtypes(model, family, source)
        tensors = file_tensors(
            {key: shape for key, shape in segments.items() if key not in ends},
            lambda key: family.place(key, model),
            dtype_of,
            prefix=prefix_of(name),
            vocab=vocab_size(self.spec),
        )
        plain = file_tensors(ends, Place, dtype_of, prefix=prefix_of(name))
        return FolderPlan(
            where,
            (name,),
            self._config(family, model, source, tensors),
            tuple(tensors),
            tuple(plain),
            _projector_config(model, ends) if ends else {},
            tuple(self._copied(name, source)),
        )

    def _model(self, name: str) -> Model:
        return exported_model(self.spec, name, vocab_size(self.spec))

    def _dtypes(
        self, model: Model, family: Family[Any], source: Source | None
    ) -> Callable[[str], torch.dtype]:
        """Return what gives the type of a segment."""
        if self.dtype in TORCH:
            return lambda name: TORCH[self.dtype]
        if source is None:
            return lambda name: TORCH[self.spec.train.precision]
        return lambda name: source.dtype(family.place(name, model).name)

    def _config(
        self,
        family: Family[Any],
        model: Model,
        source: Source | None,
        tensors: Sequence[FileTensor],
    ) -> Config:
        """Return `config.json`, with what the source says besides."""
        sizes = [(each.num_bytes, each.dtype) for each in tensors]
        main = max({dtype for _, dtype in sizes}, key=lambda d: sum(n for n, x in sizes if x == d))
        config = {
            **({"architectures": [family.architecture]} if family.architecture else {}),
            **family.config(model),
            "dtype": str(main).removeprefix("torch."),
        }
        defaults = {}
        if model.kind == "decoder":
            defaults = {"max_position_embeddings": self.spec.batch.seq, **_NO_TOKENS}
        return with_base(config, None if source is None else source.config, defaults)

    def _copied(self, name: str, source: Source | None) -> list[Path]:
        """Return the files that are taken over from where the module came from."""
        if source is None:
            return []
        names = (*TOKENIZER, GENERATION) if name == "language" else TOKENIZER
        return [path for each in names if (path := source.folder / each).is_file()]


# Without a source no token is known to begin or end a text; transformers would take ids of Llama.
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _projector_config(model: Any, segments: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return what `projector.json` says."""
    first, *_ = (shape for shape in segments.values() if len(shape) > 1)
    last = [shape for shape in segments.values() if len(shape) > 1][-1]
    return {
        "projector": model.projector,
        "activation": "gelu" if model.projector == "mlp" else None,
        "patches_per_row": model.patches_per_row,
        "in_features": first[1],
        "out_features": last[0],
    }
