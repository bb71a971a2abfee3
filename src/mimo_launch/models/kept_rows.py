"""Rows of a frozen encoder that are kept on disk: one file for each image or clip.

Decides: that the name of a file follows from the numbers that the encoder reads and from the recipe
that makes rows of them; that a file is renamed into its place when it is whole, and has a checksum;
that a folder is filled up to a limit and never emptied.
Relies on: `layout.row_owners` for the rows that a rank owns.
Leaves: the recipe to `train.row_caches`; which steps read their rows to `train.prefetch`.

Legend: R rows of a replica's forward, r rows that this rank owns, L width of a row.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from errno import EIO
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.collectives import all_gather_uneven
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.layout.row_owners import row_cut
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.models.patches import Patches

_CHECKSUM_BYTES = sha256().digest_size


class State(IntEnum):
    """What a rank knows of the rows of an image, the worst last."""

    KEPT = 0
    MISSING = 1
    FULL = 2
    NOT_WRITTEN = 3
    DAMAGED = 4
    NOT_READ = 5


# Numbers of errors of the system are below; so one number has a state and its error.
ERRORS = 1 << 16


class KeptRows(NamedTuple):
    """One image in a cache: `key` is the name of its file, `rows` [n, L] are what it holds.

    `error` is the number of the system's error if it could not be read or written, else 0.
    """

    cache: "RowCache"
    key: str
    num_rows: int
    state: State
    rows: Tensor | None
    error: int = 0

    @property
    def told(self) -> int:
        """State and error as one number, which ranks compare."""
        return self.state * ERRORS + self.error


class RowCache:
    """The kept rows of one encoder.

    It has `stopped` to keep more if it is full or cannot be written; `error` is then the number of
    the system's error, 0 if it is full.
    """

    def __init__(self, folder: Path, *, width: int, dtype: torch.dtype, room: int) -> None:
        """Keep rows [n, width] of `dtype` in `folder`, at most `room` bytes more than there are."""
        self.folder, self._width, self._dtype, self._room = folder, width, dtype, room
        self.stopped, self.error = False, 0

    def look_up(self, image: Patches, span: ImageSpan) -> KeptRows:
        """Return what is kept of an image; a damaged file is removed."""
        size = (span.height, span.width, span.loose, span.shown)
        digest = sha256(repr((size, *map(_form, (image.values, image.positions)))).encode())
        for tensor in (image.values, image.positions):
            digest.update(_bytes(tensor))
        key = digest.hexdigest()
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            stopped = State.NOT_WRITTEN if self.error else State.FULL
            state = stopped if self.stopped else State.MISSING
            return KeptRows(self, key, span.rows, state, None, self.error)
        except OSError as error:
            return KeptRows(self, key, span.rows, State.NOT_READ, None, error.errno or EIO)
        values, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
        num_bytes = span.rows * self._width * self._dtype.itemsize
        if len(values) != num_bytes or sha256(values).digest() != checksum:
            with suppress(OSError):
                path.unlink()
            return KeptRows(self, key, span.rows, State.DAMAGED, None)
        flat = torch.from_numpy(np.frombuffer(values, np.uint8).copy()).view(self._dtype)
        return KeptRows(self, key, span.rows, State.KEPT, flat.view(span.rows, self._width))

    def keep(self, key: str, rows: Tensor) -> None:
        """Write the rows of an image, [n, L] on the host, unless they are there.

        A run goes on if they cannot be written.
        """
        if self.stopped:
            return
        path, values = self._path(key), _bytes(rows.to(self._dtype))
        try:
            if path.exists():
                return
            self._room -= len(values) + _CHECKSUM_BYTES
            if self._room < 0:
                self.stopped = True
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(values + sha256(values).digest())
                # Another rank may have written the same image: either file is whole.
                Path(name).replace(path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self.stopped, self.error = True, error.errno or EIO

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


def keep_rows(
    images: Sequence[KeptRows], out_rL: Tensor, view: EncoderView, context: ParallelContext
) -> None:
    """Keep the rows that the last stage of a replica has just made.

    Ranks: collective over the tp and cp ranks of the stage.
    """
    of_cp = [view.owned(cp) for cp in range(context.cp.size)]
    rows = out_rL.detach().to(context.compute_dtype)
    rows = all_gather_uneven(rows, of_cp[context.cp.index], context.tp)
    rows = all_gather_uneven(rows, tuple(map(sum, of_cp)), context.cp)
    if context.tp.index or context.cp.index:
        return
    parts = torch.split(rows.cpu(), [image.num_rows for image in images])
    for image, part in zip(images, parts, strict=True):
        image.cache.keep(image.key, part)


def kept_rows(
    images: Sequence[KeptRows], view: EncoderView, context: ParallelContext, width: int
) -> Tensor:
    """Return the kept rows that this rank owns, [r, width]."""
    found = [torch.empty((0, width), dtype=context.compute_dtype)]
    found += [image.rows for image in images if image.rows is not None]
    cut = row_cut(view.module, view.num_rows, context.cp.index, context.tp.index)
    return to_device(torch.cat(found)[cut.start : cut.stop], context.device)


def _form(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype), tuple(tensor.shape)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
