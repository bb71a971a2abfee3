"""Codes of audio encoders.

Decides: the explanations.
Relies on: nothing.
Leaves: finding the faults to `checks.audio`.
"""

from mimo_launch.diag.code import Code

AUDIO_CODES = (
    Code(
        "odd-audio-width",
        "The width of an audio encoder is an odd number.",
        "The position of a token in its clip is a list of sines, then as many cosines: two equal "
        "parts of the width.",
        "model: {kind: audio, hidden: 63, heads: 3}",
        "model: {kind: audio, hidden: 66, heads: 3}",
    ),
    Code(
        "frames-over-rows",
        "The longest clip of an audio encoder is not made of whole rows.",
        "The second convolution makes one token of 2 frames, and `stack: k` joins k tokens into "
        "one row. `frames`, the longest clip, is a multiple of 2 x k. Clips are padded with "
        "silence to whole rows.",
        "model: {kind: audio, frames: 3000, stack: 7}",
        "model: {kind: audio, frames: 3000, stack: 5}",
    ),
    Code(
        "row-over-clips",
        "No clip of the data is long enough for one row.",
        "A row of an audio encoder is 2 x `stack` frames of 10 ms, and a clip is cut into whole "
        "rows. The longest clip of the data has fewer frames.",
        "model: {kind: audio, stack: 4}\ndata: {kind: synthetic, max_frames: 6}",
        "model: {kind: audio, stack: 4}\ndata: {kind: synthetic, max_frames: 48}",
    ),
    Code(
        "sound-not-in-data",
        "An audio encoder is given data without sound.",
        "The digits are images. An audio encoder takes clips, which synthetic data and shards of "
        "your own have.",
        "model: {kind: audio}\ndata: {kind: digits}",
        "model: {kind: audio}\ndata: {kind: synthetic}",
    ),
)
