"""The words for a video in the text of a conversation, by how language gets its time.

Decides: what the text says of each temporal patch, and what surrounds its rows and the whole video;
that the chat template's own text around a video stays; numbers in words, as in the package
num2words.
Relies on: `spec` for `Videos`.
Leaves: their places in a text to `data.samples.media_text`, rows to `media_rows`.

Source: the processors of Qwen3-VL, GLM-4.1V, InternVL and SmolVLM in `transformers` 5.24.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.files import TokenizerError
from mimo_launch.spec.spec import Videos

# The default tokens around the rows of each temporal patch of a video.
_AROUND = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
# The time of a patch is in tenths of a second; the video's seconds times this number are added.
_LASTS = 1 << 32


@frozen
class VideoWords:
    """The text before the rows of a temporal patch, after them, and between two patches.

    `begins` and `ends` surround the whole video. The first two texts have fields for the time of
    the patch and its number: `{seconds}`, `{clock}` and `{number}`; `begins` has `{frames}` and
    `{lasts}` for the video. With `whole`, times are whole seconds to the first frame of a patch,
    otherwise tenths to its middle. `{open}` and `{close}` are the text around an image.
    """

    before: str
    behind: str
    between: str = ""
    begins: str = ""
    ends: str = ""
    whole: bool = False

    def told(self, first: float, last: float, lasts: float) -> int:
        """Return the code for a patch, from the times of its frames and the video's length."""
        if self.whole:
            tenths = 10 * int(first)
        else:
            # Rounded as Python formats numbers, not up, as in the text.
            tenths = int(f"{(first + last) / 2:.1f}".replace(".", ""))
        # Rates are fractions, such as 30000/1001; their quotient may be just below a whole number.
        return int(round(lasts, 6)) * _LASTS + tenths

    def written(self, marker: str, told: Sequence[int]) -> str:
        """Return the text of a video, with a marker for each temporal patch."""
        found = []
        for number, each in enumerate(told, 1):
            seconds = each % _LASTS / 10
            clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
            places = {"seconds": seconds, "clock": clock, "number": number}
            found.append(self.before.format(**places) + marker + self.behind.format(**places))
        lasts = timedelta(seconds=told[0] // _LASTS)
        begins = self.begins.format(frames=in_words(len(told)), lasts=lasts)
        return f"{begins}{self.between.join(found)}{self.ends}"


_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number from 0 to 999,999 in words, as SmolVLM writes the number of frames."""
    if not 0 <= number < 10**6:
        raise ValueError(f"{number} is not below a million")
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_SMALL[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    between = " and " if rest < 100 else ", "
    return f"{in_words(thousands)} thousand" + (f"{between}{in_words(rest)}" if rest else "")


@frozen
class SoundWords:
    """The tokens around a video with its sound; a video that is not heard has none."""

    begin: str
    end: str

    def written(self, marker: str, told: Sequence[int]) -> str:
        """Return the text of a video; `told` is 1 for each patch of a video with sound."""
        return f"{self.begin}{marker}{self.end}" if any(told) else marker


# By `time` of `video`.
_WORDS = {
    "text": VideoWords("<{{seconds:.1f}} seconds>{start}", "{end}"),
    "text_after": VideoWords("<|begin_of_image|>", "<|end_of_image|>{{seconds:.0f}}", whole=True),
    "text_number": VideoWords("Frame{{number}}: {open}", "{close}", between="\n"),
    "text_clock": VideoWords(
        "\nFrame from {{clock}}:{open}",
        "{close}",
        begins="You are provided the following series of {frames} frames from a {lasts} "
        "[H:MM:SS] video.\n",
        ends="\n\n",
        whole=True,
    ),
}


def words_of(
    videos: Videos, specials: Mapping[str, str], image: tuple[str, str] | None = None
) -> VideoWords:
    """Return the words for a video, with the special tokens of a tokenizer.

    `image` is the text for an image in a template, and its replacement by the processor.
    """
    found = _WORDS[videos.time]
    start, end = (specials.get(name, usual) for name, usual in _AROUND.items())
    marker, whole = image or ("", "")
    opens, _, closes = whole.partition(marker) if marker else ("", "", "")
    around = {"start": start, "end": end, "open": opens, "close": closes}
    # Braces of a special token do not mark a field.
    safe = {name: text.replace("{", "{{").replace("}", "}}") for name, text in around.items()}
    return replace(found, before=found.before.format(**safe), behind=found.behind.format(**safe))


def sound_words(specials: Mapping[str, str]) -> SoundWords:
    """Return the tokens around a video with its sound.

    Raises: TokenizerError if the tokenizer, with these special tokens, does not name them.
    """
    names = ("audio_bos_token", "audio_eos_token")
    if missing := [name for name in names if name not in specials]:
        raise TokenizerError(
            f"the sound of a video begins and ends with tokens, but its tokenizer names no "
            f"{missing[0]}: take the tokenizer of a Qwen-Omni, or delete `sound` in `data.video`"
        )
    return SoundWords(*(specials[name] for name in names))


def told_of(videos: Videos, times: Sequence[float], group: int, lasts: float) -> tuple[int, ...]:
    """Return the code for each temporal patch of `group` frames at these times, 0 for no text."""
    firsts = range(0, len(times), group)
    if not videos.in_text:
        return (0,) * len(firsts)
    words = _WORDS[videos.time]
    return tuple(words.told(times[at], times[at + group - 1], lasts) for at in firsts)
