"""Executes this rank's program: every action of the plan, in its order, and nothing else.

Decides: how an action becomes a forward, a backward or a transfer.
Relies on: programs that the simulator has passed.
Leaves: the optimizer step to `optimizer`.

# Invariant: a rank never skips an action for lack of rows. Zero rows go forward and backward, or
# its weights would miss a reduction that its peers wait in.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from mimo_launch.grids.grid_set import GridSet
from mimo_launch.layout.layout import Layout
from mimo_launch.modules.build import RankModule, fsdp_modules
from mimo_launch.modules.vision import pack_images
from mimo_launch.runtime.bridges import Bridge
from mimo_launch.runtime.inputs import StepInputs, group_images, language_input
from mimo_launch.schedule.actions import Action, Kind, Program
from mimo_launch.spec.model import Spec, VitModel


@dataclass(slots=True)
class StepResult:
    """What a step left behind on this rank: its summed loss over N, and choices if it decoded."""

    loss: Tensor
    choices: dict[int, Tensor] = field(default_factory=dict)


class Executor:
    """Runs programs over this rank's modules."""

    def __init__(
        self,
        spec: Spec,
        layout: Layout,
        grids: GridSet,
        modules: dict[str, RankModule],
        *,
        dtype: torch.dtype,
    ) -> None:
        """Open this rank's end of every bridge; `dtype` is the type of rows on a bridge."""
        self.spec, self.layout, self.grids, self.modules = spec, layout, grids, modules
        self.rank = grids.rank
        self.bridges = {
            encoder.name: Bridge(
                layout,
                grids,
                encoder,
                tag,
                modules=modules,
                dtype=dtype,
                width=spec.language.model.hidden,
            )
            for tag, encoder in enumerate(layout.encoders)
        }
        self.losses: dict[int, Tensor] = {}
        self.result = StepResult(torch.zeros((), dtype=torch.float64, device=grids.device))

    def run(self, program: Program, inputs: StepInputs) -> StepResult:
        """Run one training step; gradients are left in the parameters, summed over dp x cp.

        Ranks: collective, as the program says.
        """
        self._begin(inputs)
        last = {a.module: i for i, (a, *_) in enumerate(program) if a.kind is Kind.BACKWARD}
        for module in self.modules.values():
            _set_gradient_sync(module, sync=False)
        for position, slot in enumerate(program):
            if slot[0].kind.is_compute and last.get(slot[0].module) == position:
                _set_gradient_sync(self.modules[slot[0].module], sync=True)
            self._run_slot(slot)
        self._end()
        return self.result

    def run_forward(self, program: Program, inputs: StepInputs) -> StepResult:
        """Run a program without gradients; the received rows stay for `decode`."""
        self._begin(inputs)
        with torch.no_grad():
            for slot in program:
                self._run_slot(slot)
        self._end()
        return self.result

    def choose(self, tokens: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the greedy next tokens [B, S] of each microbatch, for given tokens [B, S].

        Uses the rows received by the last `run_forward`. Ranks: collective over each language
        replica; ranks without language return nothing.
        """
        language = self.modules.get(self.layout.language.name)
        if language is None:
            return {}
        with torch.no_grad():
            return {
                microbatch: language.network(tokens_BS, *self._rows(microbatch), None)
                for microbatch, tokens_BS in tokens.items()
            }

    def _begin(self, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.num_labels = max(1, inputs.plan.num_labels)
        self.result = StepResult(torch.zeros_like(self.result.loss))
        for bridge in self.bridges.values():
            bridge.begin(inputs.plan)

    def _end(self) -> None:
        for bridge in self.bridges.values():
            bridge.finish()

    def _run_slot(self, slot: tuple[Action, ...]) -> None:
        action = slot[0]
        if action.kind is Kind.FORWARD:
            self._forward(action)
        elif action.kind is Kind.BACKWARD:
            self._backward(action)
        else:
            # Everything in a slot is posted before anything is waited for.
            for action in slot:
                self.bridges[action.module].run(action.kind, action.index)
            for action in slot:
                self.bridges[action.module].wait(action.kind, action.index)

    def _forward(self, action: Action) -> None:
        if action.module == self.layout.language.name:
            self._language_forward(action.index)
            return
        module, bridge = self.modules[action.module], self.bridges[action.module]
        model = self.spec.modules[action.module].model
        if not isinstance(model, VitModel):
            raise TypeError(f"encoder {action.module} has a model of unknown kind {model!r}")
        replica = module.layout.grid.index("dp", self.rank)
        images = group_images(self.layout, self.inputs, module.layout, replica, action.index)
        packed = pack_images(images, model, module.context)
        state = bridge.group(action.index)
        rows = module.network(packed.patches, packed.positions, packed.mask, state.sizes)
        state.rows = rows.to(bridge.like.dtype)

    def _language_forward(self, microbatch: int) -> None:
        module = self.modules[self.layout.language.name]
        replica = module.layout.grid.index("dp", self.rank)
        batch = language_input(self.layout, self.inputs, replica, microbatch, self.grids.device)
        summed = module.network(batch.tokens, *self._rows(microbatch), batch.labels)
        # Scale at the loss, sum everywhere: N is the whole step's number of labels.
        loss = summed / self.num_labels
        self.losses[microbatch] = loss
        if module.layout.grid.index("tp", self.rank) == 0:
            self.result.loss += loss.detach()

    def _rows(self, microbatch: int) -> tuple[dict[str, Tensor], dict[str, object]]:
        bridges = self.bridges.items()
        return (
            {name: bridge.leaves[microbatch] for name, bridge in bridges},
            {name: bridge.placements[microbatch] for name, bridge in bridges},
        )

    def _backward(self, action: Action) -> None:
        if action.module == self.layout.language.name:
            self.losses.pop(action.index).backward()  # type: ignore[no-untyped-call]
            return
        state = self.bridges[action.module].group(action.index)
        if state.rows is None or state.rows_grad is None:
            raise RuntimeError(f"{action}: its forward or its gradient has not happened")
        torch.autograd.backward(state.rows, state.rows_grad)
        state.rows = state.rows_grad = None


def _set_gradient_sync(module: RankModule, *, sync: bool) -> None:
    """Reduce gradients over dp x cp only at a stage's last backward of the step.

    Fully sharded modules reduce at every backward and accumulate shards instead, so that no
    unsharded gradient stays in memory.
    """
    full = module.sharding == "full"
    for unit in fsdp_modules(module.network):
        _switch(unit, sync=sync or full, last=sync)


def _switch(unit: FSDPModule, *, sync: bool, last: bool) -> None:
    unit.set_requires_gradient_sync(sync, recurse=False)
    unit.set_reshard_after_backward(sync, recurse=False)
    unit.set_is_last_backward(last)
