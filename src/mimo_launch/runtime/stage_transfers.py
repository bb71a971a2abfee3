"""Transfers between neighbouring stages of one module on this rank.

Decides: which activation waits for its gradient, and the buffers of sends and receives.
Relies on: `schedule.channels` for the partner, whose messages arrive in the order sent; shapes
known on both sides, so no handshake.
Leaves: bridges between modules to `bridges`.

Every tp and cp rank of a stage sends its own shard to the rank at the same place of the next stage.
A received activation is a leaf: its gradient is what goes back.
"""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

from mimo_launch.comm.bridge_transfers import require_work
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import channels, is_sender


@dataclass(slots=True)
class _Incoming:
    work: Work
    buffer: Tensor


class StageEdges:
    """Activations and gradients that cross the stages of one module."""

    def __init__(
        self,
        layout: Layout,
        grids: GridSet,
        module: str,
        *,
        dtype: torch.dtype,
        first_with_grad: int,
    ) -> None:
        """Carry `dtype`; from stage `first_with_grad` on, inputs need gradients."""
        self.layout, self.grids, self.module = layout, grids, module
        self.dtype, self.first_with_grad = dtype, first_with_grad
        self.inputs: dict[tuple[int, int], Tensor] = {}
        self.outputs: dict[tuple[int, int], Tensor] = {}
        self.gradients: dict[tuple[int, int], Tensor] = {}
        self._incoming: dict[Action, _Incoming] = {}
        self._sent: dict[Action, tuple[Work, Tensor]] = {}

    def finish(self) -> None:
        """Wait until every send has left its buffer; forget the step."""
        for work, _ in self._sent.values():
            work.wait()
        for table in (self.inputs, self.outputs, self.gradients, self._incoming):
            table.clear()
        self._sent.clear()

    def take_input(self, key: tuple[int, int]) -> Tensor:
        """Return what a stage received; kept for its gradient, if it has one.

        Raises: KeyError if nothing was received, which is a fault of the schedule.
        """
        received = self.inputs[key]
        if not received.requires_grad:
            del self.inputs[key]
        return received

    def post(self, action: Action, shape: tuple[int, int]) -> None:
        """Start a transfer; `shape` is that of the activation, [tokens of this rank, width]."""
        [channel] = channels(self.layout, self.grids.rank, action)
        group, key = self.grids.p2p(channel), (action.stage or 0, action.index)
        if is_sender(action.kind):
            forward = action.kind is Kind.SEND_F
            tensor = self._output(key) if forward else self._input_gradient(key)
            tensor = tensor.contiguous()
            work = require_work(dist.isend(tensor, channel.dst, group=group))
            self._sent[action] = (work, tensor)
            return
        buffer = torch.empty(shape, dtype=self.dtype, device=self.grids.device)
        work = require_work(dist.irecv(buffer, channel.src, group=group))
        self._incoming[action] = _Incoming(work, buffer)

    def wait(self, action: Action) -> None:
        """Finish a receive; sends block nothing and are waited for at the end of the step."""
        if action.kind not in (Kind.RECV_F, Kind.RECV_B):
            return
        incoming = self._incoming.pop(action)
        incoming.work.wait()
        key = (action.stage or 0, action.index)
        if action.kind is Kind.RECV_F:
            needs_grad = torch.is_grad_enabled() and key[0] >= self.first_with_grad
            self.inputs[key] = incoming.buffer.requires_grad_(needs_grad)
        else:
            self.gradients[key] = incoming.buffer
            # Its gradient is here, so the activation has arrived: let its buffer go.
            sent, _ = self._sent.pop(replace(action, kind=Kind.SEND_F))
            sent.wait()

    def _output(self, key: tuple[int, int]) -> Tensor:
        out = self.outputs[key]
        if not out.requires_grad:
            del self.outputs[key]
        return out.detach()

    def _input_gradient(self, key: tuple[int, int]) -> Tensor:
        gradient = self.inputs.pop(key).grad
        if gradient is None:
            raise RuntimeError(f"{self.module}: stage {key[0]} has no gradient for {key[1]} yet")
        return gradient
