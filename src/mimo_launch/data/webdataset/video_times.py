"""The times of a video in the text of a conversation.

Decides: the words for the time of each temporal patch, and that the chat template's own text around
a video stays.
Relies on: nothing.
Leaves: their places in a text to `text_parts`, rows to `media_rows`.

Source: `Qwen3VLProcessor` and `Glm4vProcessor` of `transformers` 5.23.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    def written(self, marker: str, tenths: Sequence[int]) -> str:
        """Return a marker for each temporal patch with its time, in tenths of a second."""
        seconds = [each / 10 for each in tenths]
        return "".join(
            f"{self.before.format(each)}{marker}{self.behind.format(each)}" for each in seconds
        )


def times_of(videos: Videos, specials: Mapping[str, str]) -> Times:
    """Return what is written around temporal patches, with the special tokens of a tokenizer."""
    if videos.time == "text_after":
        # That they have whole seconds is decided where they are read.
        return Times("<|begin_of_image|>", "<|end_of_image|>{:.0f}")
    begin, end = (specials.get(name, usual) for name, usual in _AROUND.items())
    begin, end = (each.replace("{", "{{").replace("}", "}}") for each in (begin, end))
    return Times("<{:.1f} seconds>" + begin, end)
