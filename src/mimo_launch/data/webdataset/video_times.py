"""The times of a video in the text of a conversation.

Decides: the words for the time of each temporal patch, and that the chat template's own text around
a video stays.
Relies on: a marker in the text for each video.
Leaves: rows to `media_rows`, tokens to `sample_encoder`.

Source: `Qwen3VLProcessor` and `Glm4vProcessor` of `transformers` 5.23.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.template_marks import Spans
from mimo_launch.spec.spec import Videos

# What stands around the rows of each temporal patch of a video, if a tokenizer does not say.
_AROUND = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}


@dataclass(frozen=True, slots=True)
class Times:
    """What is written in front of the rows of a temporal patch and behind them.

    In both, `{}` is the time in seconds, by a format of its own.
    """

    before: str
    behind: str

    def around(self, marker: str, tenths: int) -> str:
        """Return a marker with its time, in tenths of a second."""
        second = tenths / 10
        return f"{self.before.format(second)}{marker}{self.behind.format(second)}"


def times_of(videos: Videos, specials: Mapping[str, str]) -> Times:
    """Return what is written around temporal patches, with the special tokens of a tokenizer."""
    if videos.time == "text_after":
        # That they have whole seconds is decided where they are read.
        return Times("<|begin_of_image|>", "<|end_of_image|>{:.0f}")
    begin, end = (specials.get(name, usual) for name, usual in _AROUND.items())
    begin, end = (each.replace("{", "{{").replace("}", "}}") for each in (begin, end))
    return Times("<{:.1f} seconds>" + begin, end)


def with_times(
    text: str, learn: Spans, tenths: Sequence[Sequence[int]], marker: str, times: Times
) -> tuple[str, Spans]:
    """Return a text with times, and what is learned of it.

    Args:
        text: With a marker for each video.
        learn: Where what is learned starts and ends.
        tenths: Of each video, the times of its temporal patches, in tenths of a second.
        marker: Stands for a video, and behind that for each temporal patch.
        times: What is written in front of and behind the rows of each.

    Raises:
        BadSample: There are more or fewer markers than videos.
    """
    places = [found.start() for found in re.finditer(re.escape(marker), text)]
    if len(places) != len(tenths):
        raise BadSample(
            f"the markers of videos in its text are {len(places)}, and its videos {len(tenths)}: "
            "its text has a token that stands for a video"
        )
    written = ["".join(times.around(marker, each) for each in video) for video in tenths]
    pieces, last = [], 0
    for place, time in zip(places, written, strict=True):
        pieces += [text[last:place], time]
        last = place + len(marker)

    def moved(at: int) -> int:
        longer = zip(places, written, strict=True)
        return at + sum(len(t) - len(marker) for place, t in longer if place + len(marker) <= at)

    return "".join([*pieces, text[last:]]), [(moved(a), moved(b)) for a, b in learn]
