"""Pixels by the class of an image processor in `transformers`, which runs in a process of its own.

Decides: that each process that reads images has one such child, which is started at the first image
and again when it died; that an image on which it fails or dies twice is a bad sample.
Relies on: `class_child`, the program of the child.
Leaves: which folders need it to `processors.other_classes`.
"""

import json
import os
import select
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimo_launch.data.dataset import BadSample
from mimo_launch.processors.files import ProcessorError

# Seconds for an answer: the first one waits for imports.
_PATIENCE = 300.0
_TRIES = 2


class ClassRunner:
    """Makes images by the processor in a folder, [channels, height, width] of one `size`."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        """Start nothing yet."""
        self._folder, self._size = folder, size
        self._forget()

    def pixels(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """Return the pixels of an image.

        Raises:
            BadSample: The class fails, dies, or makes another size than its files declare.
            ProcessorError: The class cannot be started.
        """
        if os.getpid() != self._process:
            # A fork: the child answers its parent.
            self._forget()
        values = np.ascontiguousarray(np.atleast_3d(np.asarray(image)))
        with self._lock:
            for _ in range(_TRIES):
                if (found := self._asked(values)) is not None:
                    break
            else:
                raise BadSample(f"the image processor in {self._folder} died of an image")
        height, width = self._size
        if found.shape[:1] != (1,) or found.shape[2:] != (height, width):
            made = " x ".join(map(str, found.shape))
            raise BadSample(
                f"the image processor in {self._folder} made {made} numbers, but its files "
                f"declare 1 x {values.shape[2]} x {height} x {width}"
            )
        pixels: npt.NDArray[np.float32] = found[0]
        return pixels

    def _forget(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def _asked(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32] | None:
        """Return what the child makes of an image, None if it died. Raises: BadSample."""
        child = self._running()
        said = self._answer(child, json.dumps(values.shape).encode() + b"\n", values.tobytes())
        if said is None:
            return None
        shape, error = said
        if error:
            raise BadSample(f"the image processor in {self._folder} fails: {error}")
        data = child.stdout.read(4 * int(np.prod(shape))) if child.stdout else b""
        if len(data) != 4 * int(np.prod(shape)):
            return None
        return np.frombuffer(data, dtype=np.float32).reshape(shape)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the child, started if there is none. Raises: ProcessorError."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        # It computes on one core, and needs neither a GPU nor the hub.
        settings = {
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        program = ["-P", "-m", "mimo_launch.data.samples.class_child", str(self._folder)]
        child = self._child = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **settings},
        )
        weakref.finalize(self, _end_of, child, os.getpid())
        said = self._answer(child)
        if said is None or said[1]:
            _end(child)
            why = said[1] if said else f"it ended with {child.returncode}"
            raise ProcessorError(f"the image processor in {self._folder} cannot be run: {why}")
        return child

    def _answer(
        self, child: subprocess.Popen[bytes], *asked: bytes
    ) -> tuple[list[int], str] | None:
        """Return the shape that follows and the error that a child reports, None if it died."""
        if child.stdin is None or child.stdout is None:
            raise TypeError("a child without pipes")
        try:
            for each in asked:
                child.stdin.write(each)
            child.stdin.flush()
            if select.select([child.stdout], [], [], _PATIENCE)[0]:
                said = json.loads(child.stdout.readline())
                return list(said["shape"]), str(said["error"])
        except (OSError, ValueError):  # Its pipe is closed, or its line is cut off.
            pass
        _end(child)
        return None


def _end_of(child: "subprocess.Popen[bytes]", parent: int) -> None:
    """End a child of this process; a fork of its parent leaves it."""
    if os.getpid() == parent:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a child, and close its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):  # What was not yet written to a dead child.
                pipe.close()
