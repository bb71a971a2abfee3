"""Executes this rank's program: computes, transfers and the end of a step, in the plan's order.

Decides: when the actions of a slot are posted and waited for, and when gradients are reduced.
Relies on: programs that have passed the simulator.
Leaves: the work of an action to `compute`, `stage_transfers` and `bridges`, and at the end of a
step to `optimizer.step_end`.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_gather, broadcast
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layers.sequence_contexts import zigzag_positions
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.build import RankModule
from mimo_launch.models.fsdp import set_gradient_sync
from mimo_launch.models.stage_interface import Canvas, StepInputs
from mimo_launch.runtime.bridges import RankBridge
from mimo_launch.runtime.compute import Stages
from mimo_launch.runtime.mailbox import Mailbox
from mimo_launch.runtime.progress import Phase, Progress
from mimo_launch.runtime.stage_transfers import StageEdges
from mimo_launch.runtime.step_state import Decoding, Drawing, StepState
from mimo_launch.schedule.actions import ONCE, Action, Kind, Program, Slot
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import LANGUAGE, Axis
from mimo_launch.spec.spec import Spec


class StepEnding(Protocol):
    """Carries out the actions after the computes of one step; see `optimizer.step_end`."""

    def begin(self, step: StepState) -> None:
        """Prepare for the actions, after the last backward of `step`."""

    def run(self, action: Action) -> None:
        """Carry out one of them."""


class Executor:
    """Runs programs over this rank's modules; the clock, while on, records each slot."""

    def __init__(
        self,
        spec: Spec,
        layout: Layout,
        grids: GridSet,
        modules: dict[str, RankModule],
        *,
        dtype: torch.dtype,
        progress: Progress,
    ) -> None:
        """Open this rank's end of every bridge and stage edge; they carry `dtype`."""
        self.progress, self.clock = progress, grids.clock
        self.layout, self.grids, self.modules = layout, grids, modules
        self.mail = Mailbox()
        self.bridges = {
            bridge.name: RankBridge(
                layout,
                grids,
                bridge,
                modules=modules,
                mail=self.mail,
                dtype=dtype,
                width=spec.sent_width(bridge.source),
            )
            for bridge in layout.bridges.values()
        }
        self.edges = {
            module.name: StageEdges(
                layout,
                grids,
                module.name,
                self.mail,
                dtype=dtype,
                # The first stage that receives an activation with a gradient, if any.
                first_with_grad=1
                + next(
                    (s.index for s in module.stages if needs_backward(layout, module, s.index)),
                    len(module.stages),
                ),
            )
            for module in layout.modules
        }
        self.stages = Stages(spec, layout, grids, modules, self.bridges, self.mail)

    def run(self, program: Program, inputs: StepInputs, end: StepEnding) -> StepState:
        """Run a training step in the order of its program; `end` does what follows the computes.

        Ranks: collective, as the program says.
        """
        self.progress.enter(Phase.PROGRAM)
        step = self._begin(inputs)
        for module in self.modules.values():
            module.begin_step()
            for stage in module.stages:
                _sync(module, stage, is_last=False)
        work = [slot for slot in program if slot[0].kind not in ONCE]
        for position, slot in enumerate(work):
            self.progress.at(position)
            # REDUCE does no work itself: it makes FSDP2 reduce in the backward of this slot.
            for action in slot:
                if action.kind is Kind.REDUCE:
                    self._let_reduce(action)
            with self.clock.span(slot):
                self._run_slot(slot, step)
        self._end()
        self.progress.enter(Phase.REDUCING)
        end.begin(step)
        self.end(program[len(work) :], end)
        return step

    def end(self, program: Program, end: StepEnding) -> None:
        """Run actions that end a step."""
        for (action,) in program:
            self.progress.enter(Phase.UPDATING if action.kind is Kind.UPDATE else Phase.REDUCING)
            end.run(action)

    def _let_reduce(self, action: Action) -> None:
        """Let the last backward of a stage sum gradients over dp x cp and free gathered weights.

        Fully sharded stages do both at every backward anyway.
        """
        module = self.modules[action.module]
        if action.index == self.layout.num_groups(module.layout) - 1:
            _sync(module, action.stage or 0, is_last=True)

    def run_forward(self, program: Program, inputs: StepInputs) -> StepState:
        """Run a program without gradients; the received rows stay for `choose`."""
        step = self._begin(inputs)
        with torch.no_grad():
            for slot in program:
                self.progress.beat()
                self._run_slot(slot, step)
        self._end()
        return step

    def choose(
        self, program: Program, step: StepState, tokens: dict[int, Tensor]
    ) -> dict[int, Tensor]:
        """Return the greedy next tokens of each microbatch, given its `tokens` [B, S].

        `step` is the state returned by the last `run_forward`; its rows are used again. Ranks:
        collective over each language replica; ranks without language return nothing.
        """
        self.progress.beat()
        step.decoding = Decoding(tokens)
        chosen: dict[int, Tensor] = {}
        with torch.no_grad():
            for slot in program:
                if slot[0].kind is Kind.SHARE:
                    chosen = {each: self._share(step.decoding, each) for each in tokens}
                else:
                    self._run_slot(slot, step)
        self._end()
        return chosen

    def draw(
        self, program: Program, step: StepState, num_steps: int
    ) -> Mapping[tuple[str, int], Canvas]:
        """Return the generators' results, by generator and forward; flows take `num_steps` steps.

        `step` is the state returned by the last `run_forward`; its rows are used again. Ranks
        without a generator return nothing.

        Ranks: collective over each replica of a generator.
        """
        drawing = step.drawing = self.stages.begin_drawing(num_steps, step)
        passes = {name: canvas.passes for (name, _), canvas in drawing.canvases.items()}
        with torch.no_grad():
            for number in range(max(passes.values(), default=0)):
                self.progress.beat()
                for whole in program:
                    # A generator that is done may share a slot of transfers with one that is not.
                    slot = tuple(action for action in whole if number < passes[action.module])
                    if slot and slot[0].kind is Kind.SHARE:
                        self._share_found(slot[0].module, drawing)
                    elif slot:
                        self._run_slot(slot, step)
        self._end()
        step.drawing = None
        return drawing.canvases

    def _share_found(self, name: str, drawing: Drawing) -> None:
        """Broadcast the result of a pass from a generator's last stage to all its stages."""
        module = self.modules[name]
        last = module.layout.pp_index(len(module.layout.stages) - 1)
        group = self.grids.group(name, Axis.PP)
        for (owner, index), canvas in drawing.canvases.items():
            if owner == name:
                found = drawing.found.pop((name, index), canvas.nothing())
                canvas.add(broadcast(found.contiguous(), last, group))

    def _share(self, decoding: Decoding, microbatch: int) -> Tensor:
        """Broadcast the choices of all positions from the last stage to all ranks of a replica."""
        module = self.modules[LANGUAGE]
        cp, given = module.context.cp, decoding.tokens[microbatch]
        by_position = torch.zeros_like(given)
        if microbatch in decoding.choices:
            parts = all_gather(decoding.choices[microbatch].contiguous(), cp).view(
                cp.size, given.shape[0], -1
            )
            for index, part in enumerate(parts):
                places = zigzag_positions(given.shape[1], index, cp.size, given.device)
                by_position[:, places] = part
        last = module.layout.pp_index(len(module.layout.stages) - 1)
        return broadcast(by_position, last, self.grids.group(LANGUAGE, Axis.PP))

    def _begin(self, inputs: StepInputs) -> StepState:
        views = inputs.views or StepViews(self.layout, inputs.data)
        # The rows of an evaluation stay until here, for `choose`.
        self.mail.clear()
        for bridge in self.bridges.values():
            bridge.begin(views)
        return StepState(inputs, views, no_losses(self.layout, self.grids.device))

    def _end(self) -> None:
        for bridge in self.bridges.values():
            bridge.finish()
        for edges in self.edges.values():
            edges.finish()

    def _run_slot(self, slot: Slot, step: StepState) -> None:
        kind = slot[0].kind
        if kind is Kind.FORWARD:
            self.stages.forward(slot[0], step)
        elif kind is Kind.BACKWARD:
            self.stages.backward(slot[0], step)
        else:
            self._transfer(slot, step)

    def _post(self, action: Action, step: StepState) -> None:
        if action.stage is None:
            self.bridges[action.module].run(action.kind, action.index)
        else:
            shape = self.stages.edge_shape(action, step)
            self.edges[action.module].post(action, shape)

    def _transfer(self, slot: Iterable[Action], step: StepState) -> None:
        """Post everything in a slot, then wait for its receives; sends block nothing.

        Nothing is posted ahead of its slot. On a GPU a posted receive is a kernel that spins. A
        driver call that a later kernel needs at its first use (to load code, to get a handle or
        memory) can wait for the receive, and two ranks that both wait in this way would wait
        forever.
        """
        for action in slot:
            self._post(action, step)
        for action in slot:
            if action.stage is None:
                self.bridges[action.module].wait(action.kind, action.index)
            else:
                self.edges[action.module].wait(action)


def no_losses(layout: Layout, device: torch.device) -> dict[str, Tensor]:
    """Return a float64 zero for each loss of a job."""
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return {loss.name: zero.clone() for loss in layout.losses}


def _sync(module: RankModule, stage: int, *, is_last: bool) -> None:
    set_gradient_sync(module.stages[stage], module.layout.sharding, is_last=is_last)
