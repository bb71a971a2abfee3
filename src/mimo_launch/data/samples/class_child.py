"""The program of the process that runs an image processor of `transformers`.

Decides: the form of questions and answers. A question is a line with the shape of an image,
[height, width, channels], and its bytes; an answer is a line with a shape and an error, and float32
numbers.
Relies on: `transformers`; code in the folder of a processor is never run.
Leaves: starting and ending it to `class_runner`.
"""

import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np
from PIL import Image


def main(folder: str) -> None:
    """Answer questions until there are no more."""
    # Libraries print into the standard output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        from transformers import AutoImageProcessor

        classes: Any = AutoImageProcessor  # Which has no types.
        processor = classes.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # Reported to the parent, which names the folder.
        _say(answers, error=error)
        return
    _say(answers)
    while line := sys.stdin.buffer.readline():
        shape = json.loads(line)
        data = sys.stdin.buffer.read(int(np.prod(shape)))
        image = np.frombuffer(data, dtype=np.uint8).reshape(shape)
        try:
            shown = Image.fromarray(image[..., 0] if shape[2] == 1 else image)
            made: Any = processor(images=shown, return_tensors="np")["pixel_values"]
            _say(answers, np.ascontiguousarray(made, dtype=np.float32))
        except Exception as error:  # No processor documents all of its errors.
            _say(answers, error=error)


def _say(answers: BinaryIO, made: np.ndarray | None = None, error: Exception | None = None) -> None:
    words = "" if error is None else " ".join(f"{type(error).__name__}: {error}".split())[:500]
    shape = [] if made is None else made.shape
    answers.write(json.dumps({"shape": shape, "error": words}).encode() + b"\n")
    if made is not None:
        answers.write(made.tobytes())
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
