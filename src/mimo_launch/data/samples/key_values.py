"""What a record holds, key by key, for people who look at their data.

Decides: that a value is shown as short JSON, and a file by its size.
Relies on: `records` for the keys that are read.
Leaves: drawing to `cli`.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from mimo_launch.data.dataset import KeyValues, TokenColumn
from mimo_launch.data.samples.records import TEXT_SUFFIXES, Record
from mimo_launch.data.sources.media_suffixes import COLUMN
from mimo_launch.data.sources.record_shapes import conversation_of
from mimo_launch.data.sources.source_file import MemberPlace

# Most characters of a value.
_MOST = 60


def key_values(
    record: Record,
    text: bytes | None,
    members: Mapping[str, MemberPlace],
    columns: Mapping[str, TokenColumn],
) -> KeyValues:
    """Return the keys of a record that are read and those that are not, with their values.

    Args:
        record: What is read of it.
        text: Its JSON, None if it has none.
        members: The places of its texts and media.
        columns: The columns that a loss reads, one value for each learnt token.
    """
    keys: dict[str, Any] = {} if text is None else conversation_of(json.loads(text))
    left = dict.fromkeys(record.ignored, "")
    read = {}
    for key, value in keys.items():
        named = f"`{key[:40]}`"
        if named in left:
            left[named] = _short(value)
        elif value not in (None, "", [], {}):
            read[key] = _short(value)
    for suffix, place in members.items():
        if suffix not in TEXT_SUFFIXES and not suffix.startswith(COLUMN):
            read[suffix] = f"{place.size:,} bytes"
    for name, values in columns.items():
        read[f"column {name}"] = _short(np.asarray(values).tolist())
    return KeyValues(read, {key.strip("`"): value for key, value in left.items()})


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."
