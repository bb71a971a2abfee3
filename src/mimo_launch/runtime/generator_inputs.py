"""The inputs of flow generators: patches on their way from noise to an image.

Decides: that all stages and all ranks of a replica see the same noise.
Relies on: `data.noise`; the views of a step for the images of a replica.
Leaves: reading images to `train`, the loss to `models.flow`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.noise import Noise, noise_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.step_views import EncoderView
from mimo_launch.models.encoder_inputs import NoisedPatches, Patches


def noised(
    images: Patches, view: EncoderView, held: range, seed: int, context: ParallelContext
) -> NoisedPatches:
    """Return the noised form of the patches `held` by a cp rank, which `images` has packed."""
    device, dtype = context.device, context.compute_dtype
    wide = torch.promote_types(dtype, torch.float32)
    noise = np.zeros((len(held), images.values.shape[1]), np.float32)
    times, is_patch = np.zeros((2, len(held)))
    first = 0
    for each in _noises(view, seed, images.values.shape[1]):
        last = first + len(each.values)
        start, stop = max(first, held.start), min(last, held.stop)
        if start < stop:
            here = slice(start - held.start, stop - held.start)
            noise[here] = each.values[start - first : stop - first]
            times[here], is_patch[here] = each.time, 1
        first = last
    noise_NP, times_N, is_patch_N = (
        to_device(each, device).to(wide) for each in (noise, times, is_patch)
    )
    pixels_NP, t_N1 = images.values.to(wide), times_N[:, None]
    values = ((1 - t_N1) * noise_NP + t_N1 * pixels_NP).to(dtype)
    target = pixels_NP - noise_NP
    return NoisedPatches(Patches(values, images.positions), times_N, target, is_patch_N)


def _noises(view: EncoderView, seed: int, numbers: int) -> Iterator[Noise]:
    """Yield the noise of every image of a view, in the order of its patches."""
    name, data = view.module.name, view.data
    for sample in view.samples:
        for record in data.samples[sample].records:
            for number, span in enumerate(record.spans.get(name, ())):
                shape = span.rows * view.module.patches_per_row, numbers
                yield noise_of(seed, data.step, record.id, number, shape, heldout=data.heldout)
