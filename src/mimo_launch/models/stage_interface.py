"""The interface of stages to the runtime: their inputs and their results.

    StepInputs   the samples of a step
    ListForward  one forward of a stage of any module but language, which has `TextForward`
                 of `language_input`
    ListInput    the input that a stage makes from it before it runs; each kind adds fields
    StageLosses  the result of the last stage of a module that computes losses
    Canvas       the result of a generator, as it is made pass by pass

A stage has a method `inputs(forward)`, and is called as `stage(hidden, stage.inputs(forward))`; a
network of a user's package gets the input that `custom_stages` makes.

Decides: these interfaces; what a stage knows about its list of images without messages.
Relies on: `layout.replica_views` for the samples of a replica.
Leaves: inputs and layers to the stages, moving rows and tensors between stages to `runtime`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from torch import Tensor, nn

from mimo_launch.data.random_draws import Noise
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.layers.image_contexts import (
    ImageContext,
    image_context,
    two_list_context,
    window_context,
)
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import add_parts
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.kept_rows import KeptRows
from mimo_launch.models.patches import Image, Patches, Reader, own_tokens, pack, reader
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.token_numbers import list_draws
from mimo_launch.models.transformer_block import blocks
from mimo_launch.spec.module import Recompute
from mimo_launch.spec.spec import Model, Spec


class StepInputs(Protocol):
    """The samples of one step by their position in it; a rank asks only for what it needs."""

    @property
    def data(self) -> StepData:
        """The metadata of the samples."""

    @property
    def views(self) -> StepViews | None:
        """Views of `data` that the loader has already computed, if any."""

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""

    def columns(self, sample: int) -> Mapping[str, np.ndarray]:
        """Return the columns that a user's loss reads, [seq] or [seq, width] each, by name."""

    def documents(self, sample: int) -> np.ndarray:
        """Return the document that each position belongs to, int64 [seq]."""

    def images(self, sample: int, encoder: str) -> Sequence[Image | None]:
        """Return the images of a sample for one encoder; None for images of other replicas."""

    @property
    def from_cache(self) -> Collection[str]:
        """The encoders for which all rows of the step are read; the same on all ranks."""

    def kept(self, sample: int, encoder: str) -> Sequence[KeptRows | None]:
        """Return what is kept of each image; nothing if this rank keeps no rows."""

    def noises(self, sample: int, generator: str, numbers: int) -> Sequence[Noise]:
        """Return the noise of each image that a generator makes, in patches of `numbers` values."""


