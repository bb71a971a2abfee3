"""The time of each temporal patch of a video in the text of a conversation, as Qwen3-VL has it.

Decides: the words, and that the chat template's own text around a video stays.
Relies on: a marker in the text for each video.
Leaves: rows to `media_rows`, tokens to `sample_encoder`.

Source: `Qwen3VLProcessor` of `transformers` 5.23.
"""

import re
from collections.abc import Sequence

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.template_marks import Spans

# What stands around the rows of each temporal patch of a video, if a tokenizer does not say.
AROUND = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}


def with_times(
    text: str, learn: Spans, tenths: Sequence[Sequence[int]], marker: str, around: Sequence[str]
) -> tuple[str, Spans]:
    """Return a text with times, and what is learned of it.

    Args:
        text: With a marker for each video.
        learn: Where what is learned starts and ends.
        tenths: Of each video, the times of its temporal patches, in tenths of a second.
        marker: Stands for a video, and behind that for each temporal patch.
        around: What is written in front of and behind the rows of each.

    Raises:
        BadSample: There are more or fewer markers than videos.
    """
    begin, end = around
    places = [found.start() for found in re.finditer(re.escape(marker), text)]
    if len(places) != len(tenths):
        raise BadSample(
            f"the markers of videos in its text are {len(places)}, and its videos {len(tenths)}: "
            "its text has a token that stands for a video"
        )
    times = [
        "".join(f"<{each / 10:.1f} seconds>{begin}{marker}{end}" for each in video)
        for video in tenths
    ]
    pieces, last = [], 0
    for place, time in zip(places, times, strict=True):
        pieces += [text[last:place], time]
        last = place + len(marker)

    def moved(at: int) -> int:
        longer = zip(places, times, strict=True)
        return at + sum(len(t) - len(marker) for place, t in longer if place + len(marker) <= at)

    return "".join([*pieces, text[last:]]), [(moved(a), moved(b)) for a, b in learn]
