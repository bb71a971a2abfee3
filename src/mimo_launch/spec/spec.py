"""Defines the spec as frozen pydantic models: what a user may write, with types and defaults.

Decides: the whole spec, and how modules read each other; the reference page and the JSON Schema are
generated from here.
Relies on: `module` and `sections`; the names that most rooms need can be imported from here, too.
Leaves: checks of more than one key to `checks`.
"""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mimo_launch.spec.base import (
    LANGUAGE,
    ExpertGrid,
    Grid,
    LocalPath,
    MissingPartError,
    Ranks,
    Strict,
)
from mimo_launch.spec.data import (
    Data,
    DigitsData,
    SyntheticData,
)
from mimo_launch.spec.encoders import (
    AudioModel,
    TalkerModel,
)
from mimo_launch.spec.files_data import CustomData, FilesData
from mimo_launch.spec.hybrid import HybridModel
from mimo_launch.spec.language_models import DecoderModel, LanguageModel
from mimo_launch.spec.layers import RopeScaling
from mimo_launch.spec.media import Clips, Codes, Images, Videos
from mimo_launch.spec.module import CustomModel, Model, ModuleSpec
from mimo_launch.spec.optimizers import OptimizerSpec
from mimo_launch.spec.sections import (
    BatchSpec,
    CheckpointSpec,
    EvalSpec,
    LogSpec,
    NodesSpec,
    ScheduleSpec,
    TrainSpec,
)
from mimo_launch.spec.user_data import (
    CaptionTemplate,
    ChatTemplate,
    UserData,
    WebdatasetData,
)
from mimo_launch.spec.vit import VitModel

__all__ = [
    "MAX_MODULES",
    "MODULE_NAME",
    "AudioModel",
    "CaptionTemplate",
    "ChatTemplate",
    "Clips",
    "Codes",
    "CustomData",
    "CustomModel",
    "Data",
    "DecoderModel",
    "DigitsData",
    "ExpertGrid",
    "FilesData",
    "Grid",
    "HybridModel",
    "Images",
    "LanguageModel",
    "Model",
    "ModuleSpec",
    "RopeScaling",
    "Spec",
    "SyntheticData",
    "TalkerModel",
    "UserData",
    "Videos",
    "VitModel",
    "WebdatasetData",
]

MAX_MODULES = 64
MODULE_NAME = r"^[a-z][a-z0-9_]{0,63}$"
# The modules in the order of the file, each with the modules in its `reads`.
Reads = tuple[tuple[str, tuple[str, ...]], ...]


