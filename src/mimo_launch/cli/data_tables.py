"""The answers of `mimo-launch data`: lines, JSON, and a page with the samples.

Decides: the words, the rounding, the colours, and the keys of `--json`; that the page escapes
everything from the data, and draws the smallest value of an image black, the largest white.
Relies on: `survey` for the facts, `drawing.html_page`, `shared.console` for narrow screens.
Leaves: output to the command.
"""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.cli.shared.console import wrapped
from mimo_launch.data.dataset import Media
from mimo_launch.diag.quantities import counted
from mimo_launch.diag.text import visible
from mimo_launch.drawing.html_page import html_page
from mimo_launch.survey.index_statistics import SampleSpread, SourceFacts
from mimo_launch.survey.reading_speed import Survey
from mimo_launch.survey.shown_samples import ShownPiece, ShownRecord

_LABEL = 11
_MOST_BAD, _MOST_IGNORED = 5, 10
# Of a piece of text; a longer one is shown without its middle.
_MOST_CHARACTERS = 1000
# Signs of one column, which become colours after lines are wrapped. `visible` leaves no such
# characters in what comes from outside.
_LEARNT, _ROWS, _PLAIN = "\x01", "\x02", "\x03"
_COLORS = str.maketrans({_LEARNT: "\x1b[32m", _ROWS: "\x1b[36m", _PLAIN: "\x1b[0m"})


def as_json_text(found: Survey, wanted: float | None) -> str:
    """Return the survey as JSON, without images."""
    record: dict[str, Any] = {"version": 1, **asdict(found)}
    for sample in record["shown"]:
        for each in sample["records"]:
            each["images"] = {name: len(images) for name, images in each["images"].items()}
    speed = record["read"]["speed"]
    speed["tokens_per_s"] = found.read.speed.tokens_per_s
    speed["wanted"] = wanted
    return json.dumps(record, indent=2, ensure_ascii=False)


def as_text(found: Survey, wanted: float | None, *, colors: bool = False) -> str:
    """Return the survey as text; `wanted` is the tokens per second to keep up with, if any."""
    facts = map(visible, (*_facts(found), "", *_reading(found, wanted)))
    lines = [wrapped(line, _LABEL) for line in facts]
    if found.shown:
        legend = f"{_marked('learnt text', _LEARNT, colors)}, {_marked('<rows>', _ROWS, colors)}"
        lines += ["", f"samples    as the model gets them, in the order of the run: {legend}"]
    for number, sample in enumerate(found.shown):
        padding = f", {sample.padding:,} of padding"
        lines += ["", f"sample {number}: {counted(len(sample.records), 'record')}{padding}"]
        for record in sample.records:
            lines += [
                wrapped(f"  {visible(_head(record))}", 4),
                wrapped(f"    {record_text(record, colors=colors)}", 4),
            ]
            lines += [wrapped(f"    {visible(each)}", 6) for each in _keys(record)]
    return "\n".join(lines).translate(_COLORS)


def _head(record: ShownRecord) -> str:
    """Return the name and the sizes of a record, in one line."""
    words = [f"{record.name} ({record.source})" if record.source else record.name]
    words.append(counted(record.tokens, "token"))
    if record.bad is None:
        words.append(f"{record.num_labels:,} learnt")
        words += [f"{counted(number, 'row')} of {name}" for name, number in record.rows.items()]
    whole = record.tokens + record.cut
    cut = f"; cut: {record.cut:,} of {whole:,} tokens are left out" if record.cut else ""
    return ", ".join(words) + cut


def _keys(record: ShownRecord) -> Iterator[str]:
    """Yield the keys of a record of users' data that are read and that are ignored, a line each."""
    if record.keys is None:
        return
    for word, keys in (("read", record.keys.read), ("ignored", record.keys.ignored)):
        if keys:
            yield f"{word}: {'; '.join(f'{key} {value}'.rstrip() for key, value in keys.items())}"


