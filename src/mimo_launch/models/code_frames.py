"""Frames of codec tokens that a talker reads and predicts, in training and in a drawing.

Decides: that each pass of a drawing adds the most probable codes of one frame to every clip.
Relies on: `patches` for the codes of each frame and of the frame before it.
Leaves: the loss to `talker`, the passes to the programs of the plan.

Legend: N frames of this cp rank, K codebooks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_gather
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.models.patches import Patches
from mimo_launch.models.stage_interface import ListForward
from mimo_launch.spec.spec import Codes


@dataclass(frozen=True, slots=True)
class CodeFrames:
    """The frames of one cp rank: their input codes and their target codes, [N, K] each.

    `labels` is None while codes are generated; padding has IGNORE_LABEL.
    """

    tokens: Tensor
    labels: Tensor | None


def code_frames(read: Patches) -> CodeFrames:
    """Return the frames in these patches, which hold input codes and target codes."""
    seen, said = read.values.chunk(2, dim=1)
    return CodeFrames(seen, said.masked_fill(read.positions == 0, IGNORE_LABEL))


class CodesCanvas:
    """Frames of codes: each pass adds the most probable codes of one frame to each clip.

    `frames` [frames of the replica, padding included] holds the number of each frame in its clip,
    from 0; `codes` holds the codes generated so far.
    """

    def __init__(self, forward: ListForward, codes: Codes) -> None:
        """Begin without codes; every clip is as long as the true one."""
        self.context, self.start, self._done = forward.context, codes.start_code, 0
        self.held = forward.held
        # Every replica needs the same number of passes: sharded weights are gathered over all of
        # them.
        self.passes = forward.samples.data.most_rows(forward.module.name)
        frames = [number for length in forward.view.lengths for number in range(length)]
        frames += [0] * (len(self.held) * self.context.cp.size - len(frames))
        self.frames = torch.tensor(frames, device=self.context.device)
        self.codes = torch.zeros(
            (len(frames), codes.codebooks), dtype=torch.int64, device=self.context.device
        )

    def seen(self) -> CodeFrames:
        """Return the input frames: each frame sees the codes of the frame before it."""
        is_first = (self.frames == 0)[:, None]
        before = self.codes.roll(1, dims=0).masked_fill(is_first, self.start)
        return CodeFrames(before[self.held.start : self.held.stop], None)

    def nothing(self) -> Tensor:
        """Return a buffer for the codes of all frames of this cp rank."""
        return torch.empty_like(self.codes[self.held.start : self.held.stop])

    def add(self, found: Tensor) -> None:
        """Keep the codes of the current frame of each clip. Ranks: collective over cp."""
        everywhere = all_gather(found.contiguous(), self.context.cp)
        self.codes = torch.where((self.frames == self._done)[:, None], everywhere, self.codes)
        self._done += 1

    def whole(self) -> Tensor:
        """Return the codes of the replica, [frames, codebooks]."""
        return self.codes.cpu()
