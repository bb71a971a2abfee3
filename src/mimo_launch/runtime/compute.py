"""Forward and backward of this rank's stages.

Decides: the inputs of a stage and the start of its backward.
Relies on: `mailbox` for tensors from other stages and bridges.
Leaves: the order to `executor`.

# Invariant: a rank never skips an action for lack of rows. Zero rows go forward and backward;
# otherwise its weights would miss a reduction in which its peers wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.attention_contexts import (
    ImageContext,
    image_context,
    two_list_context,
    zigzag_positions,
)
from mimo_launch.layers.aux_loss import RoutingContext
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import EncoderView, LanguageView, StepViews
from mimo_launch.models.build import RankModule
from mimo_launch.models.encoder_inputs import (
    EncoderInput,
    NoisedPatches,
    Patches,
    pack,
    reader,
)
from mimo_launch.models.language_model import LanguageInput
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.vision_encoder import turns_by_place
from mimo_launch.runtime.bridges import RankBridge
from mimo_launch.runtime.generator_inputs import HeldNoise, noise_held
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.runtime.model_inputs import (
    StepInputs,
    image_places,
    read_documents,
    read_positions,
    read_text,
    token_shares,
)
from mimo_launch.schedule.actions import Action
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec


@dataclass(slots=True)
class Decoding:
    """Greedy answers by microbatch: the tokens so far [B, all positions], the choices of a pass."""

    tokens: dict[int, Tensor]
    choices: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Drawing:
    """Images on their way from noise, by generator and forward, all at the same `time`.

    `velocities` are those of a pass, for the patches that this rank has between regions.
    """

    time: float = 0.0
    patches: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    velocities: dict[tuple[str, int], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class StepState:
    """The inputs and the results of one step on this rank."""

    inputs: StepInputs
    views: StepViews
    # Of each module that computes one, as far as this rank counts it.
    losses: dict[str, Tensor]
    # By module and forward, to find the one that is not finite.
    forward_losses: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    # Set while greedy answers are found, in place of a loss.
    decoding: Decoding | None = None
    # Set while generators make images, in place of a loss.
    drawing: Drawing | None = None

    @property
    def data(self) -> StepData:
        """The metadata of the step's samples."""
        return self.inputs.data


