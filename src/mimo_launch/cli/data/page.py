"""Samples as a page: text with what is learnt marked, and images as the encoders get them.

Decides: that whatever comes from the data is escaped; that an image is drawn from its least to its
largest value.
Relies on: `survey.shown_samples`, `cli.shared.html_page`.
Leaves: writing it to `data`.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from html import escape

import numpy as np
import numpy.typing as npt

from mimo_launch.cli.shared.html_page import html_page
from mimo_launch.survey.shown_samples import Piece, Record
from mimo_launch.survey.survey import Survey

_STYLE = """\
h2 { font-size: 1rem; border-top: 1px solid #8886; padding-top: 1rem; }
p { white-space: pre-wrap; overflow-wrap: anywhere; }
small { opacity: .7; }
mark { background: #7c74; color: inherit; border-radius: 2px; }
img { image-rendering: pixelated; min-height: 4rem; max-width: 100%; vertical-align: middle;
       border: 1px solid #8886; margin: .2rem; }"""
_LEGEND = (
    "<p>What the model sees; <mark>what is learnt</mark> is marked. "
    "Images are as encoders get them.</p>"
)


def page(found: Survey) -> str:
    """Return the page of the samples that a survey shows."""
    body = "\n".join((_LEGEND, *_samples(found)))
    return html_page(f"{found.name}: the first samples", body, style=_STYLE, width="60rem")


def _samples(found: Survey) -> Iterator[str]:
    for number, sample in enumerate(found.shown):
        count = len(sample.records)
        yield f"<h2>Sample {number}: {count} record{'s' * (count != 1)}</h2>"
        for record in sample.records:
            head = f"<small>{escape(record.name)}, {record.tokens:,} tokens</small>"
            yield f"<p>{head}\n{_body(record)}</p>"
        yield f"<p><small>{sample.padding:,} tokens of padding</small></p>"


def _body(record: Record) -> str:
    if record.bad is not None:
        return escape(f"cannot be read: {record.bad}")
    return " ".join(_piece(piece, record) for piece in record.pieces)


def _piece(piece: Piece, record: Record) -> str:
    if piece.kind == "rows":
        words = escape(f"{piece.text}: {piece.tokens} rows", quote=True)
        data = b64encode(png(record.images[piece.encoder][piece.item])).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{words}" title="{words}">'
    text = escape(piece.text)
    return f"<mark>{text}</mark>" if piece.kind == "learnt" else text


def png(array: npt.NDArray[np.float32]) -> bytes:
    """Return an array as PNG (https://www.w3.org/TR/png-3/), from its least to its largest value.

    Shapes: [channels, height, width], grey unless there are three channels; or the frames of a
    clip, [height, width], whose first row is at the bottom.
    """
    image = array[::-1][None] if array.ndim == 2 else array
    image = image if len(image) == 3 else image[:1]
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) * (255.0 / max(high - low, 1e-12))
    pixels = scaled.round().astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = pixels.shape
    # Each line begins with the number of its filter: none.
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    colour_type = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
