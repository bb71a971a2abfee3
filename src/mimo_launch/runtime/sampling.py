"""How generators make images and codes in an evaluation, pass by pass.

Decides: what each pass of a generator adds: an Euler step, or a frame of codes.
Relies on: `generator_inputs` for noise.
Leaves: the passes to the programs of the plan, and writing files to `train`.
"""

from typing import Protocol

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_gather
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.models.encoder_inputs import (
    CodeFrames,
    NoisedPatches,
    Patches,
    own_tokens,
)
from mimo_launch.runtime.generator_inputs import HeldNoise
from mimo_launch.spec.spec import Codes


class Canvas(Protocol):
    """A generator's result for one forward of a replica, made in `passes` passes, on one rank."""

    passes: int

    def seen(self) -> NoisedPatches | CodeFrames:
        """Return the input of the generator's stages in the next pass."""
        ...

    def nothing(self) -> Tensor:
        """Return a buffer for the result of a pass, for the ranks that receive it."""
        ...

    def add(self, found: Tensor) -> None:
        """Add the last stage's result of a pass."""
        ...

    def whole(self) -> Tensor:
        """Return the whole result of the replica, in the order of its list, on the CPU.

        Ranks: collective over the tp and cp ranks of a stage.
        """
        ...


class NoiseCanvas:
    """Patches on their way from noise to images, in Euler steps of equal size.

    Source: arXiv:2209.03003, section 2. `values` [N, P] are the patches of this cp rank.
    """

    def __init__(
        self, noise: HeldNoise, positions: Tensor, context: ParallelContext, passes: int
    ) -> None:
        """Begin with noise."""
        self.noise, self.positions, self.context = noise, positions, context
        self.values, self.passes, self._done = noise.values, passes, 0

    def seen(self) -> NoisedPatches:
        """Return the patches at the time that they have reached."""
        patches = Patches(self.values, self.positions)
        return self.noise.at_time(self._done / self.passes, patches)

    def nothing(self) -> Tensor:
        """Return a buffer for velocities of this rank's tokens between tensor-parallel regions."""
        return torch.empty_like(own_tokens(self.values, self.context))

    def add(self, found: Tensor) -> None:
        """Move the patches by one step along these velocities."""
        own = own_tokens(self.values, self.context)
        own += found / self.passes
        self._done += 1

    def whole(self) -> Tensor:
        """Return the patches of the replica."""
        whole = own_tokens(self.values, self.context).contiguous()
        if self.context.sequence_parallel:
            whole = all_gather(whole, self.context.tp)
        return all_gather(whole, self.context.cp).float().cpu()


class CodesCanvas:
    """Frames of codes: each pass adds the most probable codes of one frame to each clip.

    `frames` [frames of the replica, padding included] holds the number of each frame in its clip,
    from 0; `codes` holds the codes generated so far.
    """

    def __init__(
        self, view: EncoderView, context: ParallelContext, codes: Codes, *, passes: int
    ) -> None:
        """Begin without codes; every clip is as long as the true one."""
        self.context, self.start, self.passes = context, codes.start_code, passes
        self._done = 0
        self.held = view.held(context.cp.index)
        frames = [number for length in view.lengths for number in range(length)]
        frames += [0] * (len(self.held) * context.cp.size - len(frames))
        self.frames = torch.tensor(frames, device=context.device)
        self.codes = torch.zeros(
            (len(frames), codes.codebooks), dtype=torch.int64, device=context.device
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
