"""This rank's ends of every bridge during one step.

Decides: which rows of a transfer belong to which forward of the source and of the target.
Relies on: `layout.bridge_routing` for transfers, `comm.bridge_transfers` to move them.
Leaves: holding rows to `mailbox`, and calls in the order of the program to `executor`.

The target is detached from the source's graph: received rows are leaves that collect a gradient,
forward by forward, and the backward transfer returns it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mimo_launch.comm.bridge_transfers import (
    BridgeEnd,
    PostedTransfers,
    copy_local,
    exchange,
    finish_receives,
    post_receives,
    post_sends,
    source_end,
    target_end,
    wait_all,
)
from mimo_launch.comm.process_groups import GridSet
from mimo_launch.layout.bridge_routing import route
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.build import RankModule
from mimo_launch.models.row_places import RowPlaces, row_places
from mimo_launch.runtime.mailbox import Address, Mailbox
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.channels import Channel
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis


@dataclass(slots=True)
class BridgeTraffic:
    """One transfer over one bridge, at this rank's ends of the bridge.

    `sent` and `received` give the first row, in their buffers, of each forward of source and
    target.
    """

    sender: BridgeEnd | None
    receiver: BridgeEnd | None
    sent: dict[int, int]
    received: dict[int, int]
    outgoing: Tensor | None = None
    incoming: PostedTransfers | None = None


class RankBridge:
    """This rank's ends of one bridge."""

    def __init__(
        self,
        layout: Layout,
        grids: GridSet,
        bridge: Bridge,
        *,
        modules: dict[str, RankModule],
        mail: Mailbox,
        dtype: torch.dtype,
        width: int,
    ) -> None:
        self.layout, self.grids, self.bridge, self.mail = layout, grids, bridge, mail
        self.rank = grids.rank
        # Rows leave the last stage of the source and enter the first stage of the target.
        source, target = modules.get(bridge.source), modules.get(bridge.target)
        last = len(layout[bridge.source].stages) - 1
        self.source = source if source is not None and last in source.stages else None
        self.target = target if target is not None and 0 in target.stages else None
        self.has_backward = needs_backward(layout, layout[bridge.source])
        self.like = torch.empty((0, width), dtype=dtype, device=grids.device)
        self.open: dict[int, BridgeTraffic] = {}
        self.places: dict[tuple[str, int], RowPlaces] = {}
        self.posted: list[PostedTransfers] = []

    def begin(self, views: StepViews) -> None:
        """Forget the last step and store the data of the next one."""
        self.views = views
        self.finish()
        self.open.clear()
        self.places.clear()

    def finish(self) -> None:
        """Wait until every send of the step has left its buffer."""
        wait_all(self.posted)
        self.posted.clear()

    def traffic(self, index: int) -> BridgeTraffic:
        """Return a transfer; its first action creates it."""
        if index not in self.open:
            self.open[index] = self._open(index)
        return self.open[index]

    def _open(self, index: int) -> BridgeTraffic:
        transfers = route(self.views, self.bridge.name, index, rank=self.rank)
        traffic = BridgeTraffic(None, None, {}, {})
        if self.source is not None:
            offset = 0
            for forward in self.bridge.sources(index):
                traffic.sent[forward] = offset
                offset += self._num_owned(forward)
            traffic.sender = source_end(
                transfers, self.rank, traffic.sent, offset, self.like.device
            )
        if self.target is not None:
            offset = 0
            for forward in self.bridge.targets(index):
                traffic.received[forward] = offset
                offset += self._num_received(forward)
            traffic.receiver = target_end(
                transfers, self.rank, traffic.received, offset, self.like.device
            )
        return traffic

    def places_in_source(self, forward: int) -> RowPlaces:
        """Return the places of the leaving rows among the tokens of a forward of the source."""
        return self._places(self.source, forward)

    def places_in_target(self, forward: int) -> RowPlaces:
        """Return the places of the arriving rows among the tokens of a forward of the target."""
        return self._places(self.target, forward)

    def _places(self, module: RankModule | None, forward: int) -> RowPlaces:
        if module is None:
            raise RuntimeError(f"{self.bridge.name}: rank {self.rank} is not at this end")
        key = module.name, forward
        if key not in self.places:
            replica = module.layout.grid.index(Axis.DP, self.rank)
            self.places[key] = row_places(
                self.views, self.bridge, module.name, replica, forward, module.context
            )
        return self.places[key]

    def _num_owned(self, forward: int) -> int:
        """Return how many rows of a forward of the source this rank sends."""
        if self.source is None:
            return 0
        grid = self.source.layout.grid
        tp = grid.index(Axis.TP, self.rank)
        if self.source.layout.is_language:
            return self.places_in_source(forward).sizes[tp]
        view = self.views.encoder(self.bridge.source, grid.index(Axis.DP, self.rank), forward)
        return view.owned(grid.index(Axis.CP, self.rank))[tp]

    def _num_received(self, forward: int) -> int:
        """Return how many rows of a forward of the target this rank receives."""
        tp = self.layout[self.bridge.target].grid.index(Axis.TP, self.rank)
        return self.places_in_target(forward).sizes[tp]

    def run(self, kind: Kind, index: int) -> None:
        """Start (sends, receives) or carry out (exchanges) one action of the bridge."""
        state = self.traffic(index)
        forward = kind in (Kind.SEND_F, Kind.RECV_F, Kind.EXCHANGE_F)
        leaving, arriving = self._ends(state, forward=forward)
        if kind.is_collective:
            got = exchange(
                self._outgoing(state, forward=forward),
                leaving,
                arriving,
                group=self.grids.bridge(self.bridge.name),
                rank=self.rank,
                like=self.like,
            )
            self._deliver(state, got, forward=forward)
            return

        def group_between(src: int, dst: int) -> ProcessGroup:
            return self.grids.p2p(Channel(self.bridge.name, True, forward, src, dst))

        if kind.sends:
            state.outgoing = self._outgoing(state, forward=forward)
            if state.outgoing is None or leaving is None:
                raise RuntimeError(f"{self.bridge.name}: nothing to send for group {index}")
            self.posted.append(post_sends(state.outgoing, leaving, group_between, rank=self.rank))
        elif arriving is not None:
            state.incoming = post_receives(arriving, group_between, rank=self.rank, like=self.like)

    def wait(self, kind: Kind, index: int) -> None:
        """Finish a receive. Sends block nothing; `finish` waits for them at the end of the step."""
        if kind not in (Kind.RECV_F, Kind.RECV_B):
            return
        state, forward = self.open[index], kind is Kind.RECV_F
        leaving, arriving = self._ends(state, forward=forward)
        if arriving is None or state.incoming is None:
            return
        got = finish_receives(arriving, state.incoming, rank=self.rank, like=self.like)
        copy_local(state.outgoing, leaving, got, arriving, self.rank)
        state.incoming = state.outgoing = None
        self._deliver(state, got, forward=forward)

    def _ends(
        self, state: BridgeTraffic, *, forward: bool
    ) -> tuple[BridgeEnd | None, BridgeEnd | None]:
        """Return the ends at which rows leave this rank and arrive on it."""
        return (state.sender, state.receiver) if forward else (state.receiver, state.sender)

    def _outgoing(self, state: BridgeTraffic, *, forward: bool) -> Tensor | None:
        """Return the rows that leave, or the gradients of the rows that arrived, concatenated."""
        take = self.mail.output_to_send if forward else self.mail.take_input_gradient
        parts = [take(self.at(each)) for each in (state.sent if forward else state.received)]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _deliver(self, state: BridgeTraffic, rows: Tensor | None, *, forward: bool) -> None:
        if rows is None:
            return
        if not forward:
            for each, offset in state.sent.items():
                size = self._num_owned(each)
                self.mail.gradients.put(self.at(each), rows[offset : offset + size])
            return
        for each, offset in state.received.items():
            leaf = rows[offset : offset + self._num_received(each)].clone()
            leaf.requires_grad_(self.has_backward)
            self.mail.inputs.put(self.at(each), leaf)

    def at(self, forward: int) -> Address:
        """Return the address of the rows of a forward: outputs of the source, inputs of the target.

        `forward` may be a forward of either end: the mailbox holds outputs and inputs apart.
        """
        return Address(self.bridge.name, None, forward)

    def received(self, forward: int) -> Tensor:
        """Return the rows of a forward: a leaf, kept for its gradient or for greedy answers."""
        return self.mail.inputs.peek(self.at(forward))
