"""The noise of flow generators: which noise and which time each image of a step gets.

Decides: both, by (seed, step, sample, image), so that every layout draws the same.
Relies on: `random_draws` for streams of random words.
Leaves: making it ahead of the step to `train.loader`, mixing it with images to
`runtime.generator_inputs`.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Purpose, generator, split_key
from mimo_launch.layout.step_data import SampleData, StepData


class Noise(NamedTuple):
    """Standard normal noise [patches, numbers of a patch], and a time between 0 and 1."""

    values: npt.NDArray[np.float32]
    time: float


def noises_of(
    seed: int, data: StepData, record: SampleData, module: str, numbers: int
) -> list[Noise]:
    """Return the noise of each image that a generator makes of a record, by its patches."""
    return [
        noise_of(seed, data.step, record.id, place, (span.rows, numbers), heldout=data.heldout)
        for place, span in enumerate(record.spans.get(module, ()))
    ]


def noise_of(
    seed: int, step: int, sample: int, image: int, shape: tuple[int, int], *, heldout: bool
) -> Noise:
    """Return the noise of an image; `step` counts from 0, and held-out samples always get the same.

    Times are uniform, as in rectified flow (arXiv:2209.03003).
    """
    key = split_key(seed, "heldout" if heldout else "train", Purpose.NOISE)
    # 2^16 images of a sample in a step are more than any sequence holds.
    stream = (0 if heldout else step) * 2**16 + image
    draws = np.random.Generator(generator(key, sample, stream))
    return Noise(draws.standard_normal(shape, dtype=np.float32), float(draws.random()))
