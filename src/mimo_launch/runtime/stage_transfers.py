"""Transfers between neighbouring stages of one module on this rank.

Decides: the buffers of sends and receives.
Relies on: `schedule.channels` for the partner; messages that arrive in the order sent; shapes known
on both sides, so that no handshake is needed.
Leaves: holding activations to `mailbox`, and bridges between modules to `bridges`.

Every tp and cp rank of a stage sends its own shard to the rank at the same place in the next stage.
A received activation is a leaf: its gradient is sent back.
"""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

from mimo_launch.comm.collectives import require_work
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layout.layout import Layout
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import channels


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
        mail: Mailbox,
        *,
        dtype: torch.dtype,
        first_with_grad: int,
    ) -> None:
        """Carry `dtype`; from stage `first_with_grad` on, inputs need gradients."""
        self.layout, self.grids, self.module, self.mail = layout, grids, module, mail
        self.dtype, self.first_with_grad = dtype, first_with_grad
        self._incoming: dict[Action, _Incoming] = {}
        self._sent: dict[Action, tuple[Work, Tensor]] = {}

    def finish(self) -> None:
        """Wait until every send has left its buffer."""
        for work, _ in self._sent.values():
            work.wait()
        self._incoming.clear()
        self._sent.clear()

    def post(self, action: Action, shape: tuple[int, int]) -> None:
        """Start a transfer; an activation has `shape`, [tokens of this rank, width]."""
        [channel] = channels(self.layout, self.grids.rank, action)
        group, at = self.grids.p2p(channel), Address.of(action)
        if action.kind.sends:
            forward = action.kind is Kind.SEND_F
            take = self.mail.output_to_send if forward else self.mail.take_input_gradient
            tensor = take(at).contiguous()
            work = require_work(dist.isend(tensor, channel.dst, group=group))
            self._sent[action] = (work, tensor)
            return
        buffer = torch.empty(shape, dtype=self.dtype, device=self.grids.device)
        work = require_work(dist.irecv(buffer, channel.src, group=group))
        self._incoming[action] = _Incoming(work, buffer)

    def wait(self, action: Action) -> None:
        """Finish a receive. Sends block nothing; `finish` waits for them at the end of the step."""
        if action.kind not in (Kind.RECV_F, Kind.RECV_B):
            return
        incoming = self._incoming.pop(action)
        incoming.work.wait()
        if action.kind is Kind.RECV_F:
            needs_grad = torch.is_grad_enabled() and (action.stage or 0) >= self.first_with_grad
            self.mail.inputs.put(Address.of(action), incoming.buffer.requires_grad_(needs_grad))
        else:
            self.mail.gradients.put(Address.of(action), incoming.buffer)
            # The gradient is here, so the activation has arrived: free its buffer.
            sent, _ = self._sent.pop(replace(action, kind=Kind.SEND_F))
            sent.wait()
