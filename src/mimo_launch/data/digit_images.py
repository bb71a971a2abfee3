"""The images of the `digits` data set: real handwritten digits, and which of them are held out.

Decides: which images are held out, the scale of pixels, and which digit an image looks like.
Relies on: `digits.npz` beside this file (1,797 images of 8 x 8 pixels with values 0 to 16).
Leaves: samples to `digits`.
"""

from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Purpose, Split, generator, order_of, split_key

HELDOUT_SHARE = 0.2
# The mean value of a pixel is 4.88; with 16ths every scaled value is exact in bf16 as well.
PIXEL_MEAN, PIXEL_RANGE = 5.0, 16.0
# Their standard deviation is 6.0: images to be drawn have the variance of the noise.
PIXEL_DEVIATION = 6.0


class DigitImages(NamedTuple):
    """All images uint8 [n, 8, 8] with values 0 to 16, and their digits uint8 [n]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def load_digits() -> DigitImages:
    """Read the shipped file, once per process."""
    path = resources.files(__package__).joinpath("digits.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return DigitImages(arrays["images"], arrays["labels"])


@lru_cache(maxsize=1)
def image_split() -> dict[Split, tuple[int, ...]]:
    """Return the indices of the train and the held-out images.

    A fifth of the images of each digit is held out, the same ones for every seed. The images come
    from 13 writers that the file does not name, so the splits are not separated by writer.
    """
    labels = load_digits().labels
    words = generator(split_key(0, "heldout", Purpose.HELDOUT_IMAGES)).random_raw(len(labels))
    heldout: list[int] = []
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        shuffled = members[order_of(words[members])]
        heldout += shuffled[: round(HELDOUT_SHARE * len(members))].tolist()
    train = sorted(set(range(len(labels))) - set(heldout))
    return {"train": tuple(train), "heldout": tuple(sorted(heldout))}


def nearest_digits(images: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return the digit of the training image nearest to each drawn one, [n, 8, 8]."""
    train = list(image_split()["train"])
    known = load_digits().images[train].reshape(len(train), -1).astype(np.float32)
    known = (known - np.float32(PIXEL_MEAN)) / np.float32(PIXEL_DEVIATION)
    flat = images.reshape(len(images), -1)
    far = (known**2).sum(axis=1) - 2 * flat @ known.T
    nearest: list[int] = far.argmin(axis=1).tolist()
    return np.array([load_digits().labels[train[each]] for each in nearest], dtype=np.int64)
