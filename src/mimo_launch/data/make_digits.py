"""Makes `digits.npz`: `python make_digits.py [--tes optdigits.tes] [--out digits.npz]`.

Decides: the file's layout and its bytes, which are the same on every run (with the same zlib).
Relies on: scikit-learn's copy of the UCI test set (`load_digits`), or UCI's own `optdigits.tes`;
neither is needed to use the package.
Leaves: splitting into train and held-out, and scaling, to `digits`.
"""

import argparse
import importlib
import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# The oldest time a zip entry can hold; a real one would make every run's file different.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_SIDE = 8


def from_sklearn() -> tuple[Bytes, Bytes]:
    """Return images uint8 [n, 8, 8] with values 0-16 and labels uint8 [n], from scikit-learn."""
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)


def from_uci(path: Path) -> tuple[Bytes, Bytes]:
    """Return the same from UCI's text file, which has 64 values and the label on each line.

    Raises:
        ValueError: The file does not hold 65 numbers per line.
    """
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8, ndmin=2)
    if table.shape[1] != _SIDE * _SIDE + 1:
        raise ValueError(f"{path}: expected 65 values per line, got {table.shape[1]}")
    return table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]


def write_npz(path: Path, arrays: dict[str, Bytes]) -> None:
    """Write a compressed .npz whose bytes depend on the arrays only.

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
            # Otherwise the entry says which operating system wrote it.
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
