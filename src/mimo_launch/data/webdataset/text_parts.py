"""The text of media that stand in several places of a conversation: tiles, temporal patches.

Decides: what is written for an image in tiles, and that what is learned moves with the text.
Relies on: `hugging_face.tokenizer` for what a processor writes.
Leaves: the words for videos to `video_words`, rows to `media_rows`, tokens to `sample_encoder`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.template_marks import Spans
from mimo_launch.hugging_face.tokenizer import image_text, tile_texts


@dataclass(frozen=True, slots=True)
class TileText:
    """What is written for an image: `whole` of one that is not cut, the rest of one in tiles.

    Each tile has the token that its rows replace; `tile` has places for its line and column.
    """

    whole: str
    begins: str
    tile: str
    line_end: str
    last: str

    def written(self, told: Sequence[int]) -> str:
        """Return the text of an image, which has for each of its parts the columns of its grid."""
        if len(told) == 1:
            return self.whole
        wide = told[0]
        found = [self.begins]
        for line, column in product(range((len(told) - 1) // wide), range(wide)):
            found.append(self.tile.format(line=line + 1, column=column + 1))
            found += [self.line_end] * (column + 1 == wide)
        return "".join([*found, self.last])


def tile_text(folder: Path, marker: str) -> TileText:
    """Return what the processor of a tokenizer's folder writes; without one, a marker a tile.

    Raises: TokenizerError.
    """
    around, texts = image_text(folder), tile_texts(folder)
    whole = marker if around is None else around[1]
    if texts is not None:
        tile, line_end, before = texts
        return TileText(whole, "", tile, line_end, before + whole)
    # What stands around one image stands around its tiles.
    begins, _, ends = whole.partition(marker)
    escaped = marker.replace("{", "{{").replace("}", "}}")
    return TileText(whole, begins, escaped, "", marker + ends)


def with_parts(
    text: str, learn: Spans, whole: str, written: Sequence[str], medium: str
) -> tuple[str, Spans]:
    """Return a text in which other text stands for each medium, and what is learned of it.

    Args:
        text: With `whole` for each medium.
        learn: Where what is learned starts and ends.
        whole: The text that stands for a medium.
        written: What is written in its place, of each medium.
        medium: What it is, for messages.

    Raises:
        BadSample: The text has more or fewer of them.
    """
    pieces = text.split(whole)
    if len(pieces) != len(written) + 1:
        raise BadSample(
            f"the markers of {medium}s in its text are {len(pieces) - 1}, and its {medium}s "
            f"{len(written)}: its text has a token that stands for a {medium}"
        )
    ends: list[int] = []
    made, at = [pieces[0]], len(pieces[0])
    for piece, new in zip(pieces[1:], written, strict=True):
        made += [new, piece]
        at += len(whole)
        ends.append(at)
        at += len(piece)

    def moved(at: int) -> int:
        longer = zip(ends, written, strict=True)
        return at + sum(len(new) - len(whole) for end, new in longer if end <= at)

    return "".join(made), [(moved(first), moved(last)) for first, last in learn]