class Canvas(Protocol):
    """A generator's result for one forward of a replica, made in `passes` passes, on one rank."""

    passes: int

    def seen(self) -> Any:
        """Return what the generator's first and last stage learn from or see in the next pass."""
        ...

    def nothing(self) -> Tensor:
        """Return a buffer for the result of a pass, for the ranks that receive it."""
        ...

    def add(self, found: Tensor) -> None:
        """Add the last stage's result of a pass."""
        ...

    def whole(self) -> Tensor:
        """Return the whole result of the replica, in the order of its list, on the CPU.

        Ranks: collective over the tp and cp ranks of a stage.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForward:
    """One forward of a stage on the images of a group.

    On the first stage, `rows` [r, width] are the rows that this rank received, by source module,
    and `row_places` their places among its tokens. `canvas`: the generator draws instead of
    computing a loss.
    """

    context: ParallelContext
    model: Model
    stage: Stage
    view: EncoderView
    samples: StepInputs
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    row_places: Mapping[str, RowPlaces] = field(default_factory=dict)
    canvas: Canvas | None = None

    @property
    def module(self) -> ModuleLayout:
        """The module."""
        return self.view.module

    @property
    def how(self) -> Reader:
        """How the module reads arrays. Raises: TypeError if it reads none."""
        return reader(self.model)

    @property
    def held(self) -> range:
        """The patches of this cp rank in the list of all, padding included."""
        return self.view.held(self.context.cp.index)

    @property
    def held_extras(self) -> range:
        """The extra tokens that this rank embeds."""
        shards, number = shards_of_cp_rank(self.module), self.view.extra_tokens
        first = self.context.cp.index * shards + (self.context.tp.index if shards > 1 else 0)
        return range(first * number, (first + 1) * number)

    @property
    def held_extra_tokens(self) -> range:
        """The extra tokens of this cp rank."""
        number = shards_of_cp_rank(self.module) * self.view.extra_tokens
        return range(self.context.cp.index * number, (self.context.cp.index + 1) * number)

    @property
    def arrived(self) -> dict[str, Any]:
        """The fields of `RowsInput`."""
        return {"rows": self.rows, "row_places": self.row_places}

    @property
    def at_end(self) -> bool:
        """Whether the stage is the first or the last."""
        return self.stage.is_first or self.stage.is_last

    def images(self) -> list[Image]:
        """Return the images or clips of the view."""
        view, name = self.view, self.module.name
        each = (view.own(sample, self.samples.images(sample, name)) for sample in view.samples)
        return [image for images in each for image in images if image is not None]

    def kept(self) -> list[KeptRows]:
        """Return what is kept of each image of the view; nothing if this rank keeps no rows."""
        view, name = self.view, self.module.name
        return [
            image
            for sample in view.samples
            if (images := self.samples.kept(sample, name))
            for image in view.own(sample, images)
            if image is not None
        ]

    def patches(self) -> Patches:
        """Return the patches of this cp rank."""
        return pack(self.images(), self.how, self.context, self.held)

    def windows(self) -> ImageContext | None:
        """Return the mask of layers that attend in windows; None if the module has none."""
        side, per_row = self.module.window_side, self.module.patches_per_row
        if side is None:
            return None
        context, alone = self.context, self.context.cp.size == 1
        return window_context(
            self.view.sizes, side, per_row, self.held, context.device, alone=alone
        )

    def mask(self) -> ImageContext:
        """Return which tokens of the list attend to which."""
        view, cp, device = self.view, self.context.cp, self.context.device
        causal, held = self.module.is_causal, self.held
        # Windows of a clip follow each other, and every layer has them: each is like an image.
        parts = view.windows if kind_of(self.model).clips else (view.lengths, view.extras)
        if not any(view.extras) and not causal:
            return image_context(parts[0], held, device, alone=cp.size == 1)
        shards = shards_of_cp_rank(self.module)
        return two_list_context(
            *parts,
            (len(held) // shards, view.extra_tokens),
            range(cp.index * shards, (cp.index + 1) * shards),
            device,
            alone=cp.size == 1,
            causal=causal,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListInput:
    """The input of every stage that runs on a list of images.

    `mask` says which tokens attend to which; `sizes` gives the number of rows that each tp rank
    owns at the end. `own` numbers this rank's patches (or this tp rank's, with sequence
    parallelism) in the whole list; `extra_tokens` follow them.
    """

    mask: ImageContext
    sizes: tuple[int, ...] = ()
    own: range = range(0)
    extra_tokens: int = 0

    @classmethod
    def of(cls, forward: ListForward, **more: Any) -> Self:
        """Return the input of a forward; `more` is what a kind adds."""
        mask, context = forward.mask(), forward.context
        if context.draws is not None and not forward.samples.data.heldout:
            draws = list_draws(forward.view, forward.held, forward.held_extra_tokens, context)
            mask = replace(mask, draws=draws)
        return cls(
            mask=mask,
            sizes=forward.view.owned(context.cp.index),
            own=own_tokens(forward.held, context),
            extra_tokens=forward.view.extra_tokens,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsInput(ListInput):
    """The input of a stage that reads rows, which arrive at the first one."""

    rows: Mapping[str, Tensor] = field(default_factory=dict)
    row_places: Mapping[str, RowPlaces] = field(default_factory=dict)


class StageLosses(NamedTuple):
    """Losses, each summed over its terms, in the order of the layout.

    `rows` are the rows that other modules read, by reader; `right`, in an evaluation, is the number
    of codes for which the most probable code is right; `by_source` has the first loss of each
    source of the step, float64, without a gradient. A plain tuple: FSDP2 looks for tensors in it.
    """

    losses: tuple[Tensor, ...]
    rows: Mapping[str, Tensor] = {}
    right: Tensor | None = None
    by_source: Tensor | None = None

    @classmethod
    def of(cls, returned: Any) -> "StageLosses":
        """Return a stage's result in this form; a user's stage may return just its one loss."""
        return returned if isinstance(returned, cls) else cls((returned,))


class StageClass(Protocol):
    """The class that a kind names: it builds stages, and makes their inputs."""

    @classmethod
    def build(cls, spec: Spec, stage: Stage, context: ParallelContext) -> nn.Module:
        """Return the layers of one stage with unset weights."""

    @staticmethod
    def inputs(network: Any, forward: Any) -> Any:
        """Return the second argument of one forward of a stage, which is `network`."""


class ModelStage(nn.Module):
    """Base of the stages of built-in kinds, which are made from the kind alone.

    A subclass annotates the layers around its blocks that it uses; see `layers.shaped_layer`.
    """

    kind: ModelKind
    model: Any

    def __init__(
        self,
        context: ParallelContext,
        kind: ModelKind,
        stage: Stage,
        ends: Ends,
        *,
        recompute: Recompute,
    ) -> None:
        super().__init__()
        self.context, self.kind, self.model = context, kind, kind.model
        self.stage, self.ends = stage, ends
        bare = context.bare
        if stage.is_first:
            add_parts(self, bare, kind.before(ends))
        shapes = {number: kind.layer(number) for number in stage.layers}
        self.layers = blocks(context, shapes, recompute=recompute)
        if stage.is_last:
            add_parts(self, bare, kind.after(ends))

    def between(self, mask: ImageContext, tokens: int) -> ListInput:
        """Return the input of a stage between others, for this number of tokens at any place."""
        return ListInput(mask=mask)

    @classmethod
    def build(cls, spec: Spec, stage: Stage, context: ParallelContext) -> Self:
        """Return the layers of one stage with unset weights."""
        module = spec.modules[stage.module]
        ends = ends_of(spec, stage.module, is_first=stage.is_first, is_last=stage.is_last)
        return cls(context, kind_of(module.model), stage, ends, recompute=module.recompute)
