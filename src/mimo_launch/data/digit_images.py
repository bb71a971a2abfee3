"""The images of the `digits` data set: real handwritten digits, split into train and held-out.

Decides: which images are held out, the scale of pixels, and which digit an image looks like; the
layout of `digits.npz` and its bytes, which are the same on every run (with the same zlib).
Relies on: `digits.npz` next to this file (1,797 images of 8 x 8 pixels with values 0 to 16).
Leaves: samples to `digits`.

`python -m mimo_launch.data.digit_images [--tes optdigits.tes] [--out digits.npz]` makes the file,
from scikit-learn's copy of the UCI test set (`load_digits`) or from UCI's own `optdigits.tes`;
neither is needed to use the package.
"""

import argparse
import importlib
import io
import zipfile
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Purpose, Split, generator, order_of, split_key

HELDOUT_SHARE = 0.2
# The mean value of a pixel is 4.88; with 16ths every scaled value is exact in bf16 as well.
PIXEL_MEAN, PIXEL_RANGE = 5.0, 16.0
# The standard deviation of pixels is 6.0: images to be drawn have the variance of the noise.
PIXEL_DEVIATION = 6.0


class DigitImages(NamedTuple):
    """All images uint8 [n, 8, 8] with values 0 to 16, and their digits uint8 [n]."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def load_digits() -> DigitImages:
    """Return the images of the shipped file, which is read once per process."""
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


Bytes = npt.NDArray[np.uint8]

# The oldest time a zip entry can hold; a real one would make every run's file different.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_SIDE = 8


def from_sklearn() -> tuple[Bytes, Bytes]:
    """Return images uint8 [n, 8, 8] with values 0-16 and labels uint8 [n], from scikit-learn."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)


def from_uci(path: Path) -> tuple[Bytes, Bytes]:
    """Return the same arrays from UCI's text file: 64 values and the label on each line.

    Raises:
        ValueError: The file does not hold 65 numbers per line.
    """
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8, ndmin=2)
    if table.shape[1] != _SIDE * _SIDE + 1:
        raise ValueError(f"{path}: expected 65 values per line, got {table.shape[1]}")
    return table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]


def write_npz(path: Path, arrays: dict[str, Bytes]) -> None:
    """Write a compressed .npz with bytes that depend only on the arrays.

    Args:
        path: File to write.
        arrays: Name to array, written in this order.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0))
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=_ZIP_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # Otherwise the entry records the operating system.
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, buffer.getvalue(), compresslevel=9)


def main() -> None:
    """Read one of the two sources and write the file."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Make digits.npz, the shipped images.")
    parser.add_argument("--tes", type=Path, help="UCI's optdigits.tes; default: scikit-learn")
    parser.add_argument("--out", type=Path, default=here / "digits.npz")
    args = parser.parse_args()
    images, labels = from_uci(args.tes) if args.tes else from_sklearn()
    write_npz(args.out, {"images": images, "labels": labels})


if __name__ == "__main__":
    main()
