"""Tensors of a checkpoint, whatever layout wrote it."""

import io
import json
from pathlib import Path

import torch

from mimo_launch.checkpoint.folder import all_checkpoints


def tensors(run_folder: Path) -> dict[str, torch.Tensor]:
    """Read the newest checkpoint whole, in this process."""
    folder = all_checkpoints(run_folder)[0]
    index = json.loads((folder / "tensors.json").read_text())
    found = {}
    for name, entry in index.items():
        full = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
        for offsets, sizes, file, offset, length in entry["chunks"]:
            raw = (folder / file).read_bytes()[offset : offset + length]
            box = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            full[box] = torch.load(io.BytesIO(raw), weights_only=True)
        found[name] = full
    return found