class Stages:
    """Runs the stages of this rank."""

    def __init__(
        self,
        spec: Spec,
        layout: Layout,
        grids: GridSet,
        modules: dict[str, RankModule],
        bridges: dict[str, RankBridge],
        mail: Mailbox,
    ) -> None:
        self.spec, self.layout, self.grids, self.modules = spec, layout, grids, modules
        self.bridges, self.mail, self.rank = bridges, mail, grids.rank

    def forward(self, action: Action, step: StepState) -> None:
        """Run one stage on one microbatch or group."""
        module, stage = self.modules[action.module], action.stage or 0
        at = Address.of(action)
        hidden = None if stage == 0 else self.mail.take_input(at)
        network = module.stages[stage]
        if action.module == LANGUAGE:
            out = network(hidden, self._language_input(stage, action.index, step))
        else:
            out = network(hidden, self._encoder_input(module, stage, action.index, step))
        if not module.layout.stages[stage].is_last:
            self.mail.outputs.put(at, out)
            return
        if action.module == LANGUAGE and step.decoding is not None:
            step.decoding.choices[action.index] = out
            return
        rows = {}
        if action.module == LANGUAGE:
            out, rows = out if isinstance(out, tuple) else (out, {})
        for bridge in self._leaving(module):
            of_bridge = rows.get(bridge.bridge.target, out)
            self.mail.outputs.put(bridge.at(action.index), of_bridge.to(bridge.like.dtype))
        if not module.layout.computes_loss:
            return
        if step.drawing is not None:
            step.drawing.velocities[module.name, action.index] = out
        else:
            # Scale at the loss, sum everywhere: N is that of the whole step.
            loss = out / max(1, step.data.num_terms(module.name))
            self.mail.outputs.put(at, loss * module.layout.loss_weight)
            step.forward_losses[module.name, action.index] = loss.detach()
            if module.context.tp.index == 0:
                step.losses[module.name] += loss.detach()

    def backward(self, action: Action, step: StepState) -> None:
        """Run the backward of one stage on one microbatch or group."""
        module, at = self.modules[action.module], Address.of(action)
        if not module.layout.stages[action.stage or 0].is_last:
            self.mail.backward([at], None)
            return
        rows = [bridge.at(action.index) for bridge in self._leaving(module)]
        self.mail.backward(rows, at if module.layout.computes_loss else None)

    def _leaving(self, module: RankModule) -> Iterator[RankBridge]:
        """Yield the bridges that take rows from a module."""
        for bridge in self.layout.bridges_from(module.name):
            yield self.bridges[bridge.name]

    def edge_shape(self, action: Action, step: StepState) -> tuple[int, int]:
        """Return the shape [tokens of this rank, width] of a transfer between two stages."""
        module = self.modules[action.module].layout
        width = self.spec.modules[action.module].model.hidden
        shards = module.grid.size("tp") if module.sequence_parallel else 1
        if module.is_language:
            tokens = self.layout.samples.microbatch_size * self.layout.seq
            tokens //= module.grid.size("cp")
            return tokens // shards, width
        view = self._encoder_view(self.modules[action.module], action.index, step)
        patches = len(view.held(module.grid.index("cp", self.rank)))
        return patches // shards + view.extra_tokens, width

    def _encoder_view(self, module: RankModule, group: int, step: StepState) -> EncoderView:
        """Return what this rank's replica of an encoder encodes for a group."""
        replica = module.layout.grid.index("dp", self.rank)
        return step.views.encoder(module.name, replica, group)

    def _language_view(self, microbatch: int, step: StepState) -> LanguageView:
        replica = self.modules[LANGUAGE].layout.grid.index("dp", self.rank)
        return step.views.language(replica, microbatch)

    def _encoder_input(
        self, module: RankModule, stage: int, group: int, step: StepState
    ) -> EncoderInput:
        """Return the packed images of a group; later stages need only their sizes and places."""
        model, view = self.spec.modules[module.name].model, self._encoder_view(module, group, step)
        held, patches = view.held(module.context.cp.index), None
        here = module.layout.stages[stage]
        into = self.layout.bridges_into(module.name) if here.is_first else ()
        bridges = [(bridge.source, self.bridges[bridge.name]) for bridge in into]
        learns = module.layout.computes_loss
        reads = module.layout.reads_arrays and step.drawing is None
        if reads and (here.is_first or (here.is_last and learns)):
            images = [
                image
                for sample in view.samples
                for image in step.inputs.images(sample, module.name)
            ]
            patches = pack(images, reader(model), module.context, held)
        noise = None
        if learns and (here.is_first or here.is_last):
            noise = self._noised(module, group, patches, step)
        places = None
        if turns_by_place(model):
            places = to_device(image_places(view, held), module.context.device)
        return EncoderInput(
            mask=self._image_context(module, view, held),
            sizes=view.owned(module.context.cp.index),
            patches=patches,
            places=places,
            extra_tokens=view.extra_tokens,
            images=view.sizes,
            own=_own_share(held, module.context),
            noised=noise,
            rows={name: each.received(group) for name, each in bridges},
            row_places={name: each.places_in_target(group) for name, each in bridges},
        )

    def begin_drawing(self, drawing: Drawing, step: StepState) -> None:
        """Start the images of every generator of this rank from noise, on all of its stages."""
        for module in self.modules.values():
            if module.layout.computes_loss and not module.layout.is_language:
                for group in range(self.layout.num_groups(module.layout)):
                    noise = self._noise(module, group, step)
                    drawing.patches[module.name, group] = noise.values

    def _noised(
        self, module: RankModule, group: int, patches: Patches | None, step: StepState
    ) -> NoisedPatches:
        """Return the patches of a generator between noise and image, learnt or being made."""
        noise = self._noise(module, group, step)
        if step.drawing is None:
            if patches is None:
                raise RuntimeError(f"{module.name}: nobody has read the images to learn")
            return noise.towards(patches)
        view = self._encoder_view(module, group, step)
        places = image_places(view, view.held(module.context.cp.index))
        made = step.drawing.patches[module.name, group]
        on_device = to_device(places, module.context.device)
        return noise.at_time(step.drawing.time, Patches(made, on_device))

    def _noise(self, module: RankModule, group: int, step: StepState) -> HeldNoise:
        """Return the noise of the patches of a generator that this cp rank holds."""
        view = self._encoder_view(module, group, step)
        held, images = (
            view.held(module.context.cp.index),
            reader(self.spec.modules[module.name].model),
        )
        return noise_held(view, held, self.spec.train.seed, images.width, module.context)

    def _image_context(self, module: RankModule, view: EncoderView, held: range) -> ImageContext:
        cp, device = module.context.cp, module.context.device
        if not any(view.extras):
            return image_context(view.lengths, held, device, alone=cp.size == 1)
        shards = module.context.tp.size if module.context.sequence_parallel else 1
        mine = range(cp.index * shards, (cp.index + 1) * shards)
        held_each = len(held) // shards, view.extra_tokens
        return two_list_context(view.lengths, view.extras, held_each, mine, device)

    def _language_input(self, stage: int, microbatch: int, step: StepState) -> LanguageInput:
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
        return LanguageInput(
            num_sequences=self.layout.samples.microbatch_size,
            tokens=None if tokens is None else tokens[:, held],
            positions=self._positions(view, step, held),
            documents=read_documents(view, step.inputs, self.grids.device),
            labels=None if labels is None else labels[:, held],
            rows={name: bridge.received(microbatch) for name, bridge in bridges},
            row_places={name: each.places_in_target(microbatch) for name, each in bridges},
            wanted=self._wanted(module, stage, microbatch, step),
            routing=self._routing(view, held),
        )

    def _wanted(
        self, module: RankModule, stage: int, microbatch: int, step: StepState
    ) -> dict[str, RowPlaces]:
        """Return the places of the rows that generators read of a microbatch, by generator."""
        if not module.layout.stages[stage].is_last or step.decoding is not None:
            return {}
        bridges = self._leaving(module)
        return {each.bridge.target: each.places_in_source(microbatch) for each in bridges}

    def _routing(self, view: LanguageView, held: Tensor) -> RoutingContext | None:
        """Return what experts need of the tokens that this rank holds of each sequence."""
        loss = self.modules[LANGUAGE].aux_loss
        if loss is None:
            return None
        return RoutingContext(token_shares(view, self.grids.device)[:, held], loss)

    def _positions(self, view: LanguageView, step: StepState, held: Tensor) -> Tensor:
        """Return the position ids of the tokens held of each sequence: [S] or [3, B, S].

        Every stage computes them from the data of the step.
        """
        if kind_of(self.spec.language.model).mrope is None:
            return held
        images = [name for name, each in self.spec.encoders.items() if kind_of(each.model).images]
        return read_positions(view, step.inputs, images, self.grids.device)[:, :, held]


def _own_share(held: range, context: ParallelContext) -> range:
    """Return the patches of a cp rank that this tp rank has between regions."""
    if not context.sequence_parallel:
        return held
    size = len(held) // context.tp.size
    first = held.start + context.tp.index * size
    return range(first, first + size)