class Spec(Strict):
    """A whole training run."""

    version: Literal[1] = Field(description="Version of this format.", examples=[1])
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        description="Name of the run and of its folder under `runs/`.",
        examples=["my-run"],
        json_schema_extra={
            "expected": "at most 100 letters, digits, `.`, `_` and `-`, a letter or digit first"
        },
    )
    modules: dict[Annotated[str, Field(pattern=MODULE_NAME)], ModuleSpec] = Field(
        max_length=MAX_MODULES,
        description="Encoders and `language`, which computes the loss.",
    )
    init_from: LocalPath | None = Field(
        None,
        description="`init_from` of every module that has none, for example to start "
        "the second stage of a training from the run of the first.",
        examples=["runs/stage1"],
    )
    schedule: ScheduleSpec = Field(
        ScheduleSpec.model_construct(),
        description="Order of the work inside a step.",
    )
    batch: BatchSpec = Field(description="Size of a step.")
    data: Data = Field(description="What to train on.")
    optimizer: OptimizerSpec = Field(
        OptimizerSpec.model_construct(),
        description="The update rule.",
    )
    train: TrainSpec = Field(
        TrainSpec.model_construct(),
        description="Length and numerics of the run.",
    )
    eval: EvalSpec | None = Field(None, description="Evaluation on held-out samples.")
    checkpoint: CheckpointSpec | Literal["none"] | None = Field(
        None,
        description="Saving and resuming. Without it a run saves once, after its last step or on a "
        "stop signal; with `none` it saves nothing.",
    )
    log: LogSpec = Field(
        LogSpec.model_construct(), description="Where metrics go besides `metrics.jsonl`."
    )
    nodes: NodesSpec | None = Field(
        None, description="Hosts and their GPUs, for findings about them and for estimates."
    )
    idle_ranks: Ranks | None = Field(
        None, description="Ranks that no module uses, on purpose: `6-7`."
    )

    @model_validator(mode="after")
    def _start_all(self) -> "Spec":
        """Copy `init_from` to the modules, so that readers need to look only there."""
        for name, module in self.modules.items():
            if module.init_from is None and self.init_from is not None:
                self.modules[name] = module.model_copy(update={"init_from": self.init_from})
        return self

    @property
    def gpu_memory(self) -> int | None:
        """The bytes of a GPU; None if the spec does not give them."""
        return None if self.nodes is None else self.nodes.memory

    @property
    def saving(self) -> CheckpointSpec | None:
        """Settings of checkpoints, or None if the run never saves."""
        if self.checkpoint is None:
            # Nothing runs beside the only save, so a copy of the state would gain nothing.
            return CheckpointSpec(asynchronous=False)
        return None if self.checkpoint == "none" else self.checkpoint

    @property
    def language(self) -> ModuleSpec:
        """The language model."""
        if LANGUAGE not in self.modules:
            raise MissingPartError("modules.language")
        return self.modules[LANGUAGE]

    @property
    def encoders(self) -> dict[str, ModuleSpec]:
        """The modules before language, in the order of the file, each after those it reads."""
        return {name: self.modules[name] for name in _sides(self._reads)[0]}

    @property
    def generators(self) -> dict[str, ModuleSpec]:
        """The modules after language, in the same order."""
        return {name: self.modules[name] for name in _sides(self._reads)[1]}

    @property
    def is_star(self) -> bool:
        """Whether no module but language reads another."""
        return not any(m.reads for name, m in self.modules.items() if name != LANGUAGE)

    def row_width(self, name: str) -> int:
        """Return the width of a module's rows: the width of the first module that reads it.

        Language sends its own stream.
        """
        readers = [reader for reader in self.modules if name in self.sources_of(reader)]
        if name == LANGUAGE or LANGUAGE in readers or not readers:
            return self.language.model.hidden
        return self.modules[readers[0]].model.hidden

    def offloads_moments(self, name: str) -> bool:
        """Return whether the host holds those moments of a module that may lie there."""
        return self.optimizer.offload or "optimizer" in self.modules[name].offload

    def sent_width(self, name: str) -> int:
        """Return the width that a module sends for each row, from all layers that send rows."""
        return (1 + self.modules[name].model.deep_rows) * self.row_width(name)

    @property
    def deep_rows(self) -> int:
        """Number of layers of language after which rows of encoders are added."""
        read = self.sources_of(LANGUAGE)
        return max((self.modules[name].model.deep_rows for name in read), default=0)

    def sources_of(self, name: str) -> tuple[str, ...]:
        """Return the modules that a module reads rows from, default applied.

        Raises: MissingPartError if one of them is no module of the spec.
        """
        module = self.modules.get(name)
        if module is not None and module.reads is not None:
            for source in module.reads:
                if source not in self.modules:
                    raise MissingPartError(f"modules.{source}")
            return module.reads
        if name != LANGUAGE:
            return ()
        return _not_read(self._reads)

    @property
    def _reads(self) -> Reads:
        return tuple((name, module.reads or ()) for name, module in self.modules.items())


# A plan asks for these thousands of times, for few graphs.
@lru_cache(maxsize=128)
def _sides(reads: Reads) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules before language, and those that read it, directly or through others.

    Both are in the order of the file, but each module is after the modules in its `reads`.
    """
    after, before = {LANGUAGE}, 0
    while len(after) > before:
        before = len(after)
        after |= {name for name, sources in reads if not after.isdisjoint(sources)}
    order = _order(reads)
    return (
        tuple(name for name in order if name not in after),
        tuple(name for name in order if name in after and name != LANGUAGE),
    )


@lru_cache(maxsize=128)
def _not_read(reads: Reads) -> tuple[str, ...]:
    """Return the modules before language that no module reads."""
    read = {source for _, sources in reads for source in sources}
    return tuple(name for name in _sides(reads)[0] if name not in read)


def _order(reads: Reads) -> tuple[str, ...]:
    order: dict[str, None] = {}
    left = dict(reads)
    while left:
        ready = [name for name, sources in left.items() if left.keys().isdisjoint(sources)]
        # A cycle, which `checks` refuses, has no order.
        name = (ready or list(left))[0]
        order[name] = None
        del left[name]
    return tuple(order)
