"""What a data set is to the rest of the program.

Decides: the questions a loader may ask about a sample, and the text layout they share: padded
arrays in which the label at a position is the token predicted there.
Relies on: nothing.
Leaves: which samples a step takes to `sample_order`, and who loads them to the loop.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Split
from mimo_launch.layout.step_data import SampleData

Tokens = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.float32]


class BadSample(Exception):
    """A sample whose record or image cannot be read; the message says why.

    A data set raises it for what it knows to be damaged, and wraps the errors of its decoders in
    it. `describe` never does: it answers from the index, alike on all ranks.
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

    def num_samples(self, split: Split) -> int:
        """Number of samples: one epoch for "train"."""
        ...

    def name(self, split: Split, index: int) -> str:
        """Return what a person finds a sample by: shard and key, or its number."""
        ...

    def describe(self, split: Split, index: int) -> SampleData:
        """Lengths and places of a sample, cheap and without reading a pixel."""
        ...

    def length(self, split: Split, index: int) -> int:
        """Tokens of a sample, `num_tokens` of what `describe` says: packing asks for it alone."""
        ...

    def text(self, split: Split, index: int) -> tuple[Tokens, Tokens]:
        """Tokens and labels of a sample.

        Returns:
            Two int64 arrays [seq]: tokens, PAD behind the last one; and labels, already shifted:
            `labels[t]` is the token to predict at position t, IGNORE_LABEL where there is none.
        """
        ...

    def images(self, split: Split, index: int, encoder: str) -> list[Pixels]:
        """Images or clips of a sample for one encoder, in the order of its spans.

        Returns:
            float32 arrays in the `input_shape` of the model, about zero mean: [channels, height_px,
            width_px] or [mels, frames]; empty for a sample without an image.
        """
        ...

    def documents(self, split: Split, index: int) -> Tokens:
        """Number of the document that each position belongs to, int64 [seq], never decreasing.

        A sample may pack several documents, which do not attend to each other.
        """
        ...

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Token ids of the true answer, end token excluded; empty where there is none to score."""
        ...
