"""The sound of a video among its frames: which rows of the sound come before which temporal patch.

Decides: the order of rows, as the processors of Qwen2.5-Omni and Qwen3-Omni write them.
Relies on: times of temporal patches in places on the first axis of positions, where a row of sound
takes one place.
Leaves: times to `video_recipe`, the text around them to `data.samples.sample_encoder`.

Source: `replace_video_with_audio_token` of both processors in `transformers` 5.24.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

# Seconds of a chunk of a Qwen2.5-Omni, `seconds_per_chunk` of its processor and its model.
CHUNK = 2


def interleaved(
    times: Sequence[int], rows: int, chunk: int | None
) -> Iterator[tuple[range, range]]:
    """Yield the temporal patches of a video and the rows of its sound by turns, patches first.

    Args:
        times: The place of each temporal patch; not two patches further apart than a chunk.
        rows: The number of rows of the sound.
        chunk: Places of a chunk, of which the patches come before the sound. None: before each
            patch comes the sound of earlier places (Qwen3-Omni).
    """
    if chunk is None:
        for patch, (first, last) in enumerate(pairwise([*times, max(rows, *times)])):
            yield range(patch, patch + 1), range(min(first, rows), min(last, rows))
        return
    ends = [time // chunk for time in times]
    for number in range(max(ends[-1] + 1, -(-rows // chunk))):
        shown = [place for place, end in enumerate(ends) if end == number]
        first = shown[0] if shown else len(times)
        heard = range(min(number * chunk, rows), min((number + 1) * chunk, rows))
        yield range(first, first + len(shown)), heard
