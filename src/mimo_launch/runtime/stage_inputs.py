"""The inputs of a stage for one forward: tokens, patches, places, rows, noise.

Decides: what each stage of each kind of module gets.
Relies on: the views of a step for a replica's samples; `bridges` for rows that have arrived.
Leaves: running stages to `compute`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.image_contexts import (
    ImageContext,
    image_context,
    two_list_context,
    window_context,
)
from mimo_launch.layers.router import RoutingContext
from mimo_launch.layers.sequence_contexts import zigzag_positions
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.replica_views import EncoderView, LanguageView
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.build import RankModule
from mimo_launch.models.encoder_inputs import (
    CodeFrames,
    EncoderInput,
    NoisedPatches,
    Patches,
    PatchTargets,
    own_tokens,
    pack,
    reader,
    without_loose,
)
from mimo_launch.models.language_model import LanguageInput, TextAhead
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.runtime.bridges import RankBridge
from mimo_launch.runtime.generator_inputs import (
    HeldNoise,
    code_frames,
    noise_held,
)
from mimo_launch.runtime.model_inputs import (
    StepInputs,
    image_places,
    read_documents,
    read_images,
    read_positions,
    read_text,
    row_sources,
    token_shares,
)
from mimo_launch.runtime.sampling import Canvas, CodesCanvas, NoiseCanvas
from mimo_launch.runtime.tokens_ahead import read_ahead
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Model, Spec


@dataclass(slots=True)
class Decoding:
    """Greedy answers by microbatch: the tokens so far [B, all positions] and a pass's choices."""

    tokens: dict[int, Tensor]
    choices: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Drawing:
    """Results of generators, by generator and forward, and the last stages' outputs of a pass."""

    canvases: dict[tuple[str, int], Canvas] = field(default_factory=dict)
    found: dict[tuple[str, int], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class StepState:
    """The inputs and the results of one step on this rank."""

    inputs: StepInputs
    views: StepViews
    # By name of the loss: this rank's part of the sum.
    losses: dict[str, Tensor]
    # By module and forward, to find a loss that is not finite.
    forward_losses: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    # By module that generates codes: this rank's count of right codes in an evaluation.
    right_codes: dict[str, Tensor] = field(default_factory=dict)
    # Set while the last stage chooses greedy answers instead of computing a loss.
    decoding: Decoding | None = None
    # Set while generators draw instead of computing a loss.
    drawing: Drawing | None = None

    @property
    def data(self) -> StepData:
        """The metadata of the step's samples."""
        return self.inputs.data


class StageInputs:
    """Makes the inputs of this rank's stages."""

    def __init__(
        self,
        spec: Spec,
        layout: Layout,
        grids: GridSet,
        modules: dict[str, RankModule],
        bridges: dict[str, RankBridge],
    ) -> None:
        self.spec, self.layout, self.grids, self.modules = spec, layout, grids, modules
        self.bridges, self.rank = bridges, grids.rank

    def of_packed(
        self, module: RankModule, stage: int, group: int, step: StepState
    ) -> EncoderInput:
        """Return the packed images of a group; later stages need only their sizes and places."""
        model, view = self.spec.modules[module.name].model, self.encoder_view(module, group, step)
        held, patches, loose = view.held(module.context.cp.index), None, None
        here = module.layout.stages[stage]
        into = self.layout.bridges_into(module.name) if here.is_first else ()
        bridges = [(bridge.source, self.bridges[bridge.name]) for bridge in into]
        learns = module.layout.computes_loss
        reads = module.layout.reads_arrays and step.drawing is None
        if reads and (here.is_first or (here.is_last and learns)):
            how, images = reader(model), self._images(module, view, step)
            if any(image.loose for image in view.images):
                images, others = without_loose(images, view.extras, how, module.context)
                loose = pack(others, how, module.context, self._extras_held(module, view))
            patches = pack(images, how, module.context, held)
        made = None
        if learns and (here.is_first or here.is_last):
            made = self._made(module, group, patches, step)
        places = None
        if kind_of(model).turns_patches:
            places = to_device(image_places(view, held), module.context.device)
        return EncoderInput(
            mask=self._image_context(module, view, held),
            windows=self._windows(module, view, held),
            sizes=view.owned(module.context.cp.index),
            patches=patches,
            places=places,
            extra_tokens=view.extra_tokens,
            loose=loose,
            images=view.sizes,
            own=own_tokens(held, module.context),
            extras=tuple(view.extras),
            made=made,
            rows={name: each.received(group) for name, each in bridges},
            row_places={name: each.places_in_target(group) for name, each in bridges},
            row_sources=row_sources(view, module.context) if here.is_last else None,
        )

    def of_language(self, stage: int, microbatch: int, step: StepState) -> LanguageInput:
        """Return the input of a language stage for a microbatch."""
        module = self.modules[LANGUAGE]
        cp, here = module.context.cp, module.layout.stages[stage]
        view = self._language_view(microbatch, step)
        tokens = labels = None
        if step.decoding is not None:
            tokens = step.decoding.tokens[microbatch]
        elif here.is_first or here.is_last:
            text = read_text(view, step.inputs, self.grids.device)
            tokens, labels = text.tokens, text.labels
        held = zigzag_positions(self.layout.seq, cp.index, cp.size, self.grids.device)
        into = self.layout.bridges_into(LANGUAGE) if here.is_first else ()
        bridges = [(bridge.source, self.bridges[bridge.name]) for bridge in into]
        ahead: Iterator[TextAhead] = iter(())
        # An evaluation reports only the main loss.
        if here.is_last and labels is not None and not step.data.heldout:
            depths = kind_of(self.spec.language.model).depths
            balance = module.aux_loss
            ahead = read_ahead(view, step.inputs, depths, held, balance, self.grids.device)
        return LanguageInput(
            num_sequences=self.layout.samples.microbatch_size,
            tokens=None if tokens is None else tokens[:, held],
            positions=self._positions(view, step, held),
            documents=read_documents(view, step.inputs, self.grids.device),
            images=read_images(view, module.layout.whole_images, self.grids.device),
            labels=None if labels is None else labels[:, held],
            rows={name: bridge.received(microbatch) for name, bridge in bridges},
            row_places={name: each.places_in_target(microbatch) for name, each in bridges},
            wanted=self._wanted(module, stage, microbatch, step),
            routing=self._routing(view, held),
            ahead=tuple(ahead),
        )

    def encoder_view(self, module: RankModule, group: int, step: StepState) -> EncoderView:
        """Return the samples of a group that this rank's replica of an encoder encodes."""
        replica = module.layout.grid.index(Axis.DP, self.rank)
        return step.views.encoder(module.name, replica, group)

    def canvas(self, module: RankModule, group: int, step: StepState, num_steps: int) -> Canvas:
        """Return the initial canvas of a generator; flows take `num_steps` steps."""
        view, context = self.encoder_view(module, group, step), module.context
        if (codes := kind_of(self._model(module)).codes) is None:
            places = to_device(image_places(view, view.held(context.cp.index)), context.device)
            return NoiseCanvas(self.noise(module, group, step), places, context, num_steps)
        # Every replica needs the same number of passes: sharded weights are gathered over all of
        # them.
        spans = (span for sample in step.data.samples for span in sample.spans.get(module.name, ()))
        longest = max((span.rows for span in spans), default=0)
        return CodesCanvas(view, context, codes, passes=longest)

    def noise(self, module: RankModule, group: int, step: StepState) -> HeldNoise:
        """Return the noise of the patches of a generator that this cp rank holds."""
        view, how = self.encoder_view(module, group, step), reader(self._model(module))
        noises = (
            noise
            for sample in view.samples
            for noise in step.inputs.noises(sample, module.name, how.row_width)
        )
        held = view.held(module.context.cp.index)
        return noise_held(noises, held, how.width, module.context)

    def _model(self, module: RankModule) -> Model:
        return self.spec.modules[module.name].model

    def _language_view(self, microbatch: int, step: StepState) -> LanguageView:
        replica = self.modules[LANGUAGE].layout.grid.index(Axis.DP, self.rank)
        return step.views.language(replica, microbatch)

    def _made(
        self, module: RankModule, group: int, patches: Patches | None, step: StepState
    ) -> NoisedPatches | CodeFrames | PatchTargets:
        """Return a generator's training targets for a group, or its result so far."""
        if step.drawing is not None:
            return step.drawing.canvases[module.name, group].seen()
        if patches is None:
            raise RuntimeError(f"{module.name}: nobody has read what to learn")
        if kind_of(self._model(module)).codes is not None:
            return code_frames(patches)
        noise = self.noise(module, group, step)
        return noise.towards(patches) if module.layout.draws else noise.beside(patches)

    def _images(
        self, module: RankModule, view: EncoderView, step: StepState
    ) -> Sequence[Patches | np.ndarray]:
        """Return the images or clips of a view."""
        each = (step.inputs.images(sample, module.name) for sample in view.samples)
        return [image for images in each for image in images]

    def _extras_held(self, module: RankModule, view: EncoderView) -> range:
        """Return the range of a view's extra tokens that this rank embeds."""
        shards = shards_of_cp_rank(module.layout)
        first = module.context.cp.index * shards + (module.context.tp.index if shards > 1 else 0)
        return range(first * view.extra_tokens, (first + 1) * view.extra_tokens)

    def _image_context(self, module: RankModule, view: EncoderView, held: range) -> ImageContext:
        cp, device = module.context.cp, module.context.device
        causal = module.layout.is_causal
        if not any(view.extras) and not causal:
            return image_context(view.lengths, held, device, alone=cp.size == 1)
        shards = shards_of_cp_rank(module.layout)
        mine = range(cp.index * shards, (cp.index + 1) * shards)
        held_each = len(held) // shards, view.extra_tokens
        return two_list_context(
            view.lengths,
            view.extras,
            held_each,
            mine,
            device,
            alone=cp.size == 1,
            causal=causal,
        )

    def _windows(self, module: RankModule, view: EncoderView, held: range) -> ImageContext | None:
        """Return the mask of layers that attend in windows; None if the module has none."""
        side, per_row = module.layout.window_side, module.layout.patches_per_row
        if side is None:
            return None
        cp, device = module.context.cp, module.context.device
        return window_context(view.sizes, side, per_row, held, device, alone=cp.size == 1)

    def _wanted(
        self, module: RankModule, stage: int, microbatch: int, step: StepState
    ) -> dict[str, RowPlaces]:
        """Return the places of the rows that generators read from a microbatch, by generator."""
        if not module.layout.stages[stage].is_last or step.decoding is not None:
            return {}
        bridges = [self.bridges[each.name] for each in self.layout.bridges_from(module.name)]
        return {each.bridge.target: each.places_in_source(microbatch) for each in bridges}

    def _routing(self, view: LanguageView, held: Tensor) -> RoutingContext | None:
        """Return the routing context of the tokens that this rank holds; None without experts."""
        loss = self.modules[LANGUAGE].aux_loss
        if loss is None:
            return None
        return RoutingContext(token_shares(view, self.grids.device)[:, held], loss)

    def _positions(self, view: LanguageView, step: StepState, held: Tensor) -> Tensor:
        """Return the position ids of the tokens that this rank holds: [S] or [3, B, S].

        Every stage computes them from the data of the step.
        """
        if kind_of(self.spec.language.model).mrope is None:
            return held
        # Rows of images that language sees through a connector count like text.
        reads = self.layout.language.reads
        images = [name for name in reads if kind_of(self.spec.modules[name].model).images]
        return read_positions(view, step.inputs, images, self.grids.device)[:, :, held]
