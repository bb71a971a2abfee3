"""The interface of a data set.

Decides: what a loader may ask for of a sample, and the layout of text: padded arrays in which the
label at a position is the token to predict there.
Relies on: nothing.
Leaves: which samples a step takes to `sample_order`, loading them to the loop.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mimo_launch.data.contents import Contents
from mimo_launch.data.random_draws import Split
from mimo_launch.layout.step_data import SampleData

Tokens = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]
# Images, log-mel clips, or clips of codec tokens.
Media = Pixels | Codes


class BadSample(Exception):
    """A sample whose record or image cannot be read; the message says why.

    A data set raises it for what it knows to be damaged, and wraps the errors of its decoders in
    it. `describe` never does: it answers from the index, the same on all ranks.
    """


class Dataset(Protocol):
    """Samples by index; every answer is a pure function of (spec, split, index).

    Every method that takes an index raises IndexError when it is not in [0, num_samples). Those
    that read a record raise BadSample; an OSError, EOFError or ValueError counts as one.
    """

    @property
    def answer_end(self) -> int | None:
        """Token that ends an answer, if evaluation is to decode answers and score them."""
        ...

    @property
    def judges(self) -> bool:
        """Whether it can judge what generators make; see `recognised`."""
        ...

    def num_samples(self, split: Split) -> int:
        """Return the number of samples: one epoch for "train"."""
        ...

    def contents(self, split: Split) -> Contents:
        """Return what files hold; nothing of samples that are made as the settings say."""
        ...

    def name(self, split: Split, index: int) -> str:
        """Return what a person finds a sample by: shard and key, or its number."""
        ...

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and places of a sample, cheaply and without reading a pixel."""
        ...

    def length(self, split: Split, index: int) -> int:
        """Return the tokens of a sample, the `num_tokens` of `describe`: packing needs no more."""
        ...

    def text(self, split: Split, index: int) -> tuple[Tokens, Tokens]:
        """Return tokens and labels of a sample.

        Returns:
            Two int64 arrays [seq]: tokens, PAD after the last one; and labels, already shifted:
            `labels[t]` is the token to predict at position t, IGNORE_LABEL where there is none.
        """
        ...

    def images(self, split: Split, index: int, encoder: str) -> Sequence[Media]:
        """Return the images or clips of a sample for one encoder, in the order of its spans.

        Returns:
            Arrays in the `input_shape` of the model: float32, about zero mean, [channels,
            height_px, width_px] or [mels, frames]; or int64 [codebooks, frames] of codes, without
            those of start and end. Empty for a sample without an image.
        """
        ...

    def documents(self, split: Split, index: int) -> Tokens:
        """Return the number of the document at each position, int64 [seq], never decreasing.

        A sample may pack several documents, which do not attend to each other.
        """
        ...

    def recognised(self, split: Split, index: int, images: Sequence[Media]) -> tuple[int, int]:
        """Return how many images made for a sample are what it asks for, and how many are judged.

        `images` are in the order of its spans, in the form of `images`.
        """
        ...

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return an array of `images` as pixels to look at, [channels, h, w]; None for a clip."""
        ...

    def words(self, tokens: Sequence[int]) -> str:
        """Return tokens of an answer as text."""
        ...

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return the token ids of the true answer without its end token; empty if none scores."""
        ...
