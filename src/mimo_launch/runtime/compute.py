"""Forward and backward of this rank's stages.

Decides: where the results of a stage go, and how its backward starts.
Relies on: `mailbox` for tensors from other stages, `bridges` for rows that have arrived.
Leaves: what a stage reads of the samples to the stage, the order to `executor`.

# Invariant: a rank never skips an action for lack of rows. Zero rows go forward and backward;
# otherwise its weights would miss a reduction that its peers wait for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.row_owners import shards_of_cp_rank
from mimo_launch.models.build import RankModule
from mimo_launch.models.kept_rows import keep_rows, kept_rows
from mimo_launch.models.language_input import TextForward
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.stage_interface import Canvas, ListForward, StageLosses
from mimo_launch.runtime.bridges import RankBridge
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.runtime.step_state import Drawing, StepState
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Spec


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
        out = self._run(action, module, hidden, step)
        if not module.layout.stages[stage].is_last:
            self.mail.outputs.put(at, out)
            return
        if action.module == LANGUAGE and step.decoding is not None:
            step.decoding.choices[action.index] = out
            return
        if module.layout.computes_loss and step.drawing is not None:
            step.drawing.found[module.name, action.index] = out
            return
        rows: Mapping[str, Tensor] = {}
        if module.layout.computes_loss:
            found = StageLosses.of(out)
            rows, total = found.rows, self._weighted(module, found, step)
            self.mail.outputs.put(at, total)
            step.forward_losses[module.name, action.index] = total.detach()
        for bridge in self._leaving(module):
            of_bridge = rows.get(bridge.bridge.target, out)
            self.mail.outputs.put(bridge.at(action.index), of_bridge.to(bridge.like.dtype))

    def _run(
        self, action: Action, module: RankModule, hidden: Tensor | None, step: StepState
    ) -> Any:
        """Return what a stage makes; rows that are kept take the place of all of its stages."""
        stage = action.stage or 0
        if module.layout.is_language:
            return module.run(stage, hidden, self._text(module, stage, action.index, step))
        forward = self._list(module, stage, action.index, step)
        is_last = module.layout.stages[stage].is_last
        images = forward.kept()
        if module.name not in step.inputs.from_cache:
            out = module.run(stage, hidden, forward)
            if images and is_last:
                keep_rows(images, out, forward.view, module.context)
            return out
        if is_last:
            return kept_rows(
                images, forward.view, module.context, self.spec.sent_width(module.name)
            )
        context, shape = module.context, self.edge_shape(replace(action, kind=Kind.SEND_F), step)
        return torch.zeros(shape, dtype=context.compute_dtype, device=context.device)

    def _weighted(self, module: RankModule, found: StageLosses, step: StepState) -> Tensor:
        """Note the losses of a forward, and return their weighted sum.

        Scale at the loss, sum everywhere: the divisor counts the terms of the whole step.
        """
        # An evaluation has only the first of them.
        means = {
            loss: each / (step.data.num_terms(loss.module, loss.depth) or 1)
            for loss, each in zip(module.layout.losses, found.losses, strict=False)
        }
        if module.context.tp.index == 0:
            for loss, mean in means.items():
                step.losses[loss.name] += mean.detach()
            if found.by_source is not None:
                # As with every loss: the divisor counts the labels of the whole step.
                labels = found.by_source.new_tensor([*step.data.labels_by_source.values()])
                mean = found.by_source / torch.where(labels == 0, 1, labels)
                before = step.source_losses
                step.source_losses = mean if before is None else before + mean
            if found.right is not None:
                step.right_codes[module.name] = step.right_codes.get(module.name, 0) + found.right
        return torch.stack([mean * loss.weight for loss, mean in means.items()]).sum()

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
        # Activations sent forward enter the next stage; the gradients that come back are its
        # inputs'.
        stage = (action.stage or 0) + (action.kind in (Kind.SEND_F, Kind.RECV_B))
        width = self.spec.modules[action.module].model.hidden * (1 + module.stages[stage].lanes)
        shards = shards_of_cp_rank(module)
        if module.is_language:
            tokens = self.layout.samples.microbatch_size * self.layout.seq
            tokens //= module.grid.size(Axis.CP)
            return tokens // shards, width
        view = self.encoder_view(self.modules[action.module], action.index, step)
        patches = len(view.held(module.grid.index(Axis.CP, self.rank)))
        return patches // shards + view.extra_tokens, width

    def begin_drawing(self, num_steps: int, step: StepState) -> Drawing:
        """Return a canvas for each group of generators that draw, on all stages of this rank."""
        return Drawing(
            {
                (module.name, group): self._canvas(module, group, step, num_steps)
                for module in self.modules.values()
                if module.layout.draws
                for group in range(self.layout.num_groups(module.layout))
            }
        )

    def _canvas(self, module: RankModule, group: int, step: StepState, num_steps: int) -> Canvas:
        stage = next(iter(module.stages))
        network: Any = module.stages[stage]
        made: Canvas = network.canvas(self._list(module, stage, group, step), num_steps)
        return made

    def _list(self, module: RankModule, stage: int, group: int, step: StepState) -> ListForward:
        """Return one forward of a stage of a module other than language."""
        rows, places = self._arrived(module, stage, group)
        canvases = {} if step.drawing is None else step.drawing.canvases
        return ListForward(
            context=module.context,
            model=self.spec.modules[module.name].model,
            stage=module.layout.stages[stage],
            view=self.encoder_view(module, group, step),
            samples=step.inputs,
            rows=rows,
            row_places=places,
            canvas=canvases.get((module.name, group)),
        )

    def _text(self, module: RankModule, stage: int, index: int, step: StepState) -> TextForward:
        """Return one forward of a language stage."""
        here, wanted, written = module.layout.stages[stage], dict[str, RowPlaces](), None
        if step.decoding is not None:
            written = step.decoding.tokens[index]
        elif here.is_last:
            bridges = list(self._leaving(module))
            wanted = {each.bridge.target: each.places_in_source(index) for each in bridges}
        rows, places = self._arrived(module, stage, index)
        replica = module.layout.grid.index(Axis.DP, self.rank)
        return TextForward(
            context=module.context,
            stage=here,
            view=step.views.language(replica, index),
            samples=step.inputs,
            rows=rows,
            row_places=places,
            wanted=wanted,
            written=written,
            balance=module.aux_loss,
        )

    def _arrived(
        self, module: RankModule, stage: int, index: int
    ) -> tuple[dict[str, Tensor], dict[str, RowPlaces]]:
        """Return the rows that the first stage received for a forward, and their places."""
        into = self.layout.bridges_into(module.name) if stage == 0 else ()
        bridges = {bridge.source: self.bridges[bridge.name] for bridge in into}
        rows = {name: each.received(index) for name, each in bridges.items()}
        return rows, {name: each.places_in_target(index) for name, each in bridges.items()}

    def encoder_view(self, module: RankModule, group: int, step: StepState) -> EncoderView:
        """Return the samples of a group that this rank's replica of an encoder encodes."""
        replica = module.layout.grid.index(Axis.DP, self.rank)
        return step.views.encoder(module.name, replica, group)
