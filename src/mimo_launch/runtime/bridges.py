"""This rank's end of every bridge during one step.

Decides: which rows of a group go to which microbatch.
Relies on: `layout.bridge_routing` for transfers, `comm.bridge_transfers` to move them.
Leaves: holding rows to `mailbox`, calling it in the order of the program to `executor`.

The language side is cut from the encoder's graph: received rows are leaves that collect a gradient,
microbatch by microbatch, which the backward transfer returns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mimo_launch.comm.bridge_transfers import (
    BridgeEnd,
    PostedTransfers,
    copy_local,
    encoder_end,
    exchange,
    finish_receives,
    language_end,
    post_receives,
    post_sends,
    wait_all,
)
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layout.bridge_routing import route
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.build import RankModule
from mimo_launch.models.language_model import RowPlaces
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.runtime.model_inputs import row_places
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.channels import Channel, is_sender


@dataclass(slots=True)
class BridgeTraffic:
    """What one microbatch group brings over one bridge, at this rank's ends of it."""

    sender: BridgeEnd | None
    receiver: BridgeEnd | None
    offsets: dict[int, int]
    outgoing: Tensor | None = None
    incoming: PostedTransfers | None = None

    def ends(self, *, forward: bool) -> tuple[BridgeEnd | None, BridgeEnd | None]:
        """Return the ends at which rows leave this rank and arrive on it."""
        return (self.sender, self.receiver) if forward else (self.receiver, self.sender)


class Bridge:
    """This rank's ends of one encoder's bridge to language."""

    def __init__(
        self,
        layout: Layout,
        grids: GridSet,
        encoder: ModuleLayout,
        *,
        modules: dict[str, RankModule],
        mail: Mailbox,
        dtype: torch.dtype,
        width: int,
    ) -> None:
        self.layout, self.grids, self.encoder, self.mail = layout, grids, encoder, mail
        self.rank = grids.rank
        # Rows leave the last stage of the encoder and enter the first stage of language.
        source, target = modules.get(encoder.name), modules.get(layout.language.name)
        self.is_source = source is not None and len(encoder.stages) - 1 in source.stages
        self.language = target if target is not None and 0 in target.stages else None
        self.like = torch.empty((0, width), dtype=dtype, device=grids.device)
        self.open: dict[int, BridgeTraffic] = {}
        self.row_places: dict[int, RowPlaces] = {}
        self.sent: list[PostedTransfers] = []

    def begin(self, views: StepViews) -> None:
        """Forget the last step and store the data of the next one."""
        self.views = views
        self.finish()
        self.open.clear()
        self.row_places.clear()

    def finish(self) -> None:
        """Wait until every send of the step has left its buffer."""
        wait_all(self.sent)
        self.sent.clear()

    def traffic(self, index: int) -> BridgeTraffic:
        """Return the traffic of a microbatch group, made at its first action."""
        if index not in self.open:
            self.open[index] = self._open(index)
        return self.open[index]

    def _open(self, index: int) -> BridgeTraffic:
        transfers = route(self.views, self.encoder.name, index, rank=self.rank)
        sender = receiver = None
        offsets: dict[int, int] = {}
        if self.is_source:
            at = self.encoder.grid.coords_of(self.rank)
            mine = self.views.encoder(self.encoder.name, at["dp"], index).owned(at["cp"])[at["tp"]]
            sender = encoder_end(transfers, self.rank, mine, self.like.device)
        if self.language is not None:
            offset, replica = 0, self.layout.language.grid.index("dp", self.rank)
            for microbatch in self._microbatches(index):
                view = self.views.language(replica, microbatch)
                self.row_places[microbatch], received = row_places(
                    view, self.encoder.name, self.language.context
                )
                offsets[microbatch] = offset
                offset += received
            receiver = language_end(transfers, self.rank, offsets, offset, self.like.device)
        return BridgeTraffic(sender, receiver, offsets)

    def _microbatches(self, index: int) -> range:
        size = self.encoder.group_size
        return range(index * size, (index + 1) * size)

    def run(self, kind: Kind, index: int) -> None:
        """Start (sends, receives) or carry out (exchanges) one action of the bridge."""
        state = self.traffic(index)
        forward = kind in (Kind.SEND_F, Kind.RECV_F, Kind.EXCHANGE_F)
        leaving, arriving = (
            (state.sender, state.receiver) if forward else (state.receiver, state.sender)
        )
        if kind.is_collective:
            got = exchange(
                self._outgoing(index, forward=forward),
                leaving,
                arriving,
                group=self.grids.bridge(self.encoder.name),
                rank=self.rank,
                like=self.like,
            )
            self._deliver(index, got, forward=forward)
            return

        def group_between(src: int, dst: int) -> ProcessGroup:
            return self.grids.p2p(Channel(self.encoder.name, True, forward, src, dst))

        if is_sender(kind):
            state.outgoing = self._outgoing(index, forward=forward)
            if state.outgoing is None or leaving is None:
                raise RuntimeError(f"{self.encoder.name}: nothing to send for group {index}")
            self.sent.append(post_sends(state.outgoing, leaving, group_between, rank=self.rank))
        elif arriving is not None:
            state.incoming = post_receives(arriving, group_between, rank=self.rank, like=self.like)

    def wait(self, kind: Kind, index: int) -> None:
        """Finish a receive; sends are waited for at the end of the step, they block nothing."""
        if kind not in (Kind.RECV_F, Kind.RECV_B):
            return
        state, forward = self.open[index], kind is Kind.RECV_F
        leaving, arriving = (
            (state.sender, state.receiver) if forward else (state.receiver, state.sender)
        )
        if arriving is None or state.incoming is None:
            return
        got = finish_receives(arriving, state.incoming, rank=self.rank, like=self.like)
        copy_local(state.outgoing, leaving, got, arriving, self.rank)
        state.incoming = state.outgoing = None
        self._deliver(index, got, forward=forward)

    def _outgoing(self, index: int, *, forward: bool) -> Tensor | None:
        state = self.open[index]
        if forward:
            return None if state.sender is None else self.mail.output_to_send(self._made(index))
        if state.receiver is None:
            return None
        # The gradients of the received rows, microbatches one after another.
        return torch.cat([self.mail.take_input_gradient(self._received(m)) for m in state.offsets])

    def _deliver(self, index: int, rows: Tensor | None, *, forward: bool) -> None:
        if rows is None:
            return
        state = self.open[index]
        if not forward:
            self.mail.gradients.put(self._made(index), rows)
            return
        for microbatch, offset in state.offsets.items():
            size = self._num_received(microbatch)
            leaf = rows[offset : offset + size].clone()
            leaf.requires_grad_(not self.encoder.frozen)
            self.mail.inputs.put(self._received(microbatch), leaf)

    def _made(self, index: int) -> Address:
        """Return the address of the rows that this rank's last stage makes of a group."""
        return Address(self.encoder.name, len(self.encoder.stages) - 1, index)

    def _received(self, microbatch: int) -> Address:
        return Address(self.encoder.name, None, microbatch)

    def received(self, microbatch: int) -> Tensor:
        """Return the rows of a microbatch: a leaf, held for its gradient or for greedy answers."""
        return self.mail.inputs.peek(self._received(microbatch))

    def _num_received(self, microbatch: int) -> int:
        sizes = self.row_places[microbatch].sizes
        return sizes[self.layout.language.grid.index("tp", self.rank)]
