"""Safetensors files without torch: for those who read no more than headers."""

import json

# An empty header, and nothing behind it.
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"


def tensors_of_one(*names: str) -> bytes:
    """Return a file that holds a number under each of these names."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4 * len(names))
