"""Reads the files of an offline W&B run, whose package has no public reader.

The form is LevelDB's log: blocks of 32 KiB, each record cut into pieces of (CRC-32, size, type).
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 1 << 15
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(raw: bytes) -> Iterator[bytes]:
    """Yield the records of a file."""
    assert raw[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(raw):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", raw, at + 4)
        whole += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def history(file: Path) -> list[dict[str, Any]]:
    """Return the points of a run in the order of the file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for each in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(each)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return rows