def _facts(found: Survey) -> Iterator[str]:
    """Yield facts about the records from the index."""
    facts = found.facts
    share = "" if facts.surveyed == facts.records else f" of {facts.records:,}"
    yield f"{found.name}: data of kind {found.kind}, {facts.surveyed:,}{share} records looked at"
    yield ""
    yield (
        f"tokens     {facts.tokens:,}, {facts.tokens / facts.surveyed:,.1f} a record; "
        f"learnt: {facts.labels:,} ({facts.labels / facts.tokens:.1%})"
    )
    if facts.captions is not None:
        each = facts.captions / facts.records
        yield f"captions   {facts.captions:,}, {each:.1f} a record, of which an epoch has one"
    yield f"lengths    {_spread(facts.lengths)} tokens; batch.seq is {found.seq:,}"
    for name, modality in facts.modalities.items():
        if modality.per_item is None:
            yield f"{name:<10} no record has anything for it"
            continue
        share = f" ({modality.rows / facts.tokens:.1%} of tokens)" if modality.in_text else ""
        yield (
            f"{name:<10} {modality.items:,} items, {modality.rows:,} rows{share}; "
            f"{_spread(modality.per_item)} rows an item; "
            f"{counted(modality.without, 'record')} without"
        )
    yield from _sources(facts.sources)
    filling = facts.filling
    alone = f"{filling.alone:.1%} full with one record each"
    packed = (
        f"{filling.packed:.1%} full with {filling.records_per_pack:.1f} records packed into each"
    )
    if filling.is_packed:
        yield f"sequences  {packed} (data.packing: true), would be {alone}"
    else:
        yield f"sequences  {alone}, would be {packed} (data.packing: true)"
    for name, evenness in facts.evenness.items():
        before, after = evenness.mean, evenness.worst
        yield (
            f"balance    {name}: most patches over mean {before.before:.2f} -> {before.after:.2f} "
            f"(worst of {counted(evenness.steps, 'step')}: {after.before:.2f} -> {after.after:.2f})"
        )
    left_out = found.left_out
    if left_out is None:
        return
    if left_out.too_long:
        what = "cut" if left_out.are_cut else "left out"
        texts = "record" if facts.captions is None else "text"
        yield f"too long   {counted(left_out.too_long, texts)}, {what}"
    yield f"bad        {counted(left_out.bad, 'record')}" + (
        f", all in {left_out.file}" if left_out.bad else ""
    )
    for name, why in left_out.first_bad.items():
        yield f"           {name}: {why}"
    if left_out.ignored:
        found_in = [f"{name} in {counted(n, 'record')}" for name, n in left_out.ignored.items()]
        rest = found_in[_MOST_IGNORED:]
        words = [*found_in[:_MOST_IGNORED], *([f"{len(rest):,} other keys"] if rest else ())]
        yield f"ignored    {', '.join(words)}"


def _sources(sources: Mapping[str, SourceFacts]) -> Iterator[str]:
    """Yield a line for each source."""
    for number, (name, source) in enumerate(sources.items()):
        line = f"{'' if number else 'sources':<10} {name}: {counted(source.records, 'record')}, "
        line += f"{source.tokens:,} tokens"
        if source.share is not None:
            line += (
                f"; {source.share:.1%} of the run's samples, {source.token_share:.1%} of its "
                f"tokens, {source.epochs:.3g} epochs"
            )
        yield line


def _spread(spread: SampleSpread) -> str:
    return (
        f"{spread.min:,} to {spread.max:,}, median {spread.p50:,}, "
        f"90 % in {spread.p5:,} to {spread.p95:,}"
    )


def _reading(found: Survey, wanted: float | None) -> Iterator[str]:
    """Yield the results and the speed of reading the records."""
    read, speed = found.read, found.read.speed
    bad = f"{len(read.bad):,} of them could not be" if read.bad else "all of them could be"
    yield f"read       {read.records:,} records of {counted(speed.steps, 'step')}; {bad}"
    for index, why in list(read.bad.items())[:_MOST_BAD]:
        yield f"           record {index}: {why}"
    verdict = ""
    if wanted is not None:
        ratio = speed.tokens_per_s / wanted
        verdict = f", TOO SLOW for {wanted:,.0f} ({ratio:.0%} of that)"
        if ratio >= 1:
            verdict = f", keeps up with {wanted:,.0f} ({ratio:.1f} times that)"
    yield f"speed      {speed.tokens_per_s:,.0f} tokens/s{verdict}"
    yield (
        f"           {speed.alone:,.0f} with a host for each rank: {' + '.join(speed.slowest)} "
        f"takes {speed.slowest_s:.3g} s a step"
    )
    yield (
        f"           {speed.together:,.0f} with {counted(speed.host_ranks, 'rank')} on "
        f"{counted(speed.processors, 'processor')}, those of this machine"
    )


