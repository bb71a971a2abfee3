"""The noise that generators learn to turn into images, and patches between noise and image.

Decides: that a patch at time t is (1 - t) noise + t image, and that the target velocity is (image -
noise); the Euler steps of a drawing; that all stages and all ranks of a replica see the same noise.
Relies on: `data.random_draws`.
Leaves: reading images and drawing noise to `train`, the loss to `flow` and to users' generators.

Legend: N patches of this cp rank, P values of a patch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.collectives import all_gather
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.patches import Patches, own_tokens, parts_held
from mimo_launch.models.stage_interface import ListForward


@dataclass(frozen=True, slots=True)
class NoisedPatches:
    """The patches of one cp rank between noise and image, each with its time, [N].

    `target` [N, P] is image - noise, None while an image is generated; `is_patch` [N] is 1, and 0
    on padding.
    """

    patches: Patches
    times: Tensor
    target: Tensor | None
    is_patch: Tensor


@dataclass(frozen=True, slots=True)
class PatchTargets:
    """The training targets of a custom generator, patch by patch, in at least fp32.

    `patches` [N, P] and `positions` [N, axes] are as in `Patches`; `noise` [N, P] is standard
    normal, and `times` [N] are uniform between 0 and 1, one for each image. `is_patch` [N] is 1,
    and 0 on padding.
    """

    patches: Tensor
    positions: Tensor
    noise: Tensor
    times: Tensor
    is_patch: Tensor


@dataclass(frozen=True, slots=True)
class HeldNoise:
    """The noise of the patches of one cp rank, [N, P], and their training times, [N].

    `is_patch` [N] is 0 on padding. All are in at least fp32; patches get dtype `dtype`.
    """

    values: Tensor
    times: Tensor
    is_patch: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, forward: ListForward) -> "HeldNoise":
        """Return the noise of the patches of a generator that this cp rank holds."""
        how = forward.how
        # Noise is drawn row by row, and a row may be several patches.
        noises = [
            (each.values.reshape(-1, how.width), each.time)
            for sample in forward.view.samples
            for each in forward.samples.noises(sample, forward.module.name, how.row_width)
        ]
        held, context = forward.held, forward.context
        noise = np.zeros((len(held), how.width), np.float32)
        times, is_patch = np.zeros((2, len(held)))
        for number, here, part in parts_held((len(values) for values, _ in noises), held):
            drawn, time = noises[number]
            noise[here], times[here], is_patch[here] = drawn[part], time, 1
        wide = torch.promote_types(context.compute_dtype, torch.float32)
        values, of_patches, counts = (
            to_device(each, context.device).to(wide) for each in (noise, times, is_patch)
        )
        return cls(values, of_patches, counts, context.compute_dtype)

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
