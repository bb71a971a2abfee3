"""The peak memory of a rank during a step, with its parts.

Decides: what is alive at each action of a program.
Relies on: `memory` for the bytes of each stage.
Leaves: whether it fits to `checks.memory`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.memory import StageMemory
from mimo_launch.estimate.rows import MemoryRow
from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Action, Kind, Program

# The memory of each stage, by the index of its forward.
Stages = Mapping[tuple[str, int], Sequence[StageMemory]]
# By bridge, the bytes that a rank sends in each transfer and the bytes that a rank receives.
RowBytes = Mapping[str, Sequence[tuple[int, int]]]
GB = 1_000_000_000


@dataclass(slots=True)
class _Course:
    """The parts of memory that change during a step, in bytes."""

    gathered: int = 0
    gradients: int = 0
    activations: int = 0
    transfers: int = 0
    offloaded: int = 0


class _Walk:
    """Walks through a program and records the peak."""

    def __init__(
        self,
        layout: Layout,
        stages: Stages,
        row_bytes: RowBytes,
        program: Program,
    ) -> None:
        self.layout, self.stages, self.row_bytes = layout, stages, row_bytes
        self.now = _Course()
        self.started: set[tuple[str, int]] = set()
        self.seen: set[tuple[str, int]] = set()
        self.last = {
            (a.module, a.stage or 0): a for slot in program for a in slot if a.kind is Kind.BACKWARD
        }
        self.weights = sum(each[0].weights for each in stages.values())
        self.moments = sum(each[0].moments for each in stages.values())
        self.worst: tuple[int, ...] = (0,) * 5
        self.most_offloaded = 0
        self._note()
        for slot in program:
            for action in slot:
                self._run(action)

    def _note(self, *, gradients: int = 0, activations: int = 0, buffers: int = 0) -> None:
        """Compare the memory now, including temporary memory, with the peak so far."""
        now = self.now
        parts = (
            self.weights + now.gathered,
            now.gradients + gradients,
            self.moments,
            now.activations + activations,
            now.transfers + buffers,
        )
        if sum(parts) > sum(self.worst):
            self.worst = parts

    def _run(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            self._forward(action, (action.module, action.stage or 0))
        elif action.kind is Kind.BACKWARD:
            self._backward(action, (action.module, action.stage or 0))
        elif not (action.kind.is_transfer or action.kind.is_collective):
            return  # The last backwards count sums and the update.
        elif action.stage is not None:
            # Input gradients stay in their send buffers until the step ends.
            if action.kind is Kind.SEND_B:
                self.now.transfers += self.stages[action.module, action.stage][action.index].edge
        else:
            self._bridge(action)

    def _forward(self, action: Action, key: tuple[str, int]) -> None:
        stage, buffers = self.stages[key][action.index], 0
        if key not in self.started:
            self.started.add(key)
            self.now.gathered += stage.gathered
            self.now.activations += stage.in_flight
            buffers = stage.gather_buffer
        self.now.activations += stage.kept
        self.now.offloaded += stage.offloaded
        self.most_offloaded = max(self.most_offloaded, self.now.offloaded)
        self._note(activations=stage.forward_extra, buffers=buffers)

    def _backward(self, action: Action, key: tuple[str, int]) -> None:
        stage = self.stages[key][action.index]
        if key not in self.seen:
            self.seen.add(key)
            self.now.gradients += stage.accumulated
        is_last = self.last[key] == action
        # Units are reduced after the backward has reached the layers.
        self._note(gradients=stage.backward_gradients, activations=stage.end_extra)
        self._note(
            gradients=stage.backward_gradients,
            activations=stage.backward_extra,
            buffers=stage.reduce_buffer if is_last else 0,
        )
        self.now.activations -= stage.kept
        self.now.offloaded -= stage.offloaded
        if is_last:
            self.now.activations -= stage.in_flight
            self.now.gradients += stage.gradients - stage.accumulated
            self.now.gathered -= stage.gathered
            self._note(buffers=stage.last_buffer)

    def _bridge(self, action: Action) -> None:
        """Count rows: autograd leaves and their gradients at the target, buffers at both ends."""
        sent, received = self.row_bytes[action.module][action.index]
        bridge = self.layout.bridges[action.module]
        at_source = (bridge.source, len(self.layout[bridge.source].stages) - 1) in self.stages
        at_target = (bridge.target, 0) in self.stages
        if action.kind in (Kind.RECV_F, Kind.EXCHANGE_F) and at_target:
            self.now.transfers += 2 * received
        elif action.kind in (Kind.SEND_B, Kind.EXCHANGE_B) and at_target:
            # The leaves are freed; packed gradients stay in their buffers if sent pairwise.
            self.now.transfers -= received if action.kind is Kind.SEND_B else 2 * received
        if action.kind is Kind.SEND_F and at_source:
            self.now.transfers += sent
        elif action.kind in (Kind.RECV_B, Kind.EXCHANGE_B) and at_source:
            self._note(buffers=sent)
        self._note()


def peak_memory(
    layout: Layout,
    stages: Stages,
    row_bytes: RowBytes,
    program: Program,
    calibration: Calibration,
    *,
    communicators: int,
    beside: int,
) -> MemoryRow:
    """Return the memory of a rank at its peak.

    `stages` are the stages of the rank; `communicators` is the number of NCCL communicators that
    the rank opens, `beside` the bytes of tensors that the allocator does not hold.
    """
    walk = _Walk(layout, stages, row_bytes, program)
    weights, gradients, optimizer, activations, transfers = worst = walk.worst
    workspace = round(calibration.workspace_memory * GB) if stages else 0
    outside = calibration.context_memory + communicators * calibration.communicator_memory
    return MemoryRow(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        transfers=transfers,
        workspace=workspace,
        reserve=round(calibration.allocator_slack * (sum(worst) + workspace)),
        device=round(outside * GB) + beside,
        host=walk.most_offloaded + sum(each[0].host for each in stages.values()),
    )
