"""The inputs of generators: their training targets and noise.

Decides: that all stages and all ranks of a replica see the same noise.
Relies on: `data.random_draws`.
Leaves: reading images and drawing noise to `train`, the loss to `models.flow` and `models.talker`,
generation in an evaluation to `sampling`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.random_draws import Noise
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.encoder_inputs import (
    CodeFrames,
    NoisedPatches,
    Patches,
    PatchTargets,
)


@dataclass(frozen=True, slots=True)
class HeldNoise:
    """The noise of the patches of one cp rank, [N, P], and their training times, [N].

    `is_patch` [N] is 0 on padding. All are in at least fp32; patches get dtype `dtype`.
    """

    values: Tensor
    times: Tensor
    is_patch: Tensor
    dtype: torch.dtype

    def towards(self, images: Patches) -> NoisedPatches:
        """Return patches between the noise and these images, at the training times."""
        pixels, t_N1 = images.values.to(self.values.dtype), self.times[:, None]
        mixed = ((1 - t_N1) * self.values + t_N1 * pixels).to(self.dtype)
        target = pixels - self.values
        return NoisedPatches(Patches(mixed, images.positions), self.times, target, self.is_patch)

    def beside(self, images: Patches) -> PatchTargets:
        """Return these images with the noise and the training times."""
        pixels = images.values.to(self.values.dtype)
        return PatchTargets(pixels, images.positions, self.values, self.times, self.is_patch)

    def at_time(self, time: float, made: Patches) -> NoisedPatches:
        """Return patches that are being generated, all at one time."""
        times = torch.full_like(self.times, time)
        patches = Patches(made.values.to(self.dtype), made.positions)
        return NoisedPatches(patches, times, None, self.is_patch)


def noise_held(
    noises: Iterable[Noise], held: range, numbers: int, context: ParallelContext
) -> HeldNoise:
    """Return the noise of the patches `held` by a cp rank, cut from the noise of all images."""
    noise = np.zeros((len(held), numbers), np.float32)
    times, is_patch = np.zeros((2, len(held)))
    first = 0
    for each in noises:
        # Noise is drawn row by row, and a row may be several patches.
        values = each.values.reshape(-1, numbers)
        last = first + len(values)
        start, stop = max(first, held.start), min(last, held.stop)
        if start < stop:
            here = slice(start - held.start, stop - held.start)
            noise[here] = values[start - first : stop - first]
            times[here], is_patch[here] = each.time, 1
        first = last
    wide = torch.promote_types(context.compute_dtype, torch.float32)
    on_device = [to_device(each, context.device).to(wide) for each in (noise, times, is_patch)]
    return HeldNoise(on_device[0], on_device[1], on_device[2], context.compute_dtype)


def code_frames(read: Patches) -> CodeFrames:
    """Return the frames in these patches, which hold input codes and target codes."""
    seen, said = read.values.chunk(2, dim=1)
    return CodeFrames(seen, said.masked_fill(read.positions == 0, IGNORE_LABEL))