def record_text(record: ShownRecord, *, colors: bool = False) -> str:
    """Return a record in one line: images in < >, learnt text in [[ ]] or between colour signs."""
    if record.bad is not None:
        return visible(f"cannot be read: {record.bad}")
    words = []
    for piece in record.pieces:
        text, rest = piece.text, len(piece.text) - _MOST_CHARACTERS
        if rest > 0:
            half = _MOST_CHARACTERS // 2
            text = f"{text[:half]} ... {rest:,} characters ... {text[-half:]}"
        text = visible(text)
        if piece.kind == "rows":
            text = _marked(f"<{text}>", _ROWS, colors)
        elif piece.kind == "learnt":
            text = _marked(text, _LEARNT, colors)
        words.append(text)
    return record.between.join(words)


def _marked(text: str, sign: str, colors: bool) -> str:
    """Return a text between signs of a colour or, without colours, learnt text in [[ ]]."""
    if colors:
        return f"{sign}{text}{_PLAIN}"
    return f"[[{text}]]" if sign == _LEARNT else text


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
    parts = [_LEGEND]
    for number, sample in enumerate(found.shown):
        count = len(sample.records)
        parts.append(f"<h2>Sample {number}: {count} record{'s' * (count != 1)}</h2>")
        for record in sample.records:
            head = f"<small>{escape(_head(record))}</small>"
            if record.bad is None:
                text = record.between.join(_piece_as_html(p, record) for p in record.pieces)
            else:
                text = escape(f"cannot be read: {record.bad}")
            keys = "".join(f"\n<small>{escape(each)}</small>" for each in _keys(record))
            parts.append(f"<p>{head}\n{text}{keys}</p>")
        parts.append(f"<p><small>{sample.padding:,} tokens of padding</small></p>")
    body = "\n".join(parts)
    return html_page(f"{found.name}: the first samples", body, style=_STYLE, width="60rem")


def _piece_as_html(piece: ShownPiece, record: ShownRecord) -> str:
    if piece.kind == "rows":
        words = escape(piece.text, quote=True)
        if piece.encoder not in record.images:  # A connector reads rows, not images.
            return f"&lt;{words}&gt;"
        data = b64encode(png(record.images[piece.encoder][piece.item])).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{words}" title="{words}">'
    text = escape(piece.text)
    return f"<mark>{text}</mark>" if piece.kind == "learnt" else text


def png(array: Media) -> bytes:
    """Return an array as PNG (https://www.w3.org/TR/png-3/), black at its minimum.

    Shapes: [channels, (frames,) height, width], grey unless there are three channels; or
    [height, width] for the frames or codes of a clip, with the first row at the bottom.
    """
    image: npt.NDArray[Any] = array[::-1][None] if array.ndim == 2 else array
    if array.ndim == 4:  # The frames of a temporal patch side by side, one if they are equal.
        frames = [array[:, number] for number in range(array.shape[1])]
        differ = any(not np.array_equal(frames[0], each) for each in frames[1:])
        image = np.concatenate(frames if differ else frames[:1], axis=2)
    image = image if len(image) == 3 else image[:1]
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) * (255.0 / max(high - low, 1e-12))
    pixels = scaled.round().astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = pixels.shape
    # Each line starts with the number of its filter; 0 means no filter.
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    colour_type = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n"
    for kind, content in chunks:
        checked = kind + content
        file += struct.pack(">I", len(content)) + checked
        file += struct.pack(">I", zlib.crc32(checked))
    return file
